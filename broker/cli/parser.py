"""The command line's options, and where the operator's own command begins."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

from broker.errors import UsageError

Examples = str | Iterable[str]


class _Help(argparse.RawDescriptionHelpFormatter):
    """argparse's layout. It makes one for each option declared, so it must not cost an import of shutil."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=columns() - 2)


def columns() -> int:
    """Return the terminal's width, as shutil.get_terminal_size does: $COLUMNS, else stdout's, else 80."""
    try:
        if (named := int(os.environ.get("COLUMNS", ""))) > 0:
            return named
    except ValueError:
        pass
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or 80  # type: ignore[union-attr]
    except (AttributeError, ValueError, OSError):  # no stdout, a closed one, or no terminal
        return 80


class Choice(argparse.Action):
    """An option that takes one of several words, of which one (`named`) is followed by a name: `--land on-panel review`.

    The name becomes `args.NAME_AT`; it is '' with any other word. Given several times, the last one counts, but for two words
    that go `together`: `--land on-plan --land on-panel review` is `on-plan+on-panel`.
    """

    def __init__(
        self, *, words: tuple[str, ...], named: str, name_at: str, together: tuple[str, ...] = (), **options: Any
    ) -> None:
        super().__init__(nargs="+", **options)
        self.words, self.named, self.name_at, self.together = words, named, name_at, together

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: str | None = None) -> None:
        """Take the words behind the option."""
        word, *rest = values
        if word not in self.words:
            parser.error(f"{option_string} {word!a}: it is {', '.join(self.words)}")
        if word == self.named and len(rest) != 1:
            parser.error(f"{option_string} {word} is followed by a name, as a word of its own: {option_string} {word} NAME")
        if word != self.named and rest:
            parser.error(f"what is {rest[0]!a} behind {option_string} {word}? Only {self.named} is followed by a name")
        before = getattr(namespace, self.dest).split("+")
        if word in self.together and set(before) <= set(self.together):
            both = {word, *before}
            setattr(namespace, self.dest, "+".join(one for one in self.together if one in both))
            setattr(namespace, self.name_at, rest[0] if rest else getattr(namespace, self.name_at))
            return
        setattr(namespace, self.dest, word)
        setattr(namespace, self.name_at, rest[0] if rest else "")


class Parser(argparse.ArgumentParser):
    """argparse, with our exit code, no guessing of abbreviations, and examples below the options."""

    def __init__(self, *, examples: Examples = (), **options: Any) -> None:
        """Take what ArgumentParser takes, and examples: a text, or one command line each."""
        options.setdefault("formatter_class", _Help)
        # An abbreviation that works today can mean another option tomorrow.
        options.setdefault("allow_abbrev", False)
        lines = examples.strip("\n").splitlines() if isinstance(examples, str) else list(examples)
        if lines and "epilog" not in options:
            options["epilog"] = "\n".join(["examples:", *(f"  {line.strip()}" for line in lines)])
        super().__init__(**options)

    def parse_args(self, words: list[str]) -> argparse.Namespace:  # type: ignore[override]
        """Parse the words; an option may stand between them: `broker diff last --stat src`."""
        if any(action.nargs == argparse.PARSER for action in self._actions):
            return super().parse_args(words)  # an action's own words are its own parser's
        return self.parse_intermixed_args(words)

    def error(self, message: str) -> NoReturn:
        """Raise UsageError: argparse's own exit code, 2, means something else to a shell."""
        raise UsageError(f"{message}. {self._nearest(message)}Try: {self.prog} --help")

    def _nearest(self, message: str) -> str:
        """Return which option was probably meant, where one was misspelt."""
        from difflib import get_close_matches

        _, unknown, words = message.partition("unrecognized arguments: ")
        wrong = words.split(" ")[0].partition("=")[0]
        near = get_close_matches(wrong, self._option_string_actions, n=1, cutoff=0.75)
        return f"Did you mean {near[0]}? " if unknown and wrong.startswith("--") and near else ""

    def split_command(self, words: list[str]) -> tuple[list[str], list[str]]:
        """Return our options, and the command with its own options, untouched.

        The command starts after `--`, or at the first word that is neither an option of ours nor the value
        of one. (argparse.REMAINDER takes our options too when they come first.)
        """
        index = 0
        while index < len(words):
            word = words[index]
            if word == "--":
                return words[:index], words[index + 1 :]
            if not word.startswith("-") or word == "-":
                return words[:index], words[index:]
            index += 1 + self._taken(word, words[index + 1] if index + 1 < len(words) else "")
        return words, []

    def _taken(self, word: str, following: str) -> int:
        """Return how many of the next words are this option's: of some, one value has a value of its own."""
        table = self._option_string_actions
        if word.startswith("--"):
            action = table.get(word)  # with `=`, it is not in the table
        else:
            action = table.get(word[:2])
            while len(word) > 2 and action is not None and action.nargs == 0:  # -vp: a cluster
                word = f"-{word[2:]}"
                action = table.get(word[:2])
            if len(word) > 2:
                return 0  # -pbuilder
        if isinstance(action, Choice):
            return 2 if following == action.named else 1
        return 1 if action is not None and action.nargs is None else 0
