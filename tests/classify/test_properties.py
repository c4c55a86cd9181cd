"""What holds for every text: nothing raises, nothing blows up, adding never removes, spelling never matters."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.classify import classify
from broker.classify.context import Context
from broker.classify.risk import Assessment, Risk
from broker.classify.tokens import Kind, cut
from broker.request.operation import Exec, FileAction, FileChange, FileRead, ShellText

CONTEXT = Context(cwd="/work/project", home="/home/dev", workspace="/work/project")
COMMANDS = [
    row["command"]
    for file in sorted((Path(__file__).parent.parent / "cases").glob("*.toml"))
    for row in tomllib.loads(file.read_text(encoding="utf-8"))["case"]
]
# Rows of one line that end where they end: something can be put behind them.
ONE_LINE = [
    text
    for text in COMMANDS
    if text.strip()
    and "\n" not in text
    and "#" not in text
    and not text.endswith(("\\", "&", ";"))
    and Risk.UNKNOWN not in classify(ShellText(text=text), CONTEXT).effects
]
PLAIN = [
    text
    for text in ONE_LINE
    if text.replace(" ", "").replace("-", "").replace("/", "").replace(".", "").isalnum()
]
RELAXED = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=150)


def judged(text: str) -> Assessment:
    """Classify a text."""
    return classify(ShellText(text=text), CONTEXT)


def effects(text: str) -> frozenset[Risk]:
    """A text's classes."""
    return judged(text).effects


SHELLISH = st.text(
    alphabet=st.sampled_from(list("abrm \t\n'\"\\$`(){}[]<>|&;#*?~=!+-/.,:@%^01éｒ\x00\x7f")), max_size=60
)


@given(st.one_of(st.text(max_size=80), SHELLISH))
@settings(RELAXED, max_examples=600)
def test_no_text_makes_it_raise(text: str) -> None:
    answer = judged(text)
    assert answer.parts
    for part in answer.parts:
        assert part.effects
        assert part.within is None or part.within < len(answer.parts)
        if part.span is not None:
            assert 0 <= part.span[0] <= part.span[1] <= len(text)


@given(st.sampled_from(COMMANDS), st.integers(0, 200), SHELLISH)
@RELAXED
def test_no_damaged_command_makes_it_raise(command: str, at: int, damage: str) -> None:
    judged(command[:at] + damage + command[at:])


@given(st.lists(st.text(max_size=20), min_size=1, max_size=8), st.text(max_size=20))
@RELAXED
def test_no_program_start_makes_it_raise(argv: list[str], path: str) -> None:
    classify(Exec(argv=tuple(argv), path=path, program=path), CONTEXT)


@given(st.sampled_from(list(FileAction)), st.text(max_size=40), st.text(max_size=40))
@RELAXED
def test_no_path_makes_it_raise(action: FileAction, path: str, other: str) -> None:
    classify(FileChange(action=action, path=path, other=other), CONTEXT)
    classify(FileRead(path=path), CONTEXT)


@given(
    st.sampled_from(ONE_LINE), st.sampled_from(ONE_LINE), st.sampled_from(["; ", " && ", "\n", " & ", " | "])
)
@settings(RELAXED, max_examples=400)
def test_a_further_command_removes_no_effect(first: str, second: str, between: str) -> None:
    # What the second one does can depend on the first (a variable, a folder, a function); what the first one
    # does depends on nothing that comes later.
    before = effects(first)
    after = effects(first + between + second)
    assert before - {Risk.SAFE} <= after


REDIRECTIONS = [
    "> out",
    ">> ~/.bashrc",
    "2> /dev/null",
    "< notes",
    "2>&1",
    "&> out",
    ">| out",
    "<> out",
    "3< notes",
    "{fd}> out",
    ">&2",
    "<<< text",
    "> >(cat)",
    '2> "$log"',
    "<&-",
]


