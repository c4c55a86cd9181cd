"""A model that says what a script tells it to, on loopback, in the dialects that real agents speak.

    with ModelServer([Shell("make test"), "done"]) as model:
        ... run an agent that is pointed at model.url (Claude Code, Gemini CLI) or f"{model.url}/v1" (OpenAI's dialects)
        model.results()         # what the agent's tools answered, in order: [ToolResult(call="call_0_0", text="...")]

A script is a list of turns; a turn is a text (the agent's work ends), one step, or several steps at once. `Shell`, `Write`
and `Read` become the tool that the client offers for that; `Call` names a tool itself; `Raw` answers in bytes of its own,
for upstreams that fail. A function of the request (`Sent`) may stand for a turn. Which turn is next follows from the
request alone (how many of our calls its history answers), so a client that tries again gets the same turn again. Requests
without tools are the client's own (titles, summaries): they get "ok" and use up no turn. After the last turn: "done".

Dialects: OpenAI chat completions and responses, Anthropic messages, Gemini generateContent; each streamed or whole.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

Json = Any
MARK = re.compile(r"call_(\d+)_(\d+)")


@dataclass(frozen=True, slots=True)
class Call:
    """Call the tool of this name. A text as input makes a call in a tool's own format (Codex's apply_patch).

    `space` is the namespace that Codex has the tool in.
    """

    tool: str
    input: Json
    space: str = ""


@dataclass(frozen=True, slots=True)
class Shell:
    """Run a command with the client's shell tool."""

    command: str


@dataclass(frozen=True, slots=True)
class Write:
    """Make a file with the client's own tool for it. The path is absolute."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Read:
    """Read a file with the client's own tool for it (a shell's `cat` where it has none). The path is absolute."""

    path: str


@dataclass(frozen=True, slots=True)
class Raw:
    """Bytes for the connection as they are, status line included, one piece after another; then it is closed."""

    pieces: Iterable[bytes]


@dataclass(frozen=True, slots=True)
class Slow:
    """Wait, then go on with this."""

    seconds: float
    turn: Turn


Step = Call | Shell | Write | Read
Turn = str | Step | Sequence[Step] | Raw | Slow | Callable[["Sent"], "Turn"]


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a client answered to one of our calls."""

    call: str
    text: str


@dataclass(frozen=True, slots=True)
class Sent:
    """One request of a client. `tools` are the names that it offers; empty for its own questions."""

    dialect: str  # chat, responses, messages, gemini
    path: str
    headers: dict[str, str]
    body: Json
    tools: tuple[str, ...]
    results: tuple[ToolResult, ...]

    @property
    def turn(self) -> int:
        """Which turn comes next."""
        marks = [int(found[1]) for result in self.results if (found := MARK.fullmatch(result.call))]
        return 1 + max(marks) if marks else 0

    @property
    def text(self) -> str:
        """The whole body as JSON text, for questions about what was in it."""
        return json.dumps(self.body, ensure_ascii=False)


