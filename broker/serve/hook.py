"""One tool's use by an agent on the host: what it is, whether the profile permits it, the record, the answer.

In: the bytes of an event, and the operator's Settings. Out: the bytes of an answer. The record comes before the answer: no
record, no go-ahead. It never says yes to what it did not understand: whatever it cannot do raises, and `broker hook` ends
with the one exit code that blocks.

This is convenience and no enforcement: the agent asks because it was told to, and several agents go on when their hook does
not answer (docs/hooks.md). What is rewritten into `broker exec` is enforced there.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from broker.errors import BrokerError
from broker.serve import hook_record
from broker.serve.hook_answer import Answer, Kind, encoded, words_of
from broker.serve.hook_event import Dialect, Event, NotUnderstood, understood
from broker.serve.hook_tools import Use, use_of
from broker.values import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from broker.classify.context import Context
    from broker.classify.risk import Assessment
    from broker.decide.envelope import Envelope
    from broker.decide.profile import Profile
    from broker.decide.trust import Trust
    from broker.decide.verdict import Deny, Verdict
    from broker.record.journal import Journal
    from broker.request.operation import Operation

# Modes in which the agent answers its own questions.
_NOBODY_ASKED = frozenset({"bypassPermissions", "dontAsk"})


class HookRefuses(BrokerError):
    """The hook cannot answer, so the tool must not run. To agents, only 2 says that."""

    exit_code = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the operator told `broker hook`. `program`: how this broker is started, for commands that are rewritten.

    `workspace` '': the agent's project, where it says so, else where it works. `options` go to `broker exec` as they are.
    """

    profile: str
    program: tuple[str, ...]
    rewrites: bool = True
    trust: str = "trusted"
    workspace: str = ""
    profile_dirs: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    state: Path | None = None


def answered(data: bytes, settings: Settings) -> bytes:
    """Return what the agent is told. Raises HookRefuses, or another BrokerError, when nothing can be said: the tool is blocked."""
    try:
        event = understood(data)
        workspace = _workspace(event, settings)
        session = hook_record.Session(id=event.session, profile=settings.profile, workspace=workspace)
        if event.begins:  # what stays behind after this call has everything loaded before the first tool is used
            return b""
        if event.ends:
            hook_record.end(session, settings.state)
            return b""
        return encoded(_Hook(event, settings, session).answer(), event.dialect)
    except NotUnderstood as error:
        raise HookRefuses(f"{error}. The tool was not used") from None


def _workspace(event: Event, settings: Settings) -> str:
    if settings.workspace:
        return os.path.realpath(settings.workspace)
    # Gemini CLI sets the other one as well. Both are of the agent's process, not of what it runs.
    named = os.environ.get("GEMINI_PROJECT_DIR") or os.environ.get("CLAUDE_PROJECT_DIR", "")
    return os.path.realpath(named if named.startswith("/") else event.cwd)


