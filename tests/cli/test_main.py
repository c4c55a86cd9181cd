"""The command line: quick, clear when it is used wrongly, and never in the way of the operator's command."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from broker import errors, exit_codes
from broker.cli.main import VERBS, main
from broker.cli.parser import Parser
from broker.cli.terminal import Colours, command_line, escape, shorten
from broker.errors import BrokerError, HostCannotEnforce, UsageError
from broker.record.journal import Journal

ROOT = Path(__file__).parents[2]


def broker(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run the real program."""
    environment = {**os.environ, **{str(name): str(value) for name, value in options.items()}}
    return subprocess.run(
        [sys.executable, "-m", "broker", *words],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        stdin=subprocess.DEVNULL,
    )


# --- help


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_says_of_itself_what_the_help_says_of_it(verb: str) -> None:
    module = import_module(VERBS[verb][1])

    assert VERBS[verb][2] == module.SUMMARY
    assert module.EXAMPLES


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_shows_its_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0

    told = capsys.readouterr().out
    assert f"usage: broker {verb}" in told
    assert "examples:" in told
    assert f"broker {verb}" in told.split("examples:")[1]


def test_help_names_every_verb_and_shows_examples() -> None:
    done = broker("--help")

    assert done.returncode == 0
    assert all(re.search(rf"^  {verb} ", done.stdout, re.MULTILINE) for verb in VERBS)
    assert "broker run --profile builder --" in done.stdout
    assert broker("help").stdout == done.stdout
    assert broker("help", "events").stdout == broker("events", "--help").stdout


def test_help_imports_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "broker", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )

    imported = {line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines() if "|" in line}
    heavy = {"msgspec", "docker", "structlog", "tree_sitter", "pyroute2", "psutil", "argparse", "dataclasses"}
    assert not imported & heavy
    assert {name for name in imported if name.startswith("broker.")} == {
        "broker.cli",
        "broker.cli.main",
        "broker.cli.terminal",
        "broker.errors",
    }


def test_a_refusal_from_cold_imports_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    """An agent's tries are mostly refused this way: each costs a start."""
    (tmp_path / "w").mkdir()
    program = "import sys; from broker.cli.main import main; code = main(sys.argv[1:]); print(*sys.modules); sys.exit(code)"
    done = subprocess.run(
        [sys.executable, "-c", program, "exec", "-q", "-w", "w", "--", "curl", "x"],
        cwd=tmp_path,
        env={**os.environ, "BROKER_STATE_DIR": str(tmp_path / "s")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 126, done.stderr
    imported = set(done.stdout.split())
    assert "broker.classify.readers.network" in imported
    shell_text = {"shell", "simple_command", "words", "tokens", "braces", "readers.git", "readers.builtins"}
    needless = {f"broker.classify.{name}" for name in shell_text} | {"broker.supervisor", "broker.task.task"}
    heavy = {"msgspec", "shutil", "lzma", "random", "difflib", "_hashlib", "subprocess", "socket"}
    assert imported & (needless | heavy) == set()


def test_version() -> None:
    assert re.fullmatch(r"broker \d+\.\d+\.\d+\n", broker("--version").stdout)


# --- wrong use


def test_without_a_verb_the_help_is_an_error() -> None:
    done = broker()

    assert (done.returncode, done.stdout) == (64, "")
    assert "usage: broker VERB" in done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("evnets",), "there is no verb 'evnets'. Did you mean: broker events"),
        (("qqq",), "there is no verb 'qqq'. Try: broker --help"),
        (("--wrong",), "there is no option --wrong before the verb. Try: broker --help"),
        (("events", "--wrong"), "unrecognized arguments: --wrong. Try: broker events --help"),
        (("events", "--verdict", "no"), "Try: broker events --help"),
        (("events", "--folow"), "unrecognized arguments: --folow. Did you mean --follow? Try: broker events --help"),
        (("run", "--profil=builder", "--", "true"), "Did you mean --profile? Try: broker run --help"),
        (("land",), "what is to land? Name a task whose changes are kept: broker land last"),
        (("discard",), "whose changes? Name a task: broker discard last"),
        (("run", "--", ""), "what is to run?"),
        (("exec", "--", ""), "what is to run?"),
        (("run", "--tty", "--", "true"), "--tty needs a terminal"),
        (("explain",), "Give a shell text"),
        (("explain", "git", "status"), "broker explain 'git status'"),
        (("image",), "Try: broker image list"),
        (("a\x1b[2J\nbroker: ok",), r"there is no verb 'a\x1b[2J\nbroker: ok'"),
    ],
)
def test_wrong_use_is_one_sentence_and_exit_64(words: tuple[str, ...], sentence: str) -> None:
    done = broker(*words)

    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr.startswith("broker: ")
    assert done.stderr.count("\n") == 1
    assert sentence in done.stderr


