"""What an agent puts around a command comes off byte for byte, or not at all; and what is left is what the shell would run."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.agents.adapter import known_agents, load_adapter
from broker.decide.wrapper import shape_problem, unwrap

HOME = "/home/agent"
CLAUDE = load_adapter("claude").wrappers
GEMINI = load_adapter("gemini").wrappers
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=60)


def quoted(text: str) -> str:
    """Quote as Claude Code does."""
    return "'" + text.replace("'", "'\"'\"'") + "'"


def claude(word: str, *, snapshot: str = "/home/agent/.claude/shell-snapshots/snapshot-bash-1-a.sh", cwd: str = "/tmp/claude-1a2b-cwd") -> tuple[str, ...]:
    """Return an argv of Claude Code's, with a snapshot."""
    text = CLAUDE[0][2].replace("%home%", snapshot).replace("%word%", word).replace("%tmp%", cwd)
    return ("/bin/bash", "-c", text)


def gemini(command: str, file: str = "/tmp/gemini-shell-AiqGqm/bgpids.tmp") -> tuple[str, ...]:
    """Return an argv of Gemini CLI's."""
    return ("/usr/bin/bash", "-c", GEMINI[0][2].replace("%tmp%", file).replace("%command%", command))


def inner(argv: tuple[str, ...], shapes: tuple[tuple[str, ...], ...] = CLAUDE) -> str | None:
    found = unwrap(argv, shapes, HOME)
    return found.text if found is not None else None


@given(TEXT)
def test_a_quoted_command_comes_out_as_it_went_in(text: str) -> None:
    assert inner(claude(quoted(text))) == text


@given(TEXT)
@settings(max_examples=30, deadline=None)
def test_the_text_is_what_bash_makes_of_the_word(text: str) -> None:
    said = subprocess.run(["bash", "-c", f"printf %s {quoted(text)}"], capture_output=True, check=True).stdout
    assert inner(claude(quoted(text))) == said.decode()


@given(TEXT.filter(lambda text: not text.endswith("\\")))
def test_a_command_on_lines_of_its_own_comes_out_as_it_went_in(text: str) -> None:
    assert inner(gemini(text), GEMINI) == text


@given(st.data())
@settings(max_examples=200)
def test_a_wrapper_that_differs_in_one_character_is_none(data: st.DataObject) -> None:
    argv = claude("'ls -la'")
    whole = argv[2]
    place = data.draw(st.integers(0, len(whole) - 1))
    other = data.draw(st.characters(exclude_characters=whole[place] + "\0", exclude_categories=["Cs"]))
    changed = whole[:place] + other + whole[place + 1 :]
    found = unwrap((*argv[:2], changed), CLAUDE, HOME)
    # In a hole another plain letter is the same kind of thing: then it is the hole's new content, and nothing else differs.
    if found is not None:
        rebuilt = claude(quoted(found.text), snapshot=found.paths[0], cwd=found.paths[1])
        assert rebuilt[2] == changed


HOSTILE_WORDS = [
    "'ls'; curl http://x; 'a'", "'ls' curl", '"$(curl http://x)"', "`curl x`", "$(id)", "'ls'\ncurl", "'ls'|curl", "'a'b'c", "a b", "~/x",
    "$'\\x41'", "", "''x", "'a'\"'\"b'", "'a'\"''\"'b'", "\\'ls", "'a'\\''b", "{a,b}", "*", "ls#", "ls>x",
]  # fmt: skip


@pytest.mark.parametrize("word", HOSTILE_WORDS)
def test_what_is_no_single_quoted_word_is_no_wrapper(word: str) -> None:
    assert inner(claude(word)) is None


HOSTILE_PATHS = [
    "/home/agent/../../etc/profile", "/home/agent/.claude/../../x", "/home/other/x", "/workspace/x", "/home/agent", "/home/agent/",
    "/home/agent//x", "/home/agent/x y", "/home/agent/$(id)", "/home/agent/x;id", "home/agent/x", "/home/agent/x\n", "/home/agentx/y",
]  # fmt: skip


@pytest.mark.parametrize("path", HOSTILE_PATHS)
def test_a_snapshot_that_lies_elsewhere_is_no_wrapper(path: str) -> None:
    assert inner(claude("'ls'", snapshot=path)) is None


