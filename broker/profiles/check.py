"""Look at profiles the way a careful colleague would. In: a file. Out: for each profile its findings.

Errors are found while loading. What is found here is allowed, but probably not what was meant: an entry that
never matches, a secret passed in, a ceiling that includes more than the list below it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from broker.classify.risk import Risk
from broker.decide.profile import LAYERS, Profile, up_to
from broker.errors import ProfileError
from broker.profiles.check_entries import Installed, entry_findings, narrows_nothing
from broker.profiles.errors import ProfileInvalid
from broker.profiles.finding import Finding, Severity, note, warning
from broker.profiles.load import decode_at
from broker.profiles.normalise import profile_from
from broker.profiles.schema import ProfileTable, decode_profile
from broker.profiles.secure_open import Rules
from broker.profiles.ways_out_told import ways_out_findings
from broker.values import dataclass

_SECRET = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|KEY|CREDENTIALS?|AUTH)(_|$)", re.IGNORECASE)
_CHANGES_WHAT_RUNS = re.compile(
    r"LD_.*|PATH|BASH_ENV|ENV|PYTHON(PATH|STARTUP|HOME)|NODE_(OPTIONS|PATH)|GIT_.*|GOFLAGS|PERL5.*|"
    r"RUBY(OPT|LIB)|JAVA_TOOL_OPTIONS|RUSTC_WRAPPER|MAKEFLAGS"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One profile of a file, or the whole file (then `name` is empty), and what was found."""

    name: str
    source: Path
    findings: tuple[Finding, ...]

    @property
    def worst(self) -> Severity | None:
        """The most serious finding's severity."""
        return max((finding.severity for finding in self.findings), default=None)


def check_file(
    path: Path, rules: Rules, installed: Callable[[Profile], Installed | None] | None = None
) -> tuple[Checked, ...]:
    """Return what is found in a file. `installed` says, for a profile, where its programs are looked for."""
    try:
        source, tables = decode_at(path, rules)
    except ProfileError as error:
        return (Checked(name="", source=path, findings=(_error(error),)),)
    checked = []
    for name, table in tables.items():
        try:
            decoded = decode_profile(source, name, table)
            profile = profile_from(source, name, decoded)
        except ProfileError as error:
            found: tuple[Finding, ...] = (_error(error),)
        else:
            remarks = [
                *_idle_effects(decoded, profile),
                *findings(profile, installed(profile) if installed else None),
            ]
            remarks.sort(key=lambda finding: -finding.severity)
            found = tuple(
                replace(each, line=line, column=column)
                for each in remarks
                for line, column in [source.position(name, *each.keys)]
            )
        checked.append(Checked(name=name, source=path, findings=found))
    return tuple(checked)


def findings(profile: Profile, installed: Installed | None = None) -> tuple[Finding, ...]:
    """Return what is remarkable about a profile, most serious first."""
    found = (
        *_reach(profile), *entry_findings(profile, installed), *_landing(profile), *_environment(profile),
        *_container(profile), *ways_out_findings(profile), *_rest(profile),
    )  # fmt: skip
    return tuple(sorted(found, key=lambda finding: -finding.severity))


def names_a_secret(name: str) -> bool:
    """Tell whether a variable of this name is likely to hold a secret."""
    return _SECRET.search(name) is not None


def _error(error: ProfileError) -> Finding:
    line, column = (error.line, error.column) if isinstance(error, ProfileInvalid) else (None, None)
    text = error.problem if isinstance(error, ProfileInvalid) else str(error)
    return Finding(
        severity=Severity.ERROR, rule="profile.unusable", text=text, remedy="", line=line, column=column
    )


def _reach(profile: Profile) -> Iterator[Finding]:
    where = "effects" if profile.effects - up_to(profile.max_risk) else "max_risk"
    if Risk.UNKNOWN in profile.effects:
        yield warning(
            "reach.unknown", "it permits what nobody understands (unknown): every ceiling can then be walked around",
            "Remove it, and list the commands that are needed", "effects", "add",
        )  # fmt: skip
    if Risk.PERSISTENCE in profile.effects:
        yield warning(
            "reach.persistence", "it permits persistence: a task may plant what runs later, in a context that you trust",
            "Lower max_risk, and let single rules land with land.allow", where,
        )  # fmt: skip
    if narrows_nothing(profile):
        yield warning(
            "reach.no-list", "it permits code_execution by itself, so its allowlist narrows nothing",
            "lower max_risk to local_write if only the listed commands are to run code", where,
        )  # fmt: skip
    removed = up_to(profile.max_risk) - profile.effects
    if removed and not any(kept > min(removed) for kept in profile.effects):
        yield note(
            "reach.ceiling", f"effects.remove takes away the highest classes of the ceiling {profile.max_risk.label}",
            "Write the lower max_risk instead", "effects", "remove",
        )  # fmt: skip


