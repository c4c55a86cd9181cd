"""A client of MCP is asked in the operator's place, where the profile says so (approver = "client"): by a form.

In: questions of the desk, and calls of the client's that are under way. Out: its answers, to the desk, whose rules hold for it as
for any other channel. A client of the older revisions is asked in the middle of a call; one of the newer gets the form as the
call's interim result, and calls again with the answer. Whoever shows no forms is asked nothing: that is a denial at once.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import field
from typing import Any

import anyio
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from broker.decide.wording import exact, shorten
from broker.serve.tools_inside import Call
from broker.task.desk import ApprovalDesk, Given, NotTaken, Taken, WordWanted
from broker.values import dataclass

LOOK = 0.05  # seconds between two looks at what is new, while a call is under way
MOST_PARKED = 32  # calls that wait to be called again
MOST_SHOWN = 32_768  # characters of a question; a longer one nobody reads in a form
MOST_ROUNDS = 4  # forms for one question: the word may be mistyped, or come too soon

Context = ServerRequestContext[Any, Any]
Result = types.CallToolResult | types.InputRequiredResult


@dataclass(slots=True, eq=False)
class Work:
    """A call of a tool that goes on, whoever waits for it. `asked` is the question that its client has now."""

    name: str
    args: dict[str, Any]
    call: Call = field(default_factory=Call)
    over: anyio.Event = field(default_factory=anyio.Event)
    result: types.CallToolResult | None = None
    asked: Asked | None = None


@dataclass(slots=True, eq=False)
class Asked:
    """A question that a client has. `word` is what it has to type, '' if it need not yet."""

    row: dict[str, Any]
    word: str = ""
    rounds: int = 0
    key: str = field(default_factory=lambda: f"approval-{secrets.token_urlsafe(8)}")  # nobody answers a form that he was not sent

    @property
    def name(self) -> int:
        """The approval's."""
        return int(self.row["approval"])


class ClientDesk:
    """The questions of one run on their way to the client of its tools."""

    def __init__(self) -> None:
        """Start with nothing asked. `desk` is set once the run has one."""
        self.desk: ApprovalDesk | None = None
        self._new: deque[dict[str, Any]] = deque()
        self._lock = threading.Lock()
        self._parked: OrderedDict[str, Work] = OrderedDict()

    def shown(self, row: dict[str, Any]) -> None:
        """Take a question. Called on the desk's thread."""
        with self._lock:
            self._new.append(row)

    def _next(self) -> Asked | None:
        """Return a question that still waits, and no other call has."""
        with self._lock:
            while self._new:
                if self._waits(row := self._new.popleft()):
                    return Asked(row)
        return None

    def _waits(self, row: dict[str, Any]) -> bool:
        assert self.desk is not None
        return any(one["approval"] == row["approval"] for one in self.desk.rows())

    # A call

    def again(self, params: types.CallToolRequestParams) -> Work | None:
        """Return the call that is called again, with the answer that it brings; None: it is a new one."""
        if params.request_state is None:
            return None
        work = self._parked.pop(params.request_state, None)
        if work is None or (work.name, work.args) != (params.name, params.arguments or {}):
            raise MCPError(code=types.INVALID_PARAMS, message="requestState: there is no such call, or it was another one")
        return work

    async def through(self, context: Context, work: Work, params: types.CallToolRequestParams) -> Result:
        """Stay with a call to its end, or to the next question for a client that calls again."""
        while not work.over.is_set():
            work.asked = work.asked or self._next()
            if work.asked is None:
                with anyio.move_on_after(LOOK):
                    await work.over.wait()
                continue
            asked = work.asked
            if not _shows_forms(context) or len(text_of(asked.row)) > MOST_SHOWN:
                self._give(asked, "none", why=_NO_FORM if not _shows_forms(context) else _TOO_LONG)
                work.asked = None
            elif context.protocol_version in MODERN_PROTOCOL_VERSIONS:
                responses, params = params.input_responses or {}, params.model_copy(update={"input_responses": None})
                if not isinstance(answer := responses.get(asked.key), types.ElicitResult):
                    return self._park(work, asked)
                work.asked = self._take(context, asked, answer)
            else:
                answer = await self._ask(context, work, asked)
                work.asked = None if answer is None else self._take(context, asked, answer)
        assert work.result is not None
        return work.result

    def _park(self, work: Work, asked: Asked) -> types.InputRequiredResult:
        token = secrets.token_urlsafe(16)
        self._parked[token] = work
        if len(self._parked) > MOST_PARKED:
            self._parked.popitem(last=False)[1].call.ask()
        form = types.ElicitRequestFormParams(message=text_of(asked.row), requested_schema=_schema(asked))
        return types.InputRequiredResult(input_requests={asked.key: types.ElicitRequest(params=form)}, request_state=token)

    async def _ask(self, context: Context, work: Work, asked: Asked) -> types.ElicitResult | None:
        """Ask in the middle of a call; None: it was answered by somebody else, or nobody has to know any more."""
        found: list[types.ElicitResult] = []

        async def until_gone(cancel: Callable[[], object]) -> None:
            while self._waits(asked.row) and not work.over.is_set():
                with anyio.move_on_after(LOOK):
                    await work.over.wait()
            cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(until_gone, group.cancel_scope.cancel)
            try:
                found.append(await context.session.elicit_form(text_of(asked.row), _schema(asked), related_request_id=context.request_id))
            except MCPError:
                found.append(types.ElicitResult(action="cancel"))
            group.cancel_scope.cancel()
        return found[0] if found else None

    def _take(self, context: Context, asked: Asked, answer: types.ElicitResult) -> Asked | None:
        """Give an answer to the desk. Returns what is asked next of the same question, if anything."""
        content = answer.content or {}
        how, why, word = (content.get(name) for name in ("answer", "why", "word"))
        who = _who(context)
        if answer.action != "accept" or asked.rounds >= MOST_ROUNDS:
            how = "deny"
        elif asked.word:
            how = asked.row["chosen"]
        if how not in _choices(asked.row):
            how = "deny"  # no answer that was offered
        said = self._give(asked, str(how), who=who, why=str(why or "") if how == "deny" else "", word=str(word or ""))
        match said:
            case WordWanted(word=wanted):
                return Asked({**asked.row, "chosen": how}, wanted, asked.rounds + 1)
            case NotTaken() if self._waits(asked.row):
                return Asked(asked.row, asked.word, asked.rounds + 1)
        return None

    def _give(self, asked: Asked, how: str, *, who: str = "", why: str = "", word: str = "") -> Taken | WordWanted | NotTaken:
        assert self.desk is not None
        return self.desk.answer(asked.name, Given(how=how, who=who, channel="client", why=why, word=word))


