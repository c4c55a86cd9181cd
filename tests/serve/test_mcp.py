"""MCP with the SDK's own client: both revisions, on the host and from inside a sandbox, over real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from tool_clients import ERAS, connected, server_words

from conformance.driver import PROJECT, Broker, until

# Where a server runs: on the host, or inside a task, reached over the guard.
PLACES = [
    pytest.param(False, "bubblewrap", marks=pytest.mark.needs_bubblewrap, id="host-bubblewrap"),
    pytest.param(True, "bubblewrap", marks=pytest.mark.needs_bubblewrap, id="inside-bubblewrap"),
    pytest.param(True, "docker", marks=pytest.mark.needs_docker(image="python"), id="inside-docker"),
]
NAMES = [
    "shell", "read_file", "write_file", "patch", "batch_patch", "delegate_tasks", "task_result", "plan",
    "list_subagent_profiles", "can_i", "explain", "denials",
]  # fmt: skip
Talk = Callable[[Any], Awaitable[None]]


def talk(broker: Broker, work: Talk, *options: str, **how: Any) -> None:
    """Connect a client, and do something with it."""

    async def main() -> None:
        async with connected(broker, *options, **how) as client:
            await work(client)

    anyio.run(main)


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(("inside", "engine"), PLACES)
def test_an_agent_works_over_either_revision_from_either_side(
    make_broker: Callable[..., Broker], inside: bool, engine: str, era: str
) -> None:
    broker = make_broker(engine)
    broker.file("a.txt", "one\n")

    async def work(client: Any) -> None:
        listed = (await client.list_tools()).tools
        assert [tool.name for tool in listed] == NAMES
        assert [tool.name for tool in listed if tool.annotations.read_only_hint] == [
            "read_file", "task_result", "list_subagent_profiles", "can_i", "explain", "denials",
        ]  # fmt: skip
        assert not any(tool.annotations.open_world_hint for tool in listed)

        ran = await client.call_tool("shell", {"command": "cat a.txt; echo oh >&2; exit 3"})
        assert not ran.is_error
        assert (ran.structured_content["stdout"], ran.structured_content["exit_code"]) == ("one\n", 3)
        assert json.loads(ran.content[0].text) == ran.structured_content

        changed = await client.call_tool("patch", {"path": "a.txt", "old_string": "one", "new_string": "two"})
        assert changed.structured_content["code"] == "ok"
        refused = await client.call_tool("write_file", {"path": ".envrc", "content": "x"})
        assert refused.is_error
        assert (refused.structured_content["code"], refused.structured_content["class"]) == ("denied", "persistence")
        assert refused.structured_content["hint"]

        task = {"profile": "adversary", "command": ["cat", "a.txt"]}
        done = await client.call_tool("delegate_tasks", {"tasks": [task, task]})
        assert [row["stdout"] for row in done.structured_content["tasks"]] == ["two\n", "two\n"]

        uris = [str(resource.uri) for resource in (await client.list_resources()).resources]
        assert uris == ["broker://events/root", "broker://events/root/1", "broker://events/root/2"]
        page = (await client.read_resource("broker://events/root/1")).contents[0]
        assert {json.loads(line)["task"] for line in page.text.splitlines()} == {"root/1"}

    talk(broker, work, inside=inside, era=era)
    assert (broker.workspace / "a.txt").read_text() == "two\n"  # the changes land when the client is gone
    assert not (broker.workspace / ".envrc").exists()
    assert broker.verified()
    assert broker.nothing_survives()


@pytest.mark.needs_bubblewrap
def test_a_disabled_tool_is_not_listed_and_refused_by_name(bubble: Broker) -> None:
    bubble.profile("less", tools={"disabled": ["delegate", "shell"]})

    async def work(client: Any) -> None:
        assert not {"shell", "delegate_tasks", "task_result"} & {tool.name for tool in (await client.list_tools()).tools}
        result = await client.session.send_request(_call("shell", {"command": "true"}), _Result)
        assert result.is_error
        assert result.structured_content["rule"] == "tool.shell.disabled"
        with pytest.raises(Exception, match="Unknown tool: 'rm'"):
            await client.session.send_request(_call("rm", {}), _Result)

    talk(bubble, work, profile="less", era="2025-11-25")


def _call(name: str, args: dict[str, Any]) -> Any:
    from mcp_types import CallToolRequest, CallToolRequestParams

    return CallToolRequest(params=CallToolRequestParams(name=name, arguments=args))


@pytest.fixture(autouse=True)
def _result_type() -> None:
    global _Result
    from mcp_types import CallToolResult

    _Result = CallToolResult


_Result: Any = None


@pytest.mark.needs_bubblewrap
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("inside", [False, True], ids=["host", "inside"])
def test_long_work_says_that_it_goes_on_and_ends_when_it_is_cancelled(bubble: Broker, inside: bool, era: str) -> None:
    said: list[tuple[float, str | None]] = []

    async def work(client: Any) -> None:
        heard = anyio.Event()

        async def progress(amount: float, _total: float | None, message: str | None) -> None:
            said.append((amount, message))
            if len(said) == 2:
                heard.set()

        async with anyio.create_task_group() as group:

            async def call() -> None:
                await client.call_tool("shell", {"command": "touch begun; exec sleep 1000"}, progress_callback=progress)

            group.start_soon(call)
            await heard.wait()
            group.cancel_scope.cancel()  # the client tells the server
        with anyio.fail_after(30):
            while (await client.call_tool("shell", {"command": "ls; pgrep sleep"})).structured_content["stdout"] != "begun\n":
                pass

    talk(bubble, work, inside=inside, era=era)
    assert said[0][0] < said[1][0]
    assert (said[0][1] or "").startswith("running, ")


@pytest.mark.needs_bubblewrap
def test_what_a_call_left_in_the_background_goes_on_after_its_answer(bubble: Broker) -> None:
    async def work(client: Any) -> None:
        for command in ("sleep 1000 &", "sleep 1000 >/dev/null 2>&1 &"):
            assert not (await client.call_tool("shell", {"command": command})).is_error
        for _ in range(3):
            assert (await client.call_tool("shell", {"command": "pgrep -c sleep"})).structured_content["stdout"] == "2\n"

    talk(bubble, work)


@pytest.mark.needs_bubblewrap
def test_the_record_is_read_a_page_at_a_time_and_nobody_elses(bubble: Broker) -> None:
    bubble.profile("nested", max_risk="code_execution", effects={"add": ["unknown"]})

    async def work(client: Any) -> None:
        for _ in range(5):
            await client.call_tool("shell", {"command": "true"})
        found: list[int] = []
        uri = "broker://events/root?limit=3"
        while uri:
            page = (await client.read_resource(uri)).contents[0]
            found += [json.loads(line)["seq"] for line in page.text.splitlines()]
            uri = (page.meta or {}).get("broker/next", "")
            uri += "&limit=3" if uri else ""
        whole = (await client.read_resource("broker://events/root")).contents[0].text.splitlines()
        assert found[: len(whole)] == [json.loads(line)["seq"] for line in whole]
        assert not any(json.loads(line)["type"].startswith("run.") for line in whole)
        for wrong in (
            "broker://events/", "broker://events/root/9", "broker://events/root/../..", "broker://events/root?after=x",
            "broker://events/root?limit=0", "broker://events/root#x", "file:///etc/passwd", "broker://events/root?limit=1&other=2",
        ):  # fmt: skip
            with pytest.raises(Exception, match="Resource not found"):
                await client.read_resource(wrong)
        for beside in ("broker://events/root?after=0.7", "broker://events/root?after=9.0", "broker://events/root?after=0.999999999999"):
            text = (await client.read_resource(beside)).contents[0].text  # no line begins there: what comes after
            assert all(json.loads(line)["task"] == "root" for line in text.splitlines())

    talk(bubble, work)


@pytest.mark.needs_bubblewrap
def test_a_sub_tasks_own_server_shows_it_only_its_own_record(bubble: Broker) -> None:
    """A task cannot read what its parent did, whatever address it gives."""
    lines = [
        {"method": "resources/list", "params": {}}, {"method": "resources/read", "params": {"uri": "broker://events/root"}},
        {"method": "resources/read", "params": {"uri": "broker://events/root/1?limit=1"}},
    ]  # fmt: skip
    text = "".join(json.dumps(line) + "\n" for line in handshake(*lines))
    bubble.file("ask", text)
    done = bubble.run("broker", "delegate", "--profile", "any", "--trust", "trusted", "--", "bash", "-c", '"$0" mcp < ask', "broker")
    answers = [json.loads(line) for line in json.loads(done.out)["stdout"].splitlines()]

    by_id = {row["id"]: row for row in answers}
    assert [row["uri"] for row in by_id[1]["result"]["resources"]] == ["broker://events/root/1"]
    assert by_id[2]["error"]["code"] == -32002
    assert json.loads(by_id[3]["result"]["contents"][0]["text"])["task"] == "root/1"


def handshake(*requests: dict[str, Any]) -> list[dict[str, Any]]:
    """The lines of a client of 2025-11-25 that asks these, numbered from 1."""
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    return [
        {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        *({"jsonrpc": "2.0", "id": number, **request} for number, request in enumerate(requests, 1)),
    ]


@pytest.mark.needs_bubblewrap
def test_what_is_piped_in_is_answered_before_the_end_and_stdout_has_nothing_else(bubble: Broker) -> None:
    text = "".join(json.dumps(line) + "\n" for line in handshake({"method": "tools/list"}, {"method": "ping"}))
    done = subprocess.run(server_words(bubble), input=text, capture_output=True, text=True, env=bubble.settings(), timeout=60, check=True)
    assert sorted(json.loads(line)["id"] for line in done.stdout.splitlines()) == [0, 1, 2]


@pytest.mark.needs_bubblewrap
def test_a_client_that_asks_to_end_has_the_changes_landed_first(bubble: Broker) -> None:
    call = {"method": "tools/call", "params": {"name": "write_file", "arguments": {"path": "a", "content": "x"}}}
    text = "".join(json.dumps(line) + "\n" for line in handshake(call))
    process = subprocess.Popen(
        server_words(bubble, "--result", str(bubble.folder / "result")), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=bubble.settings()
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(text.encode())
    process.stdin.flush()
    for _ in range(2):
        process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)

    assert process.wait(60) == 0
    assert (bubble.workspace / "a").read_text() == "x"
    assert json.loads((bubble.folder / "result").read_text())["changes"]["counts"]["landed"] == 1
    process.stdin.close()
    process.stdout.close()


@pytest.mark.needs_bubblewrap
def test_a_client_that_kills_its_server_and_its_group_has_the_changes_landed_all_the_same(bubble: Broker) -> None:
    call = {"method": "tools/call", "params": {"name": "write_file", "arguments": {"path": "a", "content": "x"}}}
    process = subprocess.Popen(
        server_words(bubble), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=bubble.settings(), start_new_session=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("".join(json.dumps(line) + "\n" for line in handshake(call)).encode())
    process.stdin.flush()
    for _ in range(2):
        process.stdout.readline()
    os.killpg(process.pid, signal.SIGKILL)  # its streams stay open: only that it is gone says so
    assert process.wait(60) == -signal.SIGKILL
    until((bubble.workspace / "a").exists, "the landing")
    until(bubble.nothing_survives, "the end of everything")
    process.stdin.close()
    process.stdout.close()


@pytest.mark.needs_bubblewrap
def test_a_client_that_is_gone_in_the_middle_of_a_call_leaves_nothing_running(bubble: Broker) -> None:
    call = {"method": "tools/call", "params": {"name": "shell", "arguments": {"command": "touch begun; setsid sleep 1000"}}}
    process = subprocess.Popen(server_words(bubble), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=bubble.settings())
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("".join(json.dumps(line) + "\n" for line in handshake(call)).encode())
    process.stdin.flush()
    until(lambda: any("sleep" in str(row.get("operation")) for row in bubble.events() if row["type"] == "exec.decided"), "the command")
    process.stdin.close()

    assert process.wait(60) == 0
    process.stdout.close()
    assert (bubble.workspace / "begun").exists()
    assert bubble.nothing_survives()


@pytest.mark.needs_bubblewrap
def test_at_the_time_limit_the_server_ends_and_so_does_what_runs(bubble: Broker) -> None:
    call = {"method": "tools/call", "params": {"name": "shell", "arguments": {"command": "sleep 1000"}}}
    text = "".join(json.dumps(line) + "\n" for line in handshake(call))
    process = subprocess.Popen(
        server_words(bubble, "--timeout", "1"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=bubble.settings()
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(text.encode())
    process.stdin.flush()
    assert process.wait(60) == 124
    process.stdin.close()
    process.stdout.close()


@pytest.mark.needs_bubblewrap
def test_a_task_may_have_only_so_many_servers_at_once(bubble: Broker) -> None:
    bubble.file("hello", json.dumps(handshake()[0]) + "\n")
    bubble.file("script", """
        for n in 1 2 3 4; do (cat hello; sleep 1000) | broker mcp > said$n & done
        for n in 1 2 3 4; do until [ -s said$n ]; do :; done; done
        broker mcp; echo $?
    """)
    done = bubble.run("bash", "script")
    assert done.out.decode().strip() == "75"
    assert b"4 MCP servers of this task are running" in done.err


def test_without_the_extra_there_is_one_sentence_and_help_all_the_same(bubble: Broker) -> None:
    (bubble.folder / "mcp.py").write_text("raise ModuleNotFoundError(\"No module named 'mcp'\", name='mcp')")
    bubble.environment["PYTHONPATH"] = f"{bubble.folder}:{PROJECT}"
    done = bubble.verb("mcp", "-w", str(bubble.workspace))
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr == "broker: MCP needs the extra `mcp`. Run: pip install 'broker[mcp]'\n"
    assert bubble.verb("mcp", "--help").returncode == 0


def test_help_loads_neither_the_protocol_nor_anything_heavy(bubble: Broker) -> None:
    code = "import sys; from broker.cli.main import main; main(['mcp', '--help']); print([m for m in sys.modules if m.split('.')[0] in {'mcp', 'anyio', 'pydantic', 'asyncio', 'docker'}])"
    done = subprocess.run([*bubble.words()[:1], "-c", code], capture_output=True, text=True, env=bubble.settings(), check=True)
    assert done.stdout.endswith("[]\n")
    assert "claude mcp add broker" in done.stdout
