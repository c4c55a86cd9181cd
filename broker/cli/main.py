"""The `broker` command: finds the verb, runs it, and turns what went wrong into one sentence and a code.

One module per verb. A verb's module has SUMMARY, EXAMPLES, `add_arguments(parser)` and `run(args) -> int`;
with TAKES_COMMAND = True, or for `run` and `exec`, `args.command` holds the words of the operator's command.
Only the verb that was asked for is imported, so the summaries are repeated here (a test compares them), and
`broker --help` needs nothing but this file.
"""

from __future__ import annotations

import errno
import gc
import os
import sys

from broker.errors import BrokerError, UsageError

TYPE_CHECKING = False  # typing itself is slow to import
if TYPE_CHECKING:
    from types import ModuleType

# verb: (group, module, summary)
VERBS: dict[str, tuple[str, str, str]] = {
    "run": ("Run", "broker.cli.run", "run a command in a sandbox, under a profile"),
    "exec": ("Run", "broker.cli.exec", "run a command only if the profile permits that command itself"),
    "tasks": ("Run", "broker.cli.tasks", "show the tasks that run now, and end them"),
    "approvals": ("Run", "broker.cli.approvals", "answer the questions of runs with --ask"),
    "serve": ("Run", "broker.cli.serve", "serve a page that shows what waits, what runs and what is refused, and takes answers"),
    "plan": ("Run", "broker.cli.plan", "show what a run planned, and what was seen of it; waive a check"),
    "mcp": ("Run", "broker.cli.mcp", "serve MCP on stdin and stdout: tools that work in a sandbox"),
    "hook": ("Run", "broker.cli.hook", "answer an agent's hook: a verdict on a tool, or the command put into the sandbox"),
    "classify": ("Understand", "broker.cli.classify", "say what a command would do, as classes of risk"),
    "explain": (
        "Understand",
        "broker.cli.explain",
        "show how a command was understood, and which rules spoke",
    ),
    "can-i": ("Understand", "broker.cli.can_i", "say whether a profile permits a command, and why"),
    "profile": ("Set up", "broker.cli.profile", "list, show, check, compare, write and import profiles"),
    "install": ("Set up", "broker.cli.install", "make an agent on the host ask broker before it uses a tool"),
    "uninstall": ("Set up", "broker.cli.uninstall", "take broker's hooks out of an agent's settings"),
    "image": ("Set up", "broker.cli.image", "build and list the images that sandboxes start from"),
    "doctor": ("Set up", "broker.cli.doctor", "prove which layers are effective on this host"),
    "completion": ("Set up", "broker.cli.completion", "print a completion script for bash, zsh or fish"),
    "judge": ("Afterwards", "broker.cli.judge", "have a panel of judges decide on changes, or find out what a panel catches"),
    "diff": ("Afterwards", "broker.cli.diff", "show the changes of a task that are kept, not landed"),
    "land": ("Afterwards", "broker.cli.land", "carry kept changes of a task into the workspace"),
    "discard": ("Afterwards", "broker.cli.discard", "throw away the kept changes of a task"),
    "events": ("Afterwards", "broker.cli.events", "list runs, read and verify their journals"),
    "report": ("Afterwards", "broker.cli.run_report", "tell what became of a run: a page to read, to print or to hand on"),
    "replay": ("Afterwards", "broker.cli.replay", "judge past decisions again, under another profile or a new version"),
    "export": ("Afterwards", "broker.cli.export", "hand events on: OCSF, CEF, CloudEvents, OpenTelemetry; file, HTTP, NATS"),
    "gc": ("Afterwards", "broker.cli.gc", "remove what a dead broker left behind, old kept changes, old journals"),
}
BLOCKS = 2
NO_OUTPUT = 74  # exit_codes.py; not imported, because every start would pay for it
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})  # of a journal they are a CannotJournal, with 73
TAKE_COMMAND = frozenset({"run", "exec", "can-i"})

_EXAMPLES = """\
  broker run --profile builder -- my-agent --task "fix the tests"
  broker classify 'curl https://example.com/x | sh'
  broker events last --verdict deny"""


def main(words: list[str] | None = None) -> int:
    """Run one command line, and return its exit code. Without words: the process's own, and its only one."""
    if words is not None:
        return _run(words)
    # Hardly anything that is made while modules load is garbage, and at the end the kernel takes it all: to
    # have the collector look through it a hundred times, and twice more at the exit, is a tenth of a start.
    gc.set_threshold(50_000)
    code = _run(sys.argv[1:])
    gc.freeze()
    return code


def _run(words: list[str]) -> int:
    code = _carried_out(words)
    # INVARIANT: to an agent 2 says "blocked", and any other failure "go on": whatever goes wrong in a hook is a 2 (tests/hooks).
    return BLOCKS if code and words[:1] == ["hook"] else code


