"""An entry is one exact command: what a shell would expand, join or redirect is refused with a reason."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.profiles.command_line import CommandLineError, parse_command_line


@pytest.mark.parametrize(
    ("text", "argv"),
    [
        ("go test ./...", ("go", "test", "./...")),
        ("  make\tall  ", ("make", "all")),
        ("pytest -k 'not slow'", ("pytest", "-k", "not slow")),
        ('say "a b" c\\ d', ("say", "a b", "c d")),
        ("find . -name '*.py'", ("find", ".", "-name", "*.py")),
        ("find . -name \\*.py", ("find", ".", "-name", "*.py")),
        ("make CC=gcc", ("make", "CC=gcc")),
        ("x '' \"\"", ("x", "", "")),
        ('x "\\"\\\\\\a"', ("x", '"\\\\a')),
        ("npm run build:prod", ("npm", "run", "build:prod")),
        ("git show HEAD~1 a#b {}", ("git", "show", "HEAD~1", "a#b", "{}")),
        ("x '$HOME' 'a;b|c'", ("x", "$HOME", "a;b|c")),
        ("x a!b @{u}", ("x", "a!b", "@{u}")),
        ("tool 日本", ("tool", "日本")),
    ],
)
def test_a_command_line_means_its_words(text: str, argv: tuple[str, ...]) -> None:
    assert parse_command_line(text) == argv


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("git *", "no wildcards"),
        ("git:*", "no wildcards"),
        ("npm run test:*", "no wildcards"),
        ("ls a?", "no wildcards"),
        ("ls [ab]", "no wildcards"),
        ("Bash(go test)", "parenthesis"),
        ("go test | tee x", "a pipe"),
        ("a && b", "'&'"),
        ("a; b", "';'"),
        ("a > b", "a redirection"),
        ("a < b", "a redirection"),
        ("a `b`", "a command substitution"),
        ('a "`b`"', "a command substitution"),
        ("a $(b)", "an expansion"),
        ("a $HOME", "an expansion"),
        ('a "$HOME"', "an expansion"),
        ("FOO=1 make", "assignment 'FOO=1'"),
        ("A+=1 make", "assignment"),
        ("A[0]=1 make", "no wildcards"),
        ("~/bin/x", "whole path"),
        ("x ~", "whole path"),
        ("x #y", "comment"),
        ("! x", "operator"),
        ("x {a,b}", "braces"),
        ("x {1..3}", "braces"),
        ("{ x", "braces"),
        ("x 'a", "not closed"),
        ('x "a', "not closed"),
        ("x \\", "backslash"),
        ("", "empty"),
        ("   ", "empty"),
        ("''", "name is empty"),
        ("a\nb", "control character"),
        ("a\0b", "control character"),
        ("a \x1b[2J", "control character"),
        ("a \u202eb", "control character"),
    ],
)
def test_what_is_not_one_exact_command_is_refused_with_a_reason(text: str, said: str) -> None:
    with pytest.raises(CommandLineError, match=said.replace("(", "\\(")):
        parse_command_line(text)


@given(st.text(alphabet="ab ./-='\"\\$*~#{},:;|", max_size=12))
@example("''\"\"")
def test_what_is_accepted_means_the_same_to_python_and_to_us(text: str) -> None:
    try:
        argv = parse_command_line(text)
    except CommandLineError:
        return
    assert list(argv) == shlex.split(text)


@given(
    st.lists(
        st.text(alphabet=st.characters(exclude_categories=["C", "Z"]), max_size=8), min_size=1, max_size=4
    )
)
def test_any_argv_can_be_written_as_an_entry(argv: list[str]) -> None:
    if not argv[0]:
        return
    assert parse_command_line(shlex.join(argv)) == tuple(argv)
