"""A client of MCP that approves in the operator's place, where the profile says so, over both kinds of revision."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from serve.tool_clients import ERAS, log_of, server_words

from conformance.driver import Broker, until

CURL = {"command": "curl -s http://a.invalid; echo $?"}
LIMITS: dict[str, Any] = {"max_risk": "local_write", "effects": {}}

pytestmark = pytest.mark.needs_bubblewrap


class Person:
    """Whoever sits at the client: what was shown, and what is answered, one answer after the other."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.shown = list(answers), list[Any]()

    async def __call__(self, _context: Any, params: Any) -> Any:
        from mcp_types import ElicitResult

        self.shown.append(params)
        answer = self.answers.pop(0) if self.answers else {"answer": "deny"}
        if callable(answer):
            answer = await answer()
        return ElicitResult(action=answer) if isinstance(answer, str) else ElicitResult(action="accept", content=answer)


def talk(broker: Broker, era: str, person: Person | None, work: Callable[[Any], Awaitable[None]], *options: str, **how: Any) -> None:
    @asynccontextmanager
    async def client() -> Any:
        from mcp import Client, StdioServerParameters
        from mcp.client.stdio import stdio_client

        command, *words = server_words(broker, *options, **how)
        parameters = StdioServerParameters(command=command, args=words, env=broker.settings(), cwd=broker.folder)
        with log_of(broker).open("w") as log:
            async with Client(stdio_client(parameters, errlog=log), mode=ERAS[era], elicitation_callback=person) as connected:
                yield connected

    async def run() -> None:
        with anyio.fail_after(60):
            async with client() as connected:
                await work(connected)

    anyio.run(run)


@pytest.fixture
def held(bubble: Broker) -> Broker:
    bubble.environment["BROKER_RUNTIME_DIR"] = str(bubble.folder / "runtime")
    bubble.profile("held", **LIMITS, approvals={"approver": "client", "timeout": "50s"})
    bubble.profile("mine", **LIMITS)
    return bubble


def answered(broker: Broker) -> list[tuple[str, str, str]]:
    return [(one["channel"], one["answer"], one["verdict"]) for one in broker.events() if one["type"] == "approval.answered"]


@pytest.mark.parametrize("era", ERAS)
def test_what_the_client_approves_goes_on_once_and_what_it_denies_does_not(held: Broker, era: str) -> None:
    person = Person({"answer": "once"}, {"answer": "deny", "why": "not today"}, {"answer": "once"})

    async def work(client: Any) -> None:
        done = await client.call_tool("shell", CURL)
        assert done.structured_content["stdout"] == "6\n"
        done = await client.call_tool("shell", {"command": "curl -s http://b.invalid; echo $?"})
        assert done.structured_content["stdout"] == "126\n"
        assert "client of the tools was asked, and said no: not today" in done.structured_content["denials"][0]["reason"]
        done = await client.call_tool("write_file", {"path": ".envrc", "content": "x\n"})
        assert done.structured_content["code"] == "ok"

    talk(held, era, person, work, profile="held")
    assert answered(held) == [("client", "once", "allow"), ("client", "deny", "deny"), ("client", "once", "allow")]
    assert "argv 2: http://a.invalid" in person.shown[0].message
    assert person.shown[0].requested_schema["properties"]["answer"]["enum"] == ["once", "session", "deny"]
    assert "+x" in person.shown[2].message
    assert person.shown[2].requested_schema["properties"]["answer"]["enum"] == ["once", "deny"]
    assert held.verified()


@pytest.mark.parametrize("era", ERAS)
def test_everything_that_is_no_answer_that_was_offered_is_a_denial(held: Broker, era: str) -> None:
    answers: list[Any] = ["decline", "cancel", {"answer": "yes"}, {}, {"answer": "none"}]

    async def work(client: Any) -> None:
        for number in range(len(answers)):
            done = await client.call_tool("shell", {"command": f"curl -s http://{number}.invalid; echo $?"})
            assert done.structured_content["stdout"] == "126\n"

    talk(held, era, Person(*answers), work, profile="held")
    assert answered(held) == [("client", "deny", "deny")] * len(answers)


@pytest.mark.parametrize("era", ERAS)
def test_a_client_that_shows_no_forms_is_refused_at_once(held: Broker, era: str) -> None:
    async def work(client: Any) -> None:
        done = await client.call_tool("shell", CURL)
        assert done.structured_content["stdout"] == "126\n"
        assert [row["rule"] for row in done.structured_content["denials"]] == ["approval.no_channel"]

    talk(held, era, None, work, profile="held")


