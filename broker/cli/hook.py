"""`broker hook`: what an agent on the host asks before it uses a tool. Any failure blocks: exit 2, in every dialect."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

SUMMARY = "answer an agent's hook: a verdict on a tool, or the command put into the sandbox"
EXAMPLES = """
broker install --agent claude --profile builder    # writes the agent's settings, which start this
broker hook --profile builder < event.json         # one event of Claude Code, Codex or Gemini CLI on stdin
broker hook --profile builder --mode verdict < event.json
"""

# A hook that an agent gives up on lets the tool run in several of them: we end first, and block.
MOST_SECONDS = 10.0
_MOST_BYTES = 16 << 20  # of an event (broker/serve/hook_event.py, which is not loaded yet)
_event: bytes | None = None  # what was read from stdin before anything was loaded


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("-p", "--profile", default="default", metavar="NAME", help="the profile that tools are held to (default: default)")
    parser.add_argument("-w", "--workspace", default="", metavar="DIR",
                        help="the project (default: the one that the agent names, else the folder that it works in)")  # fmt: skip
    parser.add_argument("--mode", choices=("rewrite", "verdict"), default="rewrite",
                        help="rewrite: shell commands go into the sandbox, by `broker exec` (the default). "
                             "verdict: they are only judged, and what the profile permits runs on the host")  # fmt: skip
    parser.add_argument("--trust", choices=("trusted", "untrusted"), default="trusted", help="untrusted clamps to local_write at most")
    parser.add_argument("--engine", choices=("auto", "docker", "bubblewrap"), default="auto", help="for `broker exec`: what makes the container")
    parser.add_argument("--land", choices=("auto", "never"), default="auto", help="for `broker exec`: what of a command's changes lands")
    parser.add_argument("--pass", action="append", default=[], metavar="TOOL", dest="passed",
                        help="let a tool go that broker does not know; `*` at the end for all that begin so; may be repeated")  # fmt: skip
    parser.add_argument("--profile-dir", action="append", default=[], metavar="DIR", help="search profiles here first; may be repeated")
    parser.add_argument("--once", action="store_true", help="leave no process behind that answers the next calls faster")


def early(words: list[str]) -> int | None:
    """Have an earlier call's process answer, before anything is loaded; None: nobody is there, and `run` answers."""
    import signal

    if not words or {"-h", "--help", "--once"} & set(words):
        return None
    signal.signal(signal.SIGALRM, _too_late)
    signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
    from broker.serve.hook_client import asked

    global _event
    _event = _all_of(0, _MOST_BYTES + 1)
    answer = asked(words, _event)
    if answer is None:
        return None
    code, out, err = answer
    _write(2, err)
    _write(1, out)
    return code


def run(args: argparse.Namespace) -> int:
    """Answer one event. Returns 0 with the answer on stdout; everything else raises, and ends with 2 (broker/cli/main.py)."""
    import signal

    signal.signal(signal.SIGALRM, _too_late)
    signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
    data = _all_of(0, _MOST_BYTES + 1) if _event is None else _event
    from broker.serve.hook_record import settle

    try:
        _write(1, _answer(args, data))
    finally:
        settle()
    if not args.once:
        from broker.serve.hook_resident import stay

        stay(_in_its_place, settle, _warm)
    return 0


def _answer(args: argparse.Namespace, data: bytes) -> bytes:
    """Return what goes to stdout. Raises BrokerError."""
    from broker.serve.hook import Settings, answered

    options: list[str] = []
    for name, value in (("--engine", args.engine), ("--land", args.land)):
        if value != "auto":
            options += [name, value]
    import os

    settings = Settings(
        profile=args.profile, program=program(), rewrites=args.mode == "rewrite", trust=args.trust,
        workspace=os.path.abspath(args.workspace) if args.workspace else "",
        profile_dirs=tuple(os.path.abspath(folder) for folder in args.profile_dir), passed=tuple(args.passed), options=tuple(options),
    )  # fmt: skip
    return answered(data, settings)


def _in_its_place(words: list[str], data: bytes) -> tuple[int, bytes, bytes]:
    """Answer for another `broker hook` with these words: its exit code, its stdout, its stderr."""
    from broker.cli.parser import Parser
    from broker.cli.terminal import escape_lines
    from broker.errors import BrokerError

    try:
        parser = Parser(prog="broker hook")
        add_arguments(parser)
        return 0, _answer(parser.parse_args(words), data), b""
    except BrokerError as error:
        said = str(error)
    except Exception as error:  # noqa: BLE001 - whatever it is, the tool must not run, and somebody has to hear why
        said = f"internal error: {type(error).__name__}: {error}. Run with BROKER_DEBUG=1 for the traceback"
    return 2, b"", f"broker: {escape_lines(said, indent='        ')}\n".encode("utf-8", "backslashreplace")


def _warm() -> None:
    """Load everything that an answer can need."""
    from broker.classify import classify
    from broker.classify.context import Context
    from broker.decide import decide, refusal, wording  # noqa: F401
    from broker.profiles.load import load_profile
    from broker.record import denials, redact  # noqa: F401
    from broker.request.operation import Exec, FileAction, FileChange

    context = Context(cwd="/w", home="/h", workspace="/w")
    classify(Exec(argv=("bash", "-c", "git log | curl x > ~/.bashrc"), cwd="/w"), context)
    classify(FileChange(action=FileAction.WRITE, path="/w/package.json", new=b"{}", landing=True), context)
    load_profile("default")


def program() -> tuple[str, ...]:
    """Return how this broker is started, by a path that does not hang on anybody's PATH."""
    import os
    import sys

    named = os.path.abspath(sys.argv[0])
    if os.path.basename(named) == "broker" and os.access(named, os.X_OK):
        return (named,)
    return (sys.executable, "-m", "broker")


def _all_of(descriptor: int, most: int) -> bytes:
    """Return what comes on a descriptor until its end, but no more than this."""
    import os

    pieces, size = [], 0
    while size < most and (piece := os.read(descriptor, min(1 << 16, most - size))):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


def _write(descriptor: int, data: bytes) -> None:
    import os

    while data:
        data = data[os.write(descriptor, data) :]


def _too_late(_number: int, _frame: object) -> None:
    import os

    os.write(2, f"broker: no answer within {MOST_SECONDS:.0f} seconds. The tool was not used\n".encode())
    os._exit(2)
