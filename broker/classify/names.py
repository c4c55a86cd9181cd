"""Step 2: which entry a program's file name or place means."""

from __future__ import annotations

import re
from functools import lru_cache

from broker.classify import paths
from broker.classify.tables import load, program_table

# Texts, compiled by `re` when they are first needed: most names are in the tables as they are.
_VERSIONED = r"(.+?)[-.]?\d+(?:\.\d+)*(?:-(?:config|dbg))?"
_TRIPLET = r"(?:x86_64|i[3-6]86|aarch64|arm|armv7l|riscv64|powerpc64le|s390x)(?:-[a-z0-9_]+)*-(?:linux|elf|eabi)(?:-[a-z0-9]+)?-"


# No file has a longer name; a longer word would be taken apart in time that grows with its square.
NAME_MAX = 255


@lru_cache(maxsize=4096)  # names come from the task: they must not fill the memory
def known_name(name: str) -> str:
    """Reduce a program's file name to the name that its entry has: python3.11 → python3, x-y-linux-gnu-gcc-12 → gcc."""
    if len(name) > NAME_MAX:
        return name
    programs = load()["programs"]
    if name in programs:
        return name
    short = re.sub(_TRIPLET, "", name, count=1)
    if short in programs:
        return short
    for suffix in (".exe", ".real", ".distrib"):
        if short.endswith(suffix):
            short = short.removesuffix(suffix)
    while short not in programs:
        match = re.fullmatch(_VERSIONED, short)
        if match is None or not match.group(1):
            return name
        stem, short = short, match.group(1)
        if short in programs and stem[len(short) :].isdigit() and not _comes_in_versions(short):
            return name
    return short


def _comes_in_versions(name: str) -> bool:
    """Whether a digit right behind the name is a version (`gcc12`, `ruby33`): of what only looks, it is another name.

    Nobody has an `ls2`, so whoever starts one starts something else. `llvm-objdump-15` says with its dash what it is.
    """
    entry = program_table(name) or {}
    return "effects" in entry or entry.get("reader") in ("interpreter", "python", "shell", "compiler", "toolchain")


@lru_cache(maxsize=4096)
def internal_name(path: str) -> str | None:
    """Programs that tool chains start for themselves, by where they are: what they count as."""
    name = path.rsplit("/", 1)[-1]
    table: dict[str, str] = (program_table("_internal") or {})["folders"]
    for folder, counts_as in table.items():
        if paths.star_match(path, folder):
            if counts_as == "*git":
                return name if name.startswith("git-") else None
            return counts_as
    return None
