"""Where in a profile's file something stands. In: the text and a path of keys. Out: bytes from, to; line and column.

The parsers of the standard library say what a file means, and not where. Lines and columns are wanted when something
is wrong, and spans when a file is edited with its comments kept, so a syntax tree is made only then.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tree_sitter import Node

Keys = tuple[str | int, ...]


class Place(NamedTuple):
    """A value, in bytes of the text. `key` is where its key begins (the value itself, in a list)."""

    key: int
    start: int
    end: int
    kind: str  # the syntax tree's word: string, array, inline_table, object, table …


class Places:
    """All places of one file that was parsed before, so that its syntax is right."""

    def __init__(self, text: str, suffix: str) -> None:
        """Parse the text as what the file's suffix says it is."""
        self.raw = text.encode("utf-8")
        self._found: dict[Keys, Place] = {}
        if suffix == ".json":
            self._json()
        else:
            self._toml()

    def __getitem__(self, keys: Keys) -> Place:
        return self._found[keys]

    def __contains__(self, keys: object) -> bool:
        return keys in self._found

    def get(self, keys: Keys) -> Place | None:
        """Return the place of exactly these keys, or None."""
        return self._found.get(keys)

    def nearest(self, keys: Keys) -> Place | None:
        """Return the place of these keys, or of as many of them as there are: of `a.b.c`, at least `a.b`.

        A key that is no key of the file may be a word of the list before it.
        """
        for length in range(len(keys), 0, -1):
            known = self._found.get(keys[:length])
            if known is None:
                continue
            if length < len(keys):
                return self._word_in(keys[:length], keys[length]) or known
            return known
        return None

    def ending_in(self, key: str) -> Place | None:
        """Return the last place of a key of this name, wherever it stands."""
        return next((place for keys, place in reversed(self._found.items()) if keys[-1] == key), None)

    def position(self, offset: int) -> tuple[int, int]:
        """Return line and column of a byte, both from 1, the column in characters."""
        start = self.raw.rfind(b"\n", 0, offset) + 1
        column = len(self.raw[start:offset].decode("utf-8", "replace")) + 1
        return self.raw.count(b"\n", 0, offset) + 1, column

    def _word_in(self, keys: Keys, word: str | int) -> Place | None:
        at = 0
        while (item := self._found.get((*keys, at))) is not None:
            inner = self._found.get((*keys, at, "command"), item)
            if inner.kind == "string" and _text_of(self.raw[inner.start : inner.end].decode()) == word:
                return item
            at += 1
        return None

    def _add(self, keys: Keys, key: int, value: Node) -> None:
        self._found[keys] = Place(key, value.start_byte, value.end_byte, value.type)

    # TOML

    def _toml(self) -> None:
        import tree_sitter_toml
        from tree_sitter import Language, Parser

        counts: dict[Keys, int] = {}
        root = Parser(Language(tree_sitter_toml.language())).parse(self.raw).root_node
        for node in root.named_children:
            if node.type == "pair":
                self._pair((), node)
            elif node.type in {"table", "table_array_element"}:
                header = node.named_children[0]
                keys: Keys = tuple(_toml_key(header))
                if node.type == "table_array_element":
                    counts[keys] = counts.get(keys, -1) + 1
                    keys = (*keys, counts[keys])
                self._found[keys] = Place(header.start_byte, node.start_byte, node.end_byte, "table")
                for child in node.named_children[1:]:
                    if child.type == "pair":
                        self._pair(keys, child)

    def _pair(self, above: Keys, node: Node) -> None:
        name, value = node.named_children[:2]
        keys: Keys = above
        for key in _toml_key(name):
            keys = (*keys, key)
            if keys not in self._found:
                self._add(keys, name.start_byte, value)
        self._toml_value(keys, name.start_byte, value)

    def _toml_value(self, keys: Keys, key: int, value: Node) -> None:
        self._add(keys, key, value)
        if value.type == "array":
            items = [child for child in value.named_children if child.type != "comment"]
            for at, item in enumerate(items):
                self._toml_value((*keys, at), item.start_byte, item)
        elif value.type == "inline_table":
            for child in value.named_children:
                if child.type == "pair":
                    self._pair(keys, child)

    # JSON

    def _json(self) -> None:
        import tree_sitter_json
        from tree_sitter import Language, Parser

        root = Parser(Language(tree_sitter_json.language())).parse(self.raw).root_node
        for child in root.named_children:
            self._json_value((), child.start_byte, child)

    def _json_value(self, keys: Keys, key: int, value: Node) -> None:
        if keys:
            self._add(keys, key, value)
        if value.type == "array":
            for at, item in enumerate(value.named_children):
                self._json_value((*keys, at), item.start_byte, item)
        elif value.type == "object":
            for pair in value.named_children:
                if pair.type == "pair":
                    name, inner = pair.named_children
                    self._json_value((*keys, json.loads(_bytes(name))), name.start_byte, inner)


def _toml_key(node: Node) -> Iterator[str]:
    if node.type == "dotted_key":
        for child in node.named_children:
            yield from _toml_key(child)
    elif node.type == "quoted_key":
        yield next(iter(tomllib.loads(f"{_bytes(node).decode()} = 0")))
    else:
        yield _bytes(node).decode()


def _bytes(node: Node) -> bytes:
    return node.text or b""


def _text_of(literal: str) -> str | None:
    """Return what a string of either language says."""
    try:
        said = tomllib.loads(f"x = {literal}")["x"]
    except tomllib.TOMLDecodeError:  # JSON's \/ is none of TOML's
        said = json.loads(literal)
    return said if isinstance(said, str) else None
