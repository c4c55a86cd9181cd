"""`broker profile`: everything about operator files: list, show, check, compare, rate, write, import, tighten.

This file declares the actions; each of them lives in a module of its own, loaded when it is asked for.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from typing import Any

SUMMARY = "list, show, check, compare, write and import profiles"
EXAMPLES = """\
broker profile list
broker profile show builder
broker profile new                                   # asks, and looks at the project
broker profile check ~/.config/broker/profiles/*.toml
broker profile diff builder team                     # what team may do that builder may not
broker profile suggest last --profile team           # from what was refused to a patch"""

SOURCES = ("claude", "codex", "gemini", "opencode", "odek", "devcontainer")

_MODULES = {
    "list": "profile_show",
    "show": "profile_show",
    "check": "profile_check",
    "diff": "profile_compare",
    "score": "profile_compare",
    "new": "profile_new",
    "schema": "profile_new",
    "suggest": "profile_suggest",
    "import": "profile_import",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `broker profile` takes."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for declare in (_list, _show, _check, _diff, _score, _new, _schema, _suggest, _import):
        declare(actions)


def run(args: argparse.Namespace) -> int:
    """Do it. Exit code 65 if a profile that was asked for, or checked, cannot be used."""
    code: int = import_module(f"broker.cli.{_MODULES[args.action]}").run(args)
    return code


def _action(actions: Any, name: str, text: str, examples: str, *, folders: bool = True) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=text, description=f"{text[:1].upper()}{text[1:]}.", examples=examples
    )
    if folders:
        parser.add_argument(
            "--profile-dir", action="append", default=[], metavar="FOLDER",
            help="search this folder first (may be repeated)",
        )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _list(actions: Any) -> None:
    _action(actions, "list", "every profile that a name leads to, and what is broken", "broker profile list")


def _show(actions: Any) -> None:
    parser = _action(
        actions, "show", "what a profile permits, in words",
        "broker profile show builder\n"
        "broker profile show ./team.toml\n"
        "broker profile show builder --effective --parent research   # what is left of it in a child task",
    )  # fmt: skip
    parser.add_argument("name", metavar="NAME", help="a profile's name, or a file (FILE:NAME where it holds several)")
    parser.add_argument("--effective", action="store_true", help="what of it counts, and what is lost to whom")
    parser.add_argument(
        "--parent", action="append", default=[], metavar="PROFILE",
        help="the profile of the task above, nearest first (may be repeated)",
    )  # fmt: skip
    _trust(parser)


def _check(actions: Any) -> None:
    parser = _action(
        actions, "check", "find errors in files, and what is probably not meant",
        "broker profile check team.toml\n"
        "broker profile check team                             # the one that this name leads to\n"
        "broker profile check --strict --json ~/.config/broker/profiles/*.toml",
        folders=False,
    )  # fmt: skip
    parser.add_argument("files", nargs="+", metavar="FILE", type=Path, help="a file with profiles, or the name of one profile")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if there is a warning")
    parser.add_argument(
        "--programs", choices=["auto", "host", "image", "no"], default="auto",
        help="where the entries' programs are looked for: the image if Docker would be taken, else this host",
    )  # fmt: skip


def _diff(actions: Any) -> None:
    parser = _action(
        actions, "diff", "what a second profile may do that a first may not, and the other way round, in words",
        "broker profile diff builder team\n"
        "broker profile diff old.toml new.toml || echo 'not the same'\n"
        "broker profile diff builder team; [ $? -ne 2 ]      # 0 the same, 1 narrower or different, 2 wider",
    )  # fmt: skip
    parser.add_argument("before", metavar="A", help="a profile's name, or a file")
    parser.add_argument("after", metavar="B", help="a profile's name, or a file")


def _score(actions: Any) -> None:
    parser = _action(
        actions, "score", "how many doors a profile leaves open, from 0 (none) to 10",
        "broker profile score builder\n"
        "broker profile score team.toml --json | jq .score",
    )  # fmt: skip
    parser.add_argument("name", metavar="NAME", help="a profile's name, or a file")


def _new(actions: Any) -> None:
    parser = _action(
        actions, "new", "write a profile for a project, with the commands that its files name",
        "broker profile new                              # asks\n"
        "broker profile new team --yes                   # takes what it finds\n"
        'broker profile new team --yes --allow "make test" --max-risk safe --output ./team.toml',
        folders=False,
    )  # fmt: skip
    parser.add_argument("name", nargs="?", metavar="NAME", help="the profile's name (else the folder's)")
    parser.add_argument("--project", default=".", metavar="DIR", type=Path, help="the project to look at (here)")
    parser.add_argument("--output", "-o", metavar="FILE", type=Path, help="where to write it, instead of among your profiles")
    parser.add_argument("--max-risk", choices=["safe", "local_write", "code_execution"], help="the ceiling (local_write)")
    parser.add_argument("--description", help="one sentence")
    parser.add_argument("--allow", action="append", default=[], metavar="COMMAND", help="one more exact entry (may be repeated)")
    parser.add_argument("--none", action="store_true", help="list no command that was found, only those of --allow")
    parser.add_argument("--yes", "-y", action="store_true", help="ask nothing")


def _schema(actions: Any) -> None:
    _action(
        actions, "schema", "the JSON Schema of profile files, for editors",
        "broker profile schema > .profile.schema.json    # and in the file: #:schema .profile.schema.json",
        folders=False,
    )  # fmt: skip


def _suggest(actions: Any) -> None:
    parser = _action(
        actions, "suggest", "from what was refused in runs to a patch of a profile, exact entries only",
        "broker profile suggest last --profile team\n"
        "broker profile suggest last --profile team --pick 1,3 --patch | git apply\n"
        "broker profile suggest 20261130-0430 last --profile ./team.toml --write",
    )  # fmt: skip
    parser.add_argument("runs", nargs="+", metavar="RUN", help="an id, its start, `last`, or a journal's path")
    parser.add_argument("--profile", "-p", required=True, metavar="PROFILE", help="the profile to change: a name, or a file")
    parser.add_argument("--pick", metavar="N,N", help="only these of the numbered proposals and questions")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--patch", action="store_true", help="print the patch only, for git apply")
    group.add_argument("--write", action="store_true", help="show it, and change the file")


def _import(actions: Any) -> None:
    parser = _action(
        actions, "import", "make a profile of another tool's permissions; it never permits more than they do",
        "broker profile import --from claude .claude/settings.json\n"
        "broker profile import --from codex ~/.codex/config.toml --name team -o team.toml\n"
        "broker profile import --from opencode opencode.json -o - 2>report.txt",
        folders=False,
    )  # fmt: skip
    parser.add_argument("--from", dest="origin", required=True, choices=SOURCES, help="whose file it is")
    parser.add_argument("file", metavar="FILE", type=Path)
    parser.add_argument("--name", metavar="NAME", help="the profile's name (else the tool's)")
    parser.add_argument("--output", "-o", metavar="FILE", help="write the profile there (`-`: print it); never overwrites")


def _trust(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trust", choices=["trusted", "untrusted"], default="trusted", help="how far the task is trusted")