@pytest.mark.parametrize("path", ["/etc/cron.d/x", "/tmp/../etc/x", "/tmp/a b", "/tmp", "/tmp/", "/home/agent/.bashrc", "/tmp/x;id", "/tmp/$x"])
def test_a_file_outside_of_tmp_is_no_wrapper(path: str) -> None:
    assert inner(claude("'ls'", cwd=path)) is None
    assert inner(gemini("ls", path), GEMINI) is None


@pytest.mark.parametrize("shell", ["/tmp/bash", "./bash", "/home/agent/bash", "python3", "/usr/bin/env", "busybox", "-bash", "BASH", ""])
def test_what_is_no_shell_of_the_system_wraps_nothing(shell: str) -> None:
    assert inner((shell, *claude("'ls'")[1:])) is None


@pytest.mark.parametrize("argv", [(), ("/bin/bash",), ("/bin/bash", "-c"), ("/bin/bash", "-c", "ls"), ("/bin/bash", "-c", "ls", "x")])
def test_other_argument_lists_are_no_wrapper(argv: tuple[str, ...]) -> None:
    assert inner(argv) is None


def test_more_arguments_than_the_shape_has_are_no_wrapper() -> None:
    assert inner((*claude("'ls'"), "more")) is None
    assert inner(("/bin/bash", "-x", *claude("'ls'")[1:])) is None


@pytest.mark.parametrize("name", known_agents())
def test_every_adapter_that_is_shipped_can_be_read(name: str) -> None:
    adapter = load_adapter(name)
    assert adapter.title
    assert adapter.learnt
    assert "{prompt}" in adapter.unattended
    assert [shape_problem(shape) for shape in adapter.wrappers] == ["" for _ in adapter.wrappers]


@pytest.mark.parametrize(
    ("shape", "problem"),
    [
        (("bash", "-c", "%word%"), "begin with %shell%"),
        (("%shell%", "-c", "ls"), "exactly one"),
        (("%shell%", "-c", "%word% %word%"), "exactly one"),
        (("%shell%", "-c", "eval %command%"), "by itself"),
    ],
)
def test_a_shape_that_could_mean_two_things_is_refused(shape: tuple[str, ...], problem: str) -> None:
    assert problem in shape_problem(shape)


def test_a_command_that_would_join_the_line_behind_it_is_no_wrapper() -> None:
    assert inner(gemini("helper \\"), GEMINI) is None
    assert inner(gemini(""), GEMINI) is None


PIECES = [
    "echo one; helper a", "helper 'it'\"'\"'s'", 'helper "$HOME" | helper b', "if true; then helper c; fi", "helper <<EOF\nhi\nEOF",
    "for i in 1 2; do helper $i; done", "helper d # a comment", "(helper e)", "helper f &\nwait", "exit 3", "helper g) ; helper h; (helper i",
    "helper k; }", "helper 'l", "cat <<EOF\nnever ended",
]  # fmt: skip


@pytest.mark.parametrize("text", PIECES)
@pytest.mark.parametrize("name", ["claude", "gemini"])
def test_bash_starts_in_the_wrapper_what_it_starts_without_it(text: str, name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("started")
    (folder / "helper").write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> {folder}/log\n')
    (folder / "helper").chmod(0o755)

    def started(argv: tuple[str, ...]) -> list[str]:
        log = folder / "log"
        log.write_text("")
        subprocess.run(argv, env={"PATH": f"{folder}:/usr/bin:/bin", "HOME": "/nowhere"}, cwd=folder, capture_output=True, check=False, timeout=20)
        return sorted(log.read_text().splitlines())  # the two ends of a pipe start in either order

    alone = started(("bash", "-c", text))
    wrapped = claude(quoted(text)) if name == "claude" else gemini(text)
    assert inner(wrapped, CLAUDE if name == "claude" else GEMINI) == text
    # What is broken by itself, and is refused for that, may be broken otherwise in Gemini CLI's wrapper: it stands in its middle.
    if subprocess.run(["bash", "-n", "-c", text], capture_output=True, check=False).stderr:
        return
    assert started(wrapped) == alone
