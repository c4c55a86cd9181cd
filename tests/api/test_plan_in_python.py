"""Broker.plan: an operator's program plans, broker sees, and changes land on what it saw."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from api.made_in_code import a_profile
from broker import AsyncBroker, Broker, UsageError

Make = Callable[..., Broker]

STEPS = [{"id": "a", "title": "there is a file", "checks": [{"argv": ["test", "-f", "new"]}]}]


def test_changes_land_when_the_plan_is_done_on_them(make: Make, workspace: Path) -> None:
    with make(land="on-plan") as b:
        assert b.plan.show().message == "there is no plan. Create one first"
        assert b.plan.create(STEPS).steps[0].checks[0].owner == "operator"
        b.plan.begin("a")
        assert b.plan.complete("a").missing == ("a.1 `test -f new`: it was not seen succeeding",)
        b.write_file("new", "x")
        assert b.plan.check("a").steps[0].checks[0].exit_code == 0
        assert b.plan.complete("a").done
    assert (b.result.exit_code, (workspace / "new").read_text()) == (0, "x")


def test_changes_are_kept_when_it_is_not(make: Make, workspace: Path) -> None:
    with make(land="on-plan") as b:
        b.plan.create(STEPS)
        b.write_file("new", "x")
    assert (b.result.exit_code, b.result.reason) == (76, "the plan is not done: step a is pending: it has not begun")
    assert not (workspace / "new").exists()


def test_the_program_waives_a_check_for_a_reason(make: Make) -> None:
    with make() as b:
        b.plan.create(STEPS)
        b.plan.begin("a")
        assert b.plan.waive("a", 2, "no").code == "invalid"
        assert b.plan.waive("a", 1, "it is not needed").steps[0].checks[0].state == "waived"
        assert b.plan.complete("a").done
    with pytest.raises(UsageError):
        b.plan.show()


def test_all_of_it_can_be_awaited(engine: str, workspace: Path, state: Path, inside: object) -> None:
    async def main() -> None:
        async with AsyncBroker(a_profile(), workspace, engine=engine, land="on-plan") as b:
            await b.plan.create(STEPS)
            await b.plan.begin("a")
            await b.write_file("new", "x")
            assert (await b.plan.check("a")).steps[0].state == "active"
            assert (await b.plan.complete("a")).done
            assert (await b.plan.show()).done

    asyncio.run(main())
    assert (workspace / "new").exists()
