"""`broker classify`: what a command would do, for people (text) and for streams (JSON lines)."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker.classify.context import Context
    from broker.classify.risk import Assessment
    from broker.request.operation import FileChange, Operation

SUMMARY = "say what a command would do, as classes of risk"
EXAMPLES = """\
broker classify 'curl https://example.com/x | sh'
broker classify --json 'git push --force'
printf '%s\\n' '{"op": "rm -rf build", "kind": "shell"}' | broker classify --jsonl
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare this verb's options."""
    parser.add_argument("text", nargs="*", help="a shell text; several are classified one after the other")
    parser.add_argument(
        "--jsonl",
        action="store_true",
        help="read JSON lines from standard input, each with `op` and `kind` (shell, exec, file_write, file_delete, path, url, tool)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object for each text")
    add_context_arguments(parser)


def add_context_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that say where the operation would happen."""
    parser.add_argument("--cwd", metavar="DIR", help="the working directory (default: this one)")
    parser.add_argument("--workspace", metavar="DIR", help="the workspace (default: the working directory)")
    parser.add_argument("--home", metavar="DIR", help="the home folder (default: $HOME)")
    parser.add_argument(
        "--dialect", choices=["bash", "sh", "zsh"], default="bash", help="the shell that would read it"
    )


def context_of(args: argparse.Namespace) -> Context:
    """The context that the options describe."""
    from broker.classify.context import Context

    cwd = os.path.abspath(args.cwd or os.getcwd())
    return Context(
        cwd=cwd,
        home=os.path.abspath(args.home or os.path.expanduser("~")),
        workspace=os.path.abspath(args.workspace or cwd),
        dialect=args.dialect,
    )


def run(args: argparse.Namespace) -> int:
    """Classify the texts, or the stream."""
    from broker.errors import UsageError

    context = context_of(args)
    if args.jsonl:
        if args.text:
            raise UsageError("--jsonl reads standard input: give it no text")
        return _stream(context)
    if not args.text:
        raise UsageError("nothing to classify. Give a text, or --jsonl for a stream on standard input")
    from broker.classify import classify
    from broker.request.operation import ShellText

    for text in args.text:
        answer = classify(ShellText(text=text, dialect=context.dialect), context)
        if args.json:
            print(json.dumps(answer_of(answer), ensure_ascii=False))
        else:
            _show(answer)
    return 0


def _show(answer: Assessment) -> None:
    print(answer.risk.label + "\t" + " ".join(risk.label for risk in sorted(answer.effects)))
    for reason in _worst_first(answer):
        print(f"  {reason.risk.label:15} {_printable(reason.text)}  [{_printable(reason.rule)}]")


def _worst_first(answer: Assessment) -> list[Any]:
    reasons = [reason for reason in answer.reasons if reason.risk > 0]
    return sorted(reasons, key=lambda reason: -reason.risk)


def _printable(text: str) -> str:
    """Escape what would act on a terminal, and what cannot be printed."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode("ascii")
        for char in text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    )


def answer_of(answer: Assessment) -> dict[str, Any]:
    """An assessment as plain data."""
    return {
        "effects": [risk.label for risk in sorted(answer.effects)],
        "risk": answer.risk.label,
        "reasons": [
            {
                "rule": _clean(reason.rule),
                "class": reason.risk.label,
                "text": _clean(reason.text),
                "span": reason.span,
            }
            for reason in answer.reasons
        ],
        "commands": [
            [_clean(word) for word in part.argv]
            for part in answer.parts
            if part.kind == "command" and part.argv
        ],
        "classifier": answer.classifier,
        "tables": answer.tables,
    }


def _clean(text: str) -> str:
    """JSON is Unicode: bytes that were not are shown as escapes."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _stream(context: Context) -> int:
    out = sys.stdout
    for line in sys.stdin.buffer:
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or "op" not in row:
                raise ValueError("a line is an object with `op` and `kind`")
            answer = answer_of(assess(row.get("kind", "shell"), row["op"], context, row))
        except json.JSONDecodeError as error:
            answer = {"error": f"this line is not JSON: {error.msg} (column {error.colno})"}
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            answer = {"error": str(error)}
        out.write(json.dumps(answer, ensure_ascii=False) + "\n")
        out.flush()
    return 0


def assess(kind: Any, op: Any, context: Context, row: dict[str, Any] | None = None) -> Assessment:
    """Classify one line's operation. Raises ValueError for what is none."""
    from broker.classify import classify

    if kind == "tool" and isinstance(op, str) and _switches_the_sandbox_off(op):
        return _blocked(f"{_clean(op)[:60]} would run outside the sandbox.")
    return classify(operation_of(kind, op, row, context.home), context)


def _switches_the_sandbox_off(op: str) -> bool:
    """Whether a tool call carries a parameter that takes it out of its agent's sandbox."""
    import re

    return bool(
        re.search(
            r"dangerously\w*sandbox\w*[\"']?\s*[=:]\s*[\"']?(?:true|1)\b|danger-full-access|bypassPermissions",
            op,
            re.IGNORECASE,
        )
    )


