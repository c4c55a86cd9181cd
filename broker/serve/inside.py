"""What a process inside a sandbox may ask of the broker: the verbs of the small `broker` on its PATH.

In: a call, relayed by the guard. Out: text for its stdout and stderr, and an exit code. Whose task it is follows from the
link that the call came by, and from nothing that is in it. Nothing here can change what a task may do.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import threading
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from broker.classify.risk import Assessment
from broker.decide.verdict import Allow, Ask, Deny, Verdict
from broker.delegation import Assignment, delegate, left_of
from broker.enforce.calls import CallEnded, CallLine
from broker.errors import BrokerError, JournalError
from broker.exit_codes import INTERNAL, USAGE
from broker.record import event
from broker.request.delegation import MOST_BYTES, RequestRefused, TaskRequest, read_request
from broker.request.operation import Exec, Operation, ShellText
from broker.stage import Stage, WaysOut
from broker.task.outcome import encoded
from broker.task.task import Task

if TYPE_CHECKING:
    import socket

    from broker.serve.gateway import Gateways

ALLOWED, DENIED, ASKED = 0, 1, 2  # of can-i

HELP = """\
usage: broker VERB [OPTION ...]

You are in a sandbox. This is what you may ask the broker that supervises it:

  profiles               the profiles that a sub-task may have, and what is left of each here
  can-i -- CMD           whether CMD may run here: exit 0 yes, 1 no, 2 an operator would be asked
  explain TEXT           how a shell text is understood, and which rules speak
  denials                what was refused so far, here and in sub-tasks, with the reasons
  delegate -- CMD        run CMD as a sub-task that may do less; prints its result as JSON
  plan ACTION            the plan of this task: create, revise, show, begin, check, complete
  mcp                    speak MCP on stdin and stdout: the tools of this task

Examples:
  broker can-i -- npm test
  broker delegate --profile adversary --label review -- go vet ./...
  broker delegate --request - < task.json

`broker VERB --help` says more.
"""


class _Said(Exception):
    """Something to print, and an exit code: argparse's way out."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.text, self.code = text, code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Said(f"broker: {message}. Try: {self.prog} --help\n", USAGE)

    def print_help(self, file: object = None) -> None:
        del file
        raise _Said(self.format_help(), 0)


def answer(stage: Stage, line: CallLine) -> None:
    """Serve one call to its end. Runs on a thread of its own, and lets nothing out but what ends the task."""
    try:
        cwd, words = line.words()
        code = _dispatch(stage, line, cwd, words)
        line.exit(code)
    except CallEnded:
        return
    except _Said as said:
        _last_words(line, said.text, said.code)
    except RequestRefused as refused:
        _last_words(line, f"broker: {refused}\n", USAGE)
    except JournalError as error:
        # What cannot be recorded must not go on: the same as when the gate cannot record.
        stage.fail(error)
    except BrokerError as error:
        _last_words(line, f"broker: {error}\n", error.exit_code)
    except Exception as error:  # noqa: BLE001 - a bug of ours ends the call, not the run; the caller gets nothing for it
        _last_words(line, f"broker: internal error: {type(error).__name__}\n", INTERNAL)


def ways_out(task: Task) -> WaysOut:
    """Return what serves the gateways of a task that has some."""
    return _WaysOut(task)


class _WaysOut:
    """The gateways of a task, made when one is used: to load what speaks HTTP takes as long as to make a sandbox."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._gateways: Gateways | None = None
        self._closed = False
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Load what an agent's first request and its first command need, while it starts itself."""
        self._made()
        for name in ("encodings.idna", "broker.classify.shell"):  # the first is loaded to resolve a name
            import_module(name)

    def accept(self, port: int, client: socket.socket) -> None:
        """Serve a connection. Takes the socket."""
        gateways = self._made()
        if gateways is None:
            client.close()
        else:
            gateways.accept(port, client)

    def close(self) -> None:
        """End all of them. May be called twice."""
        with self._lock:
            self._closed = True
        if self._gateways is not None:
            self._gateways.close()

    def _made(self) -> Gateways | None:
        with self._lock:
            if self._gateways is None and not self._closed:
                from broker.serve.gateway import Gateways

                self._gateways = Gateways(self._task)
            return self._gateways


def _last_words(line: CallLine, text: str, code: int) -> None:
    with contextlib.suppress(CallEnded):
        line.write(text.encode("utf-8", "backslashreplace"), stderr=code != 0)
        line.exit(code)


