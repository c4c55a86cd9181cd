"""Step 2: configuration files as settings: text in, keys and values out. Only enough of each format to compare.

A key is lower case, with a dot between its levels. What cannot be read exactly as its program would read it
raises Unreadable: the caller takes that for the worse.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

Settings = dict[str, tuple[str, ...]]
"""Each key's values, in order: a list has several, and some formats let a key stand more than once."""


class Unreadable(ValueError):
    """The text is not what its format says, or programs may read it in more than one way."""


def settings(style: str, text: str) -> Settings:
    """Read a text in one of the formats of READERS. Raises Unreadable."""
    try:
        found = READERS[style](text.replace("\r\n", "\n"))
    except (ValueError, RecursionError) as error:
        raise Unreadable(str(error)) from None
    return {key: tuple(values) for key, values in found.items()}


Found = dict[str, list[str]]


def _json(text: str) -> Found:
    found: Found = {}
    _flatten(json.loads(text, object_pairs_hook=_no_key_twice), "", found)
    return found


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Parsers differ in which of two they take."""
    table = dict(pairs)
    if len(table) != len(pairs):
        raise Unreadable("a key stands there twice")
    return table


def _flatten(value: Any, key: str, found: Found) -> None:
    """Collect what lies below a value. The members of a list share its key."""
    match value:
        case dict():
            for name, inner in value.items():
                _flatten(inner, f"{key}.{name.lower()}" if key else name.lower(), found)
            if not value:
                found.setdefault(key, [])
        case list():
            found.setdefault(key, [])
            for inner in value:
                _flatten(inner, key, found)
        case str():
            found.setdefault(key, []).append(value)
        case _:
            found.setdefault(key, []).append(json.dumps(value, default=str))


_JSON_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_JSON_COMMA = re.compile(r'("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])', re.DOTALL)


def _jsonc(text: str) -> Found:
    """JSON as editors and compilers read it: comments, and a comma behind the last one."""
    for pattern in (_JSON_COMMENT, _JSON_COMMA):
        text = pattern.sub(lambda found: found[1] or " ", text)
    return _json(text)


def _toml(text: str) -> Found:
    import tomllib

    found: Found = {}
    _flatten(tomllib.loads(text), "", found)
    return found


_OTHER_ENDS = re.compile("[\r\v\f\x1c-\x1e\x85\u2028\u2029]")


def _split(text: str) -> list[str]:
    """Split into lines. What ends a line for some programs only could hide a comment's end, or a section's begin."""
    if odd := _OTHER_ENDS.search(text):
        raise Unreadable(f"not every program takes {odd[0]!a} for the end of a line")
    return text.split("\n")


def _ini(text: str) -> Found:
    """`key = value` below `[section]`s, one a line: what npm and Java's properties have in common."""
    found: Found = {}
    section = ""
    for line in map(str.strip, _split(text)):
        if not line or line[0] in "#;!":
            continue
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip().lower() + "."
            continue
        name, equals, value = line.partition("=")
        name = name.strip().removesuffix("[]").lower()
        if re.search(r"""[\\"'$]""", name) or line.endswith("\\"):
            raise Unreadable(f"{name!r} may mean another key")
        found.setdefault(section + name, []).append(value.strip() if equals else "true")
    return found


def _cfg(text: str) -> Found:
    """Python's configparser: an indented line belongs to the key above. Each line is a value of its own."""
    found: Found = {}
    section, key = "", ""
    for line in _split(text):
        bare = line.strip()
        if not bare or bare[0] in "#;":
            continue
        if line[0].isspace():
            if not key:  # by some readers a key or a section of its own, and so is what is indented as much below it
                raise Unreadable(f"{bare[:20]!r} is indented below nothing")
            found[key].append(bare)
        elif bare.startswith("[") and "]" in bare:
            section, key = bare[1 : bare.index("]")].strip().lower(), ""
            if section == "default":
                raise Unreadable("what it says of all sections is not followed")
        else:
            name, _, value = re.sub(r"[=:]", "=", bare, count=1).partition("=")
            key = f"{section}.{name.strip().lower()}"
            found.setdefault(key, [])
            if value.strip():
                found[key].append(value.strip())
    return found


_YAML_KEY = re.compile(r"([A-Za-z_][\w.-]*):(?:\s(.*))?")


