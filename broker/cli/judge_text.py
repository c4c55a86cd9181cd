"""What an operator sees of a panel: each verdict as it comes, and what was decided. Judges' words are made harmless to look at."""

from __future__ import annotations

from broker.cli.terminal import Colours, escape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

    from broker.decide.verdict import Deny
    from broker.panel.definition import Panel
    from broker.panel.verdict import Decision, Finding, Verdict

MARGIN = "        "
WIPE = "\r\x1b[K"
_SHOWN = {"reproduced": "reproduced", "not_reproduced": "did NOT reproduce", "refused": "refused to run", "not_run": "did not run"}


class Hearing:
    """Tells an operator of a panel while it is heard: each verdict as it comes, and on a terminal who is at it still."""

    def __init__(self, panel: Panel, stream: TextIO) -> None:
        """Tell it on a stream."""
        import threading

        self._of, self._stream, self._colours = len(panel.judges), stream, Colours(stream)
        self._at_it: list[str] = []
        self._heard = 0
        self._lock = threading.Lock()

    def begun(self, judge: str) -> None:
        """A judge begins. Called on threads of their own."""
        with self._lock:
            self._at_it.append(judge)
            self._write("")

    def told(self, verdict: Verdict) -> None:
        """A judge has spoken, and what it says was looked at."""
        with self._lock:
            self._at_it = [name for name in self._at_it if name != verdict.judge]
            self._heard += 1
            self._write(verdict_lines(verdict, self._colours))
            if self._heard == self._of:
                self._heard, self._at_it = 0, []  # a further round, or trial

    def beside(self, tell: Callable[[str, str, Deny], None]) -> Callable[[str, str, Deny], None]:
        """Return what tells of a denial where who is at it still stands: on lines of its own."""

        def told(task: str, tool: str, denial: Deny) -> None:
            with self._lock:
                if self._at_it and self._stream.isatty():
                    self._stream.write(WIPE)
                tell(task, tool, denial)
                if self._at_it:
                    self._write("")

        return told

    def _write(self, text: str) -> None:
        if self._stream.isatty():
            text = WIPE + text + self._standing()
        self._stream.write(text)
        self._stream.flush()

    def _standing(self) -> str:
        """Return the line that is written over, no longer than the terminal is wide: of a longer one the beginning would stay."""
        import os

        if not self._at_it:
            return ""
        line = f"{'judges':<7} {self._heard} of {self._of} heard; at it: {', '.join(map(escape, self._at_it))}"
        width = os.get_terminal_size(self._stream.fileno()).columns or 80
        return line if len(line) < width else line[: width - 2] + "…"


def verdict_lines(verdict: Verdict, colours: Colours) -> str:
    """Return a verdict with its findings."""
    word = colours.paint(verdict.verdict, "green" if verdict.verdict == "pass" else "red", "bold")
    why = f"  ({escape(verdict.reason)})" if verdict.reason else ""
    head = f"{'judge':<7} {escape(verdict.judge)}: {word}{why}  {verdict.seconds:.1f} s\n"
    return head + "".join(_finding(finding) for finding in verdict.findings)


def _finding(finding: Finding) -> str:
    import shlex

    place = f"{escape(finding.file)}:{finding.line}" if finding.line else escape(finding.file)
    lines = f"{MARGIN}{finding.severity:<8} {place}  {escape(finding.claim)}\n"
    if finding.evidence:
        lines += f"{MARGIN}         {_SHOWN.get(finding.shown, finding.shown)}: {escape(shlex.join(finding.evidence))}\n"
    return lines


def decision_lines(decision: Decision, colours: Colours) -> str:
    """Return what a panel decided, in one line."""
    passes = sum(one.verdict == "pass" for one in decision.verdicts)
    word = colours.paint("passed", "green") if decision.passed else colours.paint("blocked", "red")
    why = f": {escape(decision.reason)}" if decision.reason else ""
    return (
        f"{colours.paint('panel', 'bold')}   {escape(decision.panel)} {word} the changes of {decision.of} (round {decision.round}; "
        f"{passes} of {len(decision.verdicts)} passed, {decision.quorum} needed; change {decision.change[:12]}){why}\n"
    )