class ModelServer:
    """A scripted model. `scripts` may name further scripts, each for the conversations that hold its key in their text."""

    def __init__(self, script: Sequence[Turn] = (), scripts: dict[str, Sequence[Turn]] | None = None) -> None:
        self.script, self.scripts = script, scripts or {}
        self.sent: list[Sent] = []
        self.answer_without_tools = "ok"
        self.other: list[str] = []  # "METHOD path" of what no dialect knows
        self._changed = threading.Condition()
        self._http = _Server(("127.0.0.1", 0), _Handler)
        self._http.model = self
        self.port = int(self._http.server_address[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def results(self) -> list[ToolResult]:
        """Return what tools answered, each call once, in the order in which we heard of it."""
        found: dict[str, ToolResult] = {}
        with self._changed:
            for sent in self.sent:
                for result in sent.results:
                    found.setdefault(result.call, result)
        return list(found.values())

    def wait_for(self, wanted: Callable[[Sent], bool], seconds: float = 60) -> Sent:
        """Wait until a client sent such a request; return it. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: any(map(wanted, self.sent)), seconds):
                raise TimeoutError(f"no such request among {len(self.sent)}")
            return next(filter(wanted, self.sent))

    def turn_for(self, sent: Sent) -> Turn:
        """Keep a request; return what is said to it."""
        with self._changed:
            self.sent.append(sent)
            self._changed.notify_all()
        if not sent.tools:
            settings = sent.body.get("generationConfig") or {}
            schema = settings.get("responseJsonSchema") or settings.get("responseSchema")
            return json.dumps(_example(schema)) if schema else self.answer_without_tools  # Gemini CLI asks which model the work needs
        text = sent.text
        script = next((turns for key, turns in self.scripts.items() if key in text), self.script)
        return script[sent.turn] if sent.turn < len(script) else "done"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    model: ModelServer

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a client that was killed is what some tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._whole(b"")

    def do_GET(self) -> None:
        if self.path.partition("?")[0].endswith("/models"):
            self._json({"object": "list", "data": [{"id": "fake", "object": "model"}]})
            return
        self.server.model.other.append(f"GET {self.path}")
        self._json({})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            body = b"".join(self._chunks())
        path = self.path.partition("?")[0]
        try:
            asked = json.loads(body)
        except ValueError:
            asked = None
        if not isinstance(asked, dict) or (dialect := _dialect(path)) is None:
            self.server.model.other.append(f"POST {self.path}")
            self._json({"input_tokens": 10, "totalTokens": 10})  # counting tokens, telemetry
            return
        tools = tuple(_tools(asked))
        results = tuple(RESULTS[dialect](asked))
        sent = Sent(dialect, self.path, {k.lower(): v for k, v in self.headers.items()}, asked, tools, results)
        turn = self.server.model.turn_for(sent)
        while not isinstance(turn, (str, Call, Shell, Write, Read, Raw, Sequence)):
            if isinstance(turn, Slow):
                time.sleep(turn.seconds)
                turn = turn.turn
            else:
                turn = turn(sent)
        if isinstance(turn, Raw):
            self.close_connection = True
            for piece in turn.pieces:
                self.wfile.write(piece)
                self.wfile.flush()
            return
        steps = () if isinstance(turn, str) else (turn,) if isinstance(turn, Step) else tuple(turn)
        try:
            calls = [_as_call(step, tools) for step in steps]
        except LookupError as error:  # the script is wrong: said to the client, which shows it, and then ends
            self.server.model.other.append(str(error))
            self.send_error(400, str(error))
            return
        self._answer(dialect, sent, turn if isinstance(turn, str) else None, calls)

    def _answer(self, dialect: str, sent: Sent, text: str | None, calls: list[Call]) -> None:
        named = [(f"call_{sent.turn}_{number}", call) for number, call in enumerate(calls)]
        streamed = "streamGenerateContent" in sent.path if dialect == "gemini" else bool(sent.body.get("stream"))
        events, whole = ANSWERS[dialect](str(sent.body.get("model", "fake")), text, named)
        if not streamed:
            self._json(whole)
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for name, data in events:
            line = data if isinstance(data, str) else json.dumps(data)
            piece = ((f"event: {name}\n" if name else "") + f"data: {line}\n\n").encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def _json(self, data: Json) -> None:
        self._whole(json.dumps(data).encode())

    def _whole(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline().split(b";")[0], 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()


def _dialect(path: str) -> str | None:
    endings = {
        "/chat/completions": "chat", "/responses": "responses", "/messages": "messages",
        ":streamGenerateContent": "gemini", ":generateContent": "gemini",
    }  # fmt: skip
    return next((dialect for ending, dialect in endings.items() if path.endswith(ending)), None)


def _tools(body: Json) -> Iterator[str]:
    items = body.get("input")
    more = [tool for item in items if item.get("type") == "additional_tools" for tool in item["tools"]] if isinstance(items, list) else []
    for tool in (*(body.get("tools") or ()), *more):
        declared = tool.get("functionDeclarations") or (tool.get("tools") if tool.get("type") == "namespace" else None)
        for each in declared if declared is not None else (tool,):
            name = each.get("name") or (each.get("function") or {}).get("name")
            if name:
                yield str(name)


def _example(schema: Json) -> Json:
    match str(schema.get("type", "")).lower():
        case "object":
            return {name: _example(inner) for name, inner in schema.get("properties", {}).items()}
        case "integer" | "number":
            return 1
        case "boolean":
            return False
        case "array":
            return []
    return next(iter(schema.get("enum", ())), "ok")


# How a client's own tools are called, the first that it offers.
SHELLS: dict[str, Callable[[str], Json]] = {
    "Bash": lambda command: {"command": command, "description": "run it"},
    "exec_command": lambda command: {"cmd": command, "yield_time_ms": 30_000},  # or Codex goes on after ten seconds, with no result yet
    "shell_command": lambda command: {"command": command},
    "run_shell_command": lambda command: {"command": command, "description": "run it"},
    "bash": lambda command: {"command": command, "description": "run it"},
    "exec": lambda command: f"text(JSON.stringify(await tools.exec_command({json.dumps({'cmd': command})})))",  # Codex's code mode
}
WRITERS: dict[str, Callable[[str, str], Json]] = {
    "Write": lambda path, text: {"file_path": path, "content": text},
    "apply_patch": lambda path, text: f"*** Begin Patch\n*** Add File: {path}\n" + "".join(f"+{x}\n" for x in text.splitlines()) + "*** End Patch\n",
    "write_file": lambda path, text: {"file_path": path, "content": text},
    "write": lambda path, text: {"filePath": path, "content": text},
}
READERS: dict[str, Callable[[str], Json]] = {
    "Read": lambda path: {"file_path": path},
    "read_file": lambda path: {"file_path": path},
    "read": lambda path: {"filePath": path},
}


def _as_call(step: Step, tools: tuple[str, ...]) -> Call:
    match step:
        case Call():
            return step
        case Shell(command):
            known, words = SHELLS, (command,)
        case Write(path, text):
            known, words = WRITERS, (path, text)
        case Read(path):
            if not any(tool in READERS for tool in tools):
                return _as_call(Shell(f"cat {path}"), tools)
            known, words = READERS, (path,)
    name = next((name for name in known if name in tools), None)
    if name is None and isinstance(step, Write) and "exec_command" in tools:  # Codex, which sees this in a shell's text
        return _as_call(Shell(f"apply_patch <<'EOF'\n{WRITERS['apply_patch'](step.path, step.text)}EOF"), tools)
    if name is None:
        raise LookupError(f"no tool for {step} among {tools}")
    return Call(name, known[name](*words))


def _text(content: Json) -> str:
    """Return the text of a content that may be a text, a part, or parts."""
    match content:
        case str():
            return content
        case list():
            return "\n".join(_text(part) for part in content)
        case {"text": str(text)} | {"output": str(text)} | {"content": str(text)}:
            return text
        case None:
            return ""
    return json.dumps(content, ensure_ascii=False)


def _chat_results(body: Json) -> Iterator[ToolResult]:
    for message in body.get("messages", ()):
        if message.get("role") == "tool":
            yield ToolResult(message.get("tool_call_id", ""), _text(message.get("content")))


def _responses_results(body: Json) -> Iterator[ToolResult]:
    items = body.get("input")
    for item in items if isinstance(items, list) else ():
        if item.get("type") in ("function_call_output", "custom_tool_call_output"):
            yield ToolResult(item.get("call_id", ""), _text(item.get("output")))


def _messages_results(body: Json) -> Iterator[ToolResult]:
    for message in body.get("messages", ()):
        content = message.get("content")
        for block in content if isinstance(content, list) else ():
            if block.get("type") == "tool_result":
                yield ToolResult(block.get("tool_use_id", ""), _text(block.get("content")))


def _gemini_results(body: Json) -> Iterator[ToolResult]:
    turn = -1  # the client may make ids of its own: then the place in the history names the call
    for content in body.get("contents", ()):
        answers = [part["functionResponse"] for part in content.get("parts", ()) if "functionResponse" in part]
        turn += any("functionCall" in part for part in content.get("parts", ()))
        for number, answer in enumerate(answers):
            given = str(answer.get("id", ""))
            yield ToolResult(given if MARK.fullmatch(given) else f"call_{turn}_{number}", _text(answer.get("response")))


Answer = tuple[list[tuple[str, Json]], Json]  # (events of a stream: name and data), and the same as a whole
Named = list[tuple[str, Call]]


def _chat(model: str, text: str | None, calls: Named) -> Answer:
    tool_calls = [
        {"index": number, "id": name, "type": "function", "function": {"name": call.tool, "arguments": json.dumps(call.input)}}
        for number, (name, call) in enumerate(calls)
    ]
    finish = "tool_calls" if calls else "stop"
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    message = {"role": "assistant", "content": text} | ({"tool_calls": tool_calls} if calls else {})
    common = {"id": "chatcmpl-1", "created": 1, "model": model}
    piece = common | {"object": "chat.completion.chunk"}
    events: list[tuple[str, Json]] = [
        ("", piece | {"choices": [{"index": 0, "delta": message, "finish_reason": None}]}),
        ("", piece | {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}], "usage": usage}),
        ("", "[DONE]"),
    ]
    whole = common | {"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": usage}
    return events, whole


def _responses(model: str, text: str | None, calls: Named) -> Answer:
    items: list[Json] = []
    if text is not None:
        part = {"type": "output_text", "text": text, "annotations": []}
        items.append({"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]})
    for name, call in calls:
        common = {"id": f"item_{name}", "call_id": name, "name": call.tool, "status": "completed"}
        space = call.space or ("functions" if call.tool == "exec" else "")
        common |= {"namespace": space} if space else {}
        if isinstance(call.input, str):
            items.append(common | {"type": "custom_tool_call", "input": call.input})
        else:
            items.append(common | {"type": "function_call", "arguments": json.dumps(call.input)})
    usage = {
        "input_tokens": 10, "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 5, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 15,
    }  # fmt: skip
    whole = {"id": "resp_1", "object": "response", "created_at": 1, "model": model, "status": "completed", "output": items, "usage": usage}
    events: list[Json] = [{"type": "response.created", "response": whole | {"status": "in_progress", "output": []}}]
    for number, item in enumerate(items):
        events.append({"type": "response.output_item.added", "output_index": number, "item": item})
        if item["type"] == "message":
            events.append({"type": "response.output_text.delta", "item_id": "msg_1", "output_index": number, "content_index": 0, "delta": text})
        events.append({"type": "response.output_item.done", "output_index": number, "item": item})
    events.append({"type": "response.completed", "response": whole})
    return [(event["type"], event | {"sequence_number": number}) for number, event in enumerate(events)], whole


def _messages(model: str, text: str | None, calls: Named) -> Answer:
    blocks: list[Json] = [{"type": "text", "text": text}] if text is not None else []
    blocks += [{"type": "tool_use", "id": name, "name": call.tool, "input": call.input} for name, call in calls]
    stop = "tool_use" if calls else "end_turn"
    usage = {"input_tokens": 10, "output_tokens": 5}
    whole = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": blocks,
        "stop_reason": stop, "stop_sequence": None, "usage": usage,
    }  # fmt: skip
    events: list[Json] = [{"type": "message_start", "message": whole | {"content": [], "stop_reason": None}}]
    for index, block in enumerate(blocks):
        if block["type"] == "text":
            start, delta = block | {"text": ""}, {"type": "text_delta", "text": text}
        else:
            start, delta = block | {"input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        events += [
            {"type": "content_block_start", "index": index, "content_block": start},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    events += [
        {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": usage},
        {"type": "message_stop"},
    ]
    return [(event["type"], event) for event in events], whole


def _gemini(model: str, text: str | None, calls: Named) -> Answer:
    parts: list[Json] = [{"text": text}] if text is not None else []
    parts += [{"functionCall": {"id": name, "name": call.tool, "args": call.input}} for name, call in calls]
    whole = {
        "candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15},
        "modelVersion": model,
    }
    return [("", whole)], whole


RESULTS: dict[str, Callable[[Json], Iterator[ToolResult]]] = {
    "chat": _chat_results, "responses": _responses_results, "messages": _messages_results, "gemini": _gemini_results,
}  # fmt: skip
ANSWERS: dict[str, Callable[[str, str | None, Named], Answer]] = {
    "chat": _chat, "responses": _responses, "messages": _messages, "gemini": _gemini,
}  # fmt: skip
