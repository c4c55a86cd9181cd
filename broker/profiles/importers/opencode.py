"""OpenCode's opencode.json: permission (by tool; of a tool's patterns the last that matches wins), or a list of rules."""

from __future__ import annotations

from typing import Any

from broker.classify.paths import is_secret
from broker.classify.risk import Risk
from broker.profiles.importers.draft import Draft
from broker.profiles.importers.plain import items, jsonc, table
from broker.profiles.importers.rules import ALLOW, ASK, DENY, CommandRule, apply_rules, glob_rule

_READS = frozenset({"read", "grep", "glob", "list", "ls", "lsp", "skill", "todoread", "todowrite"})
_CHANGES = frozenset({"edit", "write", "patch", "apply_patch"})


def read(text: str, _: str, name: str | None) -> tuple[Draft, ...]:
    """Return the configuration as a draft."""
    config = jsonc(text)
    draft = Draft(name=name or "opencode", description="Imported from OpenCode's permissions")
    commands: list[CommandRule] = []
    for tool, pattern, decision in _rules(config):
        _rule(draft, commands, tool, pattern, decision)
    for key in config.keys() - {"permission", "permissions", "$schema"}:
        draft.dropped(key, "no permission")

    def settle(command: str) -> str:
        found = [rule.decision for rule in commands if rule.matches(command)]
        return found[-1] if found else ASK  # the tool's own default is wider, and nobody wrote it down

    # What a later rule about everything overrides says nothing any more.
    last = max((at for at, rule in enumerate(commands) if rule.everything), default=0)
    apply_rules(draft, commands[last:], settle)
    return (draft,)


def _rules(config: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return (tool, pattern, decision) in the order in which they are written."""
    found: list[tuple[str, str, str]] = []
    permission = config.get("permission")
    if isinstance(permission, str):
        return [("*", "*", permission)]
    for tool, said in table(permission).items():
        if isinstance(said, dict):
            found += [(tool, pattern, str(decision)) for pattern, decision in said.items()]
        else:
            found.append((tool, "*", str(said)))
    for rule in items(config.get("permissions")):
        if isinstance(rule, dict):
            found.append((str(rule.get("action", "*")), str(rule.get("resource", "*")), str(rule.get("effect"))))
    return found


def _rule(draft: Draft, commands: list[CommandRule], tool: str, pattern: str, decision: str) -> None:
    shown = f"{tool} {pattern}" if pattern != "*" else tool
    if decision not in {ALLOW, ASK, DENY}:
        draft.dropped(shown, f"{decision!r} is not known")
        draft.lower_to(Risk.SAFE)
        return
    said = shown if decision == ALLOW else f"{shown} ({decision})"
    if tool in {"bash", "*"}:
        commands.append(glob_rule(decision, pattern, shown))
    if tool == "bash":
        return
    if tool in _CHANGES or tool == "*":
        if decision != ALLOW:
            draft.lower_to(Risk.SAFE)
            draft.narrowed(said, "no path can be taken from a ceiling, so the ceiling is safe: nothing is changed")
        elif tool != "*":
            draft.dropped(said, 'one class stands for changing files, by tools and by every command: set max_risk = "local_write" yourself')
    elif tool in _READS:
        if decision == ALLOW:
            draft.imported(said, "reading is safe, which every profile permits")
        elif is_secret(pattern.rstrip("*").rstrip("/")):
            draft.imported(said, "files that look like secrets are masked, unless sandbox.show names them")
        else:
            draft.dropped(said, "what lies in the workspace can be read by every task: keep it elsewhere")
    elif tool in {"webfetch", "websearch"}:
        (draft.dropped if decision == ALLOW else draft.imported)(said, "a task has no network")
    elif decision == ALLOW:
        draft.dropped(said, "not a command or a file: no profile can name it")
    else:
        draft.imported(said, "there is no such tool")
