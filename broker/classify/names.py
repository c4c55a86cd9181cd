"""Step 2: which entry a program's file name or place means."""

from __future__ import annotations

import re
from functools import lru_cache

from broker.classify import paths
from broker.classify.tables import load, program_table

# Texts, compiled by `re` when they are first needed: most names are in the tables as they are.
_VERSIONED = r"(.+?)[-.]?\d+(?:\.\d+)*(?:-(?:config|dbg))?"
# What a program is made for stands in front of its name: a processor, then a maker, a system, a C library.
_PROCESSORS = (
    r"(?:x86_64|amd64|i[3-7]86|ia64|aarch64(?:_be)?|arm(?:v\d\w*|eb)?|riscv(?:32|64)|powerpc(?:64)?(?:le|spe)?|ppc(?:64)?(?:le)?"
    r"|s390x?|mips(?:isa)?(?:32|64)?(?:r\d)?(?:el)?|sparc(?:64)?|alpha(?:ev\d+)?|hppa(?:64)?|m68k|sh[1-4](?:el|eb)?|avr|bpf"
    r"|loongarch(?:32|64)|xtensa|msp430|nios2|or1k|microblaze(?:el)?|arc(?:eb)?|wasm(?:32|64))"
)
_MADE_FOR = (
    r"(?:pc|w64|w32|none|unknown|alpine|redhat|suse|oe|poky|buildroot|apple|linux|gnu\w*|musl\w*|uclibc\w*|android\w*|elf|eabi\w*"
    r"|mingw\w*|cygwin|msys|darwin[\d.]*|freebsd[\d.]*|kfreebsd|netbsd\w*|openbsd[\d.]*|aout|coff|rtems\d*|esp\w*|uefi|wasi\w*)"
)
_TRIPLET = rf"(?:{_PROCESSORS}(?:-{_MADE_FOR})+|avr|bpf|msp430)-"
_SUFFIXES = (".real", ".distrib", ".opt", ".byte", "-posix", "-win32")
_OF_WINDOWS = frozenset((".exe", ".com", ".cmd", ".bat"))
_VERB_NOUN = r"[A-Za-z]+-[A-Za-z]+\d*"


_VERSIONED_READERS = frozenset(("interpreter", "python", "shell", "compiler", "toolchain"))

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
    dashed = "-" in name
    if dashed and re.fullmatch(_VERB_NOUN, name):
        entry = program_table(name.lower()) or {}
        if "effects" in entry or entry.get("reader") == "windows":
            return name.lower()  # PowerShell takes its commands in any case
    made_for = re.match(_TRIPLET, name) if dashed else None
    short = name[made_for.end() :] if made_for else name
    if short in programs:
        return short
    if short[-4:].lower() in _OF_WINDOWS:
        short = short[:-4] if short[:-4] in programs else short[:-4].lower()
    for suffix in _SUFFIXES:
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
    return "effects" in entry or entry.get("reader") in _VERSIONED_READERS


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
