from __future__ import annotations

import shutil

import pytest

from broker.cli import run
from broker.cli.parser import Parser, columns


@pytest.mark.parametrize("named", ["", "0", "-3", "57", "wide", None])
def test_the_width_of_help_is_what_shutil_says(named: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours says the same without the imports."""
    monkeypatch.setenv("COLUMNS", named) if named is not None else monkeypatch.delenv("COLUMNS", raising=False)
    assert columns() == shutil.get_terminal_size().columns


@pytest.mark.parametrize(
    ("words", "land", "panel"),
    [
        ("", "auto", ""), ("--land on-plan", "on-plan", ""), ("--land on-panel review", "on-panel", "review"),
        ("--land on-plan --land on-panel review", "on-plan+on-panel", "review"),
        ("--land on-panel review --land on-plan", "on-plan+on-panel", "review"),
        ("--land on-plan --land on-panel one --land on-panel two", "on-plan+on-panel", "two"),
        ("--land on-plan --land on-panel review --land never", "never", ""),
        ("--land never --land on-panel review", "on-panel", "review"),
    ],
)  # fmt: skip
def test_a_plan_and_a_panel_go_together_and_of_other_words_the_last_one_counts(words: str, land: str, panel: str) -> None:
    parser = Parser()
    run.add_sandbox_arguments(parser)

    found = parser.parse_args(words.split())

    assert (found.land, found.panel) == (land, panel)