@given(st.sampled_from(ONE_LINE), st.sampled_from(REDIRECTIONS))
@settings(RELAXED, max_examples=300)
def test_a_redirection_removes_no_effect(command: str, redirection: str) -> None:
    without = effects("{ " + command + "; }") - {Risk.SAFE}
    # A shell whose program comes from elsewhere now runs another one: that it runs one stays.
    if redirection.startswith("<"):
        without &= effects("{ " + command + "; } < notes") | {Risk.CODE_EXECUTION}
    assert without <= effects("{ " + command + "; } " + redirection)


@given(st.sampled_from(PLAIN), st.sampled_from(REDIRECTIONS[:11]), st.booleans())
@settings(RELAXED, max_examples=300)
def test_a_redirection_of_a_simple_command_removes_no_effect(
    command: str, redirection: str, in_front: bool
) -> None:
    if command.split(maxsplit=1)[0] in _RESERVED:
        return
    text = f"{redirection} {command}" if in_front else f"{command} {redirection}"
    assert effects(command) - {Risk.SAFE} <= effects(text)


COMPOUNDS = [
    "if {a}; then\n  {b}\nelse\n  ls\nfi\n",
    "if ! {a}\nthen {b}\nelif ls\nthen\npwd\nfi && ls",
    "for x in a b\ndo\n  {a}\ndone | sort\n{b}",
    "for ((i = 0; i < 3; i++)); do {a}; done; {b}",
    "while {a}\ndo {b}\ndone < f\n\nls",
    "until ls; do\n{a}\ndone\n[[ -f x ]] && {b}\n",
    "f() {{\n  {a}\n}}\nf && {b}",
    "function g\n{{\n{a}\n}}\n{b}",
    "case $1 in\n  a)\n    {a}\n    ;;\n  b|c) {b} ;;\n  *)\n    ls\nesac",
    "( {a}\n{b} ) > out\nls",
    "{{ {a}; {b}; }} 2>&1 | tail -5\nls",
    "{{ while ls; do {a}; done }} | cat\n{b}",
    "{a} &\n{b} &\nwait",
    "{a} |\n  sort\n{b} && ls",
    "# comment\n{a} # it's\n\n\n  {b}",
    "cat <<EOF > o\nit's\nEOF\n{a} && {b}",
    "cat <<'A' <<-'B'\n(\nA\n\t`\n\tB\n{a}\n{b}",
    'x=$( {a})\necho "$( {b} )"',  # with a subshell at its start, `$((` would be arithmetic
    "while read -r l; do {a}; done < <( {b})",
    "time {a}\n! {b}\n",
]


@given(st.sampled_from(COMPOUNDS), st.sampled_from(ONE_LINE), st.sampled_from(ONE_LINE))
@settings(RELAXED, max_examples=500)
def test_a_command_keeps_its_effects_inside_any_compound(compound: str, first: str, second: str) -> None:
    text = compound.format(a=first, b=second)
    answer = judged(text)
    assert not [reason for reason in answer.reasons if reason.rule in _UNREAD], text
    assert effects(first) - {Risk.SAFE} <= answer.effects


_UNREAD = ("text.unparsable", "text.readers_disagree")


@given(
    st.sampled_from(PLAIN),
    st.sampled_from(
        [
            "timeout 5 ",
            "timeout -s KILL 5 ",
            "nice ",
            "nice -n 5 ",
            "env ",
            "env A=b ",
            "nohup ",
            "command ",
            "stdbuf -oL ",
            "setsid ",
            "ionice -c 3 ",
            "env -u A timeout 5 nice ",
            "sudo ",
            "exec ",
            "chrt -i 0 ",
            "unshare -r ",
        ]
    ),
)
@settings(RELAXED, max_examples=300)
def test_a_wrapper_removes_no_effect(command: str, wrapper: str) -> None:
    name = command.split(maxsplit=1)[0]
    if name in _RESERVED or (name in _BUILTINS and wrapper not in ("command ", "exec ")):
        return
    assert effects(command) - {Risk.SAFE} <= effects(wrapper + command)


_RESERVED = ("time", "coproc")
_BUILTINS = frozenset(
    [
        "set",
        "cd",
        "export",
        "source",
        ".",
        "eval",
        "exec",
        "trap",
        "builtin",
        "alias",
        "time",
        "coproc",
        "typeset",
        "command",
        "hash",
    ]
)


