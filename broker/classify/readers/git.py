"""Readers for git: settings, transports, configuration, and what throws work away."""

from __future__ import annotations

import re
from functools import cache

from broker.classify import paths
from broker.classify.call import Call, like, reader
from broker.classify.commands import by_grammar, judge_parsed, judge_sub
from broker.classify.entries import entry_of
from broker.classify.grammar import Parsed, parse
from broker.classify.risk import Risk
from broker.classify.roles import judge_options
from broker.classify.scope import UNKNOWN, shown
from broker.classify.tables import program_table
from broker.classify.word import Word


@cache
def _harmless_settings() -> tuple[frozenset[str], tuple[str, ...]]:
    """Keys, and patterns of keys, that name no program and loosen no protection (tables/git.toml)."""
    names: list[str] = (program_table("git") or {})["harmless_settings"].split()
    return (
        frozenset(name for name in names if "*" not in name),
        tuple(name for name in names if "*" in name),
    )


@cache
def _harmless_values() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Keys that are harmless while their values look like this (tables/git.toml)."""
    values: dict[str, str] = (program_table("git") or {})["harmless_values"]
    return tuple((key, re.compile(pattern)) for key, pattern in values.items())


def is_harmless(key: str, value: str) -> bool:
    """Whether this setting names no program, trusts nobody new and loosens no protection."""
    exact, patterns = _harmless_settings()
    lowered = key.lower()
    if lowered in exact or any(paths.star_match(lowered, pattern) for pattern in patterns):
        return True
    return any(
        paths.star_match(lowered, pattern) and wanted.fullmatch(value) is not None
        for pattern, wanted in _harmless_values()
    )


def _guards(key: str) -> bool:
    """Whether turning this setting off loosens a protection, and disarms nothing."""
    guards: str = (program_table("git") or {})["guards"]
    return any(paths.star_match(key.lower(), pattern) for pattern in guards.split())


_DISARMING = frozenset(("", "false", "0", "cat", "/dev/null", "true", ":", "no", "off", "never"))


def _git_setting_runs(key: str, value: str) -> bool:
    """Whether a configuration key may name a program, or loosen what protects from one."""
    if is_harmless(key, value):
        return False
    lowered = key.lower()
    if value.lower() in _DISARMING and lowered not in ("core.hookspath", "core.worktree"):
        return _guards(key) and not (
            lowered.startswith(("protocol.", "safe.")) and value.lower() in ("", "false", "never")
        )
    return not (lowered == "core.hookspath" and value in ("/dev/null", ""))


@reader("git")
def _git(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    aliases: dict[str, str] = {}
    repository = ""
    for option, value in parsed.options:
        if value is None:
            continue
        if "chdir" in option.marks:
            call.scope = call.scope.copy()
            call.scope.cwd = paths.resolve(value.text, call.scope.cwd, call.inquiry.context)
        elif "setting" in option.marks:
            _git_setting(call, value, aliases)
        elif "repository" in option.marks:
            repository = value.text
        elif option.name == "--exec-path":  # without a value it prints where git's programs are
            call.add(Risk.CODE_EXECUTION, "option.git--exec-path", "git takes its programs from this folder.")
    rest = parsed.rest
    if not rest:
        return
    name = rest[0].text
    known = name in call.entry.commands or name in call.entry.sub
    if not known and aliases.get(name, "").startswith("!"):
        return  # its text is judged already
    if not known and name in aliases:
        rest = [*(like(rest[0], text) for text in aliases[name].split()), *rest[1:]]
    own = None if known else entry_of(f"git-{name}")
    if own is not None and own.reader != "git-external":
        judge_sub(call, own, rest[1:])
    else:
        judge_parsed(call, call.entry, Parsed([], [], rest))
    _git_elsewhere(call, repository)


# Settings that git hands to a shell, by how their keys end.
_NAMES_A_COMMAND = re.compile(
    r"^pager\.|(?:pager|editor|sshcommand|fsmonitor|askpass|external|command|cmd|textconv|driver|clean|smudge|process"
    r"|helper|program|filter|uploadpack|receivepack|hook)$"
)


def _git_setting(call: Call, value: Word, aliases: dict[str, str]) -> None:
    """`-c KEY=VALUE`: what a key may make git run. Aliases given here are noted for the command behind."""
    key, _, setting = value.text.partition("=")
    if not value.known and UNKNOWN in key:
        call.add(Risk.CODE_EXECUTION, "git.setting", "git -c sets something that cannot be known.")
    elif key.lower().startswith("alias."):
        call.add(Risk.CODE_EXECUTION, "git.alias", f"The alias {key} makes a name mean another command.")
        aliases[key[6:]] = setting
        if setting.startswith("!"):
            call.shell_text(setting[1:], at=call.place_of(value, value))
    elif _git_setting_runs(key, setting):
        call.add(Risk.CODE_EXECUTION, "git.setting", f"git -c {key} can make git run a program.")
        if _NAMES_A_COMMAND.search(key.lower()) and (setting.startswith("!") or " " in setting):
            call.shell_text(setting.removeprefix("!"), at=call.place_of(value, value))


def _git_elsewhere(call: Call, repository: str) -> None:
    """A change to a repository outside the task's own places touches another project."""
    if Risk.LOCAL_WRITE not in call.finding.effects:
        return
    folder = paths.resolve(repository, call.scope.cwd, call.inquiry.context) if repository else call.scope.cwd
    if folder is not None and paths.place_of(folder, call.inquiry.context) is paths.Place.OUTSIDE:
        call.add(
            Risk.SYSTEM_WRITE, "path.outside", f"The repository in {shown(folder)} is another project's."
        )


