"""Look at a project's own files for the commands that build and test it. In: a folder. Out: suggestions, each with its origin.

The files belong to the project, which an agent may have written: they are read, never run, and what they say is only a
suggestion that passed the same reading as an operator's own entry. Nothing here decides.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from broker.classify.risk import Risk
from broker.decide.wording import classes
from broker.profiles.command_line import CommandLineError, parse_command_line
from broker.profiles.doors import open_door
from broker.profiles.judge import judge
from broker.values import dataclass

LARGEST = 1 << 20
_USUAL = re.compile(
    r"(test|tests|check|lint|build|compile|typecheck|type-check|types|format|fmt|vet|unit|coverage|cover|all)([:_-][a-z0-9:_-]+)?"
)
_LISTABLE = frozenset({Risk.SAFE, Risk.LOCAL_WRITE, Risk.CODE_EXECUTION})


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A command, the file that named it, and whether one would list it without further thought.

    `why_not` is a reason not to, for those that are only shown.
    """

    command: str
    origin: str
    usual: bool = True
    why_not: str = ""


def detect(folder: Path) -> tuple[Suggestion, ...]:
    """Return the commands that the project's files name, the usual ones first, each once."""
    found: dict[tuple[str, ...], Suggestion] = {}
    for origin, command, usual in _all(folder):
        try:
            argv = parse_command_line(command)
        except CommandLineError:
            continue  # an entry cannot be it
        if argv in found and (found[argv].usual or not usual):
            continue
        why_not = reason_against(argv)
        found[argv] = Suggestion(command=command, origin=origin, usual=usual and not why_not, why_not=why_not)
    return tuple(sorted(found.values(), key=lambda each: (not each.usual, bool(each.why_not))))


def reason_against(argv: tuple[str, ...]) -> str:
    """Return why one would not list this command without a thought, or nothing."""
    if "/" in argv[0] and not argv[0].startswith("/"):
        return "the task can rewrite a program of the workspace, so the entry would never match"
    if (door := open_door(argv)) is not None:
        return f"it {door}"
    effects = judge(argv, _PLAIN).assessment.effects
    if worse := effects - _LISTABLE - {Risk.UNKNOWN}:
        return f"it is {classes(worse)}"
    if Risk.UNKNOWN in effects:
        return "nobody has described that program"
    return "" if Risk.CODE_EXECUTION in effects else "its classes are permitted anyway"