IN_A_SHELL = [
    "bash -c {}",
    "sh -c {}",
    "eval {}",
    "bash -ec {} name",
    "timeout 5 bash -c {}",
    "sudo sh -c {}",
    "trap {} EXIT",
]


@given(st.sampled_from(ONE_LINE), st.sampled_from(IN_A_SHELL))
@settings(RELAXED, max_examples=300)
def test_a_shell_around_a_text_removes_no_effect(text: str, around: str) -> None:
    assert effects(text) - {Risk.SAFE} <= effects(around.format(shlex.quote(text)))


@given(
    st.sampled_from(ONE_LINE),
    st.sampled_from(["( {} )", "{{ {}; }}", "$( {} )", 'echo "$( {} )"', "! {{ {}; }}", "{} &"]),
)
@settings(RELAXED, max_examples=300)
def test_brackets_around_a_text_remove_no_effect(text: str, around: str) -> None:
    assert effects(text) - {Risk.SAFE} <= effects(around.format(text))


@given(st.sampled_from(PLAIN), st.randoms(use_true_random=False))
@RELAXED
def test_quoting_that_bash_sees_through_changes_nothing(command: str, chance: object) -> None:
    words = command.split(" ")
    if words[0] in ("time", "coproc", "if", "for", "while") or "~" in command:
        return
    quoted = []
    for word in words:
        kind = chance.randrange(5)  # type: ignore[attr-defined]
        middle = len(word) // 2
        quoted.append(
            word
            if kind == 0 or not word
            else f"'{word}'"
            if kind == 1
            else f'"{word}"'
            if kind == 2
            else f"{word[:middle]}''{word[middle:]}"
            if kind == 3
            else word[:middle] + "\\" + word[middle:]
        )
    left, right = judged(command), judged(" ".join(quoted))
    assert left.effects == right.effects
    assert [part.argv for part in left.parts] == [part.argv for part in right.parts]
    assert [part.static for part in left.parts] == [part.static for part in right.parts]


@given(st.sampled_from(PLAIN), st.sampled_from(["  ", "\t", " \\\n"]))
@RELAXED
def test_formatting_changes_nothing(command: str, blank: str) -> None:
    assert [part.argv for part in judged(command).parts] == [
        part.argv for part in judged(" " + command.replace(" ", blank) + " \n\n").parts
    ]


@given(st.sampled_from(ONE_LINE), st.randoms(use_true_random=False))
@settings(RELAXED, max_examples=400)
def test_formatting_between_any_two_tokens_changes_nothing(text: str, chance: Random) -> None:
    # The tokens of the text, with other blanks between them, newlines for semicolons, and a comment behind.
    pieces: list[str] = []
    at = 0
    for token in cut(text)[0]:
        between = text[at : token.start]
        if between and not between.strip(" \t"):
            between = chance.choice([" ", "  ", "\t", " \\\n ", between])
        last = token.kind is Kind.OPERATOR and token.raw == ";"
        pieces += [between, "\n" if last and chance.random() < 0.5 else text[token.start : token.end]]
        at = token.end
    other = "".join(pieces) + text[at:] + chance.choice(["", " ", "\n", "  # it's a (comment", "\n\n# `\n"])
    left, right = judged(text), judged(other)
    assert left.effects == right.effects, other
    assert [part.argv for part in left.parts] == [part.argv for part in right.parts], other
    assert [part.static for part in left.parts] == [part.static for part in right.parts], other