class _Hook:
    """The answer to one event."""

    def __init__(self, event: Event, settings: Settings, session: hook_record.Session) -> None:
        self._event, self._settings, self._session = event, settings, session
        self._loaded: Profile | None = None

    def answer(self) -> Answer:
        """Decide and record."""
        use = use_of(self._event, self._settings.passed)
        if use is None:
            denial = self._unknown_tool()
            return self._recorded(Answer(kind=Kind.DENIED, reason=words_of(denial)), (), denial=denial)
        if use.goes_on:
            use = Use() if self._settings.rewrites else _unseen_text(self._event)
        if use.command and self._settings.rewrites:
            new = {**self._event.input, use.key: self.rewritten(use.command)}
            new.pop("dangerouslyDisableSandbox", None)  # the agent's own box around ours is its business
            return self._recorded(Answer(kind=Kind.REWRITTEN, input=new), (), what=use.command)
        return self._judged(use)

    def rewritten(self, command: str) -> str:
        """Return the command line that runs this command in the sandbox, in the folder that the agent runs it in."""
        from shlex import join

        settings = self._settings
        words = [*settings.program, "exec", "--brief", "--profile", settings.profile, "--workspace", self._session.workspace, "--cwd", "."]
        for folder in settings.profile_dirs:
            words += ["--profile-dir", folder]
        if settings.trust != "trusted":
            words += ["--trust", settings.trust]
        return join([*words, *settings.options, "--", "bash", "-c", command])

    def _profile(self) -> Profile:
        from broker.profiles.load import load_profile

        if self._loaded is None:
            self._loaded = load_profile(
                self._settings.profile, profile_dirs=self._settings.profile_dirs, workspace=self._session.workspace
            )
        return self._loaded

    def _judged(self, use: Use) -> Answer:
        from broker.classify import classify
        from broker.decide.decide import decide
        from broker.decide.verdict import Allow, Ask
        from broker.request.operation import Exec

        operations: tuple[Operation, ...] = use.operations
        if use.command:
            operations = (Exec(argv=("bash", "-c", use.command), cwd=self._event.cwd),)
        context, envelope = self._context(), self._envelope()
        attended = self._attended()
        answers = []
        for operation in operations:
            assessment = classify(operation, context)
            answers.append((operation, assessment, decide(operation, assessment, envelope, context, interactive=attended)))
        verdicts = [verdict for _, _, verdict in answers]
        if refused := next((each for each in verdicts if not isinstance(each, (Allow, Ask))), None):
            answer = Answer(kind=Kind.DENIED, reason=words_of(refused))
            return self._recorded(answer, answers, denial=refused)
        if asked := next((each for each in verdicts if isinstance(each, Ask)), None):
            return self._recorded(Answer(kind=Kind.ASKED, reason=f"broker: {asked.reason}"), answers)
        kind = Kind.ALLOWED if operations else Kind.PASSED
        return self._recorded(Answer(kind=kind), answers)

    def _context(self) -> Context:
        from broker.classify.context import Context

        # On the host nothing but the workspace is the task's own: neither the home folder nor /tmp, where others are, too.
        workspace = self._session.workspace
        return Context(cwd=self._event.cwd, home=os.path.expanduser("~"), workspace=workspace, scratch=(), writable=(workspace,))

    def _envelope(self) -> Envelope:
        from broker.decide.envelope import Envelope

        return Envelope(profile=self._profile(), trust=self._trust())

    def _trust(self) -> Trust:
        from broker.decide.trust import Trust

        return Trust.parse(self._settings.trust)

    def _attended(self) -> bool:
        """Whether somebody is there who can be asked: only Claude Code says so, and lets a hook ask."""
        return (
            self._event.dialect is Dialect.CLAUDE and self._event.mode not in _NOBODY_ASKED
            and os.environ.get("CLAUDE_CODE_SESSION_ATTENDED") == "1"
        )  # fmt: skip

    def _unknown_tool(self) -> Deny:
        from broker.classify.risk import Risk
        from broker.decide.verdict import Deny, Layer
        from broker.decide.wording import shorten

        name = shorten(self._event.tool)
        return Deny(
            what=f"the tool {name}", effects=frozenset({Risk.UNKNOWN}), layer=Layer.PROFILE, rule="hook.unknown_tool",
            reason=f"Nobody told broker what the tool {name} does.",
            hint=f"Use another tool. The operator can let this one go: broker install … --pass {name}.", approvable=True,
        )  # fmt: skip

    def _recorded(
        self, answer: Answer, decided: Any, *, what: str = "", denial: Deny | None = None
    ) -> Answer:
        """Record what was decided, and return the answer. INVARIANT: no record, no go-ahead (tests/hooks/test_hook.py)."""
        from broker.record import event

        profile = self._profile()
        with hook_record.recording(self._session, profile.digest, self._first(profile), self._settings.state) as journal:
            for operation, assessment, verdict in decided:
                self._write(journal, operation, assessment, verdict)
            if denial is not None:
                from broker.record.denials import DenialLog

                DenialLog(journal).add(self._event.tool, denial)
            told: dict[str, Any] = {"call": self._event.call, "subagent": self._event.agent}
            journal.append(
                event.TOOL_CALLED, tool=self._event.tool, what=what, outcome=answer.kind.value,
                **{name: value for name, value in told.items() if value},
            )  # fmt: skip
        return answer

    def _write(self, journal: Journal, operation: Operation, assessment: Assessment, verdict: Verdict) -> None:
        from broker.decide.given import Given
        from broker.record import event
        from broker.request.operation import Connection, FileChange, FileRead

        kind = event.FILE_DECIDED if isinstance(operation, (FileChange, FileRead)) else event.EXEC_DECIDED
        kind = event.CONNECTION_DECIDED if isinstance(operation, Connection) else kind
        given = Given(interactive=self._attended(), cwd=self._event.cwd)  # what a session began with says less than this call
        fields: dict[str, Any] = event.decided(operation, assessment, verdict, given)
        journal.append(kind, **fields)

    def _first(self, profile: Profile) -> dict[str, Any]:
        from broker.record.recorded import profile_data

        return {
            "command": ("broker", "hook"), "verb": "hook", "agent": self._event.dialect.value, "session": self._event.session,
            "profile": profile.name, "digest": profile.digest, "source": profile.source, "max_risk": profile.max_risk,
            "workspace": self._session.workspace, "trust": self._settings.trust, "broker_pid": os.getpid(), "user": os.getuid(),
            "context": self._context(), "envelope": profile_data(profile),
        }  # fmt: skip


def _unseen_text(event: Event) -> Use:
    """Refuse what is typed into a program on the host: nobody can say what it makes of it."""
    raise NotUnderstood(f"the tool {event.tool} types into a program that runs on the host, where nothing of it is judged")