def test_a_word_that_is_not_utf8_is_shown_as_its_bytes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "broker", b"\xff\xfe"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 64
    assert r"\xff\xfe" in done.stderr


# --- what goes wrong


@pytest.fixture
def verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A verb of the test's own, `broker trial`: the test writes what it does into the file."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "trial_verb", raising=False)
    monkeypatch.setitem(VERBS, "trial", ("Run", "trial_verb", "try something"))
    monkeypatch.delenv("BROKER_DEBUG", raising=False)
    return tmp_path / "trial_verb.py"


def _write(verb: Path, body: str, *, takes_command: bool = False) -> None:
    verb.write_text(
        f"SUMMARY = 'try something'\nEXAMPLES = 'broker trial'\nTAKES_COMMAND = {takes_command}\n"
        f"def add_arguments(parser):\n"
        f"    parser.add_argument('-p', '--profile')\n    parser.add_argument('-v', action='store_true')\n"
        f"def run(args):\n    {body}\n"
    )


def test_a_known_failure_is_its_own_sentence_and_exit_code(
    verb: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _write(
        verb,
        "from broker.errors import HostCannotEnforce\n"
        "    raise HostCannotEnforce('L1', 'no Landlock', 'Run: uname -r')",
    )

    assert main(["trial"]) == HostCannotEnforce.exit_code == 78
    assert capsys.readouterr().err == "broker: L1: no Landlock. Run: uname -r\n"


def test_an_unknown_failure_is_one_line_and_exit_70(verb: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _write(verb, "raise RuntimeError('boom')")

    assert main(["trial"]) == 70
    assert capsys.readouterr().err == (
        "broker: internal error: RuntimeError: boom. Run with BROKER_DEBUG=1 for the traceback\n"
    )


def test_the_traceback_is_shown_to_those_who_ask(
    verb: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(verb, "raise RuntimeError('boom')")
    monkeypatch.setenv("BROKER_DEBUG", "1")

    assert main(["trial"]) == 70
    assert "Traceback" in capsys.readouterr().err


def test_a_sentence_cannot_forge_another_line(verb: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _write(
        verb,
        "from broker.errors import BrokerError\n    raise BrokerError('a\\nbroker: all is well\\x1b[2J')",
    )

    main(["trial"])

    first, second = capsys.readouterr().err.splitlines()
    assert first == "broker: a"
    assert second == r"        broker: all is well\x1b[2J"


def test_an_interrupt_ends_with_130_and_no_traceback(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen(
        [sys.executable, "-m", "broker", "events", str(fifo)], stderr=subprocess.PIPE, text=True
    ) as process:
        writing = os.open(fifo, os.O_WRONLY)  # returns when the reader is there
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
        os.close(writing)
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_a_reader_that_goes_away_is_no_failure_to_talk_about(tmp_path: Path) -> None:
    with Journal.create(tmp_path) as journal:
        for _ in range(3000):
            journal.append("x", note="n" * 100)
    with subprocess.Popen(
        [sys.executable, "-m", "broker", "events", str(journal.path), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=30) == 141


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_missing_standard_streams_are_no_trap(closed: str, tmp_path: Path) -> None:
    """A journal that became descriptor 2 would get our error messages."""
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -m broker events {closed}', sys.executable],
        env={**os.environ, "BROKER_STATE_DIR": str(tmp_path)},
        check=False,
        capture_output=True,
    )

    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("words", ["explain -", "classify --jsonl"])
def test_a_closed_stdin_is_an_empty_one(words: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -m broker {words} <&-', sys.executable], check=False, capture_output=True, text=True
    )

    assert done.returncode in (0, 64)
    assert "internal error" not in done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["--help", "events schema", "profile list"])
def test_output_that_a_full_disk_does_not_take_is_one_sentence_and_74(words: str, unbuffered: str) -> None:
    """What fits the buffer is missed when it is flushed, what does not, when it is printed."""
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -m broker {words} >/dev/full', sys.executable],
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered}, check=False, capture_output=True, text=True,
    )

    assert done.returncode == exit_codes.NO_OUTPUT
    assert done.stderr == "broker: the output could not be written: No space left on device. What was done is done; make room, and ask for it again\n"


# --- where the operator's command begins


@pytest.mark.parametrize(
    ("words", "own", "command"),
    [
        (
            ["--profile", "builder", "--", "a", "--profile", "x"],
            ["--profile", "builder"],
            ["a", "--profile", "x"],
        ),
        (["--profile", "builder", "python3", "-c", "1"], ["--profile", "builder"], ["python3", "-c", "1"]),
        (["--profile=builder", "ls", "--help"], ["--profile=builder"], ["ls", "--help"]),
        (["-p", "builder", "ls"], ["-p", "builder"], ["ls"]),
        (["-pbuilder", "ls", "-la"], ["-pbuilder"], ["ls", "-la"]),
        (["-v", "ls"], ["-v"], ["ls"]),
        (["-vp", "builder", "ls"], ["-vp", "builder"], ["ls"]),
        (["-vpbuilder", "ls"], ["-vpbuilder"], ["ls"]),
        (["ls", "--", "-v"], [], ["ls", "--", "-v"]),
        (["--", "--", "x"], [], ["--", "x"]),
        (["--", "-v"], [], ["-v"]),
        (["-", "x"], [], ["-", "x"]),
        (["--wrong", "ls"], ["--wrong"], ["ls"]),
        (["-v"], ["-v"], []),
        ([], [], []),
        (["", "x"], [], ["", "x"]),
    ],
)
def test_the_command_keeps_its_own_options(words: list[str], own: list[str], command: list[str]) -> None:
    parser = Parser(prog="broker trial")
    parser.add_argument("-p", "--profile")
    parser.add_argument("-v", action="store_true")

    assert parser.split_command(words) == (own, command)


def test_a_verb_that_takes_a_command_gets_its_words(verb: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _write(verb, "print(args.profile, args.v, args.command)\n    return 3", takes_command=True)

    assert main(["trial", "--profile", "p", "go", "test", "-v", "--", "x"]) == 3
    assert capsys.readouterr().out == "p False ['go', 'test', '-v', '--', 'x']\n"


def test_an_option_is_not_guessed_from_its_beginning(verb: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _write(verb, "return 0")

    assert main(["trial", "--prof", "x"]) == 64
    assert "--prof" in capsys.readouterr().err


def test_subverbs_follow_the_same_rules() -> None:
    parser = Parser(prog="broker trial")
    parser.add_subparsers(dest="what", required=True).add_parser("list", examples="broker trial list")

    with pytest.raises(UsageError, match="Try: broker trial --help"):
        parser.parse_args(["lost"])
    assert parser.parse_args(["list"]) == argparse.Namespace(what="list")


# --- exit codes


def _subclasses(kind: type[BrokerError]) -> list[type[BrokerError]]:
    return [kind, *(deeper for child in kind.__subclasses__() for deeper in _subclasses(child))]


def test_every_exception_ends_with_a_code_of_the_table() -> None:
    codes = {code for code, _ in exit_codes.EXIT_CODES}

    assert {kind.exit_code for kind in _subclasses(errors.BrokerError)} <= codes


def test_the_page_on_exit_codes_says_what_the_table_says() -> None:
    page = (ROOT / "docs" / "exit-codes.md").read_text()

    for code, meaning in exit_codes.EXIT_CODES:
        assert f"| {code} | {meaning} |" in page


# --- text on a terminal


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain Ünïcode 日本", "plain Ünïcode 日本"),
        ("\x1b[2J", r"\x1b[2J"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\u202egpj.exe", r"\u202egpj.exe"),
        ("zero\u200bwidth", r"zero\u200bwidth"),
        ("\udcff", r"\xff"),
        ("\x9b31m", r"\x9b31m"),
        ("\U000e0041", r"\U000e0041"),
        ("\x00\x7f", r"\x00\x7f"),
    ],
)
def test_what_could_repaint_a_terminal_is_written_out(text: str, shown: str) -> None:
    assert escape(text) == shown


def test_a_command_line_is_shown_as_one_would_type_it() -> None:
    assert command_line(["git", "commit", "-m", "two words", "\x1b"]) == r"git commit -m 'two words' '\x1b'"


def test_shortening_keeps_the_start_and_the_end() -> None:
    assert shorten("short", 10) == "short"
    assert shorten("a" * 50 + "z" * 50, 20) == "a" * 14 + "…" + "z" * 5
    assert len(shorten("x" * 1000, 100)) == 100


@pytest.mark.parametrize(
    ("environment", "terminal", "coloured"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"CLICOLOR_FORCE": "1"}, False, True),
        ({"CLICOLOR_FORCE": "0"}, False, False),
        ({"CLICOLOR_FORCE": "1", "NO_COLOR": "1"}, False, False),
        ({"TERM": "dumb"}, True, False),
    ],
)
def test_colours_are_for_terminals_and_those_who_ask(
    environment: dict[str, str], terminal: bool, coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    master, slave = os.openpty()
    with open(slave if terminal else os.devnull, "w") as stream:
        assert Colours(stream).enabled is coloured
        assert ("\x1b" in Colours(stream).paint("x", "red")) is coloured
    os.close(master)
    if not terminal:
        os.close(slave)


# --- completion


@pytest.fixture(scope="module")
def completion() -> ModuleType:
    return import_module("broker.cli.completion")


def _complete(line: str, tmp_path: Path) -> list[str]:
    """Return what bash offers at the end of a line, through the script that broker prints."""
    (tmp_path / "broker").write_text(f'#!/bin/sh\nexec {sys.executable} -m broker "$@"\n')
    (tmp_path / "broker").chmod(0o755)
    words = line.split(" ")
    program = (
        'eval "$(broker completion bash)"\n'
        f"COMP_WORDS=({' '.join(repr(word) for word in words)})\nCOMP_CWORD={len(words) - 1}\n"
        '_broker\nprintf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", program],
        env={
            **os.environ,
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "BROKER_STATE_DIR": str(tmp_path / "s"),
        },
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_verbs_options_values_profiles_and_runs(tmp_path: Path) -> None:
    assert _complete("broker ev", tmp_path) == ["events"]
    assert set(VERBS) <= set(_complete("broker ", tmp_path))
    assert _complete("broker events --ver", tmp_path) == ["--verdict"]
    assert _complete("broker events --verdict d", tmp_path) == ["deny"]
    assert _complete("broker completion z", tmp_path) == ["zsh"]
    assert "builder" in _complete("broker run --profile ", tmp_path)
    with Journal.create(tmp_path / "s") as journal:
        journal.append("run.started")
    assert journal.run in _complete("broker events 2", tmp_path)
    assert journal.run in _complete("broker report 2", tmp_path)
    assert _complete("broker events sh", tmp_path) == ["show"]
    assert _complete("broker approvals w", tmp_path) == ["watch"]
    assert {"show", "waive", "last"} <= set(_complete("broker plan ", tmp_path))
    assert {"calibrate", "last"} <= set(_complete("broker judge ", tmp_path))
    assert "last" in _complete("broker diff ", tmp_path)
    assert {"claude", "codex"} <= set(_complete("broker run --agent ", tmp_path))
    assert _complete("broker run --plan pyproj", tmp_path) == ["pyproject.toml"]  # a file, and not a command


def test_bash_completes_the_names_of_panels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    panels = tmp_path / "config" / "broker" / "panels"
    panels.mkdir(parents=True)
    for folder in (panels, panels.parent, panels.parent.parent):
        folder.chmod(0o755)
    (panels / "p.toml").write_text('[[panels.review.judges]]\nname = "x"\nprofile = "adversary"\ncommand = "true"\n')
    (panels / "p.toml").chmod(0o644)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    assert _complete("broker judge calibrate ", tmp_path) == ["review"]
    assert _complete("broker judge last --panel ", tmp_path) == ["review"]
    assert _complete("broker run --land on-panel ", tmp_path) == ["review"]


def test_bash_completes_the_operators_command_as_a_command(tmp_path: Path) -> None:
    assert "python3" in _complete("broker run --profile builder pytho", tmp_path)
    assert "python3" in _complete("broker run -- pytho", tmp_path)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_scripts_are_valid_in_their_shells(shell: str, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(broker("completion", shell).stdout)
    assert "events" in script.read_text()

    try:
        done = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip(f"{shell} is not installed")

    assert (done.returncode, done.stderr) == (0, "")
