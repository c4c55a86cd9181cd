"""`broker install`: make an agent on the host ask `broker hook` before it uses a tool."""

from __future__ import annotations

import argparse

SUMMARY = "make an agent on the host ask broker before it uses a tool"
EXAMPLES = """
broker install --agent claude --profile builder             # shows what changes, and asks
broker install --agent codex --profile builder --dry-run
broker install --agent gemini --scope project --yes
broker install --agent opencode --mode verdict
broker doctor --agent claude                                # proves that it is asked, and obeyed
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_agent_arguments(parser)
    parser.add_argument("-p", "--profile", default="default", metavar="NAME", help="the profile that its tools are held to (default: default)")
    parser.add_argument("--profile-dir", action="append", default=[], metavar="DIR", help="search profiles here first; may be repeated")
    parser.add_argument("--mode", choices=("rewrite", "verdict"), default="rewrite",
                        help="rewrite: shell commands go into the sandbox (the default). verdict: they are only judged, and run on the host")  # fmt: skip
    parser.add_argument("--trust", choices=("trusted", "untrusted"), default="trusted", help="untrusted clamps to local_write at most")
    parser.add_argument("--engine", choices=("auto", "docker", "bubblewrap"), default="auto", help="what makes the container for shell commands")
    parser.add_argument("--pass", action="append", default=[], metavar="TOOL", dest="passed",
                        help="let a tool go that broker does not know; `*` at the end for all that begin so; may be repeated")  # fmt: skip


def add_agent_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `install` and `uninstall` share."""
    parser.add_argument("--agent", required=True, choices=("claude", "codex", "gemini", "opencode"), help="whose settings")
    parser.add_argument("--scope", choices=("user", "project"), default="user", help="your settings (the default), or those in a project's folder")
    parser.add_argument("-w", "--workspace", default=".", metavar="DIR", help="the project, for --scope project (default: this folder)")
    parser.add_argument("-n", "--dry-run", action="store_true", help="show what would change, and change nothing")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask first")
    parser.add_argument("--json", action="store_true", help="print what was done as JSON, and do not ask")


def run(args: argparse.Namespace) -> int:
    """Write the agent's settings. Exit 0 if the hooks are in them at the end, 1 if somebody said no."""
    import os

    from broker.cli.hook import program
    from broker.profiles.load import load_profile
    from broker.serve.hook_agents import AGENTS, Scope, has_ours, with_ours

    agent, workspace = AGENTS[args.agent], os.path.realpath(args.workspace)
    scope = Scope(args.scope)
    folders = [os.path.abspath(folder) for folder in args.profile_dir]
    load_profile(args.profile, profile_dirs=folders, workspace=workspace)  # what cannot be used is said now, not at each tool
    hook = [*program(), "hook", "--profile", args.profile]
    hook += ["--workspace", workspace] if scope is Scope.PROJECT else []
    hook += [word for folder in folders for word in ("--profile-dir", folder)]
    hook += [word for name in args.passed for word in ("--pass", name)]
    for name, value, usual in (("--mode", args.mode, "rewrite"), ("--trust", args.trust, "trusted"), ("--engine", args.engine, "auto")):
        hook += [name, value] if value != usual else []

    path = os.path.realpath(agent.path(scope, workspace))  # a link stays one: somebody keeps his settings elsewhere
    old = read(path)
    new = with_ours(agent, old, hook, path)
    return settle(
        args, path, old, new, backup=None if old is None or has_ours(agent, old, path) else old,
        left=f"{agent.trust}\nThen: broker doctor --agent {args.agent}", done="installed",
    )  # fmt: skip


def read(path: str) -> str | None:
    """Return the file's text; None if there is none. Raises UsageError for what is no text, or cannot be read."""
    from broker.serve.hook_agents import CannotBeChanged

    try:
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise CannotBeChanged(path, "is not UTF-8") from None
    except OSError as error:
        raise CannotBeChanged(path, f"cannot be read ({error.strerror})") from None


def backup_path(path: str) -> str:
    """Return where the file as it was before us is kept."""
    return f"{path}.before-broker"


def settle(
    args: argparse.Namespace, path: str, old: str | None, new: str | None, *, backup: str | None, left: str, done: str
) -> int:  # fmt: skip
    """Show what changes, ask, and change it. `new` None: the file goes. `backup`: what is to be kept of it, if anything.

    Returns 0, or 1 if somebody said no.
    """
    import json
    import os
    import sys

    from broker.cli.terminal import ask

    changed = new != old
    if not args.json:
        sys.stdout.write(_diff(path, old, new) if changed else f"{path} needs no change.\n")
        sys.stdout.flush()
    wanted = changed and not args.dry_run
    if wanted and not (args.yes or args.json) and sys.stdin is not None and sys.stdin.isatty() and not ask(f"Write {path}? [y/N] "):
        print("Nothing was changed.")
        return 1
    kept = ""
    if wanted:
        if backup is not None:
            kept = backup_path(path)
            replace(kept, backup, path)
        if new is None:
            os.unlink(path)
        else:
            replace(path, new, path)
    if args.json:
        print(json.dumps({"agent": args.agent, "file": path, "changed": wanted, "would_change": changed, "backup": kept, "left": left}))
        return 0
    if args.dry_run:
        print("Nothing was changed: --dry-run.")
        return 0
    if wanted:
        print(f"{done}: {path}" + (f" (as it was: {kept})" if kept else ""))
    if left:
        print(f"What is left to do: {left}")
    return 0


def replace(path: str, text: str, like: str) -> None:
    """Write a file at once or not at all, with the rights of `like`, else for its owner alone. Raises UsageError."""
    import os
    import tempfile

    from broker.errors import UsageError

    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        mode = os.stat(like).st_mode & 0o777 if os.path.exists(like) else 0o600
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="", dir=os.path.dirname(path), delete=False) as file:
            try:
                file.write(text)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}. Nothing was changed in it") from None


def _diff(path: str, old: str | None, new: str | None) -> str:
    """Return what changes, as lines with + and -, in colour on a terminal."""
    import difflib
    import sys

    from broker.cli.terminal import Colours, escape

    paint = Colours(sys.stdout).paint
    lines = difflib.unified_diff(
        (old or "").splitlines(), (new or "").splitlines(), path if old is not None else "/dev/null", path if new is not None else "/dev/null",
        lineterm="",
    )  # fmt: skip
    styles = {"+": "green", "-": "red", "@": "cyan"}
    return "".join(f"{paint(escape(line), *([styles[line[0]]] if line[:1] in styles else []))}\n" for line in lines)
