"""The page's server: who may come in, what is where, and how an answer goes to the run that waits for it.

In: requests over loopback. Out: the page, a stream of what changes, and answers to questions, each for the question that was
shown and for no other. Rules of approvals are the desk's (broker/task/desk.py); this is one more channel to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncGenerator, Callable
from importlib.resources import files

from broker.errors import UsageError
from broker.serve.page.door import Door
from broker.serve.page.http import Answer, Connections, Request, as_json, refusal
from broker.serve.page.picture import Picture, digest
from broker.task import watching
from broker.task.desk import MOST_WHY
from broker.task.watching import Row

CHANNEL = "page"
MOST_READERS = 8  # pages that are open at once
BEAT = 10.0  # seconds without a change after which a line is sent all the same: so it is noticed that nobody reads
PACE = 0.2  # seconds between two things that one page is sent
ADDRESSES = {"127.0.0.1": socket.AF_INET, "::1": socket.AF_INET6}
FILES = {
    "": ("page.html", "text/html; charset=utf-8"),
    "page.js": ("page.js", "text/javascript; charset=utf-8"),
    "page.css": ("page.css", "text/css; charset=utf-8"),
    "icon.svg": ("icon.svg", "image/svg+xml"),
}
Explain = Callable[[str, str, str, str, str], Row]


def listener(address: str, port: int) -> socket.socket:
    """Listen on a port of loopback, 0 for a free one. Raises UsageError."""
    if address not in ADDRESSES:
        raise UsageError(
            f"the page is served on 127.0.0.1 or ::1 only, not on {address!a}. "
            "From another machine: ssh -L PORT:127.0.0.1:PORT HOST, with the same PORT on both sides"
        )
    made = socket.socket(ADDRESSES[address], socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address, port))
    except OSError as error:
        made.close()
        raise UsageError(f"port {port} of {address} cannot be used: {error.strerror}. Leave --port out, and a free one is taken") from None
    return made


def door_of(listening: socket.socket) -> Door:
    """Make the secrets of a server that listens there."""
    address, port = listening.getsockname()[:2]
    return Door(hosts=(f"[::1]:{port}",) if address == "::1" else (f"127.0.0.1:{port}", f"localhost:{port}"))


class Server:
    """One server. `explain` says of a denial (run, task, tool, rule, what) how it could be allowed; it may read a whole record."""

    def __init__(self, door: Door, explain: Explain, entered: Callable[[], None]) -> None:
        """Prepare it. `entered` is told when somebody has come in with the link."""
        self._door, self._explain, self._entered = door, explain, entered
        self._files = {name: (files("broker.serve.page").joinpath(file).read_bytes(), kind) for name, (file, kind) in FILES.items()}
        self._readers = 0
        self._news = asyncio.Event()  # of the next change; a new one for each
        self._busy = asyncio.Semaphore(2)  # of what reads files or asks a run, and may take a moment

    async def serve(self, listening: socket.socket, ended: asyncio.Event) -> None:
        """Serve until `ended` is set."""
        loop = asyncio.get_running_loop()
        self._picture = Picture(lambda: _soon(loop, self._tell))
        connections = Connections(self._answer)
        server = await asyncio.start_server(connections.accept, sock=listening)
        self._picture.start()
        try:
            await ended.wait()
        finally:
            server.close()
            await connections.close()
            await asyncio.to_thread(self._picture.close)

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _answer(self, request: Request) -> Answer:
        door = self._door
        wanted = door.inside(request.target)
        if (foreign := door.foreign(request.method, request.headers, is_page=wanted == "")) is not None:
            return refusal(foreign.status, foreign.reason)
        if wanted is None:
            return refusal(404, "there is nothing here. Open the link that broker serve printed")
        name, _, query = wanted.partition("?")
        methods = {"session": "POST", "answer": "POST", "stream": "GET", "denial": "GET", **dict.fromkeys(FILES, "GET")}
        if name not in methods:
            return refusal(404, "there is nothing here")
        if request.method != methods[name]:
            return refusal(405, f"{methods[name]} it", ("Allow", methods[name]))
        if request.method == "GET" and request.body:
            return refusal(400, "a GET has no body")
        if name in self._files:
            body, kind = self._files[name]
            return Answer(body=body, kind=kind)
        if name == "session":
            return self._session(request)
        if not door.admits(request.headers):
            return refusal(401, "open the link that broker serve printed")
        match name:
            case "stream":
                return self._stream()
            case "denial":
                return await self._how(query)
            case _:
                return await self._decide(request)

    def _session(self, request: Request) -> Answer:
        match _table(request):
            case {"token": str(token), **rest} if not rest:
                if self._door.takes(token):
                    self._entered()
                    return Answer(status=204, headers=(("Set-Cookie", self._door.set_cookie()),))
                return refusal(403, "this is not the link that broker serve printed")
            case _:
                return refusal(400, 'say {"token": TOKEN}')

    def _stream(self) -> Answer:
        if self._readers >= MOST_READERS:
            return refusal(503, f"{MOST_READERS} pages are open already. Close one")
        return Answer(kind="text/event-stream", stream=self._changes())

    async def _changes(self) -> AsyncGenerator[bytes, None]:
        """Yield what there is, and then what changes, as server-sent events."""
        self._readers += 1
        self._picture.reader(1)
        try:
            number, first = 0, True
            while True:
                news = self._news
                number, found = self._picture.since(number)
                if found or first:
                    yield f"data: {json.dumps(found or {'whole': True}, ensure_ascii=True, separators=(',', ':'))}\n\n".encode("ascii")
                else:
                    yield b": nothing new\n\n"
                first = False
                await asyncio.sleep(PACE)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(BEAT):
                        await news.wait()
        finally:
            self._readers -= 1
            self._picture.reader(-1)

    async def _how(self, name: str) -> Answer:
        row = self._picture.denial(name)
        if row is None:
            return refusal(404, "that denial is not kept here any more. broker events has it")
        async with self._busy:
            return as_json(await asyncio.to_thread(self._explain, row["run"], row["task"], row["tool"], row["rule"], row["words"]))

    async def _decide(self, request: Request) -> Answer:
        match _table(request):
            case {
                "id": str(name), "digest": str(shown), "how": "once" | "session" | "deny" as how, "why": str(why), "word": str(word), **rest,
            } if not rest:  # fmt: skip
                async with self._busy:
                    return as_json(await asyncio.to_thread(answered, name, shown, how, why, word))
            case _:
                return refusal(400, "say id, digest, how (once, session, deny), why and word, each a text")


def answered(name: str, shown: str, how: str, why: str, word: str) -> Row:
    """Answer a question, if it is still the one that was shown. Returns answered, word (it has to be typed) or refused."""
    wanted, _, number = name.rpartition(".")
    runs = watching.connect()
    try:
        one = runs.get(wanted)
        waiting = watching.questions(one) if one is not None else None
        row = next((row for row in (waiting or {}).get("waiting", ()) if str(row["approval"]) == number), None)
        if one is None or row is None:
            return {"event": "refused", "reason": "it does not wait any more"}
        if digest(row) != shown:
            return {"event": "refused", "reason": "it is not the question that you were shown. Read it again"}
        said = watching.answer(one, row["approval"], how, why=why[:MOST_WHY], word=word, channel=CHANNEL)
        return said or {"event": "refused", "reason": "the broker of the run does not answer"}
    finally:
        for each in runs.values():
            each.close()


def _soon(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> None:
    loop.call_soon_threadsafe(what)


def _table(request: Request) -> object:
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        return None
    try:
        return json.loads(request.body)
    except (ValueError, RecursionError):
        return None
