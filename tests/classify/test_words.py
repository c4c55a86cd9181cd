"""argv must be exact: allowlist entries match on it, so these words are compared with what bash really passes."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from broker.classify import classify
from broker.classify.context import Context
from broker.classify.risk import PartKind
from broker.request.operation import ShellText

SPELLINGS = [
    "go test ./...",
    "go 'test' \"./...\"",
    "g\\o te''st ./...",
    "go  \t test   ./...",
    "go test \\\n ./...",
    "echo 'a b'\"c d\"e\\ f",
    "echo $'a\\tb\\x41\\101\\u00e9\\'' end",
    'echo "a\\$b\\"c\\\\d\\e"',
    "echo {a,b}c x{1..3}y {z} {} a{,b}",
    "echo ~/x ~ a~ ~/'y z' '~'",
    "echo $HOME \"$HOME\" '$HOME' ${HOME}/x",
    "A='1 2'; echo $A \"$A\"",
    "A=x; echo ${A}y ${A:-z} ${A:+s}",
    "A=a.tar.gz; echo ${A%.*} ${A%%.*} ${A#*.} ${A##*.}",
    "echo a#b 'c' # comment",
    "echo '' \"\" x",
    "echo a\\\nb",
    'echo "line\ntwo"',
    "echo -e 'x\\n'",
    "echo $(echo inner) `echo other`",
    "echo \"$(printf '%s-%s' a b)\"",
    "echo 1>/dev/null a 2>&1 b",
    "</dev/null echo a",
    "echo a=b --c=d e+=f",
    "command-that-is-long --with=value 'and \"quotes\"'",
    "echo [ a ] ] [",
    "echo é ü 日本",
]


@pytest.mark.parametrize("text", SPELLINGS)
def test_static_words_are_what_bash_passes(text: str, context: Context) -> None:
    """Each command's argv is compared with what a shell function of bash gets in its place."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.fail("bash is needed to compare with")
    answer = classify(ShellText(text=text), context)
    commands = [part for part in answer.parts if part.kind is PartKind.COMMAND]
    outer = commands[-1]
    assert outer.static, outer
    program = outer.argv[0]
    script = (
        f"{program}() {{ printf '%s\\0' {program} \"$@\"; }}\n{text}"
        if program != "echo"
        else (
            f'echo() {{ if [ $# = 1 ] && [ "$1" = inner -o "$1" = other ]; then builtin echo "$1"; '
            f"else printf '%s\\0' echo \"$@\" >&3; fi; }}\n{text}"
        )
    )
    done = subprocess.run(
        [bash, "-c", f"exec 3>&1\n{script}"],
        capture_output=True,
        check=True,
        env={"HOME": context.home, "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
        timeout=20,
    )
    passed = tuple(done.stdout.decode().split("\0")[:-1])
    assert outer.argv == passed


@pytest.mark.parametrize(
    "text",
    [
        "go test $X",
        "go test *",
        "go $(cat x)",
        "A=1 go test",
        "go test <(ls)",
        "go test ${A:-x}",
        "go test $((1+1))",
        "true && A=x; go test $A",
        "for A in x; do go test $A; done",
        "A=x; f() { go test $A; }; A=y; f",
        "A=${B:-x}; go test $A",
        "cd x; go test $PWD",
    ],
)
def test_a_command_whose_words_are_not_all_known_is_not_static(text: str, context: Context) -> None:
    answer = classify(ShellText(text=text), context)
    assert not [part for part in answer.parts if part.static and part.argv[:1] == ("go",)]


def test_a_wrapped_command_says_what_it_lies_within(context: Context) -> None:
    parts = classify(ShellText(text="timeout 5 nice make all"), context).parts
    assert [part.argv[0] for part in parts] == ["timeout", "nice", "make"]
    assert [part.within for part in parts] == [None, 0, 1]
    assert parts[2].static


def test_spans_point_into_the_text_even_behind_continued_lines(context: Context) -> None:
    text = "ls \\\n -l; rm -r o\\\nut # é"
    parts = classify(ShellText(text=text), context).parts
    assert [text[part.span[0] : part.span[1]] for part in parts if part.span] == [
        "ls \\\n -l",
        "rm -r o\\\nut",
    ]