def read_small(path: Path) -> str | None:
    """Return the text of a regular file of a sensible size, or None. A pipe of that name must not hold us up."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > LARGEST:
            return None
        return file.read(LARGEST).decode("utf-8", "replace")


def _all(folder: Path) -> Iterator[tuple[str, str, bool]]:
    """Yield (origin, command, whether it is usual)."""
    for name, look in _LOOKS:
        text = read_small(folder / name)
        if text is not None:
            for command, usual in look(text, folder):
                yield name, command, usual
    yield from _ci(folder)


def _package_json(text: str, folder: Path) -> Iterator[tuple[str, bool]]:
    scripts = _json(text).get("scripts")
    runner = next(
        (
            tool
            for lock, tool in (("pnpm-lock.yaml", "pnpm"), ("yarn.lock", "yarn"), ("bun.lock", "bun"), ("bun.lockb", "bun"))
            if (folder / lock).is_file()
        ),
        "npm",
    )
    for name in scripts if isinstance(scripts, dict) else ():
        if name == "test" and runner != "bun":
            yield f"{runner} test", True
        yield f"{runner} run {name}", _USUAL.fullmatch(name) is not None


def _makefile(text: str, _: Path) -> Iterator[tuple[str, bool]]:
    targets = re.findall(r"(?m)^([A-Za-z0-9][A-Za-z0-9_.-]*)\s*:(?![=:])", text)
    if targets:
        yield "make", True
    for target in dict.fromkeys(targets):
        if _USUAL.fullmatch(target):
            yield f"make {target}", True


def _go(_: str, __: Path) -> Iterator[tuple[str, bool]]:
    yield from ((command, True) for command in ("go build ./...", "go test ./...", "go vet ./..."))


def _cargo(_: str, __: Path) -> Iterator[tuple[str, bool]]:
    yield from ((command, True) for command in ("cargo build", "cargo test", "cargo check"))
    yield "cargo clippy", False


def _pyproject(text: str, folder: Path) -> Iterator[tuple[str, bool]]:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    tool = table.get("tool")
    tools = tool if isinstance(tool, dict) else {}
    if "pytest" in tools or "pytest" in text:
        for command in ("pytest", "pytest -q", "python3 -m pytest", "python3 -m pytest -q"):
            yield command, True
    elif (folder / "tests").is_dir():
        yield "python3 -m unittest", True
    if "mypy" in tools:
        yield "mypy .", True
    if "ruff" in tools:
        yield "ruff check .", True
    if "tox" in tools:
        yield "tox", True
    if "hatch" in tools:
        yield "hatch test", False


def _tox(_: str, __: Path) -> Iterator[tuple[str, bool]]:
    yield "tox", True


def _pytest(_: str, __: Path) -> Iterator[tuple[str, bool]]:
    yield "pytest", True
    yield "python3 -m pytest", True


def _nox(_: str, __: Path) -> Iterator[tuple[str, bool]]:
    yield "nox", True


def _gradle(_: str, folder: Path) -> Iterator[tuple[str, bool]]:
    for task in ("build", "test", "check"):
        yield f"gradle --offline {task}", True
    if (folder / "gradlew").is_file():
        yield "./gradlew test", False


def _maven(_: str, __: Path) -> Iterator[tuple[str, bool]]:
    for goal in ("compile", "test", "verify"):
        yield f"mvn -o {goal}", True


def _just(text: str, _: Path) -> Iterator[tuple[str, bool]]:
    for recipe in re.findall(r"(?m)^([a-z0-9][a-z0-9_-]*)\s*:(?!=)", text):
        yield f"just {recipe}", _USUAL.fullmatch(recipe) is not None


def _composer(text: str, _: Path) -> Iterator[tuple[str, bool]]:
    scripts = _json(text).get("scripts")
    for name in scripts if isinstance(scripts, dict) else ():
        if _USUAL.fullmatch(name):
            yield f"composer {name}", True


_LOOKS = (
    ("package.json", _package_json),
    ("Makefile", _makefile),
    ("makefile", _makefile),
    ("GNUmakefile", _makefile),
    ("go.mod", _go),
    ("Cargo.toml", _cargo),
    ("pyproject.toml", _pyproject),
    ("tox.ini", _tox),
    ("pytest.ini", _pytest),
    ("noxfile.py", _nox),
    ("build.gradle", _gradle),
    ("build.gradle.kts", _gradle),
    ("pom.xml", _maven),
    ("justfile", _just),
    ("Justfile", _just),
    ("composer.json", _composer),
)

_CI_FILES = (".gitlab-ci.yml", ".travis.yml", "azure-pipelines.yml", "bitbucket-pipelines.yml", ".circleci/config.yml")
_STEP = re.compile(r"^\s*-?\s*(?:run|script|bash):\s*(?P<run>[^|>\s].*)$|^\s+-\s+(?P<item>[a-z][a-z0-9_.-]*(?: \S+)*)\s*$")


def _ci(folder: Path) -> Iterator[tuple[str, str, bool]]:
    """Yield what CI runs in single lines. Never usual: a pipeline deploys, too."""
    workflows = folder / ".github" / "workflows"
    try:
        names = sorted(os.listdir(workflows))[:50]
    except OSError:
        names = []
    files = [f".github/workflows/{name}" for name in names if name.endswith((".yml", ".yaml"))]
    for name in (*files, *_CI_FILES):
        for line in (read_small(folder / name) or "").splitlines():
            found = _STEP.match(line)
            if found is not None:
                command = (found["run"] or found["item"]).strip().strip("\"'")
                if " " in command:  # a single word in a list of a pipeline is a stage or a branch
                    yield name, command, False


def _json(text: str) -> dict[str, Any]:
    try:
        table = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return table if isinstance(table, dict) else {}


def _plain() -> Any:
    from broker.decide.profile import Profile

    return Profile(name="plain")


_PLAIN = _plain()
