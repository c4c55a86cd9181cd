"""Look at a profile the way a careful colleague would. In: a Profile. Out: remarks, which are no errors.

Errors are found while loading. What is found here is allowed, but probably not what was meant: an entry that
never matches, a secret passed in, a ceiling that includes more than the list below it.
"""

from __future__ import annotations

import posixpath
import re

from broker.classify.risk import Risk
from broker.decide.allowlist import denied_prefix
from broker.decide.decide import names_a_shell
from broker.decide.profile import LAYERS, AllowEntry, Profile

_SECRET = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|KEY|CREDENTIALS?|AUTH)(_|$)", re.IGNORECASE)
_CHANGES_WHAT_RUNS = re.compile(
    r"LD_.*|PATH|BASH_ENV|ENV|PYTHON(PATH|STARTUP|HOME)|NODE_(OPTIONS|PATH)|GIT_.*|GOFLAGS|PERL5.*|"
    r"RUBY(OPT|LIB)|JAVA_TOOL_OPTIONS|RUSTC_WRAPPER|MAKEFLAGS"
)
_INTERPRETERS = frozenset(
    {"sh", "bash", "dash", "zsh", "python", "python3", "node", "perl", "ruby", "env", "xargs"}
)


def remarks(profile: Profile) -> tuple[str, ...]:
    """Return sentences about what is probably not meant, most serious first."""
    return (*_reach(profile), *_entries(profile), *_denials(profile), *_environment(profile), *_rest(profile))


def _reach(profile: Profile) -> list[str]:
    said = []
    if Risk.UNKNOWN in profile.effects:
        said.append("it permits what nobody understands (unknown): every ceiling can then be walked around")
    if Risk.PERSISTENCE in profile.effects:
        said.append("it permits persistence: a task may plant what runs later, in a context that you trust")
    if Risk.CODE_EXECUTION in profile.effects and profile.allowlist:
        said.append(
            "it permits code_execution by itself, so its allowlist narrows nothing; "
            "lower max_risk to local_write if only the listed commands are to run code"
        )
    if profile.lands and profile.sandbox.workspace != "overlay":
        said.append("land.allow has no effect: only a copy-on-write workspace (overlay) has a landing")
    if profile.sandbox.workspace == "read-only" and Risk.LOCAL_WRITE in profile.effects:
        said.append("its workspace is read-only, so local_write reaches temporary space only")
    return said


def _entries(profile: Profile) -> list[str]:
    said = []
    seen: set[AllowEntry] = set()
    for entry in profile.allowlist:
        shown = f"allowlist entry `{entry.text}`"
        if entry in seen:
            said.append(f"{shown} stands there twice")
        seen.add(entry)
        if "shell" in profile.disabled_tools and names_a_shell(entry.argv):
            said.append(f"{shown} starts a shell, and the tool shell is disabled: it never matches")
        prefix = denied_prefix(profile.denylist, entry.argv)
        if prefix is not None:
            said.append(f"{shown} starts with the denied `{' '.join(prefix)}`; the exact entry wins")
        if posixpath.basename(entry.argv[0]) in _INTERPRETERS and len(entry.argv) == 1:
            said.append(f"{shown} is a bare interpreter: it runs whatever it reads from its input")
        if entry.cwd is not None and entry.cwd.startswith("/"):
            said.append(f"{shown} names the absolute folder {entry.cwd}; it matches in that workspace only")
    return said


def _denials(profile: Profile) -> list[str]:
    said = []
    for prefix in profile.denylist:
        line = " ".join(prefix)
        if len(prefix) > 1 and not prefix[1].startswith("-"):
            said.append(
                f"denylist `{line}` compares words from the start: `{prefix[0]} -x {prefix[1]}` is not "
                "covered. What must not happen is better kept out of the ceiling"
            )
    return said


def _environment(profile: Profile) -> list[str]:
    said = [
        f"env.pass hands {name} to the task, which can read and repeat it"
        for name in profile.env.passed
        if _SECRET.search(name)
    ]
    if profile.allowlist:
        said += [
            f"env.pass hands in {name}, which changes what programs run: allowlist entries may never match"
            for name in profile.env.passed
            if _CHANGES_WHAT_RUNS.fullmatch(name)
        ]
    return said


def _rest(profile: Profile) -> list[str]:
    said = []
    if not profile.description:
        said.append("it has no description; `broker profile list` shows one")
    missing = [layer for layer in LAYERS if layer not in profile.requires and layer != "limits"]
    if missing:
        said.append(f"a task starts even where these layers have no effect: {', '.join(missing)}")
    if "limits" not in profile.requires and profile.sandbox.memory is None:
        said.append("memory is not limited")
    return said
