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
        raise UsageError(f"{message}. Try: {self.prog} --help")

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
            index += 2 if self._takes_next(word) else 1
        return words, []

    def _takes_next(self, word: str) -> bool:
        """Tell whether this option's value is the next word."""
        table = self._option_string_actions
        if word.startswith("--"):
            action = table.get(word)  # with `=`, it is not in the table
        else:
            action = table.get(word[:2])
            while len(word) > 2 and action is not None and action.nargs == 0:  # -vp: a cluster
                word = f"-{word[2:]}"
                action = table.get(word[:2])
            if len(word) > 2:
                return False  # -pbuilder
        return action is not None and action.nargs is None