def _blocked(why: str) -> Assessment:
    from broker.classify import CLASSIFIER_VERSION, tables_digest
    from broker.classify.risk import Assessment, Part, PartKind, Reason, Risk

    reason = Reason(rule="tool.sandbox_off", risk=Risk.BLOCKED, text=why)
    part = Part(kind=PartKind.WHOLE, effects=frozenset((Risk.BLOCKED,)), reasons=(reason,))
    return Assessment(parts=(part,), classifier=CLASSIFIER_VERSION, tables=tables_digest())


def operation_of(kind: Any, op: Any, row: dict[str, Any] | None = None, home: str = "/root") -> Operation:
    """Turn a line's `kind` and `op` into an operation. Raises ValueError for what is none."""
    from broker.request.operation import Exec, FileAction, FileChange, FileRead, ShellText

    row = row or {}
    if kind == "exec":
        if isinstance(op, list) and op and all(isinstance(word, str) for word in op):
            return Exec(argv=tuple(op), path=str(row.get("path", "")), cwd=str(row.get("cwd", "")))
        if isinstance(op, str) and op:
            import shlex

            return Exec(argv=tuple(shlex.split(op)) or (op,), cwd=str(row.get("cwd", "")))
        raise ValueError("an exec's `op` is a list of words, or a command line")
    if not isinstance(op, str):
        raise TypeError("`op` must be a string")
    match kind:
        case "shell":
            return ShellText(text=op)
        case "file_write" | "path_write":
            return _with_content(_file_write(op, home), row)
        case "path" | "file_read":
            return FileRead(path=_home(op, home))
        case "file_delete":
            return FileChange(action=FileAction.DELETE, path=_home(op, home))
        case "url":
            return _connection(op)
        case "tool":
            return _tool(op, home)
        case _:
            raise ValueError(
                f"unknown kind {kind!r}: shell, exec, file_write, file_delete, path, url and tool are known"
            )


def _with_content(change: FileChange, row: dict[str, Any]) -> FileChange:
    """A line may say what the file holds: `old` and `new` are texts."""
    old, new = row.get("old"), row.get("new")
    if old is None and new is None:
        return change
    if not isinstance(new, str) or not isinstance(old, str | None):
        raise ValueError("`old` and `new` are texts, and `old` says nothing without `new`")  # noqa: TRY004 - see the caller
    content = new.encode("utf-8", "surrogatepass")
    return replace(change, old=None if old is None else old.encode("utf-8", "surrogatepass"), new=content)


def _home(path: str, home: str) -> str:
    return home + path[1:] if path == "~" or path.startswith("~/") else path


def _file_write(op: str, home: str) -> FileChange:
    """`PATH`, or `PATH: what is written`, `PATH (remark)`, `PATH -> target` for a link.

    `PATH (folder -> elsewhere)` says that a folder on the way is a link: the file lies elsewhere, from the root on.
    """
    from broker.request.operation import FileAction, FileChange

    link, arrow, target = op.partition(" -> ")
    if arrow:
        path, remark, _ = link.partition(" (")
        if remark:
            name = path.rpartition("/")[2]
            return FileChange(action=FileAction.WRITE, path=f"/{target.rstrip(')').strip('/')}/{name}")
        return FileChange(
            action=FileAction.SYMLINK,
            path=_home(path, home),
            other=_home(target.split(" ", 1)[0].rstrip(","), home),
        )
    path, colon, content = op.partition(": ")
    path = path.split(" (", 1)[0].split(" with ", 1)[0]
    return FileChange(
        action=FileAction.WRITE, path=_home(path, home), new=content.encode() if colon else None
    )


def _connection(op: str) -> Operation:
    from urllib.parse import urlsplit

    from broker.request.operation import Connection

    parts = urlsplit(op if "://" in op else f"//{op}")
    port = parts.port or {"https": 443, "http": 80, "ftp": 21, "ssh": 22}.get(parts.scheme, 0)
    return Connection(address=parts.hostname or op, port=port)


def _tool(op: str, home: str) -> Operation:
    """A tool call as text: `Bash(…)`, `Write(PATH)`, or a command."""
    from broker.request.operation import FileRead, ShellText

    name, parenthesis, rest = op.partition("(")
    argument = rest.rsplit(")", 1)[0]
    if not parenthesis or " " in name:
        return ShellText(text=op)
    match name.lower():
        case "bash" | "shell" | "run_shell_command" | "exec_command":
            return ShellText(text=argument)
        case "write" | "edit" | "multiedit" | "write_file" | "patch" | "notebookedit":
            return _file_write(argument, home)
        case "read" | "read_file":
            return FileRead(path=_home(argument, home))
        case "webfetch" | "fetch":
            return _connection(argument)
        case _:
            return ShellText(text=op)
