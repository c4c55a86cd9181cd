"""How each agent is told to ask `broker hook`. In: which agent, where, the command. Out: its file with ours in it, or without.

Three agents have a JSON file with hooks, of which others may be the operator's own; OpenCode loads programs from a folder, and
gets one. What is ours carries a mark, so that it can be found again. Nothing here writes a file.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from broker.errors import UsageError
from broker.serve.hook_event import Dialect
from broker.values import dataclass

MARK = "# by broker install"
# A hook that an agent gives up on lets the tool run, in Codex and Gemini CLI: a process that is stopped is ended before that.
_IN_TIME = "timeout -k 1 15 "  # of coreutils, as in every Linux
_OR_BLOCK = "{ echo 'broker could not answer, so this was blocked' >&2; exit 2; }"
_SECONDS = 20  # until the agent gives up; a hook ends by itself after half of that, and blocks


class Scope(StrEnum):
    """Whose settings: the user's, or those in a project."""

    USER = "user"
    PROJECT = "project"


class CannotBeChanged(UsageError):
    """A file of an agent is not what we can read: it stays as it is."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path} {why}, so it was left as it is. Mend it, or add the hooks by hand: docs/hooks.md")
        self.path = path


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """Where an agent's settings are, and what is left to do after they were written.

    `home_variable` names its folder, else it is `home` below the user's; `project` is the folder in a project. `file` is below
    either. `event`: what it calls the moment before a tool; '' for a plugin. `milliseconds`: its unit of time-outs.
    """

    dialect: Dialect
    program: str
    home_variable: str
    home: str
    project: str
    file: str
    event: str
    matcher: str
    ends: bool
    milliseconds: bool
    trust: str
    package: str

    def path(self, scope: Scope, workspace: str) -> str:
        """Return the file."""
        if scope is Scope.PROJECT:
            return os.path.join(workspace, self.project, self.file)
        named = os.environ.get(self.home_variable, "") if self.home_variable else ""
        if self.dialect is Dialect.OPENCODE:
            named = os.path.join(named, "opencode") if named.startswith("/") else ""
        return os.path.join(named or os.path.join(os.path.expanduser("~"), self.home), self.file)


AGENTS: dict[str, Agent] = {
    "claude": Agent(
        dialect=Dialect.CLAUDE, program="claude", home_variable="CLAUDE_CONFIG_DIR", home=".claude", project=".claude",
        file="settings.json", event="PreToolUse", matcher="*", ends=True, milliseconds=False, package="@anthropic-ai/claude-code",
        trust="Nothing, for settings of yours. Those of a project count once you have trusted its folder: start claude in it.",
    ),
    "codex": Agent(
        dialect=Dialect.CODEX, program="codex", home_variable="CODEX_HOME", home=".codex", project=".codex",
        file="hooks.json", event="PreToolUse", matcher=".*", ends=False, milliseconds=False, package="@openai/codex",
        trust="Start codex, type /hooks, and trust the hooks that end in `by broker install`. Until then, and after each change of "
        "them, Codex passes over them and says nothing.",
    ),
    "gemini": Agent(
        dialect=Dialect.GEMINI, program="gemini", home_variable="", home=".gemini", project=".gemini",
        file="settings.json", event="BeforeTool", matcher=".*", ends=True, milliseconds=True, package="@google/gemini-cli",
        trust="Nothing, for settings of yours. Those of a project count once you have trusted its folder: start gemini in it.",
    ),
    "opencode": Agent(
        dialect=Dialect.OPENCODE, program="opencode", home_variable="XDG_CONFIG_HOME", home=".config/opencode", project=".opencode",
        file="plugin/broker.js", event="", matcher="", ends=False, milliseconds=False, package="opencode-ai",
        trust="Nothing. OpenCode loads the plugin at its next start.",
    ),
}  # fmt: skip


def with_ours(agent: Agent, text: str | None, hook: Sequence[str], path: str) -> str:
    """Return the file's text with our hooks in it, and no older ones of ours. `text` None: there is no file.

    `hook`: the words that start `broker hook`. Raises CannotBeChanged for what cannot be read.
    """
    if not agent.event:
        if text is not None and MARK.removeprefix("# ") not in text:
            raise CannotBeChanged(path, "is there, and is not ours")
        return _plugin(hook)
    return _with(text, _ours(agent, hook), path)


def without_ours(agent: Agent, text: str, path: str, before: str | None) -> str | None:
    """Return the file's text without our hooks; None: nothing else was in it. `before`: its text before we first wrote to it.

    Where nobody else changed it since, it is what it was, to the byte. Raises CannotBeChanged for what cannot be read.
    """
    if not agent.event:
        if MARK.removeprefix("# ") not in text:
            raise CannotBeChanged(path, "is not ours")
        return before
    settings = _parsed(text, path)
    hooks = _hooks(settings, path)
    ours = {event: found for event, groups in hooks.items() if (found := [group for group in _listed(groups) if _is_ours(group)])}
    if not ours:
        return text
    if _parsed(_with(before, ours, path), path) == settings:
        return before
    rest = _cleared(settings, path)
    return _written(rest, text) if rest else None


def has_ours(agent: Agent, text: str, path: str) -> bool:
    """Whether our hooks are in the file."""
    if not agent.event:
        return MARK.removeprefix("# ") in text
    return any(_is_ours(group) for groups in _hooks(_parsed(text, path), path).values() for group in _listed(groups))


def _ours(agent: Agent, hook: Sequence[str]) -> dict[str, list[Any]]:
    """Return our hooks: before each tool, and at a session's ends."""
    plain = shlex.join(hook)
    seconds = _SECONDS * (1000 if agent.milliseconds else 1)
    # Whatever goes wrong before broker itself can say 2 (it is gone, it is killed) becomes a 2 here: it blocks. Not without a
    # word: Gemini CLI and Codex take a 2 that says nothing for a go-ahead (measured: docs/hooks.md).
    before: dict[str, Any] = {"type": "command", "command": f"{_IN_TIME}{plain} || {_OR_BLOCK} {MARK}", "timeout": seconds}
    aside: dict[str, Any] = {"type": "command", "command": f"{plain} {MARK}", "timeout": seconds}
    if agent.dialect is Dialect.CLAUDE:
        before["onFailure"] = "block"  # since 2.1.3xx; older ones pass over it
    if agent.dialect is Dialect.GEMINI:
        before["name"] = aside["name"] = "broker"
    ours: dict[str, list[Any]] = {"SessionStart": [{"hooks": [aside]}], agent.event: [{"matcher": agent.matcher, "hooks": [before]}]}
    return ours | ({"SessionEnd": [{"hooks": [aside]}]} if agent.ends else {})


