"""The text of the shell that a command comes from, and where in it the command stands: what is certain, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker.classify.context import Context
from broker.task.shell_text import AROUND, MOST_SHELLS, ShellPart, ShellTexts, part_of, text_of

CONTEXT = Context(cwd="/w", home="/home/agent", workspace="/w")


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (("bash", "-c", "ls"), "ls"),
        (("/bin/sh", "-ec", "ls", "name", "arg"), "ls"),
        (("-bash", "-l", "-c", "ls"), "ls"),
        (("bash", "-o", "pipefail", "-c", "ls"), "ls"),
        (("bash", "-c", "-e", "ls"), "ls"),
        (("bash", "script.sh", "-c", "ls"), ""),
        (("bash", "--rcfile", "-c", "ls"), ""),
        (("bash",), ""),
        (("zsh", "-c", "ls"), ""),
        ((), ""),
    ],
)
def test_which_text_a_shell_is_given(argv: tuple[str, ...], text: str) -> None:
    assert text_of(argv) == text


@pytest.mark.parametrize(
    ("text", "argv", "marked"),
    [
        ("make && curl -s http://x; ls", ("curl", "-s", "http://x"), "curl -s http://x"),
        ("if true; then curl 'a b'; fi", ("curl", "a b"), "curl 'a b'"),
        ("curl x; curl x", ("curl", "x"), None),  # which of them it is nobody can say
        ("for n in 1 2; do curl $n; done", ("curl", "1"), None),
        ("f() { curl y; }; f", ("curl", "z"), None),
        ("make", ("curl", "x"), None),
    ],
)
def test_which_part_of_the_text_is_marked(text: str, argv: tuple[str, ...], marked: str | None) -> None:
    part = part_of(("bash", "-c", text), argv, CONTEXT)

    assert part is not None
    assert part.text == text
    assert (None if part.start is None else text[part.start : part.end]) == marked


def test_what_is_shown_is_escaped_but_for_its_lines_and_the_place_fits() -> None:
    text = "echo '\x1b[31m'\n" + "x" * 5000 + "\ncurl \x07\n" + "y" * 5000
    start = text.index("curl")
    shown = ShellPart(text=text, start=start, end=start + 6).as_dict()

    assert isinstance(shown["text"], str)
    assert shown["text"][shown["start"] : shown["end"]] == "curl \\x07"
    assert shown["cut"]
    assert len(shown["text"]) < 2 * AROUND + 100
    assert ShellPart(text="echo '\x1b'\nls").as_dict() == {"text": "echo '\\x1b'\nls", "start": None, "end": None, "cut": False}


@contextmanager
def shell(text: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A shell, and the process that it has started last."""
    with subprocess.Popen(["bash", "-c", text], stdout=subprocess.PIPE, stdin=subprocess.PIPE) as running:
        assert running.stdout is not None
        try:
            yield running, int(running.stdout.readline())
        finally:
            running.communicate()


def test_a_shell_and_what_it_forked_are_known_and_another_program_in_between_is_not() -> None:
    texts = ShellTexts()
    text = "(echo $BASHPID; read line); :"
    with shell(text) as (running, forked):
        assert texts.started("/", running.pid, ("bash", "-c", text))
        assert texts.shell_of("/", running.pid) == ("bash", "-c", text)
        assert texts.shell_of("/", forked) == ("bash", "-c", text)
    text = "sh -c 'echo $$; read line'; :"
    with shell(text) as (running, other):
        texts.started("/", running.pid, ("bash", "-c", text))
        assert texts.shell_of("/", other) == ()


FORGES = """
import ctypes, os, sys
place = int(open("/proc/self/stat", "rb").read().rpartition(b")")[2].split()[45])  # arg_start in proc(5)
words = bytes.fromhex(os.environ["WORDS"])
ctypes.memmove(place, words, len(words))
print(os.getpid(), flush=True)
sys.stdin.readline()
"""


def test_a_program_that_writes_the_words_of_its_shell_over_its_own_is_not_taken_for_it() -> None:
    texts, text = ShellTexts(), f'{sys.executable} -c "$FORGES"; : '
    room = len(f"{sys.executable}\0-c\0{FORGES}\0")  # as long as its own words are
    argv = ("bash", "-c", text.ljust(room - len("bash\0-c\0\0"), "x"))
    words = b"".join(word.encode() + b"\0" for word in argv)
    environment = {**os.environ, "FORGES": FORGES, "WORDS": words.hex()}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.PIPE, env=environment) as running:
        assert running.stdout is not None
        forger = int(running.stdout.readline())
        try:
            texts.started("/", running.pid, argv)
            assert Path(f"/proc/{forger}/cmdline").read_bytes() == words
            assert texts.shell_of("/", running.pid) == argv
            assert texts.shell_of("/", forger) == ()
        finally:
            running.communicate()


def test_a_process_that_is_no_longer_what_it_was_has_not_got_its_text() -> None:
    texts = ShellTexts()
    with shell("echo $$; read line; :") as (running, _):
        texts.started("/", running.pid, ("bash", "-c", "echo $$; read line; :"))
        assert texts.shell_of("/", running.pid)
        texts.started("/", running.pid, ("bash", "-c", "another text"))
        assert texts.shell_of("/", running.pid) == ()
        texts._known[running.pid] = 0, ("bash", "-c", "echo $$; read line; :")  # another process of this number
        assert texts.shell_of("/", running.pid) == ()
    assert not texts.started("/", 1, ("ls", "-c", "x"))


def test_only_so_many_shells_are_remembered() -> None:
    texts = ShellTexts()
    with shell("echo $$; read line; :") as (running, _):
        texts._known |= {-number: (0, ()) for number in range(MOST_SHELLS)}
        texts.started("/", running.pid, ("bash", "-c", "x"))
    assert len(texts._known) == MOST_SHELLS