def _yaml(text: str) -> Found:
    """The keys of the first level, each with the text below it as its one value."""
    found: Found = {}
    key = ""
    for line in _split(text):
        if not line.strip() or line.lstrip().startswith("#") or line == "---":
            continue
        if key and line[0] == " ":
            found[key][0] += "\n" + line
            continue
        match = _YAML_KEY.fullmatch(line)
        if match is None or match[1].lower() in found:
            raise Unreadable("its first level is not plain keys, each once")
        key = match[1].lower()
        found[key] = [(match[2] or "").strip()]
    return found


def _lines(text: str) -> Found:
    """Each line is a key of its own: for files whose lines mean something one by one."""
    found: Found = {}
    for line in map(str.strip, _split(text)):
        if line and not line.startswith("#"):
            found.setdefault(line, []).append("")
    return found


_MAKE_REFERENCE = re.compile(r"\$[({](?!shell\s)[^(){}]*[)}]|\$[@<^?*+%|]")
_MAKE_VARIABLE = "make_variable"
_MAKE_SHELL = re.compile(r"\$[({]shell\s+")


def _make(text: str) -> Found:
    """The recipes of a makefile or justfile as shell texts, with a plain word where make puts something in."""
    recipes: list[str] = []
    for line in re.sub(r"\\\n[ \t]*", " ", text).splitlines():
        plain = line.replace("$$", "\0")
        count = 1
        while count:  # references nest: from the inside out
            plain, count = _MAKE_REFERENCE.subn(_MAKE_VARIABLE, plain)
        command = plain.strip()
        if not line[:1].isspace():
            command = _beside_a_recipe(plain)
        command = command.lstrip("@-+ ")
        command = _MAKE_SHELL.sub("$(", command).replace("\0", "$")
        if command and not command.startswith("#"):
            recipes.append(command)
    return {"recipe": recipes}


def _beside_a_recipe(line: str) -> str:
    """The command in a line that is no recipe: `X := $(shell …)`, `X != …`, `target: ; …`, just's `x := `…``."""
    if _MAKE_SHELL.search(line):
        return ": " + line[line.index("$") :]
    if "`" in line:
        return ": " + line[line.index("`") :]
    if "!=" in line:
        return line.partition("!=")[2].strip()
    rest = line.partition(":")[2]
    return "" if rest.startswith((":=", "=")) else rest.partition(";")[2].strip()


_GIT_TOKEN = re.compile(
    r"""
      (?P<blank>\s+ | [#;][^\n]*)
    | \[ (?P<section>[A-Za-z0-9.-]+) (?:[ \t]+"(?P<sub>(?:[^"\\\n]|\\[^\n])*)")? \]
    | (?P<key>[A-Za-z][A-Za-z0-9-]*) [ \t]* (?: = (?P<value>(?:"(?:[^"\\\n]|\\.)*"|\\.|[^"\\\n#;])*) | (?=\n|[#;]|\Z))
    """,
    re.VERBOSE | re.DOTALL,
)


def _git(text: str) -> Found:
    """The format of git itself (git-config(1)): sections, quotes, escapes, continued lines, comments."""
    found: Found = {}
    section = ""
    at = 0
    while at < len(text):
        token = _GIT_TOKEN.match(text, at)
        if token is None:
            raise Unreadable(f"git would not read it from {text[at : at + 20]!r} on")
        at = token.end()
        if token["section"] is not None:
            sub = re.sub(r"\\(.)", r"\1", token["sub"]) if token["sub"] is not None else None
            section = token["section"] + ("" if sub is None else f".{sub}")
        elif token["key"] is not None:
            value = token["value"] if token["value"] is not None else "true"
            value = re.sub(r"\\\n", "", value).strip()
            value = re.sub(r'\\(.)|"', lambda pair: pair[1] or "", value)
            found.setdefault(f"{section}.{token['key']}".lower(), []).append(value)
    return found


READERS: dict[str, Callable[[str], Found]] = {
    "json": _json,
    "jsonc": _jsonc,
    "toml": _toml,
    "ini": _ini,
    "cfg": _cfg,
    "yaml": _yaml,
    "lines": _lines,
    "make": _make,
    "git": _git,
}
"""The formats by the names that tables/contents.toml uses."""
