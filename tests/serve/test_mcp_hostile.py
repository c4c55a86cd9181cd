"""Whatever a client of MCP writes, or does not read: it is answered or passed over, memory stays bounded, the task goes on."""

from __future__ import annotations

import json
import os
import random
import select
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from test_mcp import handshake
from tool_clients import server_words

from broker.serve.mcp_lines import MOST_LINE
from conformance.driver import Broker

pytestmark = pytest.mark.needs_bubblewrap
PATIENCE = 60.0
MIB = 1 << 20


class Line:
    """A server process, and the lines to and from it. No protocol: what is written is written."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        assert process.stdin is not None
        assert process.stdout is not None
        self.into, self.out = process.stdin.fileno(), process.stdout.fileno()
        os.set_blocking(self.into, False)
        self._seen = b""

    def write(self, data: bytes, patience: float = PATIENCE) -> int:
        """Write what is taken. Returns how much that was: less than all when nothing more is taken for so long."""
        view = memoryview(data)
        while view and select.select([], [self.into], [], patience)[1]:
            view = view[os.write(self.into, view[:65536]) :]
        return len(data) - len(view)

    def read(self) -> dict[str, Any]:
        """Read the next line."""
        while b"\n" not in self._seen:
            assert select.select([self.out], [], [], PATIENCE)[0], "nothing came"
            data = os.read(self.out, 1 << 20)
            assert data, "the server is gone"
            self._seen += data
        line, _, self._seen = self._seen.partition(b"\n")
        message = json.loads(line)
        assert isinstance(message, dict)
        return message

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request, and return its answer; what else comes is passed over."""
        self.write(json.dumps({"jsonrpc": "2.0", **request}).encode() + b"\n")
        while (message := self.read()).get("id") != request["id"]:
            pass
        return message

    def works(self) -> bool:
        """Whether a tool still works."""
        answer = self.ask(id="works", method="tools/call", params={"name": "shell", "arguments": {"command": "echo yes"}})
        return bool(answer["result"]["structuredContent"]["stdout"] == "yes\n")

    def memory(self) -> int:
        """The most memory that the server has had, in bytes (proc(5), VmHWM)."""
        worker = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()[0]
        text = Path(f"/proc/{worker}/status").read_text()
        return int(text.partition("VmHWM:")[2].split()[0]) * 1024


@contextmanager
def serving(broker: Broker) -> Iterator[Line]:
    """Start a server, shake hands, and see that it ends well."""
    log = (broker.folder / "log").open("wb")
    process = subprocess.Popen(server_words(broker), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=broker.settings())
    line = Line(process)
    try:
        line.write("".join(json.dumps(one) + "\n" for one in handshake()).encode())
        assert line.read()["id"] == 0
        yield line
        assert process.stdin is not None
        process.stdin.close()
        while os.read(line.out, 1 << 20):
            pass
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
        log.close()
        for stream in (process.stdin, process.stdout):
            if stream is not None and not stream.closed:
                stream.close()
    assert (broker.folder / "log").read_bytes() == b""  # a client has no way to write on the operator's terminal
    assert broker.nothing_survives()


