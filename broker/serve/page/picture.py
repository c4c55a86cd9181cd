"""What there is to see: questions that wait, trees of tasks, and what is refused, of all of the user's runs.

In: their control sockets (broker/task/watching.py), which one thread reads. Out: tables for the page, each with a number that
grows with every change, so that a reader is sent what changed since his last look, however seldom he looks: nothing is queued
for anybody. What a task wrote leaves as pieces of text (`pieces`), never as anything that could be more.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import field
from itertools import groupby
from typing import Any

from broker.decide.wording import stands_alone, written_out
from broker.sha256 import sha256
from broker.task.watching import Row, Watched, connect, listen, place_of
from broker.values import dataclass

LOOK = 0.5  # seconds between two looks for runs that began
TICK = 0.1  # seconds between two looks at what changed
SILENT = 2.0  # seconds without an answer after which a broker is said to give none
ASK = 0.3  # seconds between two looks at what waits, while somebody looks at the page
DENIALS = 200  # different ones that are kept
WORDS = 200  # characters of what a task does

# Of a question: what passes by itself, and how it may be answered just now. All the rest is what is agreed to.
_PASSING = frozenset({"seconds", "left", "session", "word"})
_SHOWN = frozenset({
    "approval", "tool", "what", "class", "effects", "refused", "rule", "reason", "reasons", "sha256", "argv", "path", "program",
    "cwd", "env", "action", "other", "task", "shell", "diff", "content", "pid", "by", "files", *_PASSING,
})  # fmt: skip


def pieces(text: str) -> list[str]:
    """Return a text as pieces: plain, written out, plain, written out …, so that `\\x1b` that was typed can be told from an escape.

    Line breaks are written out. Where several lines are meant (`lines_of`), they stay.
    """
    return _pieces(text, stands_alone)


def lines_of(text: str) -> list[str]:
    """Return a text of several lines as pieces."""
    return _pieces(text, lambda char: char == "\n" or stands_alone(char))


def _pieces(text: str, is_plain: Callable[[str], bool]) -> list[str]:
    found: list[str] = []
    for plain, chars in groupby(text, is_plain):
        part = "".join(chars)
        if plain == bool(len(found) % 2):
            found.append("")
        found.append(part if plain else written_out(part))
    return found


def digest(row: Row) -> str:
    """Return what binds an answer to a question as it was shown."""
    bound = {name: value for name, value in row.items() if name not in _PASSING}
    return sha256(json.dumps(bound, sort_keys=True, ensure_ascii=True).encode("ascii")).hexdigest()


@dataclass(slots=True)
class _Numbered:
    """Tables by their names, each with the number of its last change."""

    rows: dict[str, tuple[int, Row]] = field(default_factory=dict)
    names_changed: int = 0
    changed: int = 0

    def put(self, name: str, row: Row, number: int) -> None:
        if name not in self.rows:
            self.names_changed = number
        self.rows[name] = (number, row)
        self.changed = number

    def keep(self, names: set[str], number: int) -> None:
        """Drop those with other names."""
        for name in self.rows.keys() - names:
            del self.rows[name]
            self.names_changed = self.changed = number

    def since(self, number: int) -> list[Row]:
        return [row for changed, row in self.rows.values() if changed > number]


class Picture:
    """All there is to see. `changed` is called, on the thread that reads, when there is something new."""

    def __init__(self, changed: Callable[[], None]) -> None:
        """Begin with nothing; `start` reads."""
        self._changed = changed
        self._lock = threading.Lock()
        self._number = 0
        self._trees, self._questions, self._denials = _Numbered(), _Numbered(), _Numbered()
        self._runs: dict[str, Watched] = {}
        self._shown: dict[str, list[object]] = {}
        self._joined: dict[str, float] = {}
        self._asked: dict[str, float] = {}  # runs that were asked what waits, and when
        self._ask_at: dict[str, float] = {}
        self._denied = 0
        self._readers = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._read, name="page", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def close(self) -> None:
        """Leave all runs."""
        self._end.set()
        self._thread.join()
        for one in self._runs.values():
            one.close()

    def reader(self, change: int) -> None:
        """Note that a reader came (1) or left (-1): runs are asked what waits only while there is one."""
        with self._lock:
            self._readers += change

    def since(self, number: int) -> tuple[int, Row]:
        """Return what changed since a number (0: all there is), and the number to go on with. {}: nothing did."""
        with self._lock:
            now, found = time.monotonic(), Row()
            if self._number == number:
                return number, found
            if number == 0:
                found["whole"] = True
            for name, numbered in (("runs", self._trees), ("waiting", self._questions)):
                if numbered.names_changed > number or number == 0:
                    found[name] = sorted(numbered.rows) if name == "runs" else list(numbered.rows)
            found["trees"] = [{**tree, "age": now - tree["stamp"]} for tree in self._trees.since(number)]
            found["questions"] = [{**row, "left": max(0.0, row["until"] - now)} for row in self._questions.since(number)]
            found["denied"] = self._denials.since(number)
            return self._number, found

    def denial(self, name: str) -> Row | None:
        """Return one of the denials that are kept."""
        with self._lock:
            found = self._denials.rows.get(name)
            return found[1] if found is not None else None

    # On the thread

    def _read(self) -> None:
        looked = 0.0
        while not self._end.is_set():
            began = time.monotonic()
            if began - looked >= LOOK:
                looked = began
                self._look_for_runs()
            self._ask(began)
            listen(list(self._runs.values()), TICK)
            self._publish()
            self._end.wait(max(0.0, TICK - (time.monotonic() - began)))

    def _look_for_runs(self) -> None:
        for run in [run for run, one in self._runs.items() if one.over]:
            self._runs.pop(run).close()
            for known in (self._asked, self._ask_at, self._shown, self._joined):
                known.pop(run, None)
        new = connect(self._runs)
        for run, one in new.items():
            self._joined[run] = time.monotonic()
            one.ask(op="follow")
        self._runs = dict(sorted({**self._runs, **new}.items()))

    def _ask(self, now: float) -> None:
        if not self._readers:
            return
        for run, one in self._runs.items():
            if run not in self._asked and now >= self._ask_at.get(run, 0.0):
                self._asked[run] = now
                one.ask(op="approvals")

    def _publish(self) -> None:
        with self._lock:
            before, number = self._number, self._number + 1
            for run, one in self._runs.items():
                if one.over:
                    continue
                self._take_tree(run, one, number)
                self._take_questions(run, one, number)
                self._take_denials(one, number)
            there = {run for run, one in self._runs.items() if not one.over}
            self._trees.keep(there, number)
            self._questions.keep({name for name in self._questions.rows if name.rpartition(".")[0] in there}, number)
            self._number = max(self._trees.changed, self._questions.changed, self._denials.changed)
            if self._number == before:
                return
        self._changed()

    def _take_tree(self, run: str, one: Watched, number: int) -> None:
        now = time.monotonic()
        silent = now - self._asked.get(run, now) > SILENT or (not one.answers and now - self._joined[run] > SILENT)
        if not one.answers and not silent:
            return
        shown = [silent, *one.below()]
        known = self._shown.get(run, [])
        # A row that changed is another object: watching.py puts a new one in its place.
        if len(known) == len(shown) and all(was is now for was, now in zip(known, shown, strict=True)):
            return
        self._shown[run] = shown
        self._trees.put(run, _tree(one, silent=silent), number)

    def _take_questions(self, run: str, one: Watched, number: int) -> None:
        if run not in self._asked or one.answer is None:
            return
        now, asked = time.monotonic(), self._asked.pop(run)
        self._ask_at[run] = now + max(ASK, 5 * (now - asked))  # much that waits is not read over and over
        said, one.answer = one.answer, None
        rows = {f"{run}.{row['approval']}": row for row in said.get("waiting", ())}
        for name, row in rows.items():
            shown = _question(run, name, row, now)
            _, known = self._questions.rows.get(name, (0, None))
            if known is None or any(known[key] != shown[key] for key in ("digest", "session", "word")):
                self._questions.put(name, shown, number)
        others = {name for name in self._questions.rows if name.rpartition(".")[0] != run}
        self._questions.keep(others | rows.keys(), number)

    def _take_denials(self, one: Watched, number: int) -> None:
        while one.denials:
            row = one.denials.popleft()
            key = json.dumps([one.run, *(row[name] for name in ("task", "tool", "rule", "what"))])
            name = sha256(key.encode("ascii")).hexdigest()[:16]
            _, known = self._denials.rows.pop(name, (0, None))
            earlier = not row["at"]  # the last one before we came: its count is that of all that its task was refused
            count = (known["count"] if known else 0) + (1 if earlier else row["count"])
            self._denied += 1
            self._denials.put(name, _denial(one, name, row, count, self._denied), number)
        while len(self._denials.rows) > DENIALS:
            del self._denials.rows[next(iter(self._denials.rows))]


def _tree(one: Watched, *, silent: bool) -> Row:
    facts = {name: pieces(str(one.facts.get(name, ""))) for name in ("workspace", "engine", "profile")}
    tasks = [_task(one, row) for row in one.below()]
    return {"run": one.run, "silent": silent, "pid": one.facts.get("pid"), "stamp": time.monotonic(), **facts, "tasks": tasks}


def _task(one: Watched, row: Row) -> Row:
    words = " ".join([*([f"{row['label']}:"] if row["label"] else []), *row["argv"]])
    state = row["status"] or "ended" if row["state"] == "ended" else row["state"]
    if row["stopped"] and row["state"] in ("starting", "running"):
        state = "stopping"
    return {
        "id": one.id_of(row["task"]), "place": place_of(row["task"]), "depth": row["task"].count("/"),
        "profile": pieces(row["profile"]), "ceiling": row["ceiling"], "trust": row["trust"], "state": state,
        "over": row["state"] == "ended", "denied": row["denied"], "cpu": row["cpu_seconds"], "memory": row["memory"],
        "seconds": one.seconds(row), "what": pieces(words if len(words) <= WORDS else f"{words[: WORDS - 1]}…"),
    }  # fmt: skip


def _question(run: str, name: str, row: Row, now: float) -> Row:
    """Return a question as the page shows it: whatever a task chose the words of in pieces."""
    shown = {key: pieces(row[key]) for key in ("program", "path", "other", "cwd") if row.get(key)}
    return {
        "id": name, "run": run, "digest": digest(row), "until": now + row["left"], "patience": row["left"] + row["seconds"],
        "session": row["session"], "word": row["word"], "tool": row["tool"], "class": row["class"], "effects": row["effects"],
        "task": pieces(row.get("task", "root")), "action": row.get("action", ""), "what": pieces(row["what"]),
        "rule": row["rule"], "reason": pieces(row["reason"]), "sha256": row["sha256"],
        "reasons": [{**one, "text": pieces(one["text"])} for one in row["reasons"]],
        "argv": [pieces(word) for word in row.get("argv", ())],
        "env": [pieces(f"{key}={value}") for key, value in row.get("env", ())],
        "by": [pieces(program) for program in row.get("by", ())], "pid": row.get("pid", 0), "content": row.get("content", ""),
        "files": [
            {**one, "path": pieces(one["path"]), "to": pieces(one.get("to", "")), "sha256": one.get("sha256", "")}
            for one in row.get("files", ())
        ],
        "shell": _shell(row.get("shell")), "shell_cut": bool((row.get("shell") or {}).get("cut")), "diff": _diff(row.get("diff")), **shown,
        "more": [[key, pieces(json.dumps(value, ensure_ascii=False))] for key, value in row.items() if key not in _SHOWN],
    }  # fmt: skip


def _shell(shell: Any) -> list[list[str]]:
    """Return a shell's text in three parts, that which is asked about in the middle, '' where it is not known; [] without a text."""
    match shell:
        case {"text": str(text), "start": int(start), "end": int(end)}:
            return [lines_of(part) for part in (text[:start], text[start:end], text[end:])]
        case {"text": str(text)}:
            return [lines_of(text), [], []]
        case _:
            return []


def _diff(diff: Any) -> Row | None:
    """Return a change of a file: its lines, and what there is to say about it."""
    match diff:
        case {"lines": list(lines), "bytes": size, "bytes_before": before}:
            note = diff.get("note", "") or f"{diff.get('added', 0)} added, {diff.get('removed', 0)} removed"
            sizes = f"a new file of {size} bytes" if before is None else f"{before} bytes become {size}"
            left = diff.get("lines_left_out", 0)
            rest = [f"{left} more lines are not shown"] if left else []
            return {"lines": [pieces(str(line)) for line in lines], "notes": [note, sizes, *rest]}
        case _:
            return None


def _denial(one: Watched, name: str, row: Row, count: int, order: int) -> Row:
    shown = {key: pieces(row[key]) for key in ("what", "reason", "hint")}
    return {
        "name": name, "order": order, "run": one.run, "task": row["task"], "id": one.id_of(row["task"]), "at": row["at"], "count": count,
        "tool": row["tool"], "class": row["class"], "rule": row["rule"], "approvable": row["approvable"], **shown,
        "words": row["what"],
    }  # fmt: skip
