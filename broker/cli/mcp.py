"""`broker mcp`: serve MCP on stdin and stdout; every tool works in a sandbox that lives as long as the client."""

from __future__ import annotations

import argparse

SUMMARY = "serve MCP on stdin and stdout: tools that work in a sandbox"
EXAMPLES = """
broker mcp --profile builder                       # what an agent's MCP settings start
broker mcp --profile builder --workspace ~/project --land never
broker mcp --profile builder --ask                 # and `broker approvals watch` in a terminal
claude mcp add broker -- broker mcp --profile builder --workspace "$PWD"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    from broker.cli.run import add_sandbox_arguments

    add_sandbox_arguments(parser, json=False)
    parser.add_argument("--ask", action="store_true",
                        help="ask you, in place of refusing what an approval could permit: answer with `broker approvals` or on the page of "
                             '`broker serve`. Where the profile says approver = "client", the client is asked without this option')  # fmt: skip
    parser.add_argument("--ask-timeout", metavar="TIME", help="deny what nobody answered in this time (default: the profile's, else 120s)")


def run(args: argparse.Namespace) -> int:
    """Serve until the input ends; then the changes land as with `broker run`. Returns the exit code of the task."""
    import os
    from dataclasses import replace

    from broker.cli.apart import go_on_apart
    from broker.cli.report import Reporter
    from broker.cli.run import claim_result, plan_of, seconds_of, write_result
    from broker.decide.approval import patience_of
    from broker.decide.trust import Trust
    from broker.errors import UsageError
    from broker.profiles.load import load_profile

    args.json = False
    try:
        from broker.serve.mcp import serve_descriptors
        from broker.serve.mcp_ask import ClientDesk
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "broker":
            raise
        raise UsageError("MCP needs the extra `mcp`. Run: pip install 'broker[mcp]'") from None
    from broker.serve.inside import answer, ways_out
    from broker.supervisor import RunRequest, Watcher, session

    profile = load_profile(args.profile, profile_dirs=args.profile_dir, workspace=args.workspace)
    if args.image:
        profile = replace(profile, sandbox=replace(profile.sandbox, image=args.image))
    trust = Trust.parse(args.trust)
    client = profile.approvals.approver == "client" and trust is Trust.TRUSTED
    if args.ask_timeout is not None and not (args.ask or client):
        raise UsageError("--ask-timeout goes with --ask. Add that, or leave it out")
    seconds = seconds_of(args.ask_timeout, "--ask-timeout")
    asks = ClientDesk() if client else None
    claim_result(args)
    reporter = Reporter(quiet=args.quiet, live=True)
    request = RunRequest(
        argv=("broker", "mcp"), profile=profile, workspace=os.path.abspath(args.workspace), engine=args.engine,
        ask=patience_of(profile, trust, wanted=args.ask or client, terminal=False, seconds=seconds),
        trust=trust, seconds=seconds_of(args.timeout), land=args.land, plan=plan_of(args.plan),
        profile_dirs=tuple(args.profile_dir),
    )  # fmt: skip
    watcher = Watcher(started=reporter.started, denied=reporter.denied, land=reporter.may_land, called=answer, ways_out=ways_out)
    if args.panel:
        from broker.cli.on_panel import bench_for

        bench_for(args, profile.sandbox.workspace, watcher)
    watcher.asked = reporter.asked if asks is None else asks.shown
    if args.land != "ask" and (code := go_on_apart()) is not None:  # to be asked takes the client's terminal
        return code
    end = _end_by_signal()
    stdin, stdout = _take_streams()
    with session(request, watcher) as opened:
        serve_descriptors(opened.stage, stdin, stdout, end, opened.budget, asks)
        os.close(stdout)  # the client need not wait for the landing to see that nothing more comes
    assert opened.result is not None
    reporter.finished(opened.result)
    write_result(args, opened.result.as_dict())
    return opened.result.exit_code


def _end_by_signal() -> int:
    """Return what becomes readable when somebody wants us to end. A client that waited sends SIGTERM: the changes land first."""
    import os
    import signal

    end = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: os.eventfd_write(end, 1))
    return end


def _take_streams() -> tuple[int, int]:
    """Take stdin and stdout for the protocol: whatever else writes to stdout would break it, and goes to stderr."""
    import os

    from broker.errors import UsageError

    try:
        taken = os.dup(0), os.dup(1)
    except OSError:
        raise UsageError("MCP is spoken on stdin and stdout, and one of them is closed. Let an agent start it") from None
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2 if _is_open(2) else nothing, 1)
    os.close(nothing)
    return taken


def _is_open(descriptor: int) -> bool:
    import os

    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
