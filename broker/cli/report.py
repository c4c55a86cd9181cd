"""What an operator sees of a run: a header, each refusal as it happens, a summary. All on stderr."""

from __future__ import annotations

import os
import sys
from collections import Counter

from broker.cli.terminal import Colours, escape, shorten

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from broker.cli.ask_terminal import TerminalQuestions
    from broker.decide.verdict import Deny
    from broker.record.denials import DenialRow
    from broker.supervisor import Header
    from broker.task.changes import Judged
    from broker.task.result import Result

MARGIN = "        "


class Reporter:
    """Prints a run. `live`: refusals appear at once (not while a full-screen program has the terminal).

    `brief`: only what did not happen as it was asked for; an agent that reads this has no use for the rest.
    """

    def __init__(self, *, quiet: bool, live: bool, brief: bool = False) -> None:
        """Write to stderr, in colour if it is a terminal."""
        self._quiet = quiet
        self._brief = brief
        self._live = live
        self._colours = Colours(sys.stderr)
        self._image = ""
        self._run = ""  # its id's last part, by which it can be named
        self.terminal: TerminalQuestions | None = None  # what may have the terminal while something is to be said

    def started(self, header: Header) -> None:
        """Print what is effective."""
        self._image = header.profile.sandbox.image or "base"
        self._run = header.run.rpartition("-")[2]
        if self._quiet or self._brief:
            return
        paint = self._colours.paint
        profile = header.profile
        entries = f", {len(profile.allowlist)} exact invocations" if profile.allowlist else ""
        lines = [
            f"{paint('broker', 'bold')}  profile {paint(profile.name, 'bold')} (up to {profile.max_risk.label}{entries})"
            f" · engine {header.engine} ({header.engine_why})",
            f"{MARGIN}layers   {self._layers(header)}",
            f"{MARGIN}sees     {self._workspace(header)}",
        ]
        lines += [f"{MARGIN}note     {note}" for note in header.workspace.notes]
        self._write("\n".join(lines) + "\n")

    def _layers(self, header: Header) -> str:
        words = []
        for layer in header.layers:
            name = layer.name.replace("_", " ")
            if layer.name == "landlock" and layer.effective:
                name += f" {layer.evidence.partition(';')[0]}"
            elif layer.name == "network" and layer.effective:
                name = "no network"
            elif layer.name == "limits":
                name = f"limits {layer.evidence}" if layer.evidence.startswith("by") else "limits watched"
            words.append(name if layer.effective else self._colours.paint(f"{name}: NOT effective", "red"))
        return " · ".join(words)

    def _workspace(self, header: Header) -> str:
        space = header.workspace
        how = "copy-on-write" if space.overlay else "read-only" if space.read_only else "writable"
        text = f"{escape(space.path)} ({how})"
        if space.protected and how == "writable":
            text += f" · protected: {self._some(space.protected, space.path)}"
        if space.masked:
            text += f" · shown empty: {self._some(space.masked, space.path)}"
        return text

    @staticmethod
    def _some(paths: tuple[str, ...], workspace: str) -> str:
        names = [escape(os.path.relpath(path, workspace)) for path in paths[:4]]
        more = f" and {len(paths) - 4} more" if len(paths) > 4 else ""
        return ", ".join(names) + more

    def denied(self, task: str, tool: str, denial: Deny) -> None:
        """Print one refusal as it happens; of a sub-task, with its place in the tree."""
        if self._quiet or not self._live:
            return
        from broker.record.denials import row_of

        row = row_of(tool, denial)
        if task != "root":
            row["of"] = task
        self._write(denial_lines(row, self._colours))

    def asked(self, row: dict[str, Any]) -> None:
        """Say that somebody waits for an answer."""
        if self._quiet or not self._live:
            return
        name, left = f"{self._run}.{row['approval']}", row["left"]
        self._write(
            f"{self._colours.paint('broker', 'bold')}  asks     {row['what']} ({self._colours.risk(row['class'])})\n"
            f"{MARGIN}         within {left:.0f} s: broker approvals show {name}, approve {name}, or deny {name}\n"
        )

    def may_land(self, judged: Judged) -> bool:
        """Ask, on the terminal, whether what the profile permits is to land. No terminal, no landing."""
        from broker.cli.terminal import ask

        kinds = Counter(str(change.kind) for change in judged.landing)
        words = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        some = [escape(change.path) for change in judged.landing[:10]]
        more = [f"… and {len(judged.landing) - 10} more"] if len(judged.landing) > 10 else []
        listed = "".join(f"{MARGIN}{line}\n" for line in (*some, *more))
        held = f", {len(judged.withheld)} withheld" if judged.withheld else ""
        return ask(f"{self._colours.paint('broker', 'bold')}  changes: {words}{held}\n{listed}{MARGIN}Land them? [y/N] ")

    def finished(self, result: Result) -> None:
        """Print the summary; of a failure of ours, one line in any case."""
        if self._quiet:
            if result.status == "failed":
                self._write(f"broker: {escape(result.reason)}\n")
            return
        if not self._live:
            for row in result.denials:
                self._write(denial_lines(row, self._colours))
        if self._brief:
            counts = result.changes.get("counts", {})
            held = self._changes(result) if counts.get("withheld") or counts.get("conflicts") or "error" in result.changes else ""
            why = f"broker: {result.status}: {escape(result.reason)}\n" if result.status in ("failed", "timeout", "killed", "not_found") else ""
            self._write(f"{why}{self._where_to_find_it(result)}{held}")
            return
        paint = self._colours.paint
        how = f"exit {result.exit_code}" if result.signal is None else result.signal
        words = [f"{result.status}: {how}" + (f" ({result.reason})" if result.reason else "")]
        if result.usage:
            words.append(f"{result.usage['wall_seconds']:.1f} s, {int(result.usage['peak_memory']) >> 20} MiB at most")
        if result.denied_below:
            words.append(paint(f"{result.denied_below} refused in sub-tasks", "red"))
        if result.denied_count:
            counts = Counter[str]()
            for row in result.denials:
                counts[row["class"]] += row["count"]
            by_class = ", ".join(f"{name} {count}" for name, count in counts.most_common())
            words.append(paint(f"{result.denied_count} refused ({by_class})", "red"))
        else:
            words.append("nothing refused")
        self._write(
            f"{paint('broker', 'bold')}  {' · '.join(words)}\n{self._where_to_find_it(result)}{self._changes(result)}"
            f"{MARGIN}journal  {result.journal}  (read it: broker events {result.run})\n"
        )

    def _where_to_find_it(self, result: Result) -> str:
        """Say whose programs a task sees, when the one that was asked for is not among them."""
        if result.status != "not_found":
            return ""
        if result.engine == "docker":
            return (
                f"{MARGIN}→ The task sees the programs of the image {escape(self._image)}. Name another (--image, or "
                f"sandbox.image in the profile), or use --engine bubblewrap, which shows this host's.\n"
            )
        return f"{MARGIN}→ The task sees what is installed on this host for everybody, and the workspace; no other home.\n"

    def _changes(self, result: Result) -> str:
        """Say what became of the changes, and what to do about those that did not land."""
        counts = result.changes.get("counts")
        if not counts or not (any(counts.values()) or result.changes["kept"]):
            return ""
        paint = self._colours.paint
        words = [f"{counts['landed']} landed"] if counts["landed"] or not result.changes["kept"] else []
        if counts["withheld"]:
            words.append(paint(f"{counts['withheld']} withheld", "red"))
        if counts["conflicts"]:
            words.append(paint(f"{counts['conflicts']} in conflict", "red"))
        lines = [f"{MARGIN}changes  {' · '.join(words) or 'kept'}"]
        if "error" in result.changes:
            lines.append(f"{MARGIN}         {paint(escape(result.changes['error']), 'red')}")
        lines += [f"{MARGIN}         conflict: {escape(row['path'])}: {row['reason']}" for row in result.changes["conflicts"][:4]]
        if run := result.changes["kept"]:
            lines.append(f"{MARGIN}         kept: broker diff {run} · broker land {run} · broker discard {run}")
        return "\n".join(lines) + "\n"

    def _write(self, text: str) -> None:
        if self.terminal is None or not self.terminal.keep(text):
            sys.stderr.write(text)
            sys.stderr.flush()


def denial_lines(row: DenialRow, colours: Colours) -> str:
    """Return a refusal in three short lines: what and which class, why, what to do instead."""
    times = f"  ×{row['count']}" if row["count"] > 1 else ""
    return (
        f"{colours.paint('denied', 'red', 'bold')}  {colours.risk(row['class'])}  {shorten(escape(row['what']), 100)}{times}{_of(row)}\n"
        f"{MARGIN}{escape(row['reason'])}  [{row['rule']} · {row['layer']}]\n"
        f"{MARGIN}→ {escape(row['hint'])}\n"
    )


def _of(row: DenialRow) -> str:
    return f"  (in {escape(row['of'])})" if "of" in row else ""
