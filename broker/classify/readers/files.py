"""Readers for programs that copy, pack and change files."""

from __future__ import annotations

import re

from broker.classify import paths
from broker.classify.call import Call, like, reader
from broker.classify.commands import judge_parsed
from broker.classify.grammar import parse
from broker.classify.risk import Risk
from broker.classify.roles import judge_options, unnamed_files
from broker.classify.scope import shown
from broker.classify.word import Word


@reader("unless_dry")
def _unless_dry(call: Call) -> None:
    """Judge by the grammar, unless an option asks only what would be done (`!dry`), and none takes that back (`!wet`)."""
    parsed = parse(call, call.words[1:])
    if "dry" in call.marks and "wet" not in call.marks:
        for word in parsed.operands:
            call.read(word)
    else:
        judge_parsed(call, call.entry, parsed)


@reader("unless_shown")
def _unless_shown(call: Call) -> None:
    """Programs that name their result behind what they read: for `-` (or an option marked `!dry`) they only print it."""
    parsed = parse(call, call.words[1:])
    operands = parsed.operands
    if any(word.text in ("-", "stdout", "/dev/stdout") for word in operands[1:]):
        call.marks.add("dry")
        operands = operands[:1]
    if "dry" in call.marks:
        judge_options(call, parsed)
        for word in operands:
            call.read(word)
    else:
        judge_parsed(call, call.entry, parsed)


@reader("dd")
def _dd(call: Call) -> None:
    words = call.words[1:]
    for at, word in enumerate(words):
        key, _, value = word.text.partition("=")
        target = like(word, value)
        if not value and at + 1 < len(words) and "=" not in words[at + 1].text:
            target = words[at + 1]  # `of= /dev/sda`: a slip that means it
        if target.text.startswith("~"):
            target = like(word, call.inquiry.context.home + target.text[1:])
        if key == "of":
            call.write(target)
        elif key == "if":
            call.read(target)


@reader("tar")
def _tar(call: Call) -> None:
    words = list(call.words[1:])
    if (
        words
        and words[0].known
        and not words[0].text.startswith("-")
        and re.fullmatch(r"[a-zA-Z]+", words[0].text)
    ):
        words = _old_style(call, words)
    parsed = parse(call, words)
    judge_options(call, parsed)
    marks = call.marks
    for option, value in parsed.options:
        if "checkpoint" in option.marks and value is not None and value.text.startswith("exec"):
            call.add(
                Risk.CODE_EXECUTION, "option.tar--checkpoint-action", "tar runs a program at each checkpoint."
            )
            if value.known:
                call.shell_text(value.text.partition("=")[2])
    # -C holds for the names behind it; which those are does not matter: each name is looked for in each folder.
    folders = [value for option, value in parsed.options if "chdir" in option.marks and value]
    members = [_in_folder(folder, word) for folder in folders for word in parsed.operands] or parsed.operands
    archive = next((value for option, value in parsed.options if "archive" in option.marks and value), None)
    if archive is not None and re.match(r"[\w.-]+@?[\w.-]*:", archive.text) and "force_local" not in marks:
        call.add(Risk.NETWORK_EGRESS, "network.host", f"tar reaches {shown(archive.text)}.")
    if "create" in marks:
        if archive is not None and archive.text != "-":
            call.write(archive)
        for word in members:
            call.read(word, whole=True)
            if "removes" in marks:
                call.delete(word, whole=True)
    elif "extract" in marks:
        if archive is not None:
            call.read(archive)
        if "to_stdout" not in marks:
            for folder in folders or [Word("./.", True, False, 0, 0)]:
                unnamed_files(call, folder)
            for word in members:  # named members land under their names
                if "*" not in word.text:
                    call.write(word)
            if "absolute" in marks:
                call.add(Risk.SYSTEM_WRITE, "option.tar-P", "tar -P writes wherever the archive says.")
    elif archive is not None:
        call.read(archive)


def _in_folder(folder: Word, word: Word) -> Word:
    """A name as tar finds it, or writes it, in this folder."""
    return word if word.text.startswith("/") else like(word, f"{folder.text.rstrip('/')}/{word.text}")


def _old_style(call: Call, words: list[Word]) -> list[Word]:
    """`tar xzf FILE`: letters without a dash, their values in order behind them."""
    letters, rest = words[0].text, words[1:]
    out: list[Word] = []
    for letter in letters:
        option = call.entry.options.get("-" + letter)
        out.append(like(words[0], "-" + letter))
        if option is not None and option.takes == "=" and rest:
            out.append(rest[0])
            rest = rest[1:]
    return out + rest


@reader("zip")
def _zip(call: Call) -> None:
    """zip: what it packs it deletes afterwards with -m."""
    parsed = parse(call, call.words[1:])
    judge_parsed(call, call.entry, parsed)
    if "removes" in call.marks:
        for word in parsed.operands[1:]:
            call.delete(word, whole="whole" in call.marks)


@reader("unzip")
def _unzip(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    if parsed.operands:
        call.read(parsed.operands[0])
    if not call.marks & {"lists", "folder"}:
        unnamed_files(call, Word("./.", True, False, 0, 0))


@reader("compressor")
def _compressor(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    # A letter that takes a value here takes none there: `xz -C crc32 FILE`, but `zstd -C FILE`.
    values = [value for option, value in parsed.options if value is not None and not option.role]
    for word in parsed.operands or values:
        call.read(word)
        if "to_stdout" not in call.marks:
            call.write(word)


@reader("chmod")
def _chmod(call: Call) -> None:
    parsed = parse(call, _modes_are_no_options(call.words[1:]))
    judge_options(call, parsed)
    operands = list(parsed.operands)
    whole = "whole" in call.marks
    reference = "reference" in call.marks
    if operands and not reference:
        mode = operands.pop(0)
        if _sets_id(mode.text):
            call.add(
                Risk.SYSTEM_WRITE, "option.chmod-setuid", "It makes programs run with another user's rights."
            )
    for word in operands:
        path = paths.resolve(word.text, call.scope.cwd, call.inquiry.context)
        if (
            whole
            and path is not None
            and (
                paths.under(call.inquiry.context.home, path)
                or path in ("/etc", "/usr", "/var", "/bin", "/lib", "/home", "/root", "/boot", "/dev", "/opt")
            )
        ):
            call.add(Risk.DESTRUCTIVE, "path.mode_root", f"It changes rights on all of {shown(path)}.")
        else:
            call.write(word)


def _modes_are_no_options(words: list[Word]) -> list[Word]:
    """`chmod -x FILE`: a mode that starts with a dash."""
    return [
        Word("0" + word.text, word.static, word.glob, word.start, word.end)
        if re.fullmatch(r"-[rwxXst]+", word.text) and word.text != "-R"
        else word
        for word in words
    ]


def _sets_id(mode: str) -> bool:
    if re.fullmatch(r"[0-7]{4,5}", mode):
        return bool(int(mode[-4]) & 6)
    return any(
        "s" in clause and not clause.startswith("0-") and ("+" in clause or "=" in clause)
        for clause in mode.split(",")
    )


@reader("chown")
def _chown(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    operands = parsed.operands if "reference" in call.marks else parsed.operands[1:]
    whole = "whole" in call.marks
    for word in operands:
        path = paths.resolve(word.text, call.scope.cwd, call.inquiry.context)
        if (
            whole
            and path is not None
            and (paths.under(call.inquiry.context.home, path) or path.count("/") < 2)
        ):
            call.add(Risk.DESTRUCTIVE, "path.mode_root", f"It changes the owner of all of {shown(path)}.")
        else:
            call.write(word)
