"""Find an agent's program on this host, and what else of the host it needs to see: its package, and what runs it.

In: a program's name, and the operator's PATH. Out: absolute paths, real ones. Nothing is started.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from broker.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """An installed agent. `package` is its own folder or file, `runtime` what its scripts are run by ('': it is no script).

    `shown` are all paths that the task must see; `path` are folders that its PATH needs.
    """

    program: str
    package: str
    runtime: str = ""
    shown: tuple[str, ...] = ()
    path: tuple[str, ...] = ()


def find(name: str, search: str | None = None) -> Installed | None:
    """Return where a program of this name is installed, or None. `search` is a PATH (default: the operator's own)."""
    found = shutil.which(name, path=search)
    if found is None:
        return None
    program = os.path.realpath(found)
    environment = _virtual_environment(Path(found))
    if environment is not None:
        program = os.path.join(environment, "bin", os.path.basename(found))
    package = environment or _package(program)
    shown, folders, runtime = [package], [], ""
    words = _shebang(program)
    if words and os.path.basename(words[0]) == "env" and len(words) > 1:
        where = shutil.which(words[1], path=search)
        runtime = os.path.realpath(where) if where else ""
        if where and not _of_the_system(runtime):
            shown.append(_prefix(runtime))
            folders.append(os.path.dirname(runtime))
    elif words:
        runtime = os.path.realpath(words[0])
        if not _of_the_system(runtime):
            shown.append(_prefix(runtime))
    return Installed(program=program, package=package, runtime=runtime, shown=tuple(dict.fromkeys(shown)), path=tuple(folders))


def _package(program: str) -> str:
    """Return the outermost node_modules that holds a program: what it needs may lie beside it. Else the program itself."""
    parts = Path(program).parts
    if "node_modules" in parts:
        return str(Path(*parts[: parts.index("node_modules") + 1]))
    return program


def _virtual_environment(found: Path) -> str | None:
    """Return the virtual environment (venv) whose `bin` holds a program, or links to which it was installed as."""
    for path in (found, Path(os.path.realpath(found))):
        root = Path(os.path.realpath(path.parent)).parent
        if (root / "pyvenv.cfg").is_file():
            return str(root)
    return None


def _shebang(program: str) -> list[str]:
    try:
        with open(program, "rb") as file:
            line = file.readline(256)
    except OSError:
        return []
    return line[2:].decode("utf-8", "replace").split() if line.startswith(b"#!") else []


def _of_the_system(path: str) -> bool:
    """Whether every sandbox shows it anyway."""
    return path.startswith(("/usr/", "/bin/", "/lib", "/opt/"))


def _prefix(program: str) -> str:
    """Return what a runtime is installed below: the folder around its `bin`."""
    folder = os.path.dirname(program)
    return os.path.dirname(folder) if os.path.basename(folder) == "bin" else program
