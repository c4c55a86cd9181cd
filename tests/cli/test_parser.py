from __future__ import annotations

import shutil

import pytest

from broker.cli.parser import columns


@pytest.mark.parametrize("named", ["", "0", "-3", "57", "wide", None])
def test_the_width_of_help_is_what_shutil_says(named: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours says the same without the imports."""
    monkeypatch.setenv("COLUMNS", named) if named is not None else monkeypatch.delenv("COLUMNS", raising=False)
    assert columns() == shutil.get_terminal_size().columns
