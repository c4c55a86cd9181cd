"""Step 3: a shell, xargs or find may start although a command of theirs may not: that one comes to the gate by itself.

When a shell text holds one refused command, refusing the shell says little to whoever asked: a harness sees
"cannot start /bin/bash", and the reason is lost with the process that never was. Letting the shell start loses
nothing where each refused part is a program start of its own, because the gate stops that start with its real
argv; the shell then prints the reason where the agent reads it, and its exit code is the usual 126.

xargs and find are the same, and more so: what they will start is not known before. `find … -exec grep x {} +` is whatever
grep is, and `xargs rm` what rm is with the names that really came.

Parts that never come to the gate (redirections, builtins, what is not understood) must be permitted now.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import replace

from broker.classify.context import Context
from broker.classify.risk import Assessment, Part, PartKind, Risk
from broker.decide.decide import decide, names_a_shell
from broker.decide.envelope import Envelope
from broker.decide.verdict import Allow, Grant
from broker.request.operation import Exec, Operation

# What a shell does itself, without a program start (bash(1), SHELL BUILTIN COMMANDS; dash(1)).
_BUILTINS = frozenset(
    ". : [ alias bg bind break builtin caller cd chdir command compgen complete compopt continue coproc declare dirs "
    "disown echo enable eval exec exit export false fc fg getopts hash help history jobs kill let local logout mapfile "
    "newgrp popd print printf pushd pwd read readarray readonly return select set shift shopt source suspend test time "
    "times trap true type typeset ulimit umask unalias unset wait whence zmodload".split()
)

# Shells of which we know that each command that is no builtin, function or alias is a program start. Not busybox (its
# shell runs applets by itself) nor zsh and ksh (their builtins are whatever has been loaded).
_KNOWN_SHELLS = frozenset({"sh", "bash", "rbash", "dash"})

# Programs that start the command behind them by execve, whatever it is called (not busybox's, which run applets inside).
_LAUNCHERS = ({"xargs"}, {"find"})
_OF_EXEC = frozenset({"option.find-exec"})

_PLAIN = re.compile(r"[A-Za-z0-9_./+-]+")


# What a shell in the text does to its own argument: that shell is a program start.
_OF_THE_PROGRAM = frozenset({"shell.dynamic_text", "shell.nix"})


def starts_by_deferral(
    operation: Operation, assessment: Assessment, envelope: Envelope, context: Context, *, scope: Grant | None = None,
    agent: bool = False,
) -> Allow | None:  # fmt: skip
    """Return an Allow for a shell whose refused parts will all be judged again, else None.

    `agent`: an agent's own process starts it. Where file labels are required, a redirection to a labelled place is left to
    them as well: to an agent, a shell that cannot start says nothing, and the shell's own words say which file it was.

    INVARIANT: every part that is left out here is a program start of its own
    (test_what_never_comes_to_the_gate_is_never_deferred).
    """
    if not isinstance(operation, Exec) or Risk.BLOCKED in assessment.effects or len(assessment.parts) < 2:
        return None
    now: tuple[Part, ...]
    started = {posixpath.basename(path) for path in (operation.path, operation.program) if path}
    if started in _LAUNCHERS:
        rule, now = "launcher.deferred", (_without_exec(assessment.parts[0]),)
    elif names_a_shell(assessment.parts[0].argv) and started <= _KNOWN_SHELLS:
        rule = "shell.deferred"
        labelled = agent and all("file_labels" in level.profile.requires for level in envelope.levels())
        now = tuple(part for index, part in enumerate(assessment.parts) if index == 0 or not (_comes_again(part) or (labelled and _is_labelled(part))))
    else:
        return None
    if len(now) == len(assessment.parts):
        return None
    # Left-out parts would leave `within` pointing at others; none of what is left may be covered by an entry.
    reduced = replace(assessment, parts=tuple(replace(part, within=None if index == 0 else 0) for index, part in enumerate(now)))
    verdict = decide(operation, reduced, envelope, context, scope=scope)
    if isinstance(verdict, Allow) and verdict.grant is None:
        return replace(verdict, rule=rule)
    return None


def _without_exec(part: Part) -> Part:
    """Return find's own part without what its -exec is by itself: another program's start."""
    reasons = tuple(reason for reason in part.reasons if reason.rule not in _OF_EXEC)
    dropped = {reason.risk for reason in part.reasons} - {reason.risk for reason in reasons}
    return replace(part, reasons=reasons, effects=part.effects - dropped)


def _is_labelled(part: Part) -> bool:
    """Whether this part is a redirection that changes a file of the catalogue, which the guard asks about: nothing else is persistence."""
    return part.kind is PartKind.REDIRECT and Risk.PERSISTENCE in part.effects and part.effects <= _OF_LABELS


_OF_LABELS = frozenset({Risk.SAFE, Risk.LOCAL_WRITE, Risk.PERSISTENCE})


def _comes_again(part: Part) -> bool:
    """Whether this part is a program start that the gate will see. A name that is not plain could be a builtin's."""
    if part.kind is not PartKind.COMMAND or not part.argv:
        return False
    if any(reason.rule.startswith("shell.") and reason.rule not in _OF_THE_PROGRAM for reason in part.reasons):
        return False  # the shell itself does this while it expands the words, or the name means something else
    return _PLAIN.fullmatch(part.argv[0]) is not None and posixpath.basename(part.argv[0]) not in _BUILTINS
