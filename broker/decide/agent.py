"""Step 3: what is known of an agent: which programs are it, what those may start and change by themselves.

Only the agent's own processes are meant: those that run its programs. Whatever else they start is judged as everything is,
and what that starts is not the agent any more. Values and questions about them; nothing here reads a file.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import replace

from broker.classify.context import Context
from broker.classify.risk import Risk
from broker.decide.wrapper import Shape, unwrap
from broker.request.operation import Exec, FileChange, Operation
from broker.values import dataclass

# What a runtime may be told in front of the agent's script: nothing that loads code.
_TAME_OPTION = re.compile(r"--(max-old-space-size=\d+|no-warnings(=[A-Z]\w+)?|enable-source-maps|no-deprecation)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Helper:
    """A program of the system's that an agent may start by itself, with classes that its task lacks."""

    program: str
    effects: frozenset[Risk]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """An agent, as far as verdicts hang on it.

    `programs` are files and folders with the agent's own programs, `runtimes` what runs them when they are scripts: absolute
    paths that the task cannot write to. `state` are paths below its home that it may change, although the catalogue calls
    them an agent's configuration; `settings` are those of them that it may not. A path that ends in `*` stands for all that
    begin so, one that ends in `/` for all below. `wrappers` are the shapes that it puts around a command. `sets` are
    variables, with their values (`*`: any), that it sets for each command, and that change nothing. `session` are paths below
    the workspace that it keeps for itself there: no work of its, they never land. `home` is a folder of the host's that is its
    home, kept ('': a new one each time).
    """

    name: str
    programs: tuple[str, ...] = ()
    runtimes: tuple[str, ...] = ()
    helpers: tuple[Helper, ...] = ()
    state: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    wrappers: tuple[Shape, ...] = ()
    sets: tuple[tuple[str, str], ...] = ()
    session: tuple[str, ...] = ()
    home: str = ""

    def is_own(self, operation: Operation, context: Context) -> bool:
        """Whether a program start is the agent itself once more: one of its programs, or a runtime with one of its scripts."""
        if not isinstance(operation, Exec) or _writable(operation.program, context):
            return False
        if self._holds(operation.program):
            return True
        if operation.program not in self.runtimes:
            return False
        words = [word for word in operation.argv[1:] if not _TAME_OPTION.fullmatch(word)]
        return bool(words) and words[0].startswith("/") and self._holds(posixpath.normpath(words[0]))

    def _holds(self, path: str) -> bool:
        return any(path == own or path.startswith(own.rstrip("/") + "/") for own in self.programs)

    def lifts(self, operation: Operation, context: Context) -> frozenset[Risk]:
        """Return the classes that the agent's own processes may have for this, beyond those of the task. Never blocked."""
        match operation:
            case Exec() if not _writable(operation.program, context) and operation.argv:
                name = posixpath.basename(operation.program)
                named = [one.effects for one in self.helpers if one.program in (name, operation.program)]
                return frozenset().union(*named) - {Risk.BLOCKED}
            case FileChange() if operation.landing:
                return frozenset()
            case FileChange():
                paths = [path for path in (operation.path, operation.other) if path.startswith("/")]
                mine = bool(paths) and all(self._is_state(path, context.home) for path in paths)
                return frozenset({Risk.PERSISTENCE, Risk.DESTRUCTIVE, Risk.SYSTEM_WRITE}) if mine else frozenset()
        return frozenset()

    def sets_this(self, name: str, value: str) -> bool:
        """Whether a variable with this value is the agent's own."""
        return (name, value) in self.sets or (name, "*") in self.sets

    def _is_state(self, path: str, home: str) -> bool:
        name = path.removeprefix(home.rstrip("/") + "/")
        if name == path or posixpath.normpath(path) != path:
            return False
        return is_among(name, self.state) and not is_among(name, self.settings)


def without_its_variables(operation: Operation, agents: Sequence[Agent | None]) -> Operation:
    """Return a program start without the variables that the agent sets for each command, as every level knows them."""
    if not isinstance(operation, Exec) or not operation.env or not all(agent is not None and agent.sets for agent in agents):
        return operation
    kept = tuple(pair for pair in operation.env if not all(agent is not None and agent.sets_this(*pair) for agent in agents))
    return operation if len(kept) == len(operation.env) else replace(operation, env=kept)


def unwrapped(operation: Operation, agent: Agent | None, context: Context) -> Operation:
    """Return what an agent's start of a wrapped command is judged as: the same shell with the command alone."""
    if agent is None or not isinstance(operation, Exec) or not agent.wrappers:
        return operation
    found = unwrap(operation.argv, agent.wrappers, context.home)
    if found is None:
        return operation
    return replace(operation, argv=(found.shell, "-c", found.text))


def is_among(name: str, patterns: Sequence[str]) -> bool:
    """Whether a relative path is one of those that such patterns stand for."""
    return any(_is(name, pattern) for pattern in patterns)


def _is(name: str, pattern: str) -> bool:
    if pattern.endswith("*"):
        return name.startswith(pattern[:-1])
    return name == pattern.rstrip("/") or (pattern.endswith("/") and name.startswith(pattern))


def _writable(path: str, context: Context) -> bool:
    """Whether the task can put a program of its own there: then it is nobody's program that we know."""
    if not path.startswith("/") or posixpath.normpath(path) != path:
        return True
    roots = (*context.writable_roots, context.workspace, "/proc", "/dev", "/sys")
    return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)
