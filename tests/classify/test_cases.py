"""Every row of tests/cases/*.toml is a behaviour of the classifier: exactly these effects, at least these rules."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from broker.classify import classify
from broker.classify.context import Context
from broker.classify.risk import Risk
from broker.request.operation import ShellText

CASES = Path(__file__).parent.parent / "cases"


def rows() -> list[Any]:
    """One parameter a row, named by its file and id."""
    found: list[Any] = []
    for file in sorted(CASES.glob("*.toml")):
        table = tomllib.loads(file.read_text(encoding="utf-8"))
        found += [pytest.param(row, id=f"{file.stem}-{row['id']}") for row in table["case"]]
    return found


@pytest.mark.parametrize("row", rows())
def test_a_command_has_exactly_the_effects_its_row_says(row: dict[str, Any], context: Context) -> None:
    answer = classify(ShellText(text=row["command"]), context)
    effects = {risk.label for risk in answer.effects - {Risk.SAFE}} or {"safe"}
    reasons = [(reason.rule, reason.text) for reason in answer.reasons]
    assert effects == set(row["effects"]), reasons
    missing = set(row.get("rules", ())) - {reason.rule for reason in answer.reasons}
    assert not missing, reasons


def test_no_two_rows_of_a_file_have_the_same_id() -> None:
    names = [parameter.id for parameter in rows()]
    assert len(names) == len(set(names))
