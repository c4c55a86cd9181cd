"""`broker hook`: what an agent on the host asks before it uses a tool. Any failure blocks: exit 2, in every dialect."""

from __future__ import annotations

import argparse

SUMMARY = "answer an agent's hook: a verdict on a tool, or the command put into the sandbox"
EXAMPLES = """
broker install --agent claude --profile builder    # writes the agent's settings, which start this
broker hook --profile builder < event.json         # one event of Claude Code, Codex or Gemini CLI on stdin
broker hook --profile builder --mode verdict < event.json
"""

# A hook that an agent gives up on lets the tool run in several of them: we end first, and block.
MOST_SECONDS = 10.0


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


def run(args: argparse.Namespace) -> int:
    """Answer one event. Returns 0 with the answer on stdout; everything else raises, and ends with 2 (broker/cli/main.py)."""
    import os
    import signal

    signal.signal(signal.SIGALRM, _too_late)
    signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
    from broker.serve.hook import Settings, answered
    from broker.serve.hook_event import MOST_BYTES

    options: list[str] = []
    for name, value in (("--engine", args.engine), ("--land", args.land)):
        if value != "auto":
            options += [name, value]
    settings = Settings(
        profile=args.profile, program=program(), rewrites=args.mode == "rewrite", trust=args.trust, workspace=args.workspace,
        profile_dirs=tuple(args.profile_dir), passed=tuple(args.passed), options=tuple(options),
    )  # fmt: skip
    answer = answered(_all_of(0, MOST_BYTES + 1), settings)
    while answer:
        answer = answer[os.write(1, answer) :]
    return 0


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


def _too_late(_number: int, _frame: object) -> None:
    import os

    os.write(2, f"broker: no answer within {MOST_SECONDS:.0f} seconds. The tool was not used\n".encode())
    os._exit(2)
