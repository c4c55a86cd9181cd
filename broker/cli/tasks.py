"""`broker tasks`: the trees of tasks that run now, live on a terminal; `kill` ends a task and all below it."""

from __future__ import annotations

import argparse
import sys

from broker import exit_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from broker.task.watching import Watched

SUMMARY = "show the tasks that run now, and end them"
EXAMPLES = """
broker tasks                      the trees of all your runs, live until Ctrl-C
broker tasks --once               once, and no more (as into a pipe)
broker tasks --run 9f6b --json
broker tasks kill 9f6b.1          the task root/1 of that run, and all below it
broker tasks kill 9f6b            the whole run
"""
WORDS = ("kill",)
KILL_SECONDS = 10.0  # after which we say that something does not end


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.usage = "broker tasks [--run RUN] [--once] [--json] | broker tasks kill TASK ... [--run RUN] [--json]"
    parser.add_argument("words", nargs="*", metavar="kill TASK",
                        help="end a task and all below it: RUN.1.2 (a run's id, its start or its last part, and the place in "
                             "its tree), RUN for all of it, or root/1/2 where only one run is meant")  # fmt: skip
    parser.add_argument("--run", metavar="RUN", help="only this run: its id, its start, or its last part")
    parser.add_argument("--once", action="store_true", help="show it once, on a terminal too")
    parser.add_argument("--json", action="store_true", help="print it once, as JSON")


def run(args: argparse.Namespace) -> int:
    """Do it. Returns 1 when there was nothing to end."""
    from broker.errors import UsageError

    match args.words:
        case []:
            return _show(args)
        case ["kill"]:
            raise UsageError("which task is to end? Name it: broker tasks kill RUN.1 (broker tasks shows them)")
        case ["kill", *words]:
            return _kill(words, args)
        case [word, *_]:
            from broker.cli.terminal import escape

            raise UsageError(f"there is no word '{escape(word)}' here. Try: broker tasks --help")
        case _:
            raise AssertionError(args.words)


def _show(args: argparse.Namespace) -> int:
    import os

    from broker.task.watching import joined

    if not args.json and not args.once and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        from broker.cli.tasks_live import live

        return live(args.run)
    with joined() as runs:
        shown = [one for one in _chosen(runs, args.run).values() if not one.over]
        if args.json:
            import json

            print(json.dumps([_table(one) for one in shown]))
        else:
            from broker.cli.tasks_text import plain

            print("\n\n".join(plain(one) for one in shown) or "nothing runs")
    return exit_codes.OK


def _table(one: Watched) -> dict[str, object]:
    rows = [{"id": one.id_of(row["task"]), **row} for row in one.below()]
    return {"run": one.run, "answers": one.answers, **one.facts, "tasks": rows}


def _chosen(runs: dict[str, Watched], word: str | None) -> dict[str, Watched]:
    """Return the run that a word means, or all. Raises UsageError."""
    from broker.errors import UsageError

    if word is None:
        return runs
    found = matching(runs, word)
    if not found:
        raise UsageError(f"no run called {word!r} runs now. `broker tasks` shows those that do")
    if len(found) > 1:
        raise UsageError(f"{word!r} could mean {len(found)} runs ({', '.join(found[:4])}). Write more of the id")
    return {found[0]: runs[found[0]]}


def matching(runs: dict[str, Watched], word: str) -> list[str]:
    """Return the ids of the runs that a word can mean: an id, its start or its last part, `last`."""
    if word == "last":
        return list(runs)[-1:]
    if word in runs:
        return [word]
    return [run for run in runs if word and run.startswith(word)] or [run for run in runs if run.endswith(f"-{word}")]


def _kill(words: list[str], args: argparse.Namespace) -> int:
    from broker.task.watching import joined, stop

    ended: list[str] = []
    left: list[str] = []
    nothing: list[tuple[str, str]] = []
    names: dict[str, str] = {}
    with joined(follow=True) as runs:
        meant = [(word, *_meant(runs, word, args.run)) for word in words]  # all of them, before anything is ended
        for word, one, path, why in meant:
            if one is None or why:
                nothing.append((word, why))
                continue
            stopped, running = stop(one, path, KILL_SECONDS)
            if not stopped:
                nothing.append((word, _why_not(one, path)))
            names |= {one.id_of(row["task"]): _described(row) for row in one.below()}
            ended += [name for task in stopped if task not in running and (name := one.id_of(task)) not in ended]
            left += [one.id_of(task) for task in running]
    return _report(ended, left, nothing, names, as_json=args.json)


def _report(
    ended: list[str], left: list[str], nothing: list[tuple[str, str]], names: dict[str, str], *, as_json: bool
) -> int:
    from broker.cli.terminal import escape

    if as_json:
        import json

        print(json.dumps({
            "ended": ended, "left": left, "nothing": [{"task": word, "reason": why} for word, why in nothing],
        }))  # fmt: skip
    else:
        for name in ended:
            print(f"ended  {name}  {names[name]}")
        for word, why in nothing:
            sys.stderr.write(f"broker: {escape(word)}: {why}\n")
        for name in left:
            sys.stderr.write(f"broker: {name} was told to end {KILL_SECONDS:.0f} s ago and runs on. Kill its broker\n")
    if left:
        return exit_codes.INTERNAL
    return exit_codes.NOTHING if not ended else exit_codes.OK


def _described(row: dict[str, object]) -> str:
    from broker.cli.tasks_text import what_it_does
    from broker.cli.terminal import escape

    return f"{escape(str(row['profile']))}  {what_it_does(row, 100)}"


def _meant(runs: dict[str, Watched], word: str, chosen: str | None) -> tuple[Watched | None, str, str]:
    """Return the run and the path that a word means, and why it means nothing. Raises UsageError for what means several."""
    from broker.errors import UsageError

    if word == "root" or word.startswith("root/"):
        among = _chosen(runs, chosen)
        if len(among) > 1:
            raise UsageError(f"{len(among)} runs have a task {word!r}. Say which: --run RUN, or RUN.1.2")
        path = word
    else:
        name, *numbers = word.split(".")
        if name == "last" and len(runs) > 1 and chosen is None:  # the newest may be somebody's who began a moment ago
            raise UsageError(f"{len(runs)} runs run now, and 'last' may not be the one you mean. Write its id (broker tasks shows it)")
        found = matching(_chosen(runs, chosen), name)
        if len(found) > 1:
            raise UsageError(f"{name!r} could mean {len(found)} runs ({', '.join(found[:4])}). Write more of the id")
        among = {run: runs[run] for run in found}
        path = "/".join(numbers if numbers[:1] == ["panel"] else ["root", *numbers])
    if not among:
        return None, path, "no such run runs now"
    one = next(iter(among.values()))
    if not one.answers:
        return one, path, f"the broker of {one.run} does not answer. It may be stopped: continue it, or kill it"
    if path not in one.tasks:
        return one, path, f"there is no such task in {one.run}. `broker tasks --run {one.run}` shows those that there are"
    return one, path, ""


def _why_not(one: Watched, path: str) -> str:
    if one.over:
        return "it had ended already"
    row = one.tasks[path]
    if row["state"] == "ended":
        return f"it had ended already ({row['status']})"
    return "it has come to its end by itself, and its changes are being looked at"