@reader("git-external")
def _git_external(call: Call) -> None:
    """/usr/lib/git-core/git-NAME: the same as `git NAME`."""
    call.command(
        [like(call.words[0], "git"), like(call.words[0], call.name.removeprefix("git-")), *call.words[1:]]
    )


@reader("git-branch")
def _git_branch(call: Call) -> None:
    """Deleting a branch is local while git checks that it was merged; `-D`, and `-d` with `-f`, do not check."""
    by_grammar(call, call.entry)
    if {"deletes", "forces"} <= call.marks:
        call.add(Risk.DESTRUCTIVE, "option.git.branch-D", "It deletes a branch that may not be merged.")


@reader("git-clean")
def _git_clean(call: Call) -> None:
    """Clean deletes what git does not track, unless it only says what it would delete."""
    judge_options(call, parse(call, call.words[1:]))
    if "dry" in call.marks:
        return
    call.add(Risk.LOCAL_WRITE, "program.git.clean", "git clean deletes files.")
    if "deletes" in call.marks:
        call.add(Risk.DESTRUCTIVE, "git.discards", "It deletes files that git never knew.")


@reader("git-foreach")
def _git_foreach(call: Call) -> None:
    """Submodule foreach: one word is a text for a shell, more are a command."""
    call.add(Risk.CODE_EXECUTION, "program.git.submodule.foreach", "It runs a command in every submodule.")
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    if len(parsed.rest) == 1:
        call.shell(parsed.rest[0])
    else:
        call.command(parsed.rest)


@reader("vcs")
def _vcs(call: Call) -> None:
    """hg, svn, jj: options that name programs may stand anywhere in the line (`anywhere` in the table)."""
    for name in call.entry.raw["anywhere"].split():
        if any(word.text == name or word.text.startswith(name + "=") for word in call.words[1:]):
            call.add(
                Risk.CODE_EXECUTION,
                f"option.{call.name}{name}",
                f"{call.name} {name} can make it run a program.",
            )
    by_grammar(call)
    for option, value in parse(call, call.words[1:]).options:
        if "repository" in option.marks and value is not None:
            _git_elsewhere(call, value.text)


