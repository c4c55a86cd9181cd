"""A model that says one thing, on loopback, in the dialects of the four agents: run this command (hook_canary.py)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class Model:
    """A model that says one thing: run this command. What the agent answers to that ends the conversation."""

    def __init__(self, command: str) -> None:
        """Take the command. `answered`: somebody said what became of it, and `answer` is that."""
        self.command, self.answered, self.answer = command, False, ""
        self._http = _Server(("127.0.0.1", 0), _Handler)
        self._http.model = self
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    model: Model


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def log_message(self, format: str, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Answer what a client wants to know before it begins: which models there are."""
        self._send("application/json", b'{"object": "list", "data": []}')

    def do_POST(self) -> None:
        """Say the one thing once, and then that all is done."""
        try:
            asked = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)))
        except ValueError:
            asked = {}
        speak = next((speak for ending, speak in _SPEAK.items() if self.path.partition("?")[0].endswith(ending)), None)
        if speak is None or not isinstance(asked, dict):
            self._send("application/json", b'{"input_tokens": 1, "totalTokens": 1}')
            return
        tool = next((name for name in _names(asked) if name in _SHELLS), "")
        whole = json.dumps(asked)
        call = None
        more: dict[str, str] = {} if tool == "exec_command" else {"description": "go on"}
        if "canary_call" in whole or '"functionResponse"' in whole:
            self.server.model.answered, self.server.model.answer = True, _result(asked)
        elif tool:
            call = (tool, {_SHELLS[tool]: self.server.model.command} | more)
        streamed = bool(asked.get("stream")) or "streamGenerateContent" in self.path
        events, answer = speak(call)
        if streamed:
            self._send("text/event-stream", b"".join(_line(event) for event in events))
        else:
            self._send("application/json", json.dumps(answer).encode())

    def _send(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _line(event: Any) -> bytes:
    if isinstance(event, str):
        return f"data: {event}\n\n".encode()
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event)}\n\n".encode()


# The shell tools, and how each takes its command.
_SHELLS = {"Bash": "command", "exec_command": "cmd", "shell_command": "command", "run_shell_command": "command", "bash": "command"}
_Call = tuple[str, dict[str, str]] | None


def _names(asked: dict[str, Any]) -> Iterator[str]:
    for tool in asked.get("tools") or ():
        for each in tool.get("functionDeclarations", (tool,)):
            yield str(each.get("name") or (each.get("function") or {}).get("name"))


def _result(asked: dict[str, Any]) -> str:
    """Return what the agent's tool answered, as it stands in the request."""
    last = (asked.get("messages") or asked.get("contents") or asked.get("input") or [""])[-1]
    return json.dumps(last, ensure_ascii=False)[:600]


def _anthropic(call: _Call) -> tuple[list[Any], Any]:
    block: dict[str, Any] = {"type": "text", "text": "done"}
    if call:
        block = {"type": "tool_use", "id": "canary_call", "name": call[0], "input": call[1]}
    stop, usage = "tool_use" if call else "end_turn", {"input_tokens": 1, "output_tokens": 1}
    whole = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "canary", "content": [block], "stop_reason": stop,
        "stop_sequence": None, "usage": usage,
    }  # fmt: skip
    delta = {"type": "input_json_delta", "partial_json": json.dumps(call[1])} if call else {"type": "text_delta", "text": "done"}
    nothing: dict[str, Any] = {"input": {}} if call else {"text": ""}
    empty = block | nothing
    return [
        {"type": "message_start", "message": whole | {"content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": empty},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": usage},
        {"type": "message_stop"},
    ], whole  # fmt: skip


def _responses(call: _Call) -> tuple[list[Any], Any]:
    item: dict[str, Any] = {
        "type": "message", "id": "m1", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": "done", "annotations": []}],
    }  # fmt: skip
    if call:
        item = {"type": "function_call", "id": "f1", "call_id": "canary_call", "name": call[0], "arguments": json.dumps(call[1]), "status": "completed"}
    usage = {
        "input_tokens": 1, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 1,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 2,
    }  # fmt: skip
    whole = {"id": "r1", "object": "response", "created_at": 1, "model": "canary", "status": "completed", "output": [item], "usage": usage}
    return [
        {"type": "response.created", "response": whole | {"status": "in_progress", "output": []}},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ], whole  # fmt: skip


def _chat(call: _Call) -> tuple[list[Any], Any]:
    message: dict[str, Any] = {"role": "assistant", "content": "done"}
    if call:
        function = {"name": call[0], "arguments": json.dumps(call[1])}
        message = {"role": "assistant", "content": None, "tool_calls": [{"index": 0, "id": "canary_call", "type": "function", "function": function}]}
    finish, common = "tool_calls" if call else "stop", {"id": "c1", "created": 1, "model": "canary"}
    piece = common | {"object": "chat.completion.chunk"}
    return [
        piece | {"choices": [{"index": 0, "delta": message, "finish_reason": None}]},
        piece | {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
        "[DONE]",
    ], common | {"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": finish}]}  # fmt: skip


def _gemini(call: _Call) -> tuple[list[Any], Any]:
    part: dict[str, Any] = {"functionCall": {"name": call[0], "args": call[1]}} if call else {"text": "done"}
    whole = {
        "candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2},
    }
    return [whole], whole


_SPEAK = {
    "/messages": _anthropic, "/responses": _responses, "/chat/completions": _chat, ":streamGenerateContent": _gemini, ":generateContent": _gemini,
}  # fmt: skip
