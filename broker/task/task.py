"""A task: its envelope, its place in the tree, its scopes and its denials.

The judge here is the answer to every question of the guard: classify, decide, record, answer. It is called
on the sandbox's own thread; what it raises ends the task, because what cannot be recorded must not run.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import stat
import threading
from collections.abc import Callable
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING

from broker.classify import classify
from broker.classify.context import Context
from broker.classify.risk import Assessment, Part, Risk
from broker.decide.allowlist import needs_digest
from broker.decide.client import AGREED, files_touched
from broker.decide.decide import names_a_shell
from broker.decide.envelope import Envelope
from broker.decide.gate import AGENT_PROGRAM, consider, visible_command
from broker.decide.given import Given
from broker.decide.refusal import beyond_approval, nobody_to_ask
from broker.decide.verdict import Allow, Ask, Deny, Grant, Layer, Verdict
from broker.decide.wording import command_line, shorten
from broker.enforce import wire
from broker.enforce.calls import CallEnded, CallLine, Desk
from broker.enforce.mounts import is_below
from broker.enforce.usage import Usage
from broker.errors import BrokerError, JournalError
from broker.record import event
from broker.record.denials import DenialLog, row_of
from broker.record.journal import Journal
from broker.request.operation import Exec, FileAction, FileChange, FileRead, Operation
from broker.task.place import program_of, reach
from broker.task.tree import Node, Tree
from broker.values import dataclass

if TYPE_CHECKING:
    from broker.task.desk import ApprovalDesk
    from broker.task.passes import Passes
    from broker.task.shell_text import ShellTexts

NOTE_EVENTS = {
    wire.NoteKind.EXEC_RACE: event.EXEC_RACE,
    wire.NoteKind.EXEC_UNREADABLE: event.EXEC_UNREADABLE,
    wire.NoteKind.EXEC_TOO_LARGE: event.EXEC_TOO_LARGE,
    wire.NoteKind.TASKS_LIMIT: event.LIMITS_EXCEEDED,
    wire.NoteKind.ANSWER_TIMEOUT: event.ANSWER_TIMEOUT,
    wire.NoteKind.PATH_UNREADABLE: event.GUARD_NOTE,
    wire.NoteKind.CACHE_STATISTICS: event.GUARD_NOTE,
    wire.NoteKind.INTERNAL: event.GUARD_NOTE,
}
# A task that is refused all the time must not fill the disk. The same refusal again is counted (denials.py), not
# recorded anew; with a journal of this size new ones are only counted too, and with the second nothing more may
# run: what cannot be recorded must not happen.
REFUSALS_RECORDED = 64 << 20
JOURNAL_LIMIT = 1 << 30
REFUSALS_REMEMBERED = 10_000
NOTES_RECORDED = 1_000

# What the guard refuses by itself, in the words of a denial: (rule, class, sentence, hint).
NOTE_DENIALS = {
    wire.NoteKind.EXEC_RACE: ("exec.race", Risk.BLOCKED, "the program that started was not the one that was approved",
                              "nothing: this is an attack on the gate, or a program that rewrites its arguments while it starts another"),
    wire.NoteKind.EXEC_UNREADABLE: ("exec.unreadable", Risk.UNKNOWN, "its arguments could not be read", "start it from a process that can be read"),
    wire.NoteKind.EXEC_TOO_LARGE: ("exec.too_large", Risk.UNKNOWN, "its arguments and variables of interest are over 160 KiB", "pass long lists in a file or on stdin"),
    wire.NoteKind.TASKS_LIMIT: ("limits.pids", Risk.UNKNOWN, "the task has reached its limit of processes", "start fewer at once, or ask for a higher sandbox.pids"),
    wire.NoteKind.ANSWER_TIMEOUT: ("answer.timeout", Risk.UNKNOWN, "the broker did not answer in time", "try again"),
    wire.NoteKind.PATH_UNREADABLE: ("path.unreadable", Risk.UNKNOWN, "its path could not be read", "use a plain path"),
}  # fmt: skip


# The scope of what stands in front of the agent. Scope 0 is everybody else's: no grant, no choice of the operator.
OPERATOR_SCOPE = 1
AGENT_SCOPE = 2  # of the agent's own processes, where it is known which those are: no grant either
CLIENT, GUARD = "/run/broker/bin/broker", "/run/broker/guard"  # one program: its name says which it is (guard/client.c)


@dataclass(slots=True)
class OperatorCommand:
    """What the operator chose to start: these invocations are allowed, each once, whatever they are.

    `env` and `timeout` in front of the agent, and a script's `#!/usr/bin/env python3`, make the one choice of the
    operator several program starts. Each is kept with whether it starts more of them. What a *shell* starts is
    judged like everything else: a shell in front of a command is an agent like any other.

    INVARIANT: only a process that is itself a part of the choice, and in front of the agent, can take a part of
    it; the agent cannot use up what did not run (`agent || echo failed`) for a program of its own
    (tests/escape/test_gate_in_product.py).
    """

    pending: dict[tuple[str, ...], bool] = field(default_factory=dict)

    def choose(self, operation: Exec, assessment: Assessment) -> None:
        """Remember the invocations that the operator's command line names."""
        chain = {
            index: part for index, part in enumerate(assessment.parts)
            if part.static and part.argv and not _starts_from_a_shell(part, assessment)
        }  # fmt: skip
        self.pending = {operation.argv: len(chain) > 1}
        for index, part in chain.items():
            self.pending.setdefault(part.argv, any(other.within == index for other in chain.values()))

    def take(self, asked: wire.ExecAsked) -> int | None:
        """Return the scope that this start lives in if it is part of the operator's choice, and use it up."""
        if asked.scope != OPERATOR_SCOPE:
            return None
        starts_more = self.pending.pop(asked.argv, None)
        if starts_more is None:
            return None
        by_script = _by_shebang(asked)
        self.pending |= dict.fromkeys(by_script, False)
        return OPERATOR_SCOPE if starts_more or by_script else 0


