"""Puts `broker mcp` behind HTTP, for a test suite that speaks nothing else: a line in, the lines that answer it out.

Only a pipe: what the server says goes out as it is. What the suite asks of HTTP itself (headers, sessions, origins) would
be asked of this file, and says nothing about broker.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import uuid
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue
from typing import Any

ANSWER_SECONDS = 60.0
STATELESS = "2026-07-28"
_META = {
    "io.modelcontextprotocol/protocolVersion": STATELESS, "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "front", "version": "1"},
}  # fmt: skip
DISCOVER: dict[str, Any] = {"jsonrpc": "2.0", "id": "front", "method": "server/discover", "params": {"_meta": _META}}


class Server:
    """One `broker mcp`, for one session; for the stateless revision, for all requests."""

    def __init__(self, words: Sequence[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
        self._waiting: dict[str, SimpleQueue[dict[str, Any] | None]] = {}
        self._lock, self._closing = threading.Lock(), threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message = json.loads(line)
            # A notification goes with the request that it is about; without a word about that, with all.
            about = message.get("id", (message.get("params") or {}).get("progressToken"))
            with self._lock:
                found = [queue for key, queue in self._waiting.items() if about is None or key == json.dumps(about)]
            for queue in found:
                queue.put(message)
        with self._lock:
            for queue in self._waiting.values():
                queue.put(None)

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        with self._lock:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()

    def ask(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """Send a request, and return what came until its answer."""
        queue: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        token = ((message.get("params") or {}).get("_meta") or {}).get("progressToken")
        keys = {json.dumps(key) for key in (message["id"], token) if key is not None}
        with self._lock:
            self._waiting |= dict.fromkeys(keys, queue)
        self.send(message)
        came: list[dict[str, Any]] = []
        try:
            while not came or "id" not in came[-1]:
                said = queue.get(timeout=ANSWER_SECONDS)
                if said is None:
                    raise RuntimeError("broker mcp ended")
                came.append(said)
        finally:
            with self._lock:
                for key in keys:
                    self._waiting.pop(key, None)
        return came

    def close(self) -> int:
        """End it as a client does: by the end of its input. May be called twice."""
        with self._closing:
            assert self.process.stdin is not None
            self.process.stdin.close()
            code = self.process.wait(60)
            self._reader.join()
            assert self.process.stdout is not None
            self.process.stdout.close()
            return code


class Front(ThreadingHTTPServer):
    """The HTTP server. `url` is where it listens, on loopback."""

    daemon_threads = True

    def __init__(self, words: Sequence[str], environment: dict[str, str] | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.words, self.environment = words, environment if environment is not None else dict(os.environ)
        self.servers: dict[str, Server] = {}
        self._made: list[Server] = []
        self._making = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/mcp"

    def server_for(self, session: str) -> Server | None:
        """Return the server of a session; of '' (no session), the one for the stateless revision."""
        with self._making:
            if session == "" and session not in self.servers:
                # Its first request says which revision a connection speaks.
                self._make(session).ask(DISCOVER)
            return self.servers.get(session)

    def begin(self) -> str:
        session = uuid.uuid4().hex
        with self._making:
            self._make(session)
        return session

    def _make(self, session: str) -> Server:
        server = self.servers[session] = Server(self.words, self.environment)
        self._made.append(server)
        return server

    def end(self, session: str) -> None:
        with self._making:
            server = self.servers.pop(session, None)
        if server is not None:
            server.close()

    def close(self) -> list[int]:
        """End everything. Returns the exit codes of the servers."""
        self.shutdown()
        self.server_close()
        return [server.close() for server in self._made]  # also those that a request is just ending


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Front

    def log_message(self, *_args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._answer(405, b"")

    def do_DELETE(self) -> None:
        self.server.end(self.headers.get("Mcp-Session-Id", "-"))
        self._answer(200, b"")

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        session = self.headers.get("Mcp-Session-Id", "")
        begins = message.get("method") == "initialize" and self.headers.get("MCP-Protocol-Version") != STATELESS
        if begins:
            session = self.server.begin()
        server = self.server.server_for(session)
        if server is None:
            return self._answer(404, b"")
        if "id" not in message or "method" not in message:
            server.send(message)
            return self._answer(202, b"")
        lines = server.ask(message)
        body = "".join(f"event: message\ndata: {json.dumps(line)}\n\n" for line in lines).encode()
        # The stateless revision answers an error of the protocol with a status of HTTP as well.
        bad = "error" in lines[-1] and not session and lines[-1]["error"]["code"] in (-32602, -32600, -32601, -32020, -32021, -32022)
        if bad:
            status = 404 if lines[-1]["error"]["code"] == -32601 else 400
            return self._answer(status, json.dumps(lines[-1]).encode(), "application/json")
        return self._answer(200, body, "text/event-stream", session if begins else "")

    def _answer(self, status: int, body: bytes, kind: str = "text/plain", session: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if session:
            self.send_header("Mcp-Session-Id", session)
        self.end_headers()
        self.wfile.write(body)
