"""Step 2: variables that change what runs. In go a name and a value; out comes why it matters, or None."""

from __future__ import annotations

import re
from functools import cache

from broker.classify.context import Context
from broker.classify.paths import in_writable, normalise, under
from broker.classify.scope import TAME, UNKNOWN
from broker.classify.tables import load


@cache
def _runs() -> tuple[dict[str, str], tuple[tuple[str, str], ...]]:
    table = load()["environment"]
    names: dict[str, str] = {**table["runs"], **table["set_by_a_text"]}
    exact = {name: why for name, why in names.items() if not name.endswith("*")}
    prefixes = tuple((name[:-1], why) for name, why in names.items() if name.endswith("*"))
    return exact, prefixes


@cache
def _beginnings() -> tuple[str, ...]:
    return tuple(prefix for prefix, _ in _runs()[1])


@cache
def watched_env() -> tuple[str, ...]:
    """Names, or prefixes ending in `*`, that the guard reports with each program start."""
    return tuple(load()["environment"]["runs"])


@cache
def _harmless(name: str) -> frozenset[str]:
    values: dict[str, list[str]] = load()["environment"]["harmless"]
    return frozenset(values.get(name, ())) | frozenset(values["*"] if name not in _STRICT else ("",))


_STRICT = frozenset(
    "PATH HOME LD_PRELOAD LD_LIBRARY_PATH BASH_ENV ENV CDPATH PYTHONPATH GIT_SSL_NO_VERIFY".split()
)


def why_it_matters(name: str, value: str, context: Context) -> str | None:
    """Say what setting this variable changes, or None if it changes nothing that runs."""
    exact, prefixes = _runs()
    why = exact.get(name)
    if why is None:
        if not name.startswith(_beginnings()):
            return None
        why = next(text for prefix, text in prefixes if name.startswith(prefix))
    if value in _harmless(name):
        return None
    if name == "PATH":
        return _path_matters(value, context)
    if name == "HOME":
        return None if value == context.home else why
    if name == "XDG_CONFIG_HOME":
        return None if under(value, context.home) else why
    if name == "GIT_CONFIG_PARAMETERS":
        return None if _only_harmless_settings(value) else why
    if name in load()["environment"]["by_place"]["names"]:
        known = UNKNOWN not in value and TAME not in value and value.startswith("/")
        return None if known and not in_writable(normalise(value), context) else why
    return why


def _only_harmless_settings(value: str) -> bool:
    """Whether what `git -c KEY=VALUE` hands to git's own children holds only keys that name no program."""
    from broker.classify.readers.git import is_harmless  # readers read calls, and those read this

    if not _SETTINGS.fullmatch(value):
        return False
    return all(is_harmless(key, setting) for key, setting in _SETTING.findall(value))


# git writes 'key'='value', a quotation mark as '\\'' (quote.c): a value with one is not read here.
_SETTING = re.compile(r"'([^'=\\]+)'='([^'\\]*)'")
_SETTINGS = re.compile(rf"\s*{_SETTING.pattern}(?:\s+{_SETTING.pattern})*\s*")


def _path_matters(value: str, context: Context) -> str | None:
    """PATH changes what runs if a folder that the task can write to, or nobody knows, comes before the system's."""
    for entry in value.split(":"):
        if UNKNOWN in entry:
            # `$PATH` itself: what it holds was there before. Anything behind it comes too late to matter.
            return None if entry == UNKNOWN else "PATH gains a folder that cannot be known"
        if not entry.startswith("/"):
            return f"PATH gains {entry or 'the working directory'!r}, which is relative"
        if in_writable(normalise(entry), context):
            return f"PATH gains {entry}, where the task can write programs"
    return None


def changes_what_runs(env: tuple[tuple[str, str], ...], context: Context) -> str | None:
    """Return why this environment changes which program or code an argv means, or None.

    An exact allowlist entry means what it says only in an environment for which this is None.
    """
    for name, value in env:
        why = why_it_matters(name, value, context)
        if why is not None:
            return f"{name} is set: {why}"
    return None


@cache
def _affecting(program: str) -> tuple[frozenset[str], tuple[str, ...]]:
    table: dict[str, list[str]] = load()["environment"]["affects"]
    names = [*table["every"], *table.get(program, ())]
    return (
        frozenset(name for name in names if not name.endswith("*")),
        tuple(name[:-1] for name in names if name.endswith("*")),
    )


def affects(program: str, name: str) -> bool:
    """Whether a variable found in the environment changes what this program runs, other than its children."""
    exact, prefixes = _affecting(program)
    return name in exact or name.startswith(prefixes)
