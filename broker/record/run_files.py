"""Step 5: where journals are, and which run a word means.

One file per run: `<state directory>/runs/<run id>.jsonl`, folders 0700, files 0600; a long run goes on in
`<run id>.2.jsonl`, `<run id>.3.jsonl` …, its segments. A journal that somebody else can write to is no evidence, so a
folder that somebody else owns or can write to is refused.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from pathlib import Path

from broker.errors import JournalError, UsageError
from broker.record.line_file import refuse_if_shared

RUN_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{4,12}")


def state_dir() -> Path:
    """Return $BROKER_STATE_DIR, else $XDG_STATE_HOME/broker, else ~/.local/state/broker. May not exist."""
    if chosen := os.environ.get("BROKER_STATE_DIR"):
        return Path(chosen).absolute()
    shared = os.environ.get("XDG_STATE_HOME", "")
    # The XDG base directory specification: a relative path is invalid and must be ignored.
    root = Path(shared) if shared.startswith("/") else Path("~/.local/state").expanduser()
    return root / "broker"


def new_run_id() -> str:
    """Return an id that sorts by time and is short enough to type: 20261130-043055-7f3a9c (UTC).

    The last six digits are the 256th of the second and two random bytes: with one, a few runs at once met after some thousands.
    """
    now = datetime.now(UTC)
    return f"{now:%Y%m%d-%H%M%S}-{now.microsecond * 256 // 1_000_000:02x}{os.urandom(2).hex()}"


def journal_path(state: Path, run_id: str) -> Path:
    """Return the file of a run. Raises UsageError for what is no run id."""
    if not RUN_ID.fullmatch(run_id):
        raise UsageError(f"{run_id!r} is no run id. `broker events` lists the runs")
    return state / "runs" / f"{run_id}.jsonl"


def prepare(state: Path) -> Path:
    """Make the runs folder if need be, and return it. Raises JournalError when it cannot be trusted."""
    runs = state / "runs"
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        runs.mkdir(mode=0o700, exist_ok=True)
        for folder in (state, runs):
            refuse_if_shared(folder, folder.stat())
    except OSError as error:
        raise JournalError(
            f"cannot make the journal's folder {runs}: {error.strerror}. "
            f"Mend its permissions, or set BROKER_STATE_DIR to a folder of yours"
        ) from error
    return runs


def segment_path(path: Path, number: int) -> Path:
    """Return the file of a run's segment; the first one's is the journal's own."""
    return path if number == 1 else path.with_name(f"{path.stem}.{number}.jsonl")


def segments(path: Path) -> list[Path]:
    """Return the files of a run, in order. The first is named whether it is there or not."""
    found = [path]
    while (following := segment_path(path, len(found) + 1)).exists():
        found.append(following)
    return found


def without_parts(paths: list[Path]) -> list[Path]:
    """Return these journals, each once, without later segments of others among them: `*.jsonl` in a shell names those, too."""
    named = set(paths)
    return [path for path in dict.fromkeys(paths) if not (first := _first_of(path)) or first not in named]


def _first_of(path: Path) -> Path | None:
    match = re.fullmatch(r"(.+)\.[0-9]+\.jsonl", path.name)
    return path.with_name(f"{match[1]}.jsonl") if match else None


def list_runs(state: Path) -> list[Path]:
    """Return the journals, newest first. None yet: an empty list."""
    try:
        names = os.listdir(state / "runs")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise JournalError(f"cannot read {state / 'runs'}: {error.strerror}") from error
    ids = (name.removesuffix(".jsonl") for name in names if name.endswith(".jsonl"))
    return [state / "runs" / f"{run}.jsonl" for run in sorted(ids, reverse=True) if RUN_ID.fullmatch(run)]


def find_run(state: Path, word: str) -> Path:
    """Return the journal that a word means: a run id, the start or end of only one, `last`, or a file's path.

    Raises UsageError when it means none or several.
    """
    if "/" in word:
        return Path(word)
    runs = list_runs(state)
    if not runs:
        raise UsageError(f"there are no runs in {state / 'runs'} yet")
    if word == "last":
        return runs[0]
    found = [path for path in runs if path.stem.startswith(word)] or [
        path for path in runs if path.stem.endswith(f"-{word}")
    ]
    if len(found) == 1:
        return found[0]
    if found:
        some = ", ".join(path.stem for path in found[:4])
        raise UsageError(f"{word!r} could mean {len(found)} runs ({some} …). Write more of the id")
    raise UsageError(f"no run is called {word!r}. `broker events` lists the runs")
