"""AsyncBroker: the same with await, and a cancelled call leaves nothing running."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from api.made_in_code import a_profile
from broker import AsyncBroker, Denial, Outcome, UsageError
from conformance.driver import until

Inside = Callable[[], list[int]]
Make = Callable[..., AsyncBroker]


@pytest.fixture
def make(engine: str, workspace: Path, state: Path, inside: Inside) -> Make:
    """Make an AsyncBroker on the engine."""
    return lambda **options: AsyncBroker(a_profile(), workspace, engine=engine, **options)


def test_everything_that_broker_does_can_be_awaited(make: Make, workspace: Path) -> None:
    async def use() -> Outcome:
        heard: list[Denial] = []
        async with make() as b:
            b.on_denied(heard.append)
            assert (await b.run(["cat"], input="x")).stdout == "x"
            assert (await b.write_file("new", "")).ok
            assert (await b.read_file("new")).size == 0
            one = await b.delegate(profile="adversary", command=["curl", "x.example"])
            assert (one.status, one.task) == ("denied", "root/1")
            two, three = await b.delegate_many([{"profile": "adversary", "command": ["ls"]}] * 2)
            assert (two.stdout, three.stdout) == ("new\n", "new\n")
            assert await b.can_i(["ls"])
            assert len((await b.explain("ls | wc")).parts) == 2
            assert [one.what for one in await b.denials()] == ["curl x.example"]
            assert [one.task for one in await b.tasks()] == ["root", "root/1", "root/2", "root/3"]
            assert "adversary" in [one.name for one in await b.profiles()]
            assert await b.kill("root/1") == ()
            assert b.run_id in str(b.journal)
            assert b.engine
        assert [one.task for one in heard] == ["root/1"]
        return b.result

    result = asyncio.run(use())
    assert [one.path for one in result.changes.landed] == ["new"]
    assert (workspace / "new").exists()


def test_programs_that_are_awaited_together_run_at_once(make: Make) -> None:
    async def use() -> list[str]:
        async with make() as b:
            # Each waits for all others: one after the other, none would end. More than an executor has threads.
            script = "touch $0; while [ $(ls | wc -l) -lt 12 ]; do sleep 0.05; done; echo $0"
            done = await asyncio.gather(*(b.run(["bash", "-c", script, str(number)], timeout=60) for number in range(12)))
            return [one.stdout for one in done]

    assert asyncio.run(use()) == [f"{number}\n" for number in range(12)]


@pytest.mark.parametrize("what", ["run", "delegate", "delegate_many", "run_once"])
def test_a_cancelled_call_has_ended_what_it_started_when_the_cancellation_arrives(
    make: Make, what: str, inside: Inside, engine: str, workspace: Path
) -> None:
    words = ["bash", "-c", "setsid sleep 1000 & sleep 1000"]

    async def use() -> None:
        async with make() as b:
            before = len(inside())
            calls = {
                "run": lambda: b.run(words),
                "delegate": lambda: b.delegate(profile="adversary", command=words),
                "delegate_many": lambda: b.delegate_many([{"profile": "adversary", "command": words}] * 3),
                "run_once": lambda: AsyncBroker.run_once(words, a_profile(), workspace, engine=engine),  # type: ignore[arg-type]
            }
            task = asyncio.ensure_future(calls[what]())  # type: ignore[no-untyped-call]
            while len(inside()) < before + 3:  # noqa: ASYNC110 - the host's processes tell nobody
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            until(lambda: len(inside()) == before, "the end of what was started", 5.0)
            assert (await b.run(["true"])).ok
            assert all(one.state == "ended" and one.status == "killed" for one in (await b.tasks())[1:])

    asyncio.run(asyncio.wait_for(use(), 90))


def test_a_timeout_of_asyncio_ends_the_program(make: Make) -> None:
    async def use() -> None:
        async with make() as b:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await b.run(["sleep", "1000"])
            assert (await b.run(["true"])).ok

    asyncio.run(use())


def test_cancelling_while_it_opens_leaves_nothing(make: Make, inside: Inside) -> None:
    async def use() -> None:
        task = asyncio.ensure_future(make().open())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not inside()

    asyncio.run(use())


def test_an_exception_keeps_the_changes(make: Make, workspace: Path) -> None:
    async def use() -> Outcome:
        b = make()
        with pytest.raises(ValueError, match="mine"):
            async with b:
                await b.run(["touch", "new"])
                raise ValueError("mine")
        return b.result

    assert asyncio.run(use()).changes.kept
    assert list(workspace.iterdir()) == []


def test_what_cannot_go_on_is_raised_where_it_is_awaited(make: Make) -> None:
    async def use() -> None:
        b = make()
        with pytest.raises(UsageError, match="is not open"):
            await b.run(["true"])
        async with b:
            with pytest.raises(UsageError, match="a command is a list of words"):
                await b.run("true")
            await b.discard()
        with pytest.raises(UsageError, match="is closed"):
            await b.tasks()

    asyncio.run(use())
