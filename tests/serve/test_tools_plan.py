"""The tool `plan`: what it answers, and that a claim is no evidence there either."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tool_clients import Opened

from broker.serve import tools_list as shapes

pytestmark = pytest.mark.needs_bubblewrap
STEPS = [{"id": "a", "title": "there is a file", "checks": [{"argv": ["test", "-f", "new"]}]}]


def answer(opened: Opened, **args: Any) -> dict[str, Any]:
    """Call the tool; whatever it answers has the shape that it is shown with."""
    found = opened.call("plan", **args)
    Draft202012Validator(dict(shapes.PLAN.gives)).validate(found)
    return found


def test_a_plan_is_made_checked_and_completed_and_what_was_seen_is_answered(open_tools: Callable[..., Opened]) -> None:
    opened = open_tools()
    assert answer(opened, action="show")["code"] == "invalid"
    assert answer(opened, action="create", steps=STEPS)["steps"][0]["state"] == "pending"
    answer(opened, action="begin", step="a")
    claim = answer(opened, action="complete", step="a")
    assert (claim["code"], claim["missing"]) == ("incomplete", ["a.1 `test -f new`: it was not seen succeeding"])
    [seen] = answer(opened, action="check", step="a")["checks"]
    assert (seen["exit_code"], seen["state"]) == (1, "failed")
    opened.ok("write_file", path="new", content="x")
    assert answer(opened, action="check", step="a.1")["checks"][0]["state"] == "passed"
    assert answer(opened, action="complete", step="a")["done"] is True
    opened.ok("write_file", path="new", content="y")
    assert answer(opened, action="show")["steps"][0]["state"] == "stale"


@pytest.mark.parametrize(
    "args",
    [
        {"action": "begin"}, {"action": "create"}, {"action": "show", "step": "a"}, {"action": "waive", "step": "a.1"},
        {"action": "create", "steps": [STEPS[0] | {"state": "done"}]},
        {"action": "create", "steps": [{"title": "a", "checks": [{"argv": ["true"], "owner": "operator"}]}]},
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_invalid_and_makes_no_plan(open_tools: Callable[..., Opened], args: dict[str, Any]) -> None:
    opened = open_tools()
    assert answer(opened, **args)["code"] == "invalid"
    assert answer(opened, action="show")["message"] == "there is no plan. Create one first"


def test_a_check_with_the_tool_shell_is_denied_where_the_profile_disables_that(open_tools: Callable[..., Opened], bubble: Any) -> None:
    bubble.profile("no-shell", tools={"disabled": ["shell"]})
    opened = open_tools("no-shell")
    answer(opened, action="create", steps=[{"id": "a", "title": "a", "checks": [{"shell": "true"}]}])
    answer(opened, action="begin", step="a")
    found = answer(opened, action="check", step="a")
    assert (found["checks"][0]["state"], found["steps"][0]["state"]) == ("blocked", "blocked")
    assert [(tool, denial.rule) for _, tool, denial in opened.denied] == [("shell", "tool.shell.disabled")]
