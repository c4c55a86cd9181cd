"""Ask what an envelope would say of a command, without a sandbox. In: words or text. Out: assessment and verdict.

The same classifier and the same decision as at the exec gate, of a command as it stands on a command line: which file
a program's name leads to, and in which environment, is known only where it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from broker.classify import classify
from broker.classify.context import Context
from broker.classify.risk import Assessment
from broker.decide.decide import decide
from broker.decide.envelope import Envelope
from broker.decide.profile import AllowEntry, Profile
from broker.decide.trust import Trust
from broker.decide.verdict import Allow, Verdict
from broker.profiles.command_line import CommandLineError, parse_command_line
from broker.request.operation import Exec, Operation, ShellText

WORKSPACE = "/workspace"
HOME = "/home/agent"


class Judged(NamedTuple):
    """One command, what the classifier says of it, and what the envelope does."""

    operation: Operation
    assessment: Assessment
    verdict: Verdict

    @property
    def allowed(self) -> bool:
        """Whether it may go ahead without anybody being asked."""
        return isinstance(self.verdict, Allow)

    def under(self, profile: Profile, context: Context) -> Judged:
        """Return what another profile says of the same; what the command does is the same."""
        envelope = Envelope(profile=profile, trust=Trust.TRUSTED)
        return self._replace(verdict=decide(self.operation, self.assessment, envelope, context))


def context_in(workspace: str = WORKSPACE, cwd: str | None = None) -> Context:
    """Return the context of a task that works in this folder."""
    return Context(cwd=cwd or workspace, home=HOME, workspace=workspace)


def operation_of(command: str | Sequence[str]) -> Operation:
    """Return words, or a text of one plain command, as a program start; any other text as a shell's."""
    if not isinstance(command, str):
        return Exec(argv=tuple(command))
    try:
        return Exec(argv=parse_command_line(command))
    except CommandLineError:
        return ShellText(text=command)


def judge(
    command: str | Sequence[str] | Operation,
    who: Profile | Envelope,
    *,
    interactive: bool = False,
    context: Context | None = None,
    digest: str | None = None,
) -> Judged:
    """Return what the profile (of a trusted task), or the envelope, says of the command.

    `digest` is the SHA-256 of the program's file, for entries that pin one.
    """
    envelope = who if isinstance(who, Envelope) else Envelope(profile=who, trust=Trust.TRUSTED)
    known = context or context_in()
    operation = operation_of(command) if isinstance(command, (str, list, tuple)) else command
    assert isinstance(operation, Operation)
    assessment = classify(operation, known)
    verdict = decide(operation, assessment, envelope, known, interactive=interactive, digest=digest)
    return Judged(operation, assessment, verdict)


def start_of(entry: AllowEntry, context: Context | None = None) -> Exec:
    """Return the program start that an entry is for, at its best: the system's program, in the entry's folder."""
    import posixpath

    known = context or context_in()
    named = entry.argv[0]
    path = named if "/" in named else f"/usr/bin/{named}"
    path = path if path.startswith("/") else posixpath.join(known.workspace, path)
    cwd = posixpath.normpath(posixpath.join(known.workspace, entry.cwd or "."))
    return Exec(argv=entry.argv, path=path, program=path, cwd=cwd)