def _dispatch(stage: Stage, line: CallLine, cwd: str, words: tuple[str, ...]) -> int:
    match words[1:]:
        case () | ("-h" | "--help" | "help", *_):
            _print(line, HELP)
            return 0 if len(words) > 1 else USAGE
        case ("-V" | "--version",):
            from broker import __version__

            _print(line, f"broker {__version__} (inside)\n")
            return 0
        case (verb, *rest) if verb in VERBS:
            return VERBS[verb](stage, line, cwd, list(rest))
        case _:
            raise _Said(f"broker: there is no verb {words[1][:64]!a} in a sandbox. Try: broker --help\n", USAGE)


def _print(line: CallLine, text: str) -> None:
    line.write(text.encode("utf-8", "backslashreplace"))


def _print_json(line: CallLine, table: Any) -> None:
    line.write(json.dumps(table, ensure_ascii=True).encode("ascii") + b"\n")


def _split(words: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return the options, and the command behind `--`."""
    if "--" not in words:
        return words, ()
    at = words.index("--")
    return words[:at], tuple(words[at + 1 :])


def _parsed(verb: str, words: list[str], *options: tuple[tuple[str, ...], dict[str, Any]]) -> argparse.Namespace:
    parser = _Parser(prog=f"broker {verb}", allow_abbrev=False)
    for names, settings in options:
        parser.add_argument(*names, **settings)
    return parser.parse_args(words)


_JSON = (("--json",), {"action": "store_true", "help": "print JSON"})


def _profiles(stage: Stage, line: CallLine, _cwd: str, words: list[str]) -> int:
    args = _parsed("profiles", words, _JSON)
    rows = [left_of(stage, profile) for profile in stage.run.known()]
    if args.json:
        _print_json(line, rows)
        return 0
    for row in rows:
        here = row["here"]
        note = "" if here["available"] else "  (not for sub-tasks of this task)"
        _print(
            line,
            f"{row['name']:<14} up to {row['max_risk']}, here up to {here['max_risk']}, {here['workspace']}{note}\n"
            f"{'':<14} {row['description']}\n",
        )
        for entry in here["allowlist"][:8]:
            _print(line, f"{'':<14} may run: {entry}\n")
    return 0


_ONE_QUESTION = threading.Lock()


def considered(stage: Stage, operation: Operation, line: CallLine | None = None) -> tuple[Assessment, Verdict]:
    """Say what would become of an operation in this task. Nothing is recorded: it is a question.

    One at a time: what is asked may take seconds to understand, and the gates of all tasks are answered meanwhile. Raises
    CallEnded when the caller, on `line`, did not wait for it.
    """
    with _ONE_QUESTION:
        if line is not None and line.closed:
            raise CallEnded
        return _considered(stage, operation)


def _considered(stage: Stage, operation: Operation) -> tuple[Assessment, Verdict]:
    return stage.task.consider(operation, at_gate=not isinstance(operation, ShellText))


def verdict_table(operation: Operation, assessment: Assessment, verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as data."""
    table: dict[str, Any] = {
        "verdict": type(verdict).__name__.lower(), "effects": event.labels(assessment.effects), "rule": verdict.rule,
        "operation": event.plain(operation),
    }  # fmt: skip
    match verdict:
        case Allow():
            table |= {"layer": verdict.layer.value}
        case Ask():
            table |= {"reason": verdict.reason, "refused": event.labels(verdict.effects), "approvable": True}
        case Deny():
            table |= {
                "reason": verdict.reason, "refused": event.labels(verdict.effects), "layer": verdict.layer.value,
                "hint": verdict.hint, "approvable": verdict.approvable,
            }  # fmt: skip
    return table


def _can_i(stage: Stage, line: CallLine, cwd: str, words: list[str]) -> int:
    words, command = _split(words)
    args = _parsed("can-i", words, _JSON, (("--shell",), {"metavar": "TEXT", "help": "a shell text, in place of a command"}))
    if bool(command) == (args.shell is not None):
        raise _Said("broker: what may you do? Write: broker can-i -- CMD, or broker can-i --shell TEXT\n", USAGE)
    operation: Operation = ShellText(text=args.shell) if args.shell is not None else Exec(argv=command, cwd=cwd)
    assessment, verdict = considered(stage, operation, line)
    table = verdict_table(operation, assessment, verdict)
    if args.json:
        _print_json(line, table)
    else:
        classes = ", ".join(table["effects"]) or "safe"
        _print(line, f"{table['verdict']}  {classes}  [{table['rule']}]\n")
        if not isinstance(verdict, Allow):
            _print(line, f"  {verdict.reason}\n")
        if isinstance(verdict, Deny):
            _print(line, f"  → {verdict.hint}\n")
    return {Allow: ALLOWED, Deny: DENIED, Ask: ASKED}[type(verdict)]


def _explain(stage: Stage, line: CallLine, _cwd: str, words: list[str]) -> int:
    if len(words) != 1 or words[0].startswith("--"):
        raise _Said("usage: broker explain TEXT (one word, quoted)\n", USAGE if words != ["--help"] else 0)
    _print_json(line, explanation_of(stage, words[0], line))
    return 0


def explanation_of(stage: Stage, text: str, line: CallLine | None = None) -> dict[str, Any]:
    """Return how a shell text is understood here, part by part, and what would become of it."""
    operation = ShellText(text=text)
    assessment, verdict = considered(stage, operation, line)
    return verdict_table(operation, assessment, verdict) | {
        "parts": [
            {"kind": part.kind.value, "argv": list(part.argv), "effects": event.labels(part.effects),
             "reasons": [{"rule": reason.rule, "class": reason.risk.label, "text": reason.text} for reason in part.reasons]}
            for part in assessment.parts
        ],
    }  # fmt: skip


def denials_of(stage: Stage) -> dict[str, Any]:
    """Return what was refused so far, in this task and below it."""
    task = stage.task
    return {"denials": task.denials.as_result(), "denials_below": task.below.as_result()}


def _denials(stage: Stage, line: CallLine, _cwd: str, words: list[str]) -> int:
    args = _parsed("denials", words, _JSON)
    found = denials_of(stage)
    if args.json:
        _print_json(line, found)
        return 0
    rows = [*found["denials"], *found["denials_below"]]
    for row in rows:
        where = f"  (in {row['of']})" if "of" in row else ""
        times = f"  ×{row['count']}" if row["count"] > 1 else ""
        _print(line, f"denied  {row['class']}  {row['what']}{times}{where}\n        {row['reason']}\n        → {row['hint']}\n")
    if not rows:
        _print(line, "nothing was refused\n")
    return 0


def _delegate(stage: Stage, line: CallLine, cwd: str, words: list[str]) -> int:
    words, command = _split(words)
    args = _parsed(
        "delegate", words,
        (("--profile",), {"metavar": "NAME", "help": "the profile of the sub-task; it may do no more than this task"}),
        (("--trust",), {"choices": ("trusted", "untrusted"), "help": "default: untrusted"}),
        (("--max-risk",), {"metavar": "CLASS", "default": "", "help": "a lower ceiling than the profile's"}),
        (("--limit",), {"metavar": "NAME=VALUE", "action": "append", "default": [],
                        "help": "memory, cpus, pids, time or output: less than the profile's"}),
        (("--without",), {"metavar": "TOOL", "action": "append", "default": [], "help": "a tool that it is not to have"}),
        (("--label",), {"metavar": "TEXT", "default": "", "help": "what people see in the tree of tasks"}),
        (("--goal",), {"metavar": "TEXT", "default": "", "help": "for its agent, in $BROKER_TASK"}),
        (("--context",), {"metavar": "TEXT", "default": "", "help": "for its agent, in $BROKER_TASK"}),
        (("--request",), {"choices": ("-",), "help": "read all of that from stdin, as one JSON object"}),
        (("--stdin",), {"action": "store_true", "help": "give it this stdin (default: an empty one)"}),
        (("--stream",), {"action": "store_true", "help": "show its output on stderr while it comes"}),
    )  # fmt: skip
    request = _read(line) if args.request else _requested(args, command)
    if args.request and command:
        raise _Said("broker: the command stands in the request, or behind `--`; not both\n", USAGE)
    assignment = Assignment(cwd=cwd, stdin=line.read if args.stdin and not args.request else -1)
    assignment.begun = lambda path: line.when_gone(lambda: _nobody_waits(stage, path))
    if args.stream:
        assignment.output = lambda _stream, data: _stream_out(line, data)
    result = delegate(stage, request, assignment)
    line.write(encoded(result) + b"\n")
    return int(result["exit_code"])


def _nobody_waits(stage: Stage, path: str) -> None:
    stage.run.tree.stop(path, "caller")


def _stream_out(line: CallLine, data: bytes) -> None:
    with contextlib.suppress(CallEnded):
        line.write(data, stderr=True)


def _requested(args: argparse.Namespace, command: tuple[str, ...]) -> TaskRequest:
    limits = {}
    for text in args.limit:
        name, equals, value = text.partition("=")
        if not equals:
            raise _Said(f"broker: --limit {text[:64]!a}: write NAME=VALUE, as time=10m\n", USAGE)
        limits[name] = value
    table = {
        "profile": args.profile or "", "command": list(command), "trust_level": args.trust, "max_risk": args.max_risk,
        "limits": limits or None, "label": args.label, "goal": args.goal, "context": args.context,
        "tools_disabled": args.without,
    }  # fmt: skip
    if not command:
        raise _Said("broker: what is to run? Put it after `--`: broker delegate --profile NAME -- CMD\n", USAGE)
    from broker.request.delegation import request_of

    return request_of(table)


def _read(line: CallLine) -> TaskRequest:
    return read_request(_all(line))


def _all(line: CallLine) -> bytes:
    """Return the caller's stdin, or as much of it as is too much."""
    text = bytearray()
    while data := line.read():
        text += data
        if len(text) > MOST_BYTES:
            break
    return bytes(text)


def _plan(stage: Stage, line: CallLine, _cwd: str, words: list[str]) -> int:
    from broker.request.delegation import read_json
    from broker.serve import inside_plan
    from broker.serve.tools_inside import Call, Problem, Workplace
    from broker.task.plan import as_text

    args = _parsed(
        "plan", words, _JSON,
        (("action",), {"choices": inside_plan.ACTIONS, "help": "create and revise read a plan (JSON) from stdin; begin a step; "
                       "check has broker run its checks; complete says that it is done, which its evidence must show"}),
        (("step",), {"nargs": "?", "default": "", "metavar": "STEP", "help": "its id; for check, STEP.N is one of its checks"}),
    )  # fmt: skip
    if bool(args.step) != (args.action in ("begin", "check", "complete")):
        raise _Said(f"broker: write: broker plan {args.action}{'' if args.step else ' STEP'}\n", USAGE)
    steps: object = None
    if args.action in ("create", "revise"):
        table = read_json(_all(line), "plan")
        if not isinstance(table, dict) or set(table) != {"steps"}:
            raise _Said('broker: a plan is one object: {"steps": [{"id": "tests", "title": "...", "checks": [...]}]}\n', USAGE)
        steps = table["steps"]
    call = Call()
    line.when_gone(call.ask)
    found = inside_plan.act(Workplace(stage=stage), call, args.action, step=args.step, steps=steps)
    if isinstance(found, Problem):
        if args.json:
            _print_json(line, found.as_dict())
        missing = "".join(f"  {one}\n" for one in found.facts.get("missing", ()))
        _last_words(line, f"broker: {found.message}\n{missing}", USAGE if found.code == "invalid" else 1)
        raise CallEnded
    if args.json:
        _print_json(line, found)
    else:
        for row in found.get("checks", ()):
            _print(line, f"{row['stdout']}{row['stderr']}")
            ended = f"exit {row['exit_code']}" if "exit_code" in row else "denied"
            _print(line, f"{row['check']}  {row['what']}: {ended}, {row['state']}\n")
            _print(line, "".join(f"  {row[key]}\n" for key in ("message", "lacks") if key in row))
        _print(line, "".join(f"{text}\n" for text in as_text(found)))
    return int(any(row["state"] not in ("passed", "waived") for row in found.get("checks", ())))


def _mcp(stage: Stage, line: CallLine, _cwd: str, words: list[str]) -> int:
    if words:
        raise _Said("usage: broker mcp (it speaks MCP on stdin and stdout)\n", 0 if words == ["--help"] else USAGE)
    try:
        from broker.serve.mcp import serve_call
    except ImportError:
        raise _Said("broker: the operator's broker has no MCP (the extra `mcp` is not installed)\n", 69) from None
    return serve_call(stage, line)


VERBS: dict[str, Callable[[Stage, CallLine, str, list[str]], int]] = {
    "profiles": _profiles, "can-i": _can_i, "explain": _explain, "denials": _denials, "delegate": _delegate, "plan": _plan,
    "mcp": _mcp,
}  # fmt: skip