def _with(text: str | None, ours: dict[str, list[Any]], path: str) -> str:
    settings = _parsed(text, path) if text is not None else {}
    rest = _cleared(settings, path)
    hooks = dict(rest.get("hooks", {}))
    for event, groups in ours.items():
        # Ours come first: what another hook has changed is not what the agent asked about.
        others = hooks.get(event, [])
        if not isinstance(others, list):
            raise CannotBeChanged(path, f"has hooks for {event} that are no list")
        hooks[event] = [*groups, *others]
    new = {**rest, "hooks": hooks}
    return text if text is not None and new == settings else _written(new, text)


def _cleared(settings: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the settings without our hooks, and without what held nothing else."""
    hooks = _hooks(settings, path)
    if not any(_is_ours(group) for groups in hooks.values() for group in _listed(groups)):
        return settings
    left = {}
    for event, groups in hooks.items():
        others = [group for group in groups if not _is_ours(group)] if isinstance(groups, list) else groups
        if others or others == groups:
            left[event] = others
    rest = {**settings, "hooks": left}
    if not left:
        del rest["hooks"]
    return rest


def _is_ours(group: object) -> bool:
    """Whether a group of hooks is one that we wrote: all of it, or somebody has put a hook of his own in."""
    hooks = group.get("hooks") if isinstance(group, dict) else None
    return isinstance(hooks, list) and bool(hooks) and all(
        isinstance(hook, dict) and str(hook.get("command", "")).endswith(MARK) for hook in hooks
    )  # fmt: skip


def _parsed(text: str, path: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        settings = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise CannotBeChanged(path, f"is no plain JSON ({error})") from None
    if not isinstance(settings, dict):
        raise CannotBeChanged(path, "holds no JSON object")
    return settings


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _listed(groups: Any) -> list[Any]:
    return groups if isinstance(groups, list) else []  # Gemini CLI has settings of another kind among its hooks


def _hooks(settings: dict[str, Any], path: str) -> dict[str, Any]:
    hooks = settings.get("hooks", {})
    if not isinstance(hooks, dict):
        raise CannotBeChanged(path, "has hooks that are no object")
    return hooks


def _written(settings: dict[str, Any], like: str | None) -> str:
    """Return the settings as JSON, indented as they were."""
    lines = (like or "").splitlines()
    indented = next((line for line in lines[1:] if line.strip() and line != line.lstrip()), "  ")
    indent = indented[: len(indented) - len(indented.lstrip())]
    end = "\n" if like is None or not like.strip() or like.endswith("\n") else ""
    return json.dumps(settings, indent=indent, ensure_ascii=False) + end


def _plugin(hook: Sequence[str]) -> str:
    return _PLUGIN.replace("@MARK@", MARK.removeprefix("# ")).replace("@HOOK@", json.dumps(list(hook)))


# OpenCode has no hooks, but runs this before each tool; what it throws is the tool's answer.
_PLUGIN = """\
// Written @MARK@; `broker uninstall --agent opencode` removes it. It asks broker before each tool.
import { spawn, spawnSync } from "node:child_process"

const HOOK = @HOOK@

export const Broker = async ({ directory }) => {
  // What this leaves behind has everything loaded before the first tool is used. Nothing hangs on it.
  const first = spawn(HOOK[0], HOOK.slice(1), { stdio: ["pipe", "ignore", "ignore"] })
  for (const one of [first, first.stdin]) one.on("error", () => {})
  first.stdin.end(JSON.stringify({ hook_event_name: "SessionStart", session_id: "opencode", cwd: directory }))
  return {
    "tool.execute.before": async (input, output) => {
      const event = {
        hook_event_name: "tool.execute.before", session_id: input.sessionID, tool_use_id: input.callID,
        cwd: directory, tool_name: input.tool, tool_input: output.args ?? {},
      }
      const asked = spawnSync(HOOK[0], HOOK.slice(1), { input: JSON.stringify(event), encoding: "utf8", timeout: 20000 })
      if (asked.error || asked.status !== 0)
        throw new Error(`broker could not be asked, so this was blocked: ${asked.stderr || asked.error || `exit ${asked.status}`}`)
      const answer = JSON.parse(asked.stdout)
      if (answer.decision !== "allow") throw new Error(answer.reason || "broker denied this")
      Object.assign(output.args, answer.tool_input ?? {})
    },
  }
}
"""
