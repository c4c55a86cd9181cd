"""Gemini CLI's policies/*.toml: [[rule]] with toolName, commandPrefix or commandRegex, decision, priority (the highest wins)."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from broker.classify.risk import Risk
from broker.profiles.importers.draft import Draft
from broker.profiles.importers.plain import items, texts
from broker.profiles.importers.rules import ALLOW, ASK, DENY, CommandRule, apply_rules, glob_rule

_DECISIONS = {"allow": ALLOW, "ask_user": ASK, "deny": DENY}
_SHELL = "run_shell_command"
_CHANGES = frozenset({"write_file", "replace", "edit"})
_CONDITIONS = ("argsPattern", "mcpName", "toolAnnotations", "subagent", "modes", "interactive")


def read(text: str, _: str, name: str | None) -> tuple[Draft, ...]:
    """Return the policy as a draft."""
    draft = Draft(name=name or "gemini", description="Imported from Gemini CLI's policy")
    ranked: list[tuple[float, CommandRule]] = []
    for rule in items(tomllib.loads(text).get("rule")):
        if isinstance(rule, dict):
            for tool in texts(rule.get("toolName")) or ["*"]:
                _rule(draft, ranked, rule, tool)

    def settle(command: str) -> str:
        found = [(priority, rule.decision) for priority, rule in ranked if rule.matches(command)]
        best = max((priority for priority, _ in found), default=0)
        decided = {decision for priority, decision in found if priority == best}
        return next((decision for decision in (DENY, ASK, ALLOW) if decision in decided), ASK)

    apply_rules(draft, [rule for _, rule in ranked], settle)
    return (draft,)


def _rule(draft: Draft, ranked: list[tuple[float, CommandRule]], rule: dict[str, Any], tool: str) -> None:
    decision = _DECISIONS.get(str(rule.get("decision")))
    priority = rule.get("priority", 0)
    shown = f"rule {tool} {rule.get('commandPrefix') or rule.get('commandRegex') or ''}".strip()
    if decision is None or not isinstance(priority, (int, float)):
        draft.dropped(shown, f"decision {rule.get('decision')!r} is not known")
        draft.lower_to(Risk.SAFE)
        return
    conditions = [key for key in _CONDITIONS if key in rule]
    if conditions and decision == ALLOW:
        draft.dropped(shown, f"it holds only under {', '.join(conditions)}, which no profile can say")
    elif tool in {_SHELL, "*"}:
        for made in _commands(decision, rule, shown):
            ranked.append((float(priority), made))
    elif tool in _CHANGES:
        if decision == ALLOW:
            draft.dropped(shown, 'one class stands for changing files, by tools and by every command: set max_risk = "local_write" yourself')
        else:
            draft.lower_to(Risk.SAFE)
            draft.narrowed(f"{shown} ({decision})", "the ceiling is safe: nothing is changed")
    elif decision == ALLOW:
        draft.dropped(shown, "not a command or a file: no profile can name it")
    else:
        draft.imported(f"{shown} ({decision})", "there is no such tool")


def _commands(decision: str, rule: dict[str, Any], shown: str) -> list[CommandRule]:
    prefixes = texts(rule.get("commandPrefix"))
    if prefixes:
        return [glob_rule(decision, f"{prefix}:*", f"rule {_SHELL} commandPrefix {prefix}") for prefix in prefixes]
    pattern = rule.get("commandRegex")
    if not isinstance(pattern, str):
        return [glob_rule(decision, "*", shown)]
    try:
        compiled = re.compile(pattern)
    except re.error:
        compiled = re.compile(".*", re.DOTALL)  # not understood: about everything, unless it allows
    if decision == ALLOW:
        # The expression is searched for from the start of the text; only one that is a command to the end is exact.
        found = re.fullmatch(r"\^?([A-Za-z0-9 _=/,:@%+-]+)\$", pattern)
        if found:
            return [CommandRule(decision=decision, shown=shown, pattern=re.compile(re.escape(found[1])), exact=found[1])]
        return [CommandRule(decision=decision, shown=shown, pattern=re.compile(f"(?:{compiled.pattern}).*", re.DOTALL), words=("?",))]
    return [CommandRule(decision=decision, shown=shown, pattern=re.compile(f".*(?:{compiled.pattern}).*", re.DOTALL))]
