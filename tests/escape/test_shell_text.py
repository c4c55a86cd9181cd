"""Shell texts written to be misread: what a shell does by itself must not pass as a program start that comes later.

A shell may start although a program in its text may not (broker/decide/deferral.py), because that program comes to
the gate. So whoever makes the shell do something under a program's name gets it past the profile.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from broker.classify import classify
from broker.classify.context import Context
from broker.classify.risk import Risk
from broker.decide.decide import decide
from broker.decide.deferral import starts_by_deferral
from broker.decide.envelope import Envelope
from broker.decide.profile import Profile, up_to
from broker.decide.trust import Trust
from broker.decide.verdict import Allow
from broker.request.operation import Exec, ShellText
from conformance.driver import Broker

CONTEXT = Context(cwd="/w", home="/home/agent", workspace="/w", scratch=("/tmp",), writable=("/w", "/home/agent", "/tmp"))
EDITS = Envelope(
    profile=Profile(name="edits", max_risk=Risk.LOCAL_WRITE, effects=up_to(Risk.LOCAL_WRITE)), trust=Trust.TRUSTED
)

# Each makes bash read a hidden text, or load a library; `nosuch` is a program start that would be put off.
HIDDEN = {
    "prompt expansion": "x='$(. ./x)'; nosuch \"${x@P}\"",
    "arithmetic": "x='a[$(. ./x)]'; nosuch $((x))",
    "arithmetic by way of another variable": "x='a[$(. ./x)]'; y=x; nosuch $((y))",
    "a subscript in an argument": "x='a[$(. ./x)]'; nosuch \"${b[x]}\"",
    "a substring": "z=abc; x='a[$(. ./x)]'; nosuch ${z:x}",
    "indirection": "x='a[$(. ./x)]'; nosuch ${!x}",
    "a here-string": "x='a[$(. ./x)]'; nosuch <<< $((x))",
    "put together": "a='a['; b='$(. ./x)]'; x=$a$b; nosuch $((x))",
    "a reference": "declare -n r='a[$(. ./x)]'; r=1; nosuch",
    "an integer": "declare -i n='a[$(. ./x)]'; nosuch",
    "an integer, later": "declare -i n; n='a[$(. ./x)]'; nosuch",
    "a quoted declaration": "export 'x=a[$(. ./x)]'; let x; nosuch",
    "a quoted subscript": "a=(1); a['$(. ./x)']=1; nosuch",
    "a quoted subscript in a list": "a=( ['$(. ./x)']=1 ); nosuch",
    "wait -p": "sleep 0 & wait -n -p 'a[$(. ./x)]'; nosuch",
    "compgen -C": "compgen -C '. ./x' y; nosuch",
    "compgen -W": "compgen -W '$(. ./x)' y; nosuch",
    "fc": "set -o history; fc -e '. ./x;' -1; nosuch",
    "history -w": "set -o history; history -w .git/hooks/pre-commit; nosuch",
    "HISTFILE": "set -o history; HISTFILE=.git/hooks/pre-commit; history -a; nosuch",
    "an alias for a builtin": "shopt -s expand_aliases\nalias nosuch=enable\nnosuch -f ./x.so x",
    "an alias for the dot": "alias nosuch=.\nnosuch ./x",
    "an alias behind an alias": "shopt -s expand_aliases\nalias e=enable\nalias nosuch='command '\nnosuch e -f ./x.so x",
    "an alias that opens a comment": "shopt -s expand_aliases\nalias nosuch='#'\nnosuch \"\nenable -f ./x.so x\n\"",
    "an alias for a keyword": "shopt -s expand_aliases\nalias if='. ./x;'\nif true; then nosuch; fi",
    "an alias from outside": 'shopt -s expand_aliases\nalias "$X"\nnosuch',
    "a global alias of zsh": "alias -g nosuch='; . ./x'\nnosuch",
    "BASH_ALIASES": "shopt -s expand_aliases\nBASH_ALIASES[nosuch]=enable\nnosuch -f ./x.so x",
    "BASH_CMDS": "BASH_CMDS[ls]=/w/x; ls; nosuch",
    "a function": 'nosuch() { "$@"; }; nosuch . ./x',
    "command_not_found_handle": "command_not_found_handle() { . ./x; }; nosuch",
    "mapfile -C": "mapfile -C '. ./x' -c 1 a < words; nosuch",
    "hash -p": "hash -p ./x ls; ls; nosuch",
    "a quoted builtin": "\\. ./x; nosuch",
    "an encoded builtin": "$'\\x2e' ./x; nosuch",
    "time": "time . ./x; nosuch",
    "coproc": "coproc . ./x; nosuch",
    "a trap": "trap '. ./x' DEBUG; nosuch",
    "a descriptor of a subscript": "exec {a[$(. ./x)]}>/tmp/y; nosuch",
    "a redirection that opens a connection": "exec 3<>/dev/tcp/192.0.2.1/80; nosuch",
}  # fmt: skip


def _answer(text: str, shell: str = "bash", program: str = "") -> str:
    path = f"/usr/bin/{shell}"
    start = Exec(argv=(shell, "-c", text), path=path, program=program or path, cwd="/w")
    assessment = classify(start, CONTEXT)
    verdict = decide(start, assessment, EDITS, CONTEXT)
    if isinstance(verdict, Allow):
        return "allowed"
    return "deferred" if starts_by_deferral(start, assessment, EDITS, CONTEXT) else "refused"


@pytest.mark.parametrize("how", HIDDEN)
def test_what_a_shell_does_by_itself_is_not_put_off(how: str) -> None:
    assert _answer(HIDDEN[how]) == "refused"


@pytest.mark.parametrize(
    "text",
    [
        "x='[a] $b'; nosuch $x", "alias ll='ls -l'; nosuch", "a=(1 2); nosuch ${a[0]}", "m['k']=$(date); nosuch",
        "n=3; nosuch $((n + 1))", "history; wait; nosuch",
    ],
)
def test_what_is_alike_and_harmless_is_still_put_off(text: str) -> None:
    assert _answer(text) == "deferred"


@pytest.mark.parametrize(
    ("shell", "program"),
    [("ash", "/bin/busybox"), ("sh", "/bin/busybox"), ("zsh", "/usr/bin/zsh"), ("ksh", "/usr/bin/ksh93"), ("sh", "/usr/bin/mksh")],
)
def test_a_shell_that_has_programs_inside_is_not_put_off(shell: str, program: str) -> None:
    """busybox runs its applets without a program start; zsh and ksh load builtins under any name."""
    assert _answer("nosuch", shell, program) == "refused"


@pytest.mark.parametrize("program", ["/bin/busybox", "/usr/bin/coreutils", "/bin/cat"], ids=["busybox", "coreutils", "hard link"])
def test_a_file_of_many_programs_is_the_one_that_its_argv_says(program: str) -> None:
    """`exec -a sh /bin/cat script` runs busybox's shell, and a rule for cat must not answer for it."""

    def effects(*argv: str) -> frozenset[Risk]:
        return classify(Exec(argv=argv, path="/bin/cat", program=program, cwd="/w"), CONTEXT).effects

    assert effects("cat", "x") == effects("/bin/cat", "x") == {Risk.SAFE}
    assert Risk.CODE_EXECUTION in effects("sh", "x")
    assert Risk.CODE_EXECUTION in effects("-sh", "x")
    assert Risk.NETWORK_EGRESS in effects("wget", "http://host.example")
    assert Risk.DESTRUCTIVE in effects("rm", "-rf", "/")