@pytest.mark.parametrize(("line", "code"), [
    (b"\xff\xfe\x00", -32700), (b"{" * 5_000, -32700), (b"[]", -32600), (b"[" * 10_000 + b"]" * 10_000, -32700),
    (b'{"jsonrpc":"2.0","id":1,"method":{}}', -32600), (b"x" * (MOST_LINE + 1), -32600), (b'{"jsonrpc":"2.0","id":[],"method":"ping"}', -32600),
    (b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"a":[' + b"[]," * 400_000 + b"0]}}", -32600),
    (b'{"jsonrpc":"2.0","id":7,"method":"no/such"}', -32601), (b'{"jsonrpc":"2.0","id":7,"method":"tools/call"}', -32602),
    (b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":7}}', -32602),
    (b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"\\u001b[2J"}}', -32602),
    (b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"shell","arguments":[]}}', -32602),
    (b'{"jsonrpc":"2.0","id":7,"method":"resources/read","params":{"uri":"broker://[/"}}', -32602),
    (b'{"jsonrpc":"2.0","id":7,"method":"resources/list","params":{"cursor":"-1"}}', -32602),
])  # fmt: skip
def test_nonsense_is_answered_with_the_protocols_code_and_the_task_goes_on(bubble: Broker, line: bytes, code: int) -> None:
    with serving(bubble) as server:
        server.write(line + b"\n")
        answer = server.read()
        assert answer["error"]["code"] == code, answer
        assert answer["id"] in (None, 7)
        assert server.works()


@pytest.mark.parametrize("arguments", [
    {}, {"command": 7}, {"command": None}, {"command": "x" * 70_000}, {"command": "a\0b"}, {"command": "true", "timeout": "soon"},
    {"command": "true", "timeout": -1}, {"command": "true", "cwd": "\0"}, {"command": "true", "x\x1b[2J": 1}, {"command": ["ls"]},
])  # fmt: skip
def test_arguments_of_a_wrong_kind_are_a_result_that_says_which(bubble: Broker, arguments: dict[str, Any]) -> None:
    with serving(bubble) as server:
        answer = server.ask(id=1, method="tools/call", params={"name": "shell", "arguments": arguments})
        assert answer["result"]["isError"]
        assert answer["result"]["structuredContent"]["code"] == "invalid"


def test_any_bytes_and_any_messages_leave_a_server_that_works(bubble: Broker) -> None:
    chance = random.Random(7)
    good = [json.dumps(line).encode() for line in handshake({"method": "tools/list"}, {"method": "ping"})]
    with serving(bubble) as server:
        for _ in range(300):
            line = bytearray(chance.choice(good))
            for _ in range(chance.randrange(4)):
                at = chance.randrange(len(line))
                line[at : at + chance.randrange(3)] = chance.randbytes(chance.randrange(3)).replace(b"\n", b"")
            server.write(bytes(line) + b"\n")
            while select.select([server.out], [], [], 0)[0]:
                server.read()
        assert server.works()


def test_a_line_without_an_end_is_answered_once_and_takes_no_memory(bubble: Broker) -> None:
    with serving(bubble) as server:
        before = server.memory()
        for _ in range(64):
            server.write(b"x" * MIB)
        assert server.read()["error"]["code"] == -32600
        server.write(b"\n")
        assert server.works()
        assert server.memory() - before < 32 * MIB


def test_a_client_that_stops_reading_is_not_read_and_takes_bounded_memory(bubble: Broker) -> None:
    bubble.file("big", "x" * 200_000)
    call = {"name": "read_file", "arguments": {"path": "big", "length": 200_000}}
    with serving(bubble) as server:
        before = server.memory()
        asked = 0
        while True:
            request = json.dumps({"jsonrpc": "2.0", "id": asked, "method": "tools/call", "params": call}).encode() + b"\n"
            if server.write(request, patience=3.0) < len(request):
                break  # the pipe is full, and nobody takes it
            asked += 1
            assert asked < 5_000, "a client that does not read is read without an end"
        assert server.memory() - before < 128 * MIB


def test_a_flood_of_large_requests_takes_bounded_memory(bubble: Broker) -> None:
    content = "x" * (1 << 20)
    call = {"name": "write_file", "arguments": {"path": "a", "content": content}}
    with serving(bubble) as server:
        before = server.memory()
        for number in range(24):
            server.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": call}).encode() + b"\n")
        found = {server.read()["result"]["structuredContent"]["code"] for _ in range(24)}
        assert found <= {"ok", "busy"}
        assert server.works()
        assert server.memory() - before < 96 * MIB


def test_requests_without_an_end_are_all_answered(bubble: Broker) -> None:
    with serving(bubble) as server:
        for start in range(0, 5_000, 50):
            batch = [json.dumps({"jsonrpc": "2.0", "id": start + n, "method": "ping"}) for n in range(50)]
            server.write("".join(line + "\n" for line in batch).encode())
            assert sorted(server.read()["id"] for _ in range(50)) == list(range(start, start + 50))
        for number in range(200):
            server.write(json.dumps({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}}).encode() + b"\n")
        assert server.works()