@pytest.mark.parametrize("era", ERAS)
def test_a_client_that_could_answer_is_not_asked_unless_the_profile_says_so(held: Broker, era: str) -> None:
    person = Person({"answer": "once"})

    async def work(client: Any) -> None:
        assert (await client.call_tool("shell", CURL)).structured_content["stdout"] == "126\n"

    talk(held, era, person, work, profile="mine")
    assert person.shown == []
    assert answered(held) == []


@pytest.mark.parametrize("era", ERAS)
def test_a_client_inside_the_sandbox_is_never_asked(held: Broker, era: str) -> None:
    person = Person({"answer": "once"})

    async def work(client: Any) -> None:
        assert (await client.call_tool("shell", CURL)).structured_content["stdout"] == "126\n"

    talk(held, era, person, work, "--ask", "--ask-timeout", "1s", profile="held", inside=True)
    assert person.shown == []
    assert answered(held) == [("timeout", "deny", "deny")]


@pytest.mark.parametrize("era", ERAS)
def test_the_fourth_takes_the_word_and_not_too_soon(held: Broker, era: str) -> None:
    async def slowly() -> dict[str, str]:
        await anyio.sleep(1.6)  # the rule is about time that passes
        return {"word": "approve"}

    person = Person(*[{"answer": "once"}] * 4, {"word": "approve"}, {"word": "aprove"}, slowly)

    async def work(client: Any) -> None:
        for number in range(4):
            done = await client.call_tool("shell", {"command": f"curl -s http://{number}.invalid; echo $?"})
            assert done.structured_content["stdout"] == "6\n"

    talk(held, era, person, work, profile="held")
    assert len(person.shown) == 7
    assert answered(held) == [("client", "once", "allow")] * 4


def by_the_operator(broker: Broker) -> None:
    [row] = until(lambda: json.loads(broker.verb("approvals", "--json").stdout), "a question")
    assert not broker.verb("approvals", "approve", row["id"]).returncode


@pytest.mark.parametrize("era", ERAS)
def test_the_operator_may_answer_in_the_clients_place(held: Broker, era: str) -> None:
    async def work(client: Any) -> None:
        assert (await client.call_tool("shell", CURL)).structured_content["stdout"] == "6\n"

    async def leaves_it_to_the_operator() -> str:
        await anyio.to_thread.run_sync(by_the_operator, held)
        return "decline"

    talk(held, era, Person(leaves_it_to_the_operator), work, profile="held")
    assert answered(held) == [("approvals", "once", "allow")]


def test_a_call_is_only_called_again_as_itself(held: Broker) -> None:
    from mcp.shared.exceptions import MCPError
    from mcp_types import CallToolRequestParams

    from broker.serve.mcp_ask import ClientDesk, Work

    desk = ClientDesk()
    desk._parked["token"] = Work("shell", {"command": "ls"})
    for state, args in (("token", {"command": "rm"}), ("other", {"command": "ls"}), ("token", {"command": "ls"})):
        with pytest.raises(MCPError):
            desk.again(CallToolRequestParams(name="shell", arguments=args, request_state=state))


def test_broker_mcp_asks_its_operator_where_it_is_told_to(held: Broker) -> None:
    async def work(client: Any) -> None:
        async with anyio.create_task_group() as group:

            group.start_soon(anyio.to_thread.run_sync, by_the_operator, held)
            assert (await client.call_tool("shell", CURL)).structured_content["stdout"] == "6\n"

    talk(held, "2026-07-28", None, work, "--ask", profile="mine")
    assert answered(held) == [("approvals", "once", "allow")]


def test_an_answer_to_a_form_that_was_not_sent_yet_is_none(held: Broker) -> None:
    from mcp_types import (
        CallToolRequest,
        CallToolRequestParams,
        CallToolResult,
        ElicitResult,
        InputRequiredResult,
    )

    yes = ElicitResult(action="accept", content={"answer": "once"})
    ahead = {f"approval-{number}{end}": yes for number in (1, 2) for end in ("", "-0", "-1")}

    async def work(client: Any) -> None:
        params = CallToolRequestParams(name="shell", arguments=CURL, input_responses=ahead)
        found = await client.session.send_request(CallToolRequest(params=params), InputRequiredResult)
        [key] = found.input_requests
        again = params.model_copy(update={"input_responses": {key: yes}, "request_state": found.request_state})
        done = await client.session.send_request(CallToolRequest(params=again), CallToolResult)
        assert done.structured_content["stdout"] == "6\n"

    talk(held, "2026-07-28", Person(), work, profile="held")