def test_an_alias_does_not_get_a_library_into_a_shell(for_somebody: Broker) -> None:
    """The same with the product around it: had the text been read, it would have written a file."""
    for_somebody.profile("edits", max_risk="local_write", effects={}, allowlist=["make"])
    for_somebody.file("sourced", "echo planted > seen\n")
    text = "shopt -s expand_aliases\nalias nosuch=.\nnosuch ./sourced\necho ran"
    agent = f"bash -c {text!r}\nbash -c 'nosuch x; echo ran this'\n".replace("\\n", "'$'\\n''")
    done = for_somebody.run("bash", profile="edits", stdin=agent.encode())
    assert not (for_somebody.workspace / "seen").exists()
    assert done.out.split() == [b"ran", b"this"], done


# Time: one question must not keep the broker from the others, nor from its clock


def _repeat(piece: str, size: int) -> str:
    return (piece * (size // len(piece) + 1))[:size]


SLOW: dict[str, Callable[[], Exec | ShellText]] = {
    "braces that nothing closes": lambda: ShellText(text="echo " + _repeat("{a,", 60_000)),
    "braces in a row": lambda: ShellText(text="echo " + _repeat("{a,b", 60_000)),
    "trimming by many stars": lambda: ShellText(text="x=" + "a" * 4000 + "; y=${x##*a*a*a*a*b}"),
    "trimming often": lambda: ShellText(text="x=" + "a" * 4000 + ";" + "y=${x%*a*b};" * 200),
    "awk, empty lines": lambda: Exec(argv=("awk", "\n" * 150_000), path="/usr/bin/awk"),
    "awk, comments": lambda: Exec(argv=("awk", "#" * 150_000 + '"'), path="/usr/bin/awk"),
    "awk, quotation marks": lambda: Exec(argv=("awk", _repeat('\\"', 150_000)), path="/usr/bin/awk"),
    "a program's name like a version": lambda: Exec(argv=("env", _repeat("1.", 150_000)), path="/usr/bin/env"),
    "a program's path like a version": lambda: Exec(argv=("x",), path="/usr/bin/" + _repeat("1.", 150_000)),
    "subscripts": lambda: ShellText(text="x='" + "[" * 60_000 + "'"),
    "quoted subscripts": lambda: ShellText(text="x=(" + _repeat("['", 60_000) + ")"),
}


@pytest.mark.parametrize("how", SLOW)
def test_no_text_keeps_the_broker_busy(how: str) -> None:
    operation = SLOW[how]()
    started = time.process_time()
    classify(operation, CONTEXT)
    assert time.process_time() - started < 3