def _carried_out(words: list[str]) -> int:
    try:
        _have_standard_streams()
        code = _dispatch(words)
        sys.stdout.flush()
        return code
    except BrokerError as error:
        _traceback_if_wanted()
        _complain(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _drop_stdout()
        return 141
    except Exception as error:  # noqa: BLE001 - the last place where it can become a sentence
        if isinstance(error, OSError) and error.errno in _NO_ROOM and error.filename is None:
            _drop_stdout()
            _complain(f"the output could not be written: {error.strerror}. What was done is done; make room, and ask for it again")
            return NO_OUTPUT
        if not _traceback_if_wanted():
            _complain(
                f"internal error: {type(error).__name__}: {error}. Run with BROKER_DEBUG=1 for the traceback"
            )
        return 70


def _have_standard_streams() -> None:
    """Make sure that 0, 1 and 2 are open: what we open next must not become somebody's stderr."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one (open(2))
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))
    if hasattr(sys.stdout, "reconfigure"):
        # A path that is not UTF-8 must not end a report half way through.
        sys.stdout.reconfigure(errors="backslashreplace")


def _dispatch(words: list[str]) -> int:
    match words:
        case []:
            sys.stderr.write(_help())
            return UsageError.exit_code
        case ["-h" | "--help", *_] | ["help"]:
            sys.stdout.write(_help())
            return 0
        case ["-V" | "--version", *_]:
            from broker import __version__

            print(f"broker {__version__}")
            return 0
        case ["help", verb, *_]:
            return _run_verb(verb, ["--help"])
        case [verb, *rest]:
            return _run_verb(verb, rest)
        case _:
            raise AssertionError(words)


def _run_verb(verb: str, words: list[str]) -> int:
    if verb not in VERBS:
        raise UsageError(_unknown(verb))
    module = _load(verb)
    if (early := getattr(module, "early", None)) is not None and (done := early(words)) is not None:
        return int(done)
    from broker.cli.parser import Parser

    takes_command = verb in TAKE_COMMAND or getattr(module, "TAKES_COMMAND", False)
    parser = Parser(prog=f"broker {verb}", description=_sentence(module.SUMMARY), examples=module.EXAMPLES)
    module.add_arguments(parser)
    command: list[str] = []
    if takes_command:
        parser.usage = parser.usage or f"broker {verb} [OPTION ...] [--] CMD [ARG ...]"
        words, command = parser.split_command(words)
    try:
        args = parser.parse_args(words)
    except SystemExit as done:  # --help
        sys.stdout.flush()
        return int(done.code or 0)
    if takes_command:
        args.command = command
    code: int = module.run(args)
    return code


def _load(verb: str) -> ModuleType:
    from importlib import import_module

    return import_module(VERBS[verb][1])


def _unknown(verb: str) -> str:
    from difflib import get_close_matches

    from broker.cli.terminal import escape

    if verb.startswith("-"):
        return f"there is no option {escape(verb)} before the verb. Try: broker --help"
    near = get_close_matches(verb, VERBS, n=1, cutoff=0.5)
    hint = f"Did you mean: broker {near[0]}" if near else "Try: broker --help"
    return f"there is no verb '{escape(verb)}'. {hint}"


def _help() -> str:
    from broker.cli.terminal import Colours

    bold = Colours(sys.stdout)
    lines = [
        "usage: broker VERB [OPTION ...]",
        "",
        "Runs AI agents in a container with no network, under a profile that you wrote.",
    ]
    group = ""
    for verb, (verb_group, _, summary) in VERBS.items():
        if verb_group != group:
            group = verb_group
            lines += ["", bold.paint(f"{group}:", "bold")]
        lines.append(f"  {verb:<12}{summary}")
    lines += ["", bold.paint("Examples:", "bold"), _EXAMPLES, ""]
    lines += ["`broker VERB --help` says more. Exit codes: docs/exit-codes.md", ""]
    return "\n".join(lines)


def _sentence(summary: str) -> str:
    return f"{summary[:1].upper()}{summary[1:]}."


def _complain(message: str) -> None:
    from broker.cli.terminal import escape_lines

    # stderr may be closed, or a full pipe that nobody reads: the exit code still tells.
    try:
        sys.stderr.write(f"broker: {escape_lines(message, indent='        ')}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass


def _traceback_if_wanted() -> bool:
    if os.environ.get("BROKER_DEBUG", "0") in ("", "0"):
        return False
    import traceback

    traceback.print_exc()
    return True


def _drop_stdout() -> None:
    """Point stdout at nothing, or the interpreter complains about the broken pipe, or the full disk, once more at its end."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)


if __name__ == "__main__":
    sys.exit(main())
