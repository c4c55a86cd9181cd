"""Step 1: a panel, as the operator wrote it.

In: a name or a path, and the folders of the operator's profiles. Out: a Panel, or a ProfileError that says what to do. Panels
lie in files of their own, in the folder `panels` beside each folder of profiles, under the same rules: only the operator
could have written them, and no task can reach them. A prompt is a file beside the panel's, under the same rules again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from broker.decide.profile import Profile
from broker.decide.trust import Trust
from broker.errors import ProfileError
from broker.profiles.errors import ProfileInvalid
from broker.profiles.load import load_profile, rules_for, tiers
from broker.profiles.quantity import parse_time
from broker.profiles.schema import NAME
from broker.profiles.secure_open import Rules, list_operator_folder, read_operator_file
from broker.profiles.suggest import closest, did_you_mean
from broker.values import dataclass

MOST_JUDGES = 16
TIME = 600.0  # seconds, of a judge
EVIDENCE_TIME = 120.0  # seconds, of a command that shows a fault
AT_ONCE = 4  # judges
_SUFFIXES = (".toml", ".json")
_PANEL_KEYS = ("description", "quorum", "time", "evidence_time", "at_once", "judges")
_JUDGE_KEYS = ("name", "profile", "command", "trust", "prompt")


class PanelNotFound(ProfileError):
    """No file that is searched defines this panel."""

    def __init__(self, name: str, known: Sequence[str], places: Sequence[Path]) -> None:
        near = closest(name, known)
        meant = f" Did you mean {near}?" if near else ""
        have = f"Known panels: {', '.join(known)}." if known else "No panel is defined at all (docs/judges.md shows how)."
        super().__init__(f"there is no panel {name!r}.{meant} {have} Searched: {', '.join(map(str, places))}")
        self.name, self.known = name, tuple(known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """One of a panel. Its command is the operator's choice, as that of `broker run` is; its profile says what that may do."""

    name: str
    profile: Profile
    argv: tuple[str, ...]
    trust: Trust = Trust.TRUSTED
    prompt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Who judges, and how many have to pass a change. `time` and `evidence_time` are seconds; `digest` is of the definition.

    `at_once`: so many sandboxes of it may be there at a time.
    """

    name: str
    judges: tuple[Judge, ...]
    quorum: int
    description: str = ""
    time: float = TIME
    evidence_time: float = EVIDENCE_TIME
    at_once: int = AT_ONCE
    source: str = ""
    digest: str = ""


def load_panel(word: str, *, profile_dirs: Sequence[Path | str] = (), workspace: Path | str | None = None) -> Panel:
    """Return a panel by its name, or from a file: PATH, or PATH:NAME where that holds several. Raises ProfileError.

    What holds a `/`, or ends as a panel's file does, is a path. `profile_dirs` are where the judges' profiles are searched
    first, and the folders `panels` beside them.
    """
    where = {"profile_dirs": profile_dirs, "workspace": workspace}
    path, _, name = word.rpartition(":")
    path, name = (path, name) if path else (word, "")
    if "/" in path or path.endswith(_SUFFIXES):
        file, rules = Path(os.path.abspath(path)), rules_for(workspace)
        tables = _tables(file, rules)
        if not name and len(tables) > 1:
            raise ProfileInvalid(file, f"it holds {', '.join(sorted(tables))}. Say which: {path}:{min(tables)}")
        name = name or next(iter(tables))
        if name not in tables:
            raise PanelNotFound(name, sorted(tables), [file])
        return _panel(file, rules, name, tables[name], where)
    known: dict[str, None] = {}
    folders = [tier.folder.parent / "panels" for tier in tiers(profile_dirs) if not tier.shipped]
    rules = rules_for(workspace)
    for folder in folders:
        found: dict[str, tuple[Path, dict[str, Any]]] = {}
        for file in _files(folder, rules):
            for here, table in _tables(file, rules).items():
                if here in found:
                    raise ProfileInvalid(file, f"panel {here!r} is defined in {found[here][0]}, too. Remove or rename one of them")
                found[here] = file, table
        if word in found:
            file, table = found[word]
            return _panel(file, rules, word, table, where)
        known |= dict.fromkeys(found)
    raise PanelNotFound(word, sorted(known), folders)


def _files(folder: Path, rules: Rules) -> list[Path]:
    if not os.path.lexists(folder):
        return []
    try:
        names = list_operator_folder(folder, rules)
    except FileNotFoundError:
        return []
    return [folder / name for name in names if name.endswith(_SUFFIXES) and not name.startswith(".")]


def _tables(file: Path, rules: Rules) -> dict[str, dict[str, Any]]:
    """Return the panels of a file as tables by name, not yet decoded."""
    try:
        content, _ = read_operator_file(file, rules)
        text = content.decode("utf-8")
        whole = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except FileNotFoundError:
        raise ProfileInvalid(file, "there is no such file (or it is a link that leads nowhere)") from None
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ProfileInvalid(file, f"it cannot be read as {file.suffix[1:].upper()}: {error}") from None
    panels = whole.get("panels") if isinstance(whole, dict) else None
    if not isinstance(panels, dict) or not panels or set(whole) != {"panels"}:
        raise ProfileInvalid(file, "it must hold a table 'panels' of panels by name, and nothing else")
    for name, table in panels.items():
        if not NAME.fullmatch(name):
            raise ProfileInvalid(file, f"{name!r} cannot be a panel's name: use lower-case letters, digits, '.', '_' and '-'")
        if not isinstance(table, dict):
            raise ProfileInvalid(file, f"panel {name!r} must be a table")
    return panels


def _panel(file: Path, rules: Rules, name: str, table: Mapping[str, Any], where: Mapping[str, Any]) -> Panel:
    at = f"panels.{name}"
    _known(file, table, _PANEL_KEYS, at)
    rows = table.get("judges")
    if not isinstance(rows, list) or not 0 < len(rows) <= MOST_JUDGES or not all(isinstance(row, dict) for row in rows):
        raise ProfileInvalid(file, f"{at}.judges: write one to {MOST_JUDGES} tables, [[{at}.judges]]")
    judges = tuple(_judge(file, rules, row, f"{at}.judges[{number}]", where) for number, row in enumerate(rows, 1))
    names = [judge.name for judge in judges]
    if len(set(names)) < len(names):
        raise ProfileInvalid(file, f"{at}.judges: two have one name. Give each a name of its own")
    quorum = table.get("quorum", "all")
    if quorum == "all":
        quorum = len(judges)
    if isinstance(quorum, bool) or not isinstance(quorum, int) or not 0 < quorum <= len(judges):
        raise ProfileInvalid(file, f'{at}.quorum: write "all", or how many of the {len(judges)} have to pass a change')
    at_once = table.get("at_once", AT_ONCE)
    if isinstance(at_once, bool) or not isinstance(at_once, int) or not 0 < at_once <= MOST_JUDGES:
        raise ProfileInvalid(file, f"{at}.at_once: write how many judges may be heard at a time, from 1 to {MOST_JUDGES}")
    description = table.get("description", "")
    if not isinstance(description, str):
        raise ProfileInvalid(file, f"{at}.description: write a text")
    meaning = [quorum, [(one.name, one.profile.digest, one.argv, one.trust.label, one.prompt) for one in judges]]
    return Panel(
        name=name, judges=judges, quorum=quorum, at_once=at_once, description=description, source=str(file),
        time=_time(file, table, "time", TIME, at), evidence_time=_time(file, table, "evidence_time", EVIDENCE_TIME, at),
        digest=hashlib.sha256(json.dumps(meaning).encode()).hexdigest(),
    )  # fmt: skip


def _judge(file: Path, rules: Rules, row: Mapping[str, Any], at: str, where: Mapping[str, Any]) -> Judge:
    _known(file, row, _JUDGE_KEYS, at)
    for key in row:
        if not isinstance(row[key], str) or not row[key]:
            raise ProfileInvalid(file, f"{at}.{key}: write a text")
    for key in ("profile", "command"):
        if key not in row:
            raise ProfileInvalid(file, f"{at}.{key} is missing")
    try:
        argv = tuple(shlex.split(row["command"]))
    except ValueError as error:
        raise ProfileInvalid(file, f"{at}.command: {error}") from None
    if not argv or not argv[0]:
        raise ProfileInvalid(file, f"{at}.command: it names no program")
    name = row.get("name", os.path.basename(argv[0]))
    if not NAME.fullmatch(name):
        raise ProfileInvalid(file, f"{at}.name: {name!r} cannot be a name: use lower-case letters, digits, '.', '_' and '-'")
    try:
        trust = Trust.parse(row.get("trust", Trust.TRUSTED.label))
    except (KeyError, ValueError):
        raise ProfileInvalid(file, f"{at}.trust: it is trusted or untrusted") from None
    profile = load_profile(row["profile"], **where)
    if profile.hosts:
        raise ProfileInvalid(
            file, f"{at}.profile: {profile.name} reaches hosts (network.hosts), and a judge has no way out but its gateways. "
            "Name a profile without them",
        )  # fmt: skip
    return Judge(name=name, profile=profile, argv=argv, trust=trust, prompt=_prompt(file, rules, row, at))


def _prompt(file: Path, rules: Rules, row: Mapping[str, Any], at: str) -> str:
    """Return the text of a judge's prompt file."""
    if "prompt" not in row:
        return ""
    path = file.parent / row["prompt"]
    try:
        content, _ = read_operator_file(Path(os.path.abspath(path)), rules)
        return content.decode("utf-8")
    except FileNotFoundError:
        raise ProfileInvalid(file, f"{at}.prompt: there is no file {path}") from None
    except UnicodeDecodeError:
        raise ProfileInvalid(file, f"{at}.prompt: {path} is not UTF-8 text") from None


def _time(file: Path, table: Mapping[str, Any], key: str, otherwise: float, at: str) -> float:
    value = table.get(key, otherwise)
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ProfileInvalid(file, f'{at}.{key}: write seconds, or a number with s, m or h, as "10m"')
    try:
        return parse_time(value)
    except ValueError as error:
        raise ProfileInvalid(file, f"{at}.{key}: {error}") from None


def _known(file: Path, table: Mapping[str, Any], keys: tuple[str, ...], at: str) -> None:
    for key in table:
        if key not in keys:
            raise ProfileInvalid(file, f"{at}: unknown key {key!r}.{did_you_mean(key, keys)}")
