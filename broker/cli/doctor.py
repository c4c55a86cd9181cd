"""`broker doctor`: start a real sandbox on each engine, and show which layers hold.

Each with how that was proven and, where one does not hold, what mends it. With --agent: whether an agent on the host asks
the hooks that `broker install` wrote, and obeys.
"""

from __future__ import annotations

import argparse

SUMMARY = "prove which layers are effective on this host"
EXAMPLES = """
broker doctor
broker doctor --engine docker --image python
broker doctor --json
broker doctor --agent claude            # does Claude Code ask its hooks, and obey? Proven with a canary
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--engine", choices=("all", "docker", "bubblewrap"), default="all", help="look at one engine only")
    parser.add_argument("--image", default="", help="the image to look at, for docker (default: base)")
    parser.add_argument("--agent", choices=("claude", "codex", "gemini", "opencode"),
                        help="run this agent with its hooks, against a model of broker's own that asks for what is forbidden")  # fmt: skip
    parser.add_argument("--scope", choices=("user", "project"), default="user", help="for --agent: whose settings (default: yours)")
    parser.add_argument("-w", "--workspace", default=".", metavar="DIR", help="for --agent: the project, for --scope project")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(args: argparse.Namespace) -> int:
    """Examine. Exit 0 if at least one engine enforces every layer (with --agent: if the hooks are live), else 78."""
    if args.agent:
        return _agent(args)
    import json
    import sys

    from broker.cli.terminal import Colours
    from broker.enforce.examine import Finding, examine, host_findings

    names = ("bubblewrap", "docker") if args.engine == "all" else (args.engine,)
    host = host_findings()
    engines = {name: examine(name, args.image) for name in names}
    good = any(all(finding.effective for finding in found) for found in engines.values())
    if args.json:
        print(
            json.dumps(
                {
                    "host": [finding.as_dict() for finding in host],
                    "engines": {name: [finding.as_dict() for finding in found] for name, found in engines.items()},
                    "ok": good,
                }
            )
        )
        return 0 if good else 78
    colours = Colours(sys.stdout)

    def show(finding: Finding) -> None:
        mark = colours.paint("effective    ", "green") if finding.effective else colours.paint("NOT effective", "red")
        print(f"  {mark}  {finding.name:<12} {finding.evidence}")
        if not finding.effective and finding.remedy:
            print(f"                              → {finding.remedy}")

    print(colours.paint("host", "bold"))
    for finding in host:
        show(finding)
    for name, found in engines.items():
        print(colours.paint(name, "bold"))
        for finding in found:
            show(finding)
    if not good:
        print("\nNo engine enforces every layer here: tasks are refused (exit 78) until one does.")
    return 0 if good else 78


def _agent(args: argparse.Namespace) -> int:
    """Prove that an agent asks its hooks, and obeys. Exit 0 if it does, 78 if not or if nobody can say."""
    import json
    import os
    import sys

    from broker.cli.terminal import Colours, escape, escape_lines
    from broker.errors import HostCannotEnforce
    from broker.serve import hook_canary
    from broker.serve.hook_agents import AGENTS, Scope, has_ours

    agent = AGENTS[args.agent]
    scope, workspace = Scope(args.scope), os.path.realpath(args.workspace)
    program = hook_canary.found(agent)
    if program is None:
        raise HostCannotEnforce("hooks", f"{agent.program} is not installed", f"Run: npm install -g {agent.package}")
    path, text = hook_canary.hooks_of(agent, scope, workspace)
    if text is None or not has_ours(agent, text, path):
        why = "there is no such file" if text is None else "none of broker's hooks is in it"
        raise HostCannotEnforce("hooks", f"{path}: {why}", f"Run: broker install --agent {args.agent} --scope {args.scope}")
    proof = hook_canary.prove(agent, program, text)
    if args.json:
        fields = ("version", "reached", "asked", "ran", "answer", "words", "live")
        print(json.dumps({"agent": args.agent, "file": path, **{name: getattr(proof, name) for name in fields}}))
        return 0 if proof.live else 78
    paint = Colours(sys.stdout).paint
    print(f"{paint(args.agent, 'bold')} {escape(proof.version)}, hooks of {escape(path)}")
    if not proof.reached:
        print(f"  {paint('NOT proven', 'red')}   the agent did not carry the test out. It said:\n    {escape_lines(proof.words, indent='    ')}")
        return 78
    told = {True: paint("yes", "green"), False: paint("no", "red")}
    print(f"  asked       {told[proof.asked]}: the forbidden command {'stands' if proof.asked else 'does not stand'} in the record")
    print(f"  obeyed      {told[not proof.ran]}: it {'RAN ON THE HOST' if proof.ran else 'did not run on the host'}")
    if proof.live:
        print(f"  {paint('live', 'green')}        this agent asks broker before it uses a tool, and obeys")
        if args.agent == "codex":
            print("              (once you have trusted the hooks with /hooks: that is yours to do, and was left out here)")
    else:
        print(f"  {paint('NOT live', 'red')}    run it with `broker run` instead: that needs nothing of the agent. docs/hooks.md")
    return 0 if proof.live else 78
