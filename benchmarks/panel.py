"""What a panel takes: four judges that think for a second each, against one of them alone."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

RUNS = 5
THINKS = 1  # seconds
JUDGE = f"""#!/bin/sh
sleep {THINKS}
echo '{{"verdict": "pass", "ticket": "'$BROKER_TICKET'"}}'
"""


def figures(engines: tuple[str, ...] = ("bubblewrap", "docker")) -> str:
    """Return the table: seconds from the first judge to the decision, medians, measured in turns."""
    lines = [f"| judges of {THINKS} s | one | four, one after the other (`at_once = 1`) | four (`at_once = 4`) | ratio to one |", "|---|---|---|---|---|"]
    for engine in engines:
        with tempfile.TemporaryDirectory(prefix="broker-panel-", dir="/tmp") as made:
            place = Path(made)
            place.chmod(0o755)
            _prepare(place)
            seen: dict[str, list[float]] = {"one": [], "in-turn": [], "four": []}
            for number in range(RUNS + 1):
                for name, found in seen.items():
                    seconds = _decided(place, engine, name)
                    if number:  # the first of each finds nothing in any cache
                        found.append(seconds)
            one, turn, four = (statistics.median(found) for found in seen.values())
            lines.append(f"| {engine} | {one:.2f} s | {turn:.2f} s | {four:.2f} s | {four / one:.2f} |")
    return "\n".join(lines)


def _prepare(place: Path) -> None:
    for name in ("profiles", "panels", "judges", "workspace"):
        (place / name).mkdir(mode=0o755)
    judge = place / "judges" / "thinks"
    judge.write_text(JUDGE)
    judge.chmod(0o755)
    profile = {"max_risk": "code_execution", "sandbox": {"image": "base", "read_only": [str(judge.parent)]}}
    (place / "profiles" / "any.json").write_text(json.dumps({"profiles": {"any": profile}}))
    rows = [{"name": f"j{number}", "profile": "any", "command": str(judge)} for number in range(4)]
    panels = {"one": {"judges": rows[:1]}, "in-turn": {"judges": rows, "at_once": 1}, "four": {"judges": rows, "at_once": 4}}
    (place / "panels" / "panels.json").write_text(json.dumps({"panels": panels}))


def _decided(place: Path, engine: str, panel: str) -> float:
    words = ["run", "--json", "-q", "--engine", engine, "--profile-dir", str(place / "profiles"), "-p", "any", "-w", str(place / "workspace")]
    done = subprocess.run(
        [sys.executable, "-m", "broker", *words, "--land", "on-panel", panel, "--", "touch", "new"], capture_output=True, check=False,
        env={**os.environ, "BROKER_STATE_DIR": str(place / "state")},
    )  # fmt: skip
    (place / "workspace" / "new").unlink(missing_ok=True)
    result = json.loads(done.stdout)
    if done.returncode or result["panel"]["verdict"] != "pass":
        raise RuntimeError(f"the panel did not pass it: {result}")
    return float(result["panel"]["seconds"])


if __name__ == "__main__":
    sys.stdout.write(figures() + "\n")