def test_the_answer_is_the_same_in_another_process_with_another_environment(tmp_path: Path) -> None:
    program = (
        "import json,sys\n"
        "from broker.classify import classify\nfrom broker.classify.context import Context\n"
        "from broker.request.operation import ShellText\n"
        "c=Context(cwd='/work/project',home='/home/dev',workspace='/work/project')\n"
        "for t in json.load(sys.stdin):\n a=classify(ShellText(text=t),c)\n"
        " print(json.dumps([a.classifier,a.tables,[[list(p.argv),sorted(p.effects),p.static,[r.rule for r in p.reasons]]"
        " for p in a.parts]]))\n"
    )
    outputs = []
    environments = [
        {"PYTHONHASHSEED": "1", "TZ": "UTC", "HOME": "/x"},
        {
            "PYTHONHASHSEED": "2",
            "TZ": "Asia/Tokyo",
            "LANG": "C",
            "PATH": "/nowhere",
            "USER": "nobody",
            "COLUMNS": "7",
        },
        {
            "PYTHONHASHSEED": "3",
            "LANG": "tr_TR.UTF-8",
            "LC_ALL": "tr_TR.UTF-8",
            "PYTHONUTF8": "1",
            "IFS": ",",
        },
    ]
    for extra in environments:
        done = subprocess.run(
            [sys.executable, "-c", program],
            input=json.dumps(COMMANDS[::7]),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), **extra},
            timeout=100,
        )
        outputs.append(done.stdout)
    assert outputs[0]
    assert outputs[1:] == outputs[:1] * 2


@pytest.mark.parametrize(
    "text",
    [
        "(" * 65536,
        "((" * 30000,
        "{ " * 30000,
        "$(" * 30000,
        "${" * 30000,
        "`" * 65536,
        "[[ " * 20000,
        "[" * 65536,
        "echo " + "{a,b}" * 40,
        "echo " + "{" * 30000,
        'echo "' + '$("' * 10000,
        "if true; then " * 4000,
        "<<A " * 10000,
        "a;" * 30000,
        "a|" * 30000,
        "x=$x$x;" * 9000,
        "eval " * 10000 + "ls",
        "sh -c '" * 9000,
        "timeout 1 " * 6000 + "ls",
        "echo {1..999999999}",
        "a" * 65537,
        "cat <<X\n" + "$(a\n" * 12000,
        "case " * 10000,
        "f(){ " * 10000,
        "a\\\n" + "<<E\n" * 16000,
        "a\\\n" + "".join(f"<<E{number}\n" for number in range(8000)),
        "x=" + "a\\\n\n" * 4000,
        "awk '" + 'a\\"' * 5000 + "'",
        "((" + "x=$x[;" * 10666 + "))",
        "zsh -c '" + "declare a[" * 6399 + "'",
        "zsh -c '" + "${(" * 20000 + "'",
        "a|" * 4095,
        "(a)" * 2700,
        ")" * 8190,
        "case x=${x}a;" * 2600,
        "echo ${a" + "[" * 65000 + "}",
        "echo ${a" + "[" * 32000 + "]" * 32000 + "}",
        "echo ${!a" + "a[" * 32000 + "}",
        "echo " + "{," * 32000,
        "echo {,}" + "{" * 32000 + "}" * 32000,
        "echo " + "{a,b}$HOME" * 6000,
        "echo " + "{a," * 20000 + "}" * 20000,
        "echo " + "${x/" * 23 + "(" * 60000 + "}" * 23,
        "echo " + "${a[" * 23 + "$" * 60000 + "]}" * 23,
        "echo " + '"${x:-' * 11 + "$" * 60000 + '}"' * 11,
        "x='" + "[" * 65000 + "'; echo $((x))",
        "echo " + "@(" * 32000,
        "(( " + "(" * 32000 + ")" * 32000 + " ))",
        "[[ " + "( " * 16000 + ") " * 16000 + "]]",
    ],
    ids=lambda text: text[:12],
)
def test_hostile_text_is_answered_quickly(text: str) -> None:
    """Linear in length: the limit is generous for a loaded machine, and far below what an explosion takes."""
    started = time.process_time()
    answer = judged(text)
    assert time.process_time() - started < 2
    assert answer.parts


def test_too_large_a_text_is_unknown_and_says_so() -> None:
    for text in ("ls " + "a" * 65536, "ls" + " a" * 4097):
        answer = judged(text)
        assert answer.risk is Risk.UNKNOWN
        assert "text.too_large" in {reason.rule for reason in answer.reasons}


def test_a_value_that_grows_is_bounded() -> None:
    text = "x=aaaaaaaaaaaaaaaa;" + "x=$x$x;" * 60 + "rm -rf $x"
    assert judged(text).parts