@reader("git-config")
def _git_config(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    operands = parsed.operands
    marks = call.marks
    for option, value in parsed.options:
        if "file" in option.marks and value is not None and "reads" not in marks:
            call.write(value)
    if operands and operands[0].text in ("get", "list") and len(operands) < 4:
        return
    if operands and operands[0].text in ("set", "unset", "rename-section", "remove-section", "edit"):
        operands = operands[1:]
        marks.add("writes")
    if "reads" in marks or (len(operands) <= 1 and "writes" not in marks):
        return
    key = operands[0].text if operands else ""
    setting = operands[1].text if len(operands) > 1 else ""
    elsewhere = marks & {"global"}
    if is_harmless(key, setting) and not elsewhere:
        call.add(Risk.LOCAL_WRITE, "git.config", f"It sets {shown(key)} for this repository.")
        return
    if (
        key
        and setting in ("", "cat", "false", "/dev/null")
        and not elsewhere
        and key.lower() != "core.worktree"
        and not key.lower().startswith("alias.")
        and not _guards(key)
    ):
        call.add(Risk.LOCAL_WRITE, "git.config", f"It disarms {shown(key)} for this repository.")
        return
    call.add(
        Risk.PERSISTENCE,
        "git.config",
        f"It sets {shown(key) or 'git configuration'}, which later git commands obey.",
    )


@reader("git-remote-url")
def _git_transport(call: Call) -> None:
    """fetch, clone, push …: the transport in a URL may run a program."""
    words = call.words[1:]
    by_grammar(call, call.entry, words)
    for word in words:
        if (
            word.text.startswith("ext::")
            or "=ext::" in word.text
            or ("::" in word.text.split("/", 1)[0] and word.known)
        ):
            call.add(
                Risk.CODE_EXECUTION, "git.transport", f"git runs the program named in {shown(word.text)}."
            )
            if word.text.startswith("ext::"):
                call.shell_text(word.text[5:])
        elif "://-" in word.text:
            call.add(
                Risk.CODE_EXECUTION,
                "git.transport",
                f"The host in {shown(word.text)} is an option to the program that connects.",
            )
    parsed = parse(call, words)
    for option, value in parsed.options:
        if "setting" in option.marks and value is not None:
            _git_setting(call, value, {})
    operands = parsed.operands
    forced = [word for word in operands if word.text.startswith("+") and len(word.text) > 1]
    deleted = [word for word in operands[1:] if word.text.startswith(":") and len(word.text) > 1]
    if call.entry.name == "git push" and (forced or deleted):
        call.add(Risk.DESTRUCTIVE, "git.push_force", "It overwrites or deletes a branch of the remote.")
    if call.entry.name == "git clone" and operands:
        if len(operands) > 1:
            call.write(operands[-1])
        else:
            call.add(Risk.LOCAL_WRITE, "path.write", "git clone makes a folder.")
    if operands and _is_here(operands[0]) and not any(word.text[:4] in _MORE_SOURCES for word in words):
        _with_a_folder(call, operands[0])


_MORE_SOURCES = frozenset(("--re", "--mu", "--al", "--bu"))
"""How options begin that name other repositories as well: --recurse-submodules, --repo, --multiple, --all, --bundle-uri."""


def _is_here(source: Word) -> bool:
    """Whether a repository is named as a folder of this machine, by a path that can be nothing else."""
    if not source.known:
        return False
    return source.text in (".", "..") or source.text.startswith(("/", "./", "../", "file:///"))


def _with_a_folder(call: Call, source: Word) -> None:
    """The other repository is a folder: nothing is reached, and git starts its two ends here (both come to the gate)."""
    finding = call.finding
    if Risk.CODE_EXECUTION not in finding.effects:
        finding.effects.discard(Risk.NETWORK_EGRESS)
        finding.reasons[:] = [reason for reason in finding.reasons if reason.risk is not Risk.NETWORK_EGRESS]
    match call.entry.name:
        case "git fetch" | "git pull":
            call.add(
                Risk.LOCAL_WRITE, "git.from_folder", "It takes objects from a repository on this machine."
            )
        case "git push":
            folder = like(source, source.text.removeprefix("file://"))
            call.write(folder)


_EVERYTHING = frozenset((".", "./", ":/", "*", ":/*", ":(top)", ":/.", "**", "./*", ":", ":(glob)**"))
"""Names that stand for all there is."""


@reader("git-checkout")
def _git_checkout(call: Call) -> None:
    """checkout, switch, restore: changing branches is local; throwing away everything that was not committed is not."""
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    operands = [word.text for word in parsed.operands]
    call.add(
        Risk.LOCAL_WRITE, f"program.{call.entry.name.replace(' ', '.')}", f"{call.entry.name} changes files."
    )
    if "force" in call.marks:
        call.add(Risk.DESTRUCTIVE, "git.discards", "It throws away changes that were not committed.")
    staged_only = "staged" in call.marks and "worktree" not in call.marks
    if _EVERYTHING & set(operands) and "new" not in call.marks and not staged_only:
        call.add(Risk.DESTRUCTIVE, "git.discards", "It throws away every change that was not committed.")