_NO_FORM = "The profile leaves it to the client of the tools to approve, and this client shows no forms."
_TOO_LONG = "The profile leaves it to the client of the tools to approve, and this is too long for a form."


def _shows_forms(context: Context) -> bool:
    """Whether the client says that it can ask by a form. One that says nothing of how asks by forms (the older revisions)."""
    known = context.session.client_capabilities
    if known is None or known.elicitation is None:
        return False
    return known.elicitation.form is not None or known.elicitation.url is None


def _who(context: Context) -> str:
    """Return what the client calls itself."""
    known = context.session.client_params
    return f"client {shorten(known.client_info.name, 60)}" if known is not None else "client"


def _choices(row: dict[str, Any]) -> tuple[str, ...]:
    return ("once", "session", "deny") if row["session"] else ("once", "deny")


def _schema(asked: Asked) -> dict[str, Any]:
    if asked.word:
        what = f"Several were approved just now. Read this one; to approve it, type {asked.word}"
        return {"type": "object", "properties": {"word": {"type": "string", "title": "Word", "description": what}}, "required": ["word"]}
    return {
        "type": "object",
        "properties": {
            "answer": {"type": "string", "title": "Answer", "enum": list(_choices(asked.row)), "default": "deny"},
            "why": {"type": "string", "title": "Why not", "description": "With deny: what the agent is told", "maxLength": 500},
        },
        "required": ["answer"],
    }  # fmt: skip


def text_of(row: dict[str, Any]) -> str:
    """Return a question as a form shows it: each argument on a line, and nothing that a reader's screen would act on."""
    lines = [
        f"broker: {exact(row['task'])} wants what is {row['class']}: {exact(row['what'])}",
        f"refused: {exact(row['reason'])}",
        *(f"why: {exact(one['text'])} ({one['class']}, {one['rule']})" for one in row["reasons"]),
    ]
    if "argv" in row:
        lines += [f"program: {exact(row['program'])} (sha256 {row['sha256'] or 'not known'})", f"folder: {exact(row['cwd'])}"]
        lines += [f"argv {number}: {exact(word)}" for number, word in enumerate(row["argv"])]
        lines += [f"env: {exact(name)}={exact(value)}" for name, value in row["env"]]
        lines += [
            f"argument {one['word']} names: {exact(one['path'])}" + (f", which leads to {exact(one['to'])}" if "to" in one else "")
            + (f" (sha256 {one['sha256']})" if "sha256" in one else f" ({one['kind']})")
            for one in row["files"]
        ]  # fmt: skip
        lines += [f"{name.replace('_', ' ')}: {row[name]}" for name in ("files_left_out", "words_not_looked_up") if name in row]
    else:
        lines += [f"{name}: {exact(row[name])}" for name in ("action", "path", "other") if row.get(name)]
        lines += [f"content: {row['content']}"] if "content" in row else []
    lines += [f"note: {row['note']}"] if "note" in row else []
    if row.get("by"):
        lines.append(f"asked by process {row['pid']}: {', started by '.join(map(exact, row['by']))}")
    return "\n".join([*lines, *_shell(row.get("shell")), *_change(row.get("diff"))])


def _shell(shell: dict[str, Any] | None) -> list[str]:
    """Return the text of the shell, the part that is asked about on lines that are marked."""
    if shell is None:
        return []
    text, start, end = shell["text"], shell["start"], shell["end"]
    parts = [("  ", text)] if start is None else [("  ", text[:start]), (">>", text[start:end]), ("  ", text[end:])]
    lines = [f"{mark} {exact(line)}" for mark, part in parts for line in part.split("\n") if line.strip()]
    return ["in the shell text:", *lines, *(["… there is more of it"] if shell["cut"] else [])]


def _change(diff: dict[str, Any] | None) -> list[str]:
    if diff is None:
        return []
    before = "a new file" if diff["bytes_before"] is None else f"{diff['bytes_before']} before"
    left = [f"… and {diff['lines_left_out']} more lines"] if diff.get("lines_left_out") else []
    note = [diff["note"]] if "note" in diff else []
    return [f"change: {diff['bytes']} bytes ({before})", *(f"  {exact(line)}" for line in diff["lines"]), *left, *note]


