"""odek's config.json: profiles (max_risk, tools.disabled, allowlist) as ours, and `dangerous`, which holds for all of them."""

from __future__ import annotations

from typing import Any

from broker.classify.risk import Risk
from broker.decide.profile import TOOLS
from broker.profiles.importers.draft import Draft
from broker.profiles.importers.plain import jsonc, table, texts
from broker.profiles.importers.rules import DENY, glob_rule
from broker.profiles.proposal import entry_text
from broker.profiles.schema import NAME

_CLASSES = {risk.label: risk for risk in Risk}


def read(text: str, _: str, name: str | None) -> tuple[Draft, ...]:
    """Return one draft for each profile."""
    config = jsonc(text)
    profiles = table(config.get("profiles"))
    if not profiles:
        raise ValueError("it holds no profiles")
    if name and len(profiles) > 1:
        raise ValueError(f"it holds {len(profiles)} profiles, so --name cannot name them. Leave it out")
    drafts = []
    for written, said in profiles.items():
        if not isinstance(said, dict):
            raise ValueError(f"profile {written!r} is no table")  # noqa: TRY004 - the text is wrong, not a type
        if not NAME.fullmatch(name or written):
            raise ValueError(f"{written!r} cannot be a profile's name here. Rename it, or use --name")
        draft = Draft(name=name or written, description=" ".join(str(said.get("description") or "Imported from odek").split()))
        _profile(draft, said)
        _dangerous(draft, table(config.get("dangerous")))
        drafts.append(draft)
    for key in config.keys() - {"profiles", "dangerous"}:
        drafts[0].dropped(key, "no permission")
    return tuple(drafts)


def _profile(draft: Draft, said: dict[str, Any]) -> None:
    ceiling = _CLASSES.get(str(said.get("max_risk", "safe")))
    if ceiling is None or ceiling in {Risk.UNKNOWN, Risk.BLOCKED}:
        draft.narrowed(f"max_risk {said.get('max_risk')}", 'there is no such ceiling: max_risk = "safe"')
    else:
        draft.raise_to(ceiling)
        draft.imported(f"max_risk {ceiling.label}")
    for tool in texts(table(said.get("tools")).get("disabled")):
        if tool in TOOLS:
            draft.disabled.setdefault(tool)
            draft.imported(f"tools.disabled {tool}")
        else:
            draft.dropped(f"tools.disabled {tool}", "there is no such tool")
    for command in texts(said.get("allowlist")):
        draft.list_exact(command, f"allowlist {command}")
    for key in said.keys() - {"description", "max_risk", "tools", "allowlist"}:
        draft.dropped(key, "not known")


def _dangerous(draft: Draft, said: dict[str, Any]) -> None:
    for label, action in table(said.get("classes")).items():
        risk = _CLASSES.get(label)
        if risk is None:
            draft.dropped(f"dangerous.classes {label}", "there is no such class")
            draft.lower_to(Risk.SAFE)
        elif action == "allow":
            draft.imported(f"dangerous.classes {label} allow", "as far as max_risk includes it")
        elif risk is Risk.SAFE:
            draft.dropped(f"dangerous.classes safe {action}", "what is safe is permitted by every profile")
        else:
            draft.removed.add(risk)
            draft.imported(f"dangerous.classes {label} {action}", "effects.remove, where max_risk includes it")
    for command in texts(said.get("denylist")):
        _deny(draft, command)
    for command in texts(said.get("allowlist")):
        draft.dropped(f"dangerous.allowlist {command}", "it is in no profile: list it in the one that needs it")
    if "non_interactive" in said:
        same = said["non_interactive"] == "deny"
        (draft.imported if same else draft.narrowed)(f"dangerous.non_interactive {said['non_interactive']}", "a task without a terminal is denied")
    for key in said.keys() - {"classes", "denylist", "allowlist", "non_interactive"}:
        draft.dropped(f"dangerous.{key}", "not known")


def _deny(draft: Draft, command: str) -> None:
    """Deny what begins so. An exact entry would win over it here, so those that it is about are not entries."""
    shown = f"dangerous.denylist {command}"
    rule = glob_rule(DENY, command if "*" in command else f"{command} *", shown)
    if rule.words:
        draft.deny_beginning(rule.words, shown, exactly=rule.whole)
    else:
        draft.lower_to(Risk.SAFE)
        draft.narrowed(shown, "no beginning of a command, so the ceiling is safe")
    for argv in tuple(draft.entries):
        if rule.matches(entry_text(argv)) or (rule.whole and argv[: len(rule.words)] == rule.words):
            del draft.entries[argv]
            draft.dropped(f"allowlist {entry_text(argv)}", "dangerous.denylist denies it")