def _starts_from_a_shell(part: Part, assessment: Assessment) -> bool:
    """Whether a shell stands anywhere in front of this part."""
    while part.within is not None:
        part = assessment.parts[part.within]
        if names_a_shell(part.argv):
            return True
    return False


def _by_shebang(asked: wire.ExecAsked) -> list[tuple[str, ...]]:
    """Return what `env` will start when a script begins with `#!/usr/bin/env PROGRAM`."""
    words = asked.shebang.removeprefix("#!").split(None, 1)
    if len(words) != 2 or os.path.basename(words[0]) != "env":
        return []
    rest = words[1].strip()
    program = rest.removeprefix("-S").split() if rest.startswith("-S") else [rest]
    return [(*program, name, *asked.argv[1:]) for name in {asked.path, asked.argv[0] if asked.argv else ""}]


class Task:
    """One node of the delegation tree, and the judge of everything that happens in it."""

    def __init__(
        self, *, path: str, envelope: Envelope, context: Context, journal: Journal, run_dir: str,
        tell: Callable[[str, Deny], None] | None = None, parent: Task | None = None, node: Node | None = None,
        tree: Tree | None = None,
    ) -> None:  # fmt: skip
        """Make a task. `tell` hears of each new denial at once; so does each task above."""
        self.path = path
        self.parent = parent
        self._node, self._tree = node, tree
        self.below = DenialLog(journal, path)  # what was denied to its descendants
        self.end: Callable[[BrokerError], None] | None = None  # ends the sandbox, for a reason that the run fails with
        self.called: Callable[[CallLine], None] | None = None  # who answers a process of the sandbox that calls the broker
        self.connected: Callable[[int, socket.socket], None] | None = None  # who takes connections to the guard's ports
        self.approvals: ApprovalDesk | None = None  # where questions wait for the operator; None: nobody is asked
        self.shells: ShellTexts | None = None
        self.passes: Passes | None = None
        self.starts: Callable[[str], bool] = lambda _path: True  # whether the kernel lets a file start from there at all
        self.claims: Callable[[], dict[str, str]] = dict  # what a model says about the task: shown to who asks for it
        self.send: Callable[[wire.Answer], None] | None = None  # sends the guard an answer that came later
        self.seen_at = ""  # where every file of the sandbox's is found as it is inside
        self.envelope = envelope
        self.context = context
        self.denials = DenialLog(journal, path)
        self.operator = OperatorCommand()
        self.races = 0
        self.oom = False
        self.usage: Usage | None = None
        self._journal = journal
        self._denials_file = os.path.join(run_dir, "denials.jsonl")
        self._tell = tell
        self.lands: tuple[str, ...] = ()  # folders whose changes go to a layer, and are judged again when they land
        self.files_at = ""  # where the sandbox's own files are found, when they are not the host's
        self._refused: set[int] = set()
        self._last_refused: tuple[int, tuple[str, ...], str] | None = None
        self._refused_paths: set[str] = set()
        self._notes = 0
        self._scopes: list[Grant | None] = [None, None, None]  # 0, OPERATOR_SCOPE and AGENT_SCOPE: no grant in any
        self._desk = Desk()
        self._lock = threading.Lock()

    # What the operator, or a caller, asks for

    def judge(
        self, operation: Operation, *, scope: int = 0, at_gate: bool = False, can_wait: bool = False
    ) -> tuple[Assessment, Verdict]:
        """Classify, decide and record one operation. The order is the point: the record comes first.

        `at_gate`: what a shell starts will be asked about again, one by one (broker/decide/deferral.py), and what
        is written to a file whose content decides is looked at when it lands. `can_wait`: the answer may be an Ask,
        where there is a desk for it.
        """
        asks = can_wait and self.approvals is not None
        assessment, verdict, given = self._considered(operation, scope, at_gate=at_gate, interactive=asks)
        if self.must_record(operation, verdict, scope):
            kind = event.FILE_DECIDED if isinstance(operation, (FileChange, FileRead)) else event.EXEC_DECIDED
            told = event.decided(operation, assessment, verdict, given, visible=self._visible(operation, scope))
            self._journal.append(kind, task=self.path, **told)
        if isinstance(verdict, Ask) and not asks:
            verdict = nobody_to_ask(operation, verdict)
        return assessment, verdict

    def consider(
        self, operation: Operation, *, scope: int = 0, at_gate: bool = False
    ) -> tuple[Assessment, Verdict]:
        """Classify and decide, and record nothing: it is only a question."""
        assessment, verdict, _ = self._considered(operation, scope, at_gate=at_gate)
        return assessment, verdict

    def _considered(
        self, operation: Operation, scope: int, *, at_gate: bool, interactive: bool = False
    ) -> tuple[Assessment, Verdict, Given]:
        """Classify and decide, and say on what else it hung: INVARIANT: on nothing that is not recorded (test_replay.py)."""
        context = self._context_of(operation)
        layered = isinstance(operation, FileChange) and self._lies_in_a_layer(operation.path)
        deletes = layered and isinstance(operation, FileChange) and operation.action is FileAction.DELETE
        given = Given(
            gate=at_gate, scope=self._scopes[scope], sha256=self._digest(operation) or "", layered=layered,
            real=deletes and os.path.lexists(getattr(operation, "path", "")),
            agent=self._asks_as_agent(scope), interactive=interactive,
        )  # fmt: skip
        return *consider(operation, self.envelope, context, given), given

    def _asks_as_agent(self, scope: int) -> bool:
        return scope == AGENT_SCOPE and self.envelope.profile.agent is not None

    def _visible(self, operation: Operation, scope: int) -> str:
        """Return the command that an agent's own process wrapped, as its user sees it; '': none."""
        return visible_command(operation, self.envelope, self._context_of(operation)) if self._asks_as_agent(scope) else ""

    def must_record(self, operation: Operation, verdict: Verdict, scope: int | str = 0) -> bool:
        """Whether this decision gets a line of its own. Raises JournalError when no more may be written.

        `scope` is what tells a refusal from another one of the same operation.
        """
        size = self._journal.size
        if isinstance(verdict, Allow):
            if size > JOURNAL_LIMIT:
                raise JournalError(f"{self._journal.path} has reached {JOURNAL_LIMIT >> 20} MiB: the task is ended")
            return True
        key = hash((operation, scope))
        if key in self._refused or size > REFUSALS_RECORDED:
            return False
        if len(self._refused) < REFUSALS_REMEMBERED:
            self._refused.add(key)
        return True

    def operators_choice(self, operation: Exec) -> Allow:
        """Label and record the command after `--`, and let it start: it is the operator's own choice."""
        assessment = classify(operation, self.context)
        allowed = Allow(layer=Layer.OPERATOR, rule="operator.command", effects=assessment.effects)
        self._journal.append(
            event.EXEC_DECIDED, task=self.path, **event.decided(operation, assessment, allowed)
        )
        self.operator.choose(operation, assessment)
        return allowed

    def refuse(self, tool: str, denial: Deny, *, program: str = "") -> None:
        """Make a denial loud: counted, recorded, told, readable inside the sandbox; and the same in each task above.

        `program` is whose doing it was, where the denial itself does not say.
        INVARIANT: no ancestor is left out, however the task itself goes on (tests/conformance/test_delegation.py).
        """
        if self.denials.add(tool, denial, **({"program": program} if program else {})):
            self._write_denial(tool, denial)
            if self._tell is not None:
                self._tell(tool, denial)
        if self._tree is not None and self._node is not None:
            self._tree.denied(self._node, tool, denial)
        above = self.parent
        while above is not None:
            if above.below.add(tool, denial, of=self.path):
                above._write_denial(tool, denial, of=self.path)
            above = above.parent

    # What the guard asks

    def exec_asked(self, asked: wire.ExecAsked) -> wire.Answer | None:
        """Answer a program start. None: the operator is asked, and the program is held meanwhile."""
        operation = Exec(argv=asked.argv, path=asked.path, program=asked.program, cwd=asked.cwd, env=asked.env)
        if asked.program in (CLIENT, GUARD):
            return self._client_starts(asked, operation)
        chosen = self.operator.take(asked)
        if chosen is not None and (self.parent is None or not self._wrote(asked)):
            is_agent = chosen == 0 and self.envelope.profile.agent is not None
            self._is_shell(asked)
            return wire.Answer(request=asked.request, allow=True, scope=AGENT_SCOPE if is_agent else chosen)
        possible = self.starts(asked.program)
        assessment, verdict = self.judge(operation, scope=self._known(asked.scope), at_gate=True, can_wait=possible)
        if isinstance(verdict, Allow):
            scope = self._after(asked.scope) if verdict.grant is None else self._scope_of(verdict.grant)
            if verdict.rule == AGENT_PROGRAM:
                scope = AGENT_SCOPE
            again = self._is_shell(asked)  # so that it comes here each time: what it starts is asked about with its text
            return wire.Answer(request=asked.request, allow=True, scope=scope, cache=not again)
        attempt = (asked.pid, asked.argv, asked.program)
        if attempt == self._last_refused and asked.path not in self._refused_paths:
            # execvp(3) goes on along PATH after EACCES: the same file again, by another of its names. By the same
            # name it is another attempt, and counts.
            self._refused_paths.add(asked.path)
            return wire.Answer(request=asked.request, allow=False)

        def refuse(denial: Deny) -> wire.Answer:
            self._last_refused, self._refused_paths = attempt, {asked.path}
            self.refuse("exec", denial)
            return wire.Answer(request=asked.request, allow=False, note=_note(denial))

        if isinstance(verdict, Ask):
            # Not to be kept by the guard: an approval is for this one start.
            allow = wire.Answer(request=asked.request, allow=True, scope=self._after(asked.scope))
            visible = self._visible(operation, self._known(asked.scope))
            from broker.task.asking import Held, hold

            held = Held(asked=asked, allow=allow, refuse=refuse, visible=visible, approved=lambda: self._is_shell(asked))
            return hold(self, "exec", operation, (assessment, verdict), held)
        return refuse(verdict if possible or self.approvals is None else beyond_approval(verdict, asked.program))

    def _is_shell(self, asked: wire.ExecAsked) -> bool:
        """Remember a shell's text, where the operator may be asked about what it starts. Says whether it is one."""
        return self.shells is not None and self.shells.started(self.seen_by(asked.pid), asked.pid, asked.argv)

    def seen_by(self, pid: int) -> str:
        """Where the sandbox's files are found, as this process of it sees them."""
        return reach(self.seen_at, pid)

    def ask_at(self, desk: ApprovalDesk) -> None:
        """Have the operator asked, at this desk, about what an approval could permit."""
        from broker.task.passes import Passes
        from broker.task.shell_text import ShellTexts

        self.approvals, self.shells, self.passes = desk, ShellTexts(), Passes()

    def withdrawn(self, request: int) -> None:
        """Take back a question: whoever asked is gone."""
        if self.approvals is not None:
            self.approvals.withdraw(request)

    def _client_starts(self, asked: wire.ExecAsked, operation: Exec) -> wire.Answer | None:
        """Let the broker's own client start: what it asks for is judged when it asks. `broker file` asks nobody: it is judged here.

        INVARIANT: the client does nothing for a task that its ceiling does not permit (tests/escape/test_delegation_client.py).
        """
        if not asked.argv or os.path.basename(asked.argv[0]) != "broker":
            denial = Deny(
                what=command_line(asked.argv), effects=frozenset({Risk.UNKNOWN}), layer=Layer.PROFILE, rule="broker.guard",
                reason="Under this name the program is the guard, which is no business of a task.",
                hint="Call it broker.",
            )  # fmt: skip
            self.refuse("exec", denial)
            return wire.Answer(request=asked.request, allow=False, note=_note(denial))
        touched, scope = files_touched(asked.argv, asked.cwd), self._known(asked.scope)
        agreed = self._has_pass(asked, touched)
        _, answer, given = self._considered(touched or operation, scope, at_gate=True, interactive=agreed)
        if touched is not None and not isinstance(answer, Allow) and not agreed:
            assessment, verdict = self.judge(touched, scope=scope, at_gate=True, can_wait=isinstance(touched, FileChange))
            if not isinstance(verdict, Allow):
                return self._client_waits(asked, touched, assessment, verdict)
        layer, rule = (Layer.APPROVAL, AGREED) if agreed else (Layer.PROFILE, "broker.client")
        allowed = Allow(layer=layer, rule=rule, effects=frozenset({Risk.SAFE}))
        if self.must_record(operation, allowed, asked.scope):
            assessment = classify(operation, self._context_of(operation))
            self._journal.append(event.EXEC_DECIDED, task=self.path, **event.decided(operation, assessment, allowed, given))
        return wire.Answer(request=asked.request, allow=True, cache=not agreed)

    def _client_waits(
        self, asked: wire.ExecAsked, touched: FileChange | FileRead, assessment: Assessment, verdict: Ask | Deny
    ) -> wire.Answer | None:
        """Have the operator asked about what `broker file` is to write, or refuse it."""

        def refuse(denial: Deny) -> wire.Answer:
            self.refuse("file", denial)
            return wire.Answer(request=asked.request, allow=False, note=_note(denial))

        if isinstance(verdict, Deny) or self.passes is None:
            return refuse(verdict if isinstance(verdict, Deny) else nobody_to_ask(touched, verdict))
        from broker.task.asking import Held, hold

        let = partial(self.passes.give_process, self.seen_by(asked.pid), asked.pid, touched.path)
        held = Held(asked=asked, allow=wire.Answer(request=asked.request, allow=True), refuse=refuse, approved=let)
        return hold(self, "file", touched, (assessment, verdict), held)

    def _has_pass(self, asked: wire.ExecAsked, touched: FileChange | FileRead | None) -> bool:
        """Whether the operator has agreed to what the client is about to write."""
        return self.passes is not None and isinstance(touched, FileChange) and self.passes.of_spawn(asked.spawn, touched.path)

    def secret_opened(self, path: str) -> None:
        """Make it loud that something opened the empty file that is shown in the place of a secret."""
        denial = Deny(
            what=f"read {path}", effects=frozenset({Risk.SYSTEM_WRITE}), layer=Layer.KERNEL, rule="sandbox.masked",
            reason="It looks like a secret, so the task was shown an empty file in its place.",
            hint="Do without it; the operator can show it: sandbox.show in the profile.",
        )  # fmt: skip
        with contextlib.suppress(JournalError):  # it was shown nothing; what the task does next will fail to be recorded
            self.refuse("read", denial)

    def file_asked(self, asked: wire.FileAsked) -> wire.Answer | None:
        """Answer a change to a path. None: the operator is asked, and the process is held meanwhile."""
        operation = FileChange(action=asked.op.action, path=asked.path, other=asked.other)
        if self.passes and self.passes.covers(self.seen_by(asked.pid), asked.spawn, asked.pid, operation):
            return wire.Answer(request=asked.request, allow=True)
        assessment, verdict = self.judge(operation, scope=self._known(asked.scope), at_gate=True, can_wait=True)
        allow = wire.Answer(request=asked.request, allow=True)
        if isinstance(verdict, Allow):
            return allow

        def refuse(denial: Deny) -> wire.Answer:
            self.refuse("file", denial, program=program_of(self.seen_by(asked.pid), asked.pid))
            return wire.Answer(request=asked.request, allow=False, error=errno.EACCES, note=_note(denial))

        if isinstance(verdict, Ask):
            from broker.task.asking import Held, hold

            return hold(self, "file", operation, (assessment, verdict), Held(asked=asked, allow=allow, refuse=refuse))
        return refuse(verdict)

    def noted(self, message: wire.Note | wire.Executed) -> None:
        """Record what the guard saw."""
        if isinstance(message, wire.Executed):
            return
        if message.kind is wire.NoteKind.NET_REFUSED:
            self.refuse("connect", _no_way_out(message.text))
            return
        self._notes += 1
        if self._notes > NOTES_RECORDED and self._notes % NOTES_RECORDED:
            return
        self._journal.append(
            NOTE_EVENTS[message.kind], task=self.path, pid=message.pid, text=message.text, note=message.kind.name.lower()
        )
        if message.kind is wire.NoteKind.EXEC_RACE:
            self.races += 1
        if message.kind in NOTE_DENIALS:
            rule, risk, reason, hint = NOTE_DENIALS[message.kind]
            self.refuse(
                "exec",
                Deny(what=message.text or rule, effects=frozenset({risk}), layer=Layer.KERNEL, rule=rule, reason=reason, hint=hint),
            )

    def call_came(self, line: CallLine) -> None:
        """Have a call from inside served on a thread of its own."""
        self._desk.serve(line, self.called if self.called is not None else _nobody_answers)

    def connection_came(self, port: int, connection: socket.socket) -> None:
        """Pass a connection to one of the guard's ports on to whoever serves them."""
        if self.connected is None:
            connection.close()
        else:
            self.connected(port, connection)

    # The rest

    def record(self, kind: str, **fields: object) -> None:
        """Write an event of this task. Raises JournalError, also when the record is as large as it may become."""
        if self._journal.size > JOURNAL_LIMIT:
            raise JournalError(f"{self._journal.path} has reached {JOURNAL_LIMIT >> 20} MiB: the task is ended")
        self._journal.append(kind, task=self.path, **fields)

    def cannot_record(self, error: JournalError) -> None:
        """End the task: something in it could not be recorded, so nothing more may happen."""
        if self.end is not None:
            self.end(error)

    def can_write(self, path: str) -> bool:
        """Whether the task could put a file of its own at this path, or where the path leads to on this host."""
        shown = self.envelope.profile.sandbox.read_only
        real = os.path.realpath(path)
        if real != path and is_below(real, self.context.workspace):
            return True  # shown read-only under another name: the workspace is written to under its own
        return any(is_below(path, root) for root in self.context.writable) and not any(is_below(path, one) for one in shown)

    def _wrote(self, asked: wire.ExecAsked) -> bool:
        """Whether what starts could be the task's own: the program, or the interpreter that a script names."""
        interpreter = asked.shebang.removeprefix("#!").split(None, 1)[:1]
        return any(self.can_write(os.path.normpath(os.path.join(asked.cwd, path))) for path in (asked.program, *interpreter))

    def grants(self) -> tuple[Grant, ...]:
        """Return the grants that were opened in this task."""
        with self._lock:
            return tuple(grant for grant in self._scopes if grant is not None)

    @staticmethod
    def _after(scope: int) -> int:
        """The scope of a process whose start opened no grant: its own; behind the operator's choice and the agent, everybody's."""
        return 0 if scope in (OPERATOR_SCOPE, AGENT_SCOPE) else wire.SCOPE_UNCHANGED

    def _lies_in_a_layer(self, path: str) -> bool:
        return any(path.startswith(root + "/") for root in self.lands)

    def _context_of(self, operation: Operation) -> Context:
        cwd = getattr(operation, "cwd", "")
        if not cwd or cwd == self.context.cwd:
            return self.context
        known = self.context
        return Context(
            cwd=cwd, home=known.home, workspace=known.workspace, scratch=known.scratch, writable=known.writable,
            symlinks=known.symlinks, dialect=known.dialect,
        )  # fmt: skip

    def _digest(self, operation: Operation) -> str | None:
        """Return the digest of the program's file as the sandbox sees it, where an entry pins one; None: no entry fits.

        The path comes from inside: it may be anything by the time it is opened here, a pipe without a writer included.
        """
        if not needs_digest(operation, self.envelope) or not isinstance(operation, Exec):
            return None
        return _digest_of(self.files_at + operation.program)

    def _known(self, scope: int) -> int:
        """A scope that was never given out has no grant."""
        return scope if scope < len(self._scopes) else 0

    def _scope_of(self, grant: Grant) -> int:
        with self._lock:
            if grant in self._scopes:  # never the first three, which are None
                return self._scopes.index(grant)
            self._scopes.append(grant)
            return len(self._scopes) - 1

    def _write_denial(self, tool: str, denial: Deny, of: str = "") -> None:
        """Add a line to the list that the agent can read. Best effort: the journal is the record."""
        row = {name: value for name, value in row_of(tool, denial).items() if name != "count"}
        if of:
            row["of"] = of
        try:
            with open(self._denials_file, "a", encoding="ascii") as file:
                file.write(json.dumps(row) + "\n")
        except OSError:
            return


def _digest_of(path: str) -> str | None:
    """Return the digest of a regular file; None for anything else."""
    import hashlib

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            known = stat.S_ISREG(os.fstat(descriptor).st_mode)
            return hashlib.file_digest(file, "sha256").hexdigest() if known else None
    except OSError:
        return None


def _nobody_answers(line: CallLine) -> None:
    with contextlib.suppress(CallEnded):
        line.write(b"broker: this task takes no calls\n", stderr=True)
        line.exit(69)


def _no_way_out(attempt: str) -> Deny:
    """Return the denial of what the guard says about an attempt to connect: `PROGRAM ADDRESS:PORT tcp|udp`."""
    program, address, _ = attempt.rsplit(" ", 2)
    return Deny(
        what=f"connect to {address} ({shorten(program)})", effects=frozenset({Risk.NETWORK_EGRESS}), layer=Layer.KERNEL,
        rule="net.refused", reason="The task has no network: there is no way from its loopback to anywhere else.",
        hint="Do without it; only the operator can open a way out (gateways, network.hosts in the profile).",
    )  # fmt: skip


def _note(denial: Deny) -> str:
    return f"broker: denied {denial.what}: {denial.reason} Instead: {denial.hint}\n"
