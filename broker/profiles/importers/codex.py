"""Codex: config.toml (sandbox_mode, approval_policy) and execpolicy .rules files (prefix_rule calls).

The .rules files are Starlark. They are parsed as Python expressions and never run; what is no literal call is dropped.
"""

from __future__ import annotations

import ast
import itertools
import tomllib
from typing import Any

from broker.classify.risk import Risk
from broker.profiles.importers.draft import PREFIX, Draft
from broker.profiles.importers.plain import items, table, texts
from broker.profiles.judge import judge
from broker.profiles.proposal import entry_text

MOST_PATTERNS = 500


def read(text: str, suffix: str, name: str | None) -> tuple[Draft, ...]:
    """Return the file as a draft: rules if it is called .rules, else a configuration."""
    draft = Draft(name=name or "codex", description="Imported from Codex")
    if suffix == ".rules":
        _rules(draft, text)
    else:
        _config(draft, tomllib.loads(text))
    return (draft,)


def _config(draft: Draft, config: dict[str, Any]) -> None:
    mode, approval = config.get("sandbox_mode"), config.get("approval_policy", "on-request")
    match mode:
        case None | "read-only":
            draft.imported(f"sandbox_mode {mode or '(none)'}", 'max_risk = "safe"')
            draft.sandbox["workspace"] = "read-only"
        case "workspace-write" if approval == "untrusted":
            draft.narrowed("sandbox_mode workspace-write", "approval_policy untrusted asks before most commands, so the ceiling is safe")
        case "workspace-write":
            draft.raise_to(Risk.CODE_EXECUTION)
            draft.imported("sandbox_mode workspace-write", 'max_risk = "code_execution", in a copy-on-write workspace without network')
        case "danger-full-access":
            draft.dropped("sandbox_mode danger-full-access", "refused: there is no such profile")
        case _:
            draft.dropped(f"sandbox_mode {mode}", "not known")
    box = table(config.get("sandbox_workspace_write"))
    if box.get("network_access"):
        draft.dropped("sandbox_workspace_write.network_access", "a task has no network")
    for root in texts(box.get("writable_roots")):
        draft.dropped(f"sandbox_workspace_write.writable_roots {root}", "a task writes to its workspace and to temporary space")
    if "approval_policy" in config:
        draft.narrowed(f"approval_policy {approval}", "what is not permitted is denied")
    _environment(draft, table(config.get("shell_environment_policy")))
    for key in ("default_permissions", "permissions"):
        if key in config:
            draft.lower_to(Risk.SAFE)
            draft.dropped(key, "it does not combine with sandbox_mode, and is not read: the ceiling is safe")
    known = {"sandbox_mode", "sandbox_workspace_write", "approval_policy", "shell_environment_policy", "default_permissions", "permissions"}
    for key in config.keys() - known:
        draft.dropped(key, "no permission")


def _environment(draft: Draft, policy: dict[str, Any]) -> None:
    from broker.profiles.check import names_a_secret

    for variable, value in table(policy.get("set")).items():
        if isinstance(value, str) and variable.isidentifier() and not names_a_secret(variable):
            draft.env[variable] = value
            draft.imported(f"shell_environment_policy.set {variable}", "env.set")
        else:
            draft.dropped(f"shell_environment_policy.set {variable}", "not a plain variable, or a secret")
    for variable in texts(policy.get("include_only")):
        if variable.isidentifier() and variable not in draft.env:
            draft.passed.setdefault(variable)
            draft.imported(f"shell_environment_policy.include_only {variable}", "env.pass")
        else:
            draft.dropped(f"shell_environment_policy.include_only {variable}", "a pattern: names are exact")


def _rules(draft: Draft, text: str) -> None:
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ValueError(f"line {error.lineno}: {error.msg}") from None
    for statement in tree.body:
        call = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(call, ast.Constant):
            continue  # a text that stands for a comment
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != "prefix_rule":
            draft.dropped(f"line {statement.lineno}", "only calls of prefix_rule are read")
            draft.lower_to(Risk.SAFE)
            continue
        try:
            given = {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg}
        except ValueError:
            draft.dropped(f"prefix_rule in line {statement.lineno}", "it is computed; only literals are read")
            draft.lower_to(Risk.SAFE)
            continue
        _rule(draft, given)


def _rule(draft: Draft, given: dict[str, Any]) -> None:
    pattern = [texts(word) for word in items(given.get("pattern"))]
    decision = given.get("decision", "allow")
    reason = given.get("justification")
    shown = f"prefix_rule {given.get('pattern')!r} ({decision})"
    if not pattern or not all(pattern):
        draft.dropped(shown, "its pattern is not read")
        draft.lower_to(Risk.SAFE)
        return
    if decision == "allow":
        draft.dropped(shown, PREFIX)
        return
    prefixes = list(itertools.islice(itertools.product(*pattern), MOST_PATTERNS + 1))
    if len(prefixes) > MOST_PATTERNS:
        prefixes = [(word,) for word in pattern[0]]  # denies more
    for prefix in prefixes:
        draft.denied.setdefault(tuple(prefix))
    because = f" ({reason})" if isinstance(reason, str) else ""
    listed = ", ".join(f"`{entry_text(prefix)}`" for prefix in prefixes[:3])
    if decision == "forbidden":
        draft.imported(shown, f"denylist {listed}{because}")
    else:
        draft.narrowed(shown, f"denylist {listed}: nobody is asked{because}")
    _examples(draft, items(given.get("match")))


def _examples(draft: Draft, examples: list[Any]) -> None:
    """Take the rule's own examples over, those that hold."""
    profile = _as_profile(draft)
    for example in examples:
        command = entry_text(tuple(example)) if isinstance(example, list) and all(isinstance(w, str) for w in example) and example else example
        if isinstance(command, str) and command.strip() and not judge(command, profile).allowed:
            draft.denies.setdefault(command)


def _as_profile(draft: Draft) -> Any:
    from broker.decide.profile import Profile, up_to

    # The widest that the draft can become, so that an example that holds here holds then.
    return Profile(name=draft.name, effects=up_to(Risk.CODE_EXECUTION), denylist=tuple(draft.denied))
