"""What an operator reads of a calibration: which faults were caught, which were not, how often the panel cried wolf."""

from __future__ import annotations

import sys

from broker.cli.terminal import Colours, escape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from broker.panel.calibrate import Report, Trial


def trial_line(trial: Trial, colours: Colours) -> str:
    """Return a trial in one line."""
    good = trial.blocked != trial.clean
    word = ("false alarm" if trial.blocked else "passed") if trial.clean else ("caught" if trial.blocked else "MISSED")
    place = f"{escape(trial.path)}:{trial.line}" if trial.line else escape(trial.path)
    where = "" if trial.clean or not trial.blocked or trial.located else "  (but not where it lies)"
    return f"{colours.paint(f'{word:<12}', 'green' if good else 'red')}{trial.title}{f': {place}' if place else ''}{where}\n"


def calibration_text(report: Report) -> str:
    """Return what it adds up to."""
    colours, table = Colours(sys.stdout), report.as_dict()
    lines = [f"not tried   {kind}: {why}\n" for kind, why in table["not_seeded"].items()]
    lines.append(
        f"\n{colours.paint('panel', 'bold')} {escape(report.panel)}: {table['caught']} of {table['faults']} faults caught, "
        f"{table['false_alarms']} of {table['clean']} clean changes blocked; {table['seconds']:.1f} s ({table['cpu_seconds']:.1f} s of a processor)\n"
    )
    for judge, row in table["judges"].items():
        none = f", {row['no_verdict']} times no verdict" if row["no_verdict"] else ""
        lines.append(f"  {escape(judge)}: {row['caught']} caught, {row['false_alarms']} false alarms{none}\n")
    lines.append(f"  the same places again: --seed {report.seed}; journal: broker events {report.run}\n")
    return "".join(lines)
