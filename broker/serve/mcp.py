"""MCP over two streams of bytes: the tools and the record of one task, for one client.

In: what a client writes, from inside the sandbox (`serve_call`) or on the host (`serve_descriptors`). Out: answers. The
protocol is the SDK's, in the revision that the client opens with; whose task it is follows from who started the server.
Calls run on threads. When the client is gone, what runs for it is ended before this returns.
"""

from __future__ import annotations

import json
import logging
import os
import select
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import mcp_types as types
from anyio import CapacityLimiter
from anyio.abc import TaskGroup
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from broker import __version__
from broker.enforce.attach import OutputBudget
from broker.enforce.calls import CallEnded, CallLine
from broker.enforce.ready import readable
from broker.errors import BrokerError
from broker.exit_codes import BUDGET
from broker.serve import mcp_events as events
from broker.serve.mcp_ask import ClientDesk, Work
from broker.serve.mcp_streams import Sink, Source, connected
from broker.serve.tools import MOST_CALLS, Tools
from broker.serve.tools_inside import Call
from broker.serve.tools_list import as_data
from broker.stage import Stage

MOST_SERVERS = 4  # of one task, at once
PROGRESS_SECONDS = 1.0
PIECE = 4096  # a pipe that is ready takes as much without waiting (POSIX, PIPE_BUF)

Context = ServerRequestContext[Any, Any]

INSTRUCTIONS = (
    "These tools work in a sandbox: no network, a copy-on-write workspace, and a profile that an operator wrote. What the profile "
    "does not permit is refused with the code `denied`, a reason, and a hint what to do instead; can_i and explain say so before."
)

# The SDK warns about what a client sends. That is not for the operator's terminal, and a client could fill it.
logging.getLogger("mcp").addHandler(logging.NullHandler())
logging.getLogger("mcp").propagate = False


_serving: defaultdict[str, int] = defaultdict(int)
_serving_lock = threading.Lock()


def serve_call(stage: Stage, line: CallLine) -> int:
    """Serve a process inside, whose stdin and stdout come over a call. Returns its exit code."""
    task = stage.run.id_of(stage.task.path)
    with _serving_lock:
        if _serving[task] >= MOST_SERVERS:
            line.write(f"broker: {MOST_SERVERS} MCP servers of this task are running, and no more at once\n".encode(), stderr=True)
            return BUDGET
        _serving[task] += 1
    try:
        serve(stage, line.read, line.write)
    finally:
        with _serving_lock:
            _serving[task] -= 1
            if not _serving[task]:
                del _serving[task]
    return 0


def serve_descriptors(
    stage: Stage, stdin: int, stdout: int, end: int, budget: OutputBudget | None = None, asks: ClientDesk | None = None
) -> None:
    """Serve a client on the host. Ends when its input does, when `end` becomes readable, or when the sandbox is gone.

    `asks`: this client is asked in the operator's place. INVARIANT: one inside the sandbox never is (tests/serve/test_mcp_ask.py).
    """

    def source() -> bytes:
        return b"" if end in readable([stdin, end]) else os.read(stdin, 65536)

    def sink(data: bytes) -> None:
        view, poller = memoryview(data), select.poll()
        poller.register(end, select.POLLIN)
        poller.register(stdout, select.POLLOUT)
        while view:
            if any(descriptor == end for descriptor, _ in poller.poll()):
                raise CallEnded
            with suppress(BlockingIOError):
                view = view[os.write(stdout, view[:PIECE]) :]

    watcher = threading.Thread(target=_tell_the_end, args=(stage, end))
    watcher.start()
    try:
        serve(stage, source, sink, budget, asks)
    finally:
        os.eventfd_write(end, 1)
        watcher.join()


def _tell_the_end(stage: Stage, end: int) -> None:
    """Make `end` readable when the sandbox is gone, whatever ended it."""
    try:
        gone = os.pidfd_open(stage.sandbox.container.init_pid)
    except ProcessLookupError:
        os.eventfd_write(end, 1)
        return
    readable([gone, end])
    os.close(gone)
    os.eventfd_write(end, 1)


def serve(stage: Stage, source: Source, sink: Sink, budget: OutputBudget | None = None, asks: ClientDesk | None = None) -> None:
    """Serve one client until it is gone, or the task is over."""
    tools = Tools(stage, budget)
    if asks is not None:
        asks.desk = stage.task.approvals
    try:
        anyio.run(partial(_serve, stage, tools, source, sink, asks))
    finally:
        tools.close()


async def _serve(stage: Stage, tools: Tools, source: Source, sink: Sink, asks: ClientDesk | None) -> None:
    async with anyio.create_task_group() as works:
        server = make_server(stage, tools, works, asks)
        async with connected(source, sink) as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
        works.cancel_scope.cancel()


