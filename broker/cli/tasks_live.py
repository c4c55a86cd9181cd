"""`broker tasks` on a terminal: the trees, drawn again when something changes, until Ctrl-C."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from broker import exit_codes
from broker.cli import tasks_text
from broker.cli.terminal import Colours
from broker.errors import UsageError
from broker.task.watching import connect, listen, pictures, place_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from broker.task.watching import Watched

LOOK = 0.5  # seconds between two looks for new runs
REDRAW = 0.1
DENIALS = 6  # lines below the trees
LEAST = 24  # columns for what a task does
_STYLES = {"running": "green", "starting": "yellow", "ending": "yellow", "landing": "cyan", "stopping": "red", "finished": "dim"}
_RISKS = {"safe": "green", "local_write": "green", "code_execution": "yellow", "install": "yellow"}


def live(word: str | None) -> int:
    """Draw until Ctrl-C; of one run, until it is over."""
    from broker.cli.tasks import matching

    coloured = Colours(sys.stdout).enabled
    console = Console(highlight=False, markup=False, emoji=False, no_color=not coloured)
    runs: dict[str, Watched] = {}
    if word is not None and not matching(runs := _found(runs), word):
        raise UsageError(f"no run called {word!r} runs now. `broker tasks` shows those that do")
    looked = 0.0
    with Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as screen:
        try:
            while True:
                if time.monotonic() - looked >= LOOK:
                    runs, looked = _found(runs), time.monotonic()
                shown = [runs[run] for run in (matching(runs, word) if word is not None else runs)]
                screen.update(drawn(shown, console), refresh=True)
                if word is not None and not shown:
                    return exit_codes.OK
                drawn_at = time.monotonic()
                listen(list(runs.values()), REDRAW)
                if (early := REDRAW - (time.monotonic() - drawn_at)) > 0:  # a change a millisecond is not drawn as often
                    time.sleep(early)
        except KeyboardInterrupt:
            return exit_codes.OK
        finally:
            for one in runs.values():
                one.close()


def _found(runs: dict[str, Watched]) -> dict[str, Watched]:
    """Return the runs that there are now, those that are new asked to tell of themselves."""
    there = {run: one for run, one in runs.items() if not one.over}
    for run, one in runs.items():
        if one.over:
            one.close()
            there.pop(run, None)
    new = connect(there)
    pictures(new, follow=True)
    return dict(sorted({**there, **new}.items()))


def drawn(runs: list[Watched], console: Console) -> RenderableType:
    """Return what is to be seen. Of what does not fit, tasks that have ended go first."""
    if not runs:
        return Text("nothing runs  (Ctrl-C leaves)", style="dim")
    denials = sorted(((one, row) for one in runs for row in one.denials), key=lambda pair: float(pair[1]["at"]))[-DENIALS:]
    room = console.height - len(denials) - 3 - 3 * len(runs)
    hide = sum(len(one.tasks) for one in runs) > room
    lines: list[Text] = []
    for one in runs:
        lines += _tree(one, console.width, hide=hide) if one.answers else [Text(tasks_text.no_answer(one), style="red")]
        lines.append(Text(""))
    lines += [_denial(one, row, several=len(runs) > 1) for one, row in denials]
    lines.append(Text(f"end one: broker tasks kill {runs[-1].run.rpartition('-')[2]}.1   Ctrl-C leaves", style="dim"))
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines)


def _tree(one: Watched, width: int, *, hide: bool) -> list[Text]:
    gone = _ended_below(one) if hide else set()
    lines = [Text(tasks_text.heading(one), style="bold")]
    for row, cells, what in tasks_text.laid_out(one, gone):
        texts = _styled(row, cells)
        line = Text("  ").join(texts)
        if width - len(line) >= LEAST:
            lines.append(line.append(f"  {what}", style="dim" if row is None or row["state"] == "ended" else ""))
        else:  # a narrow terminal: what it does has a line of its own
            lines += [Text(" ").join(texts), Text(f"{' ' * len(cells[0])} {what}", style="dim")]
    if gone:
        lines.append(Text(f"and {len(gone)} that have ended", style="dim"))
    return lines


def _ended_below(one: Watched) -> set[str]:
    """Return the tasks that have ended; none with something below it that has not."""
    return {row["task"] for row in one.below() if all(each["state"] == "ended" for each in one.below(row["task"]))}


def _styled(row: dict[str, Any] | None, cells: list[str]) -> list[Text]:
    over = row is None or row["state"] == "ended"
    texts = [Text(cell, style="dim" if over else "") for cell in cells]
    if row is None:
        return texts
    if not over:
        texts[2].stylize(_RISKS.get(cells[2].strip(), "red"))
        texts[3].stylize("" if cells[3].strip() == "trusted" else "yellow")
    texts[4].stylize(_STYLES.get(cells[4].strip(), "red"))
    if row["denied"]:
        texts[5].stylize("bold red")
    return texts


def _denial(one: Watched, row: dict[str, Any], *, several: bool) -> Text:
    times = f"  ×{row['count']}" if row["count"] > 1 else ""
    where = one.id_of(row["task"]) if several else place_of(row["task"])
    return Text("denied  ", style="red").append(f"{where}  {tasks_text.denial_text(row)}{times}", style="default")