def _idle_effects(table: ProfileTable, profile: Profile) -> Iterator[Finding]:
    """Yield what effects.add and effects.remove name without changing anything."""
    ceiling = {risk.label for risk in up_to(profile.max_risk)}
    for key, labels, idle in (
        ("add", table.effects.add, "is within max_risk already"),
        ("remove", table.effects.remove, "is beyond max_risk anyway"),
    ):
        for at, label in enumerate(labels):
            if (label in ceiling) is (key == "add"):
                yield warning("effects.idle", f"effects.{key} names {label}, which {idle}", "Leave it out", "effects", key, at)


def _landing(profile: Profile) -> Iterator[Finding]:
    if not profile.lands:
        return
    if profile.sandbox.workspace != "overlay":
        yield warning(
            "land.no-overlay", "land.allow has no effect: only a copy-on-write workspace (overlay) has a landing",
            'Set sandbox.workspace = "overlay", or remove it', "land", "allow",
        )  # fmt: skip
    elif Risk.LOCAL_WRITE not in profile.effects:
        yield warning(
            "land.no-write", "land.allow has no effect: the profile does not permit local_write, so nothing lands",
            'Set max_risk = "local_write", or remove it', "land", "allow",
        )  # fmt: skip
    elif Risk.PERSISTENCE in profile.effects:
        yield warning(
            "land.covered", "land.allow has no effect: the profile permits persistence as a whole",
            "Lower max_risk, or remove it", "land", "allow",
        )  # fmt: skip


def _environment(profile: Profile) -> Iterator[Finding]:
    for name in profile.env.passed:
        if names_a_secret(name):
            yield warning(
                "env.secret", f"env.pass hands {name} to the task, which can read and repeat it",
                "Leave it out, or hand in one that may be lost", "env", "pass", name,
            )  # fmt: skip
        if profile.allowlist and _CHANGES_WHAT_RUNS.fullmatch(name):
            yield warning(
                "env.changes-what-runs",
                f"env.pass hands in {name}, which changes what programs run: allowlist entries may never match",
                "Write its value into env.set", "env", "pass", name,
            )  # fmt: skip
    for name, value in profile.env.set:
        if names_a_secret(name) and value:
            yield warning(
                "env.secret", f"env.set holds a value for {name}, in a file and in every task's environment",
                "Leave it out, or use one that may be lost", "env", "set", name,
            )  # fmt: skip


def _container(profile: Profile) -> Iterator[Finding]:
    box = profile.sandbox
    if box.workspace == "read-only" and Risk.LOCAL_WRITE in profile.effects:
        yield note(
            "workspace.read-only", "its workspace is read-only, so local_write reaches temporary space only",
            'Say so by max_risk = "safe", if nothing needs temporary files', "sandbox", "workspace",
        )  # fmt: skip
    if box.image and box.engine == "bubblewrap":
        yield warning(
            "sandbox.no-image", "bubblewrap has no image: this host's programs are used instead",
            "Remove sandbox.image, or use docker", "sandbox", "image",
        )  # fmt: skip
    for path in box.read_only:
        if not os.path.exists(path):
            yield warning(
                "sandbox.missing-path", f"sandbox.read_only shows {path}, which does not exist here: no task starts",
                "Make it, or remove it", "sandbox", "read_only", path,
            )  # fmt: skip


def _rest(profile: Profile) -> Iterator[Finding]:
    if not profile.description:
        yield note("profile.no-description", "it has no description; `broker profile list` shows one", "Write one sentence")
    missing = [layer for layer in LAYERS if layer not in profile.requires and layer != "limits"]
    if missing:
        yield warning(
            "requires.missing", f"a task starts even where these layers have no effect: {', '.join(missing)}",
            "Require them", "requires",
        )  # fmt: skip
    if "limits" not in profile.requires and profile.sandbox.memory is None:
        yield note("sandbox.memory", "memory is not limited", 'Set sandbox.memory = "4G", for instance', "sandbox")
    if profile.approvals.approver == "client":
        yield warning(
            "approvals.client", "a client of its tools may approve what the profile refuses: what asks and what answers may be one program",
            'Set approver = "operator", and answer with broker approvals', "approvals", "approver",
        )  # fmt: skip
    if profile.delegate.profiles and "delegate" in profile.disabled_tools:
        yield warning(
            "delegate.disabled", "delegate.profiles has no effect: the tool delegate is disabled",
            "Remove one of the two", "delegate", "profiles",
        )  # fmt: skip
