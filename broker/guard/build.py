"""Compile the guard.

In: the C files beside this one, and the C compiler `cc` (or $CC). Out: `guard`, a static binary with no
dependency beyond libc, rebuilt only when a source, a flag or the compiler changed. Imports nothing of the
project, because the package's build hook runs it before anything is installed.

    python -m broker.guard.build              the guard
    python -m broker.guard.build --sanitize   guard.sanitize, under AddressSanitizer and UBSan (for the tests)
    python -m broker.guard.build --fuzz       guard.fuzz, a libFuzzer program (needs clang)
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
GUARD = FOLDER / "guard"

WARNINGS = (
    "-std=gnu11",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wshadow",
    "-Wvla",
    "-Wno-unused-command-line-argument",
)
HARDENING = (
    "-fstack-protector-strong",
    "-fstack-clash-protection",
    "-D_FORTIFY_SOURCE=2",
    "-Wl,-z,relro,-z,now",
    "-Wl,-z,noexecstack",
)
REMEDY = "Install a C compiler and the static C library: on Debian and Ubuntu `apt install gcc libc6-dev`"


class CannotBuild(Exception):
    """The guard cannot be compiled here. The message says what to install."""


@dataclass(frozen=True, slots=True)
class Flavour:
    """One way to compile the guard. Each of `choices` is tried in turn until one links."""

    output: Path
    choices: tuple[tuple[str, ...], ...]
    compiler: str = "cc"
    skip: tuple[str, ...] = ("fuzz.c",)


SHIPPED = Flavour(
    output=GUARD,
    choices=(
        ("-static-pie", "-fPIE", "-O2", "-s", *HARDENING, *WARNINGS),
        ("-static", "-O2", "-s", *HARDENING, *WARNINGS),
    ),
)
SANITIZED = Flavour(
    output=FOLDER / "build" / "guard.sanitize",
    choices=(("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", *WARNINGS),),
)
FUZZER = Flavour(
    output=FOLDER / "build" / "guard.fuzz",
    choices=(
        (
            "-O1",
            "-g",
            "-fsanitize=fuzzer,address,undefined",
            "-fno-sanitize-recover=all",
            "-DFUZZ",
            *WARNINGS,
        ),
    ),
    compiler="clang",
    skip=("main.c",),
)


def build(flavour: Flavour = SHIPPED) -> Path:
    """Compile unless the binary is up to date, and return its path. Raises CannotBuild."""
    compiler = _compiler(flavour)
    sources = tuple(sorted(path for path in FOLDER.glob("*.c") if path.name not in flavour.skip))
    digest = _digest(flavour, compiler, sources)
    stamp = FOLDER / "build" / f"{flavour.output.name}.digest"
    if flavour.output.exists() and stamp.exists() and stamp.read_text() == digest:
        return flavour.output
    failures = []
    for flags in flavour.choices:
        failure = _compile(compiler, flags, sources, flavour.output)
        if failure is None:
            stamp.parent.mkdir(exist_ok=True)
            stamp.write_text(digest)
            return flavour.output
        failures.append(failure)
    raise CannotBuild("\n".join([*failures, f"The guard could not be compiled. {REMEDY}."]))


def _compiler(flavour: Flavour) -> tuple[str, ...]:
    name = flavour.compiler
    wanted = shlex.split(os.environ.get("CC", name)) if name == "cc" else []
    for candidate in (wanted, [name], ["gcc"] if name == "cc" else ["clang-14"]):
        if candidate and shutil.which(candidate[0]):
            return tuple(candidate)
    raise CannotBuild(f"There is no C compiler ({name}). {REMEDY}.")


def _digest(flavour: Flavour, compiler: tuple[str, ...], sources: tuple[Path, ...]) -> str:
    digest = hashlib.sha256(repr((flavour.choices, compiler)).encode())
    for path in (*sources, *sorted(FOLDER.glob("*.h"))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _compile(
    compiler: tuple[str, ...], flags: tuple[str, ...], sources: tuple[Path, ...], output: Path
) -> str | None:
    """Return None, or what the compiler said. The binary appears whole or not at all: others may be starting it."""
    output.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=output.parent) as folder:
        fresh = Path(folder) / output.name
        command = [*compiler, *flags, "-o", str(fresh), *map(str, sources)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return f"$ {shlex.join(command)}\n{done.stderr.strip()}"
        fresh.chmod(0o755)
        fresh.replace(output)
    return None


def main(arguments: list[str] | None = None) -> int:
    """Build from the command line. Returns 0, or 1 with the reason on standard error."""
    parser = argparse.ArgumentParser(prog="python -m broker.guard.build", description="Compile the guard.")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--sanitize", action="store_true", help="under AddressSanitizer and UBSan")
    group.add_argument("--fuzz", action="store_true", help="as a libFuzzer program")
    chosen = parser.parse_args(arguments)
    flavour = SANITIZED if chosen.sanitize else FUZZER if chosen.fuzz else SHIPPED
    try:
        sys.stdout.write(f"{build(flavour)}\n")
    except CannotBuild as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
