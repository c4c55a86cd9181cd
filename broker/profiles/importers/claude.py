"""Claude Code's settings.json: permissions.allow, ask and deny (deny wins, then ask), defaultMode, sandbox."""

from __future__ import annotations

import re
from typing import Any

from broker.classify.paths import is_secret
from broker.classify.risk import Risk
from broker.profiles.importers.draft import Draft
from broker.profiles.importers.plain import jsonc, table, texts
from broker.profiles.importers.rules import ALLOW, ASK, DENY, CommandRule, apply_rules, glob_rule

_TOOL = re.compile(r"([A-Za-z_][\w-]*)(?:\((.*)\))?", re.DOTALL)
_EDITS = frozenset({"Edit", "Write", "MultiEdit", "NotebookEdit"})
_READS = frozenset({"Read", "Grep", "Glob", "LS"})


def read(text: str, _: str, name: str | None) -> tuple[Draft, ...]:
    """Return the settings as a draft."""
    settings = jsonc(text)
    draft = Draft(name=name or "claude", description="Imported from Claude Code's permissions")
    permissions = table(settings.get("permissions"))
    commands: list[CommandRule] = []
    for decision in (ALLOW, ASK, DENY):
        for rule in texts(permissions.get(decision)):
            _rule(draft, commands, decision, rule)
    _mode(draft, commands, permissions.get("defaultMode"))
    _sandbox(draft, commands, table(settings.get("sandbox")))
    for folder in texts(permissions.get("additionalDirectories")):
        draft.dropped(f"additionalDirectories {folder}", "a task works in one workspace; show others with sandbox.read_only")
    for key in settings.keys() - {"permissions", "sandbox", "$schema"}:
        draft.dropped(key, "no permission")

    def settle(command: str) -> str:
        found = {rule.decision for rule in commands if rule.matches(command)}
        return next((decision for decision in (DENY, ASK, ALLOW) if decision in found), ASK)

    apply_rules(draft, commands, settle)
    return (draft,)


def _rule(draft: Draft, commands: list[CommandRule], decision: str, rule: str) -> None:
    found = _TOOL.fullmatch(rule.strip())
    tool, inside = (found[1], found[2]) if found else (rule, None)
    shown = rule if decision == ALLOW else f"{rule} ({decision})"
    if tool == "Bash":
        commands.append(glob_rule(decision, inside if inside is not None else "*", rule))
    elif tool in _EDITS:
        _edit(draft, decision, inside, shown)
    elif tool in _READS:
        _reading(draft, decision, inside, shown)
    elif decision != ALLOW:
        draft.imported(shown, "there is no such tool, and no network" if tool.startswith("Web") else "there is no such tool")
    elif tool in {"WebFetch", "WebSearch"}:
        draft.dropped(shown, "a task has no network")
    else:
        draft.dropped(shown, "not a command or a file: no profile can name it")


def _edit(draft: Draft, decision: str, inside: str | None, shown: str) -> None:
    if decision == ALLOW:
        draft.dropped(
            shown, 'one class stands for changing files, by this tool and by every command: set max_risk = "local_write" yourself'
        )
        return
    draft.lower_to(Risk.SAFE)
    for tool in ("write_file", "patch", "batch_patch") if inside is None else ():
        draft.disabled.setdefault(tool)
    draft.narrowed(shown, "no path can be taken from a ceiling, so the ceiling is safe: nothing is changed")


def _reading(draft: Draft, decision: str, inside: str | None, shown: str) -> None:
    if decision == ALLOW:
        draft.imported(shown, "reading is safe, which every profile permits")
    elif inside is not None and is_secret(inside.rstrip("*").rstrip("/")):
        draft.imported(shown, "files that look like secrets are masked, unless sandbox.show names them")
    else:
        draft.dropped(shown, "what lies in the workspace can be read by every task: keep it elsewhere")


def _mode(draft: Draft, commands: list[CommandRule], mode: Any) -> None:
    match mode:
        case None | "default" | "plan" | "dontAsk":
            if mode is not None:
                draft.imported(f"defaultMode {mode}", "what is not listed is not permitted")
        case "acceptEdits":
            draft.dropped("defaultMode acceptEdits", 'set max_risk = "local_write" yourself: it is also for commands that change files')
        case "bypassPermissions":
            commands.append(glob_rule(ALLOW, "*", "defaultMode bypassPermissions"))
        case _:
            draft.dropped(f"defaultMode {mode}", "not known")


def _sandbox(draft: Draft, commands: list[CommandRule], box: dict[str, Any]) -> None:
    if box.get("enabled") is True and box.get("autoAllowBashIfSandboxed") is True:
        commands.append(glob_rule(ALLOW, "*", "sandbox.autoAllowBashIfSandboxed"))
    for command in texts(box.get("excludedCommands")):
        draft.dropped(f"sandbox.excludedCommands {command}", "refused: nothing runs outside the sandbox")
    network = table(box.get("network"))
    for domain in texts(network.get("allowedDomains")):
        draft.dropped(f"sandbox.network.allowedDomains {domain}", "a task has no network")
    files = table(box.get("filesystem"))
    for path in texts(files.get("allowWrite")):
        draft.dropped(f"sandbox.filesystem.allowWrite {path}", "a task writes to its workspace and to temporary space")
    for path in texts(files.get("denyWrite")):
        draft.lower_to(Risk.SAFE)
        draft.narrowed(f"sandbox.filesystem.denyWrite {path}", "no path can be taken from a ceiling, so the ceiling is safe")
    for path in texts(files.get("denyRead")):
        _reading(draft, DENY, path, f"sandbox.filesystem.denyRead {path}")
    if box.get("allowUnsandboxedCommands") is True:
        draft.dropped("sandbox.allowUnsandboxedCommands", "refused: nothing runs outside the sandbox")
