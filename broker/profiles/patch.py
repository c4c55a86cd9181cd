"""Add entries to a profile's file and change nothing else of it: comments, order and layout stay. In: text. Out: text.

INVARIANT: the changed text means the same profile with exactly these entries more, or nothing is changed
(tests/profiles/test_patch.py). The text is read again to know it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from broker.decide.profile import AllowEntry, Profile
from broker.errors import ProfileError, UsageError
from broker.profiles.places import Place, Places
from broker.profiles.proposal import entry_text
from broker.profiles.schema import Source, decode_file
from broker.profiles.write import literal

WIDEST = 100


def with_entries(source: Source, profile: Profile, commands: Sequence[tuple[str, ...]]) -> str:
    """Return the file's text with these commands on the profile's allowlist.

    Raises UsageError, with the lines to add by hand, where the file's form is not understood.
    """
    if not commands:
        return source.text
    quote = json.dumps if source.path.suffix == ".json" else literal
    texts = [quote(entry_text(argv)) for argv in commands]
    try:
        changed = _edited(source, profile.name, texts)
        _check(source, changed, profile, commands)
    except (_NotUnderstood, ProfileError, ValueError, KeyError) as error:
        raise UsageError(
            f"{source.path} cannot be changed by machine ({error}). Add to the allowlist of {profile.name}: {', '.join(texts)}"
        ) from None
    return changed


class _NotUnderstood(Exception):
    """The file says it in a way that is not edited here."""


def _check(source: Source, changed: str, profile: Profile, commands: Sequence[tuple[str, ...]]) -> None:
    from broker.profiles.load import profile_of

    fresh, tables = decode_file(source.path, changed.encode())
    old, old_tables = decode_file(source.path, source.text.encode())
    for name, table in tables.items():
        if name != profile.name and table != old_tables.get(name):
            raise _NotUnderstood("another profile would change")
    before = profile_of(old, profile.name, old_tables[profile.name])
    after = profile_of(fresh, profile.name, tables[profile.name])
    entries = (*before.allowlist, *(AllowEntry(argv=argv) for argv in commands))
    if replace(after, digest="") != replace(before, allowlist=entries, digest=""):
        raise _NotUnderstood("the result would not be what was meant")


def _edited(source: Source, name: str, texts: list[str]) -> str:
    places = source.places
    raw = places.raw
    end = "\r\n" if b"\r\n" in raw else "\n"
    keys = ("profiles", name, "allowlist")
    array = places.get(keys)
    if array is not None and array.kind == "array":
        items = _items(places, keys)
        make = _into_lines if b"\n" in raw[array.start : array.end] else _into_line
        return make(raw, array, items, texts, end, trailing=source.path.suffix != ".json")
    table = places.get(("profiles", name))
    if array is not None or table is None or (*keys, 0) in places:
        raise _NotUnderstood("its allowlist is written in an unusual way")
    if table.kind == "object":
        inside = places.raw[table.start + 1 : table.end].lstrip()
        more = "" if inside.startswith(b"}") else ","
        return _insert(raw, table.start + 1, f'{end}  "allowlist": [{", ".join(texts)}]{more}')
    if table.kind != "table":
        raise _NotUnderstood("the profile is written in one line")
    line = raw.find(b"\n", table.key)
    block = end.join(["allowlist = [", *(f"    {text}," for text in texts), "]", ""])
    if line < 0:
        return raw.decode() + end + block
    return _insert(raw, line + 1, block)


def _items(places: Places, keys: tuple[str, str, str]) -> list[Place]:
    items: list[Place] = []
    while (item := places.get((*keys, len(items)))) is not None:
        items.append(item)
    return items


def _into_lines(raw: bytes, array: Place, items: list[Place], texts: list[str], end: str, *, trailing: bool) -> str:
    """Add to a list that has a line for each item: new lines before the one of the closing bracket."""
    close = array.end - 1
    line = raw.rfind(b"\n", 0, close) + 1
    if raw[line:close].strip():
        raise _NotUnderstood("the closing bracket of its allowlist stands behind an item")
    indent = _indent_of(raw, items[-1].key) if items else _indent_of(raw, close) + "    "
    comma = "," if trailing else ""
    lines = [f"{indent}{text}," for text in texts[:-1]] + [f"{indent}{texts[-1]}{comma}"]
    block = "".join(each + end for each in lines)
    text = _insert(raw, line, block)
    if items and not _comma_follows(raw[items[-1].end : close]):
        text = _insert(text.encode(), items[-1].end, ",")
    return text


def _into_line(raw: bytes, array: Place, items: list[Place], texts: list[str], end: str, *, trailing: bool) -> str:
    """Add to a list in one line, or give each item its own if the line would be long."""
    old = [raw[item.start : item.end].decode() for item in items]
    start = raw.rfind(b"\n", 0, array.start) + 1
    one = f"[{', '.join([*old, *texts])}]"
    if len(raw[start : array.start].decode()) + len(one) > WIDEST:
        indent = _indent_of(raw, array.key)
        lines = [f"{indent}    {text}," for text in [*old, *texts]]
        if not trailing:
            lines[-1] = lines[-1][:-1]
        one = end.join(["[", *lines, f"{indent}]"])
    return (raw[: array.start] + one.encode() + raw[array.end :]).decode()


def _comma_follows(between: bytes) -> bool:
    """Whether a comma stands before the closing bracket, comments left out."""
    return b"," in re.sub(rb"#[^\n]*", b"", between)


def _indent_of(raw: bytes, at: int) -> str:
    start = raw.rfind(b"\n", 0, at) + 1
    line = raw[start:at].decode()
    return line if not line.strip() else line[: len(line) - len(line.lstrip())]


def _insert(raw: bytes, at: int, text: str) -> str:
    return (raw[:at] + text.encode() + raw[at:]).decode()


def unified(before: str, after: str, name: str) -> str:
    """Return the change as a unified diff that `git apply` takes. `name` is the path from where it is applied."""
    import difflib

    lines = difflib.unified_diff(_lines(before), _lines(after), f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    # Not splitlines(): a form feed or U+2028 ends no line for git.
    return re.findall(r"[^\n]*\n|[^\n]+$", text)