def make_server(stage: Stage, tools: Tools, works: TaskGroup, asks: ClientDesk | None = None) -> Server[Any]:
    """Return the protocol's server for one client of a task. What goes on between two calls of a client that is asked is in `works`."""
    limiter = CapacityLimiter(2 * MOST_CALLS)  # of threads; how many calls there are at once is the tools' affair

    async def in_thread(work: Callable[[], Any]) -> Any:
        return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter)

    async def list_tools(_context: Context, _params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool.model_validate(as_data(tool.shape)) for tool in tools.listed()])

    async def done(name: str, args: dict[str, Any], call: Call) -> types.CallToolResult:
        table = {"code": "failed", "message": "the task is over"}
        with suppress(BrokerError):  # the sandbox is gone: so is this server, in a moment
            table = await in_thread(partial(tools.call, name, args, call))
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=json.dumps(table, ensure_ascii=False))], structured_content=table,
            is_error=table["code"] != "ok",
        )  # fmt: skip

    async def work_on(work: Work) -> None:
        work.result = await done(work.name, work.args, work.call)
        work.over.set()

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult | types.InputRequiredResult:
        if not tools.known(params.name):
            raise MCPError(code=types.INVALID_PARAMS, message=f"Unknown tool: {params.name[:64]!a}")
        work = asks.again(params) if asks is not None else None
        call = work.call if work is not None else Call()
        result: types.CallToolResult | types.InputRequiredResult
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_tell_progress, context, call)
                if asks is None:
                    result = await done(params.name, params.arguments or {}, call)
                else:
                    if work is None:
                        work = Work(params.name, params.arguments or {}, call)
                        works.start_soon(work_on, work)
                    result = await asks.through(context, work, params)
                group.cancel_scope.cancel()
        except BaseException:
            call.ask()  # only now: what a call that has ended left in the background goes on
            raise
        return result

    async def list_resources(_context: Context, params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        tasks = events.tasks_of(stage)
        cursor = params.cursor if params is not None and params.cursor else "0"
        if not (cursor.isascii() and cursor.isdigit()):
            raise MCPError(code=types.INVALID_PARAMS, message="cursor: give it as the last page said it")
        first = int(cursor[:9])
        more = first + events.MOST_LISTED < len(tasks)
        return types.ListResourcesResult(
            resources=[_resource(task) for task in tasks[first : first + events.MOST_LISTED]],
            next_cursor=str(first + events.MOST_LISTED) if more else None,
        )  # fmt: skip

    async def list_templates(_context: Context, _params: object) -> types.ListResourceTemplatesResult:
        about = "A page of a task's events, as lines of JSON. `after` is where the last page ended, `limit` how many at most."
        template = types.ResourceTemplate(
            uri_template=events.TEMPLATE, name="events", title="Events of a task", description=about, mime_type=events.MEDIA_TYPE
        )
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def read_resource(context: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        try:
            address = events.address_of(stage, str(params.uri))
        except events.NoSuchResource as error:
            code = types.INVALID_PARAMS if context.protocol_version in MODERN_PROTOCOL_VERSIONS else -32002
            raise MCPError(code=code, message=f"Resource not found: {error}", data={"uri": str(params.uri)[:2048]}) from None
        except ValueError:
            raise MCPError(code=types.INVALID_PARAMS, message="uri: this is no address") from None
        try:
            page = await in_thread(partial(events.page, stage, address))
        except BrokerError as error:
            raise MCPError(code=types.INTERNAL_ERROR, message=str(error)) from None
        following = {"broker/next": f"{events.SCHEME}{address.task}?after={page.after}"} if page.after else None
        text = types.TextResourceContents(uri=params.uri, mime_type=events.MEDIA_TYPE, text=page.text, _meta=following)
        return types.ReadResourceResult(contents=[text])

    server: Server[Any] = Server(
        "broker", version=__version__, title="broker", instructions=INSTRUCTIONS,
        cache_hints={"tools/list": CacheHint(ttl_ms=3_600_000), "server/discover": CacheHint(ttl_ms=3_600_000)},
        on_list_tools=list_tools, on_call_tool=call_tool, on_list_resources=list_resources,
        on_list_resource_templates=list_templates, on_read_resource=read_resource,
    )  # fmt: skip
    server.middleware.clear()  # traces of calls are not ours to send anywhere
    return server


def _resource(task: str) -> types.Resource:
    return types.Resource(
        uri=events.SCHEME + task, name=f"events of {task}", title=f"Events of {task}", mime_type=events.MEDIA_TYPE,
        description="What happened in this task, as lines of JSON, oldest first.",
    )  # fmt: skip


async def _tell_progress(context: Context, call: Call) -> None:
    """Say every second that a call goes on, to a client that asked for it."""
    began = time.monotonic()
    while True:
        await anyio.sleep(PROGRESS_SECONDS)
        seconds = round(time.monotonic() - began, 1)
        await context.session.report_progress(seconds, None, f"{call.note or 'working'}, {seconds:.0f} s")
