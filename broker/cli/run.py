"""`broker run`: start an agent, or one of its sub-tasks, in a sandbox under a profile."""

from __future__ import annotations

import argparse

from broker.cli.parser import Choice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from broker.cli.ask_terminal import TerminalQuestions
    from broker.decide.profile import Profile
    from broker.request.plan import Step

SUMMARY = "run a command in a sandbox, under a profile"
EXAMPLES = """
broker run --profile builder -- my-agent --task "fix the tests"
broker run --profile research -- bash -c 'git log --oneline | head'
broker run --engine bubblewrap --timeout 10m -- python3 agent.py
broker run --engine docker --image go --profile builder -- bash agent.sh
broker run --profile builder --agent claude -- -p "fix the tests"
broker run --json --profile adversary -- ./review.sh > result.json
broker run --plan plan.json --land on-plan --profile builder -- my-agent
broker run --land on-panel review --rounds 3 --profile builder -- my-agent
broker run --plan plan.json --land on-plan --land on-panel review --rounds 3 --profile builder -- my-agent
broker run --ask --profile builder -- my-agent
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_sandbox_arguments(parser)
    parser.add_argument("--rounds", type=int, default=1, metavar="N",
                        help="with --land on-panel: run the command again on what it left while the panel blocks it, N times in all; "
                             "it finds what the judges found in $BROKER_TASK")  # fmt: skip
    parser.add_argument("--goal", default="", metavar="TEXT",
                        help="with --land on-panel: what you want, for the judges, and for the command in $BROKER_TASK")  # fmt: skip
    parser.add_argument("--agent", metavar="NAME",
                        help="run this agent, with what follows `--` as its arguments: claude, codex, gemini, opencode, aider, mini, "
                             "or one of your own (docs/agents.md)")  # fmt: skip
    parser.add_argument("--agent-home", metavar="DIR",
                        help="keep the agent's home folder, with its sessions, here (default: a new one that goes with the task)")  # fmt: skip
    asking = parser.add_mutually_exclusive_group()
    asking.add_argument("--ask", action="store_true", default=None, dest="ask",
                        help="ask, in place of refusing what an approval could permit: the program is held until you answer, here or "
                             "with broker approvals (docs/approvals.md; default: what the profile says, on a terminal)")  # fmt: skip
    asking.add_argument("--no-ask", action="store_false", dest="ask", help="ask nothing, whatever the profile says")
    parser.add_argument("--ask-timeout", metavar="TIME",
                        help="with --ask: deny what nobody answered in this time (default: what the profile says, 120s)")  # fmt: skip
    terminal = parser.add_mutually_exclusive_group()
    terminal.add_argument("--tty", action="store_true", default=None, dest="tty",
                          help="give the command a terminal of its own (default: when stdin and stdout are one)")  # fmt: skip
    terminal.add_argument("--no-tty", action="store_false", dest="tty", help="use pipes even on a terminal")


def add_sandbox_arguments(parser: argparse.ArgumentParser, *, json: bool = True) -> None:
    """Declare what `run`, `exec` and `mcp` share. `json`: stdout can have the result."""
    parser.add_argument("-p", "--profile", default="default", metavar="NAME",
                        help="the profile that the command and all it starts live under (default: default)")  # fmt: skip
    parser.add_argument("-w", "--workspace", default=".", metavar="DIR",
                        help="the folder that the task sees and may change (default: this one)")  # fmt: skip
    parser.add_argument("--engine", choices=("auto", "docker", "bubblewrap"), default="auto",
                        help="what makes the container (default: what the profile says)")  # fmt: skip
    parser.add_argument("--image", metavar="NAME",
                        help="the Docker image: base, python, go, node, or one of your own (default: the profile's)")  # fmt: skip
    parser.add_argument("--trust", choices=("trusted", "untrusted"), default="trusted",
                        help="untrusted clamps the task to local_write at most")  # fmt: skip
    parser.add_argument("--timeout", metavar="TIME", help="end the task after this time: 90, 30s, 10m, 2h")
    parser.set_defaults(panel="")
    parser.add_argument("--land", action=Choice, words=("auto", "ask", "never", "on-plan", "on-panel"), named="on-panel", name_at="panel",
                        together=("on-plan", "on-panel"), default="auto", metavar="HOW",
                        help="what of the changes lands at the end, in a copy-on-write workspace: what the profile permits "
                             "(auto, the default), the same once you have agreed (ask), nothing yet (never: see broker land), "
                             "all of it once every step of the plan is done on it (on-plan), or all of it if a panel of judges "
                             "passes it (on-panel NAME: see broker judge); both, given one after the other: a panel is asked once the plan is done")  # fmt: skip
    parser.add_argument("--plan", metavar="FILE",
                        help="the task's plan (JSON), whose checks it cannot revise: see broker plan")  # fmt: skip
    parser.add_argument("--profile-dir", action="append", default=[], metavar="DIR",
                        help="search profiles here first; may be repeated")  # fmt: skip
    if json:
        parser.add_argument("--json", action="store_true",
                            help="print the result as one JSON object on stdout; the command's own stdout goes to stderr")  # fmt: skip
    parser.add_argument("--result", metavar="FILE", help="write the result as JSON to FILE; the streams stay as they are")
    parser.add_argument("-q", "--quiet", action="store_true", help="print neither header, denials nor summary")


def run(args: argparse.Namespace) -> int:
    """Run the command. Returns its exit code, or one of ours (docs/exit-codes.md)."""
    import sys

    if not args.agent and not (args.command[0] if args.command else _names_an_agent(args)):
        from broker.errors import UsageError

        raise UsageError("what is to run? Put it after `--`: broker run --profile builder -- CMD")
    if not args.panel and (args.rounds != 1 or args.goal):
        from broker.errors import UsageError

        raise UsageError("--rounds and --goal go with a panel of judges. Add --land on-panel NAME, or leave them out")
    terminal = args.tty
    if terminal and not (sys.stdin is not None and sys.stdin.isatty()):
        from broker.errors import UsageError

        raise UsageError("--tty needs a terminal, and stdin is none. Leave it out, or run it in a terminal")
    if terminal is None:
        terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty() and not args.json
    return carry_out(args, judged=False, terminal=terminal)


def _names_an_agent(args: argparse.Namespace) -> bool:
    """Whether the profile names an agent, which starts as its own program when nothing more is said."""
    from broker.errors import ProfileError
    from broker.profiles.load import load_profile

    try:
        return load_profile(args.profile, profile_dirs=args.profile_dir, workspace=args.workspace).agent is not None
    except ProfileError:
        return False


def carry_out(args: argparse.Namespace, *, judged: bool, terminal: bool) -> int:
    """Do what `run` and `exec` share: load, run, report."""
    import os
    from dataclasses import replace

    from broker.cli.report import Reporter
    from broker.decide.trust import Trust
    from broker.profiles.load import load_profile
    from broker.serve.inside import answer, ways_out
    from broker.supervisor import RunRequest, Watcher
    from broker.supervisor import run as supervise

    profile = load_profile(args.profile, profile_dirs=args.profile_dir, workspace=args.workspace)
    if args.image:
        profile = replace(profile, sandbox=replace(profile.sandbox, image=args.image))
    argv: tuple[str, ...] = tuple(args.command)
    files: tuple[tuple[str, bytes], ...] = ()
    engine = args.engine
    if judged is False and (args.agent or args.agent_home or profile.agent is not None):
        profile, argv, files, engine = _equipped(args, profile)
    patience, at_terminal = (None, None) if judged else _asking(args, profile)
    claim_result(args)
    reporter = Reporter(quiet=args.quiet, live=not terminal, brief=getattr(args, "brief", False))
    request = RunRequest(
        argv=argv, files=files, profile=profile, workspace=os.path.abspath(args.workspace), engine=engine,
        trust=Trust.parse(args.trust), judged=judged, terminal=terminal, stdin=_stdin(),
        stdout=2 if args.json else 1, seconds=seconds_of(args.timeout), land=args.land,
        plan=plan_of(args.plan), profile_dirs=tuple(args.profile_dir), cwd=getattr(args, "cwd", ""),
        ask=patience,
    )  # fmt: skip
    watcher = Watcher(started=reporter.started, denied=reporter.denied, land=reporter.may_land, called=answer, ways_out=ways_out)
    watcher.asked, watcher.terminal = reporter.asked, at_terminal
    if at_terminal is not None:
        watcher.asked = at_terminal.asked
        at_terminal.elsewhere, reporter.terminal = reporter.asked, at_terminal
    if args.panel:
        from broker.cli.on_panel import carry_on_panel

        result, more = carry_on_panel(args, request, watcher, reporter)
    else:
        result, more = supervise(request, watcher), {}
    reporter.finished(result)
    write_result(args, result.as_dict() | more)
    return result.exit_code


def _asking(args: argparse.Namespace, profile: Profile) -> tuple[float | None, TerminalQuestions | None]:
    """Return how long a question waits (None: nobody is asked), and what asks on our terminal. Raises UsageError."""
    from broker.errors import UsageError

    seconds, patience, at_terminal = seconds_of(args.ask_timeout, "--ask-timeout"), None, None
    if args.ask or (args.ask is None and profile.approvals.ask):
        from broker.cli.ask_terminal import at_terminal as asks_at_terminal
        from broker.decide.approval import patience_of
        from broker.decide.trust import Trust

        at_terminal = asks_at_terminal()
        patience = patience_of(
            profile, Trust.parse(args.trust), wanted=args.ask, terminal=at_terminal is not None, seconds=seconds
        )
    if seconds is not None and patience is None:
        raise UsageError("--ask-timeout goes with --ask. Add that, or leave it out")
    return patience, at_terminal if patience is not None else None


def _equipped(args: argparse.Namespace, profile: Profile) -> tuple[Profile, tuple[str, ...], tuple[tuple[str, bytes], ...], str]:
    """Return profile, command, files and engine of an agent. Raises UsageError and ProfileError."""
    from pathlib import Path

    from broker.agents.adapter import load_adapter
    from broker.agents.equip import equip
    from broker.errors import UsageError

    name = args.agent or (profile.agent.name if profile.agent is not None else "")
    if not name:
        raise UsageError("--agent-home is an agent's: say which, with --agent NAME")
    adapter = load_adapter(name, Path(args.workspace))
    ready = equip(
        profile, adapter, tuple(args.command), workspace=args.workspace, engine=args.engine, home=args.agent_home or ""
    )
    return ready.profile, ready.argv, ready.files, ready.engine


def claim_result(args: argparse.Namespace) -> None:
    """Open the result's file before anything runs, so that what cannot be written is said at once.

    It stays open: whatever a task puts in its place meanwhile, a link for example, is not what is written to.
    """
    args.result_file = None
    if args.result:
        try:
            args.result_file = open(args.result, "w", encoding="ascii", opener=_no_link)
        except OSError as error:
            import errno

            from broker.errors import UsageError

            why = "it is a link, which an earlier task may have put there" if error.errno == errno.ELOOP else error.strerror
            raise UsageError(f"--result {args.result} cannot be written: {why}. Name another file") from None


def _no_link(path: str, flags: int) -> int:
    """Open a file that is no link (but /dev/stderr and the like are)."""
    import os

    return os.open(path, flags | os.O_CLOEXEC | (0 if path.startswith("/dev/") else os.O_NOFOLLOW), 0o666)


def write_result(args: argparse.Namespace, result: dict[str, object]) -> None:
    """Print or write the result where it was asked for. Raises BrokerError when the file cannot take it."""
    import json

    text = json.dumps(result)
    if args.json:
        print(text)
    if args.result_file is not None:
        try:
            with args.result_file as file:
                file.write(text + "\n")
        except OSError as error:
            from broker.errors import BrokerError

            raise BrokerError(
                f"the result cannot be written to {args.result}: {error.strerror}. "
                f"The command ended with {result['exit_code']}; broker events {result['run']} says the rest"
            ) from None


def _stdin() -> int:
    """Return our stdin, or -1 when there is none: then the command reads an empty one."""
    import os

    try:
        os.fstat(0)
    except OSError:
        return -1
    return 0


def plan_of(path: str | None) -> tuple[Step, ...]:
    """Return the steps of a --plan. Raises UsageError."""
    if path is None:
        return ()
    from broker.errors import UsageError
    from broker.request.delegation import MOST_BYTES, RequestRefused
    from broker.request.plan import Owner, read_steps

    try:
        with open(path, "rb") as file:
            return read_steps(file.read(MOST_BYTES + 1), Owner.OPERATOR)
    except OSError as error:
        raise UsageError(f"--plan {path} cannot be read: {error.strerror}. Name a file with a plan (docs/plans.md)") from None
    except RequestRefused as refused:
        raise UsageError(f"--plan {path}: {refused}. Correct it (docs/plans.md)") from None


def seconds_of(text: str | None, option: str = "--timeout") -> float | None:
    """Return a --timeout, or what another option says, in seconds. Raises UsageError."""
    if text is None:
        return None
    from broker.errors import UsageError
    from broker.profiles.quantity import parse_time

    try:
        return parse_time(text)
    except ValueError as error:
        raise UsageError(f"{option} {text}: {error}") from None
