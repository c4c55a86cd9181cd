"""Readers for find and fd."""

from __future__ import annotations

import re

from broker.classify import paths
from broker.classify.call import Call, like, reader, unknown_word
from broker.classify.commands import judge_parsed
from broker.classify.grammar import parse
from broker.classify.risk import Risk
from broker.classify.scope import TAME, UNKNOWN, shown
from broker.classify.word import Word


@reader("find")
def _find(call: Call) -> None:
    words = call.words[1:]
    at = 0
    while at < len(words) and words[at].text in ("-H", "-L", "-P"):
        at += 1
    roots: list[Word] = []
    while at < len(words) and not (
        (words[at].text.startswith("-") and len(words[at].text) > 1) or words[at].text in ("(", ")", "!", ",")
    ):
        roots.append(words[at])
        at += 1
    roots = roots or [Word(".", True, False, 0, 0)]
    narrowed = False
    options = call.entry.options
    while at < len(words):
        text = words[at].text
        if text in ("(", ")", "!", ",", "-o", "-a", "-or", "-and", "-not"):
            at += 1
            continue
        if text in ("-exec", "-execdir", "-ok", "-okdir"):
            at = _find_exec(call, words, at, roots, narrowed=narrowed)
            continue
        if text == "-delete":
            for root in roots:
                _find_delete(call, root, narrowed=narrowed)
            at += 1
            continue
        option = options.get(text)
        if option is None:
            if words[at].known:
                call.add(Risk.UNKNOWN, "option.unrecognised", f"find has no test {shown(text)} that we know.")
            at += 1
            continue
        if option.takes == "=":
            value = words[at + 1] if at + 1 < len(words) else None
            if option.role == "write" and value is not None:
                call.write(value)
            elif option.role == "read" and value is not None:
                call.read(value)
            if "narrows" in option.marks:
                narrowed = True
            at += 2
            if text == "-fprintf":
                at += 1
        else:
            narrowed |= "narrows" in option.marks
            at += 1
    call.scope.stdin = call.scope.stdin


def _find_delete(call: Call, root: Word, *, narrowed: bool) -> None:
    if narrowed:
        call.delete(like(root, root.text.rstrip("/") + "/" + TAME))
        path = paths.resolve(root.text, call.scope.cwd, call.inquiry.context)
        if path is None or paths.holds_more_than_its_own(path, call.inquiry.context, is_contents=True):
            call.add(
                Risk.DESTRUCTIVE, "path.delete_root", f"It deletes files anywhere below {shown(root.text)}."
            )
    else:
        call.delete(root, whole=True)


def _find_exec(call: Call, words: list[Word], at: int, roots: list[Word], *, narrowed: bool) -> int:
    end = at + 1
    while (
        end < len(words)
        and words[end].text != ";"
        and not (words[end].text == "+" and words[end - 1].text == "{}")
    ):
        end += 1
    inner = words[at + 1 : end]
    call.add(
        Risk.CODE_EXECUTION, "option.find-exec", f"find {words[at].text} starts a program for what it finds."
    )
    if inner:
        piece = TAME if narrowed else UNKNOWN
        for root in roots[:4]:
            found = (root.text.rstrip("/") or "") + "/" + piece
            call.command(
                [like(word, word.text.replace("{}", found)) if "{}" in word.text else word for word in inner]
            )
    return end + 1


@reader("fd")
def _fd(call: Call) -> None:
    words = call.words[1:]
    for at, word in enumerate(words):
        if word.text in ("-x", "-X", "--exec", "--exec-batch") or re.fullmatch(
            r"-[HIsiagltLp0uE]*[xX]", word.text
        ):
            call.add(Risk.CODE_EXECUTION, "option.fd-x", "fd starts a program for what it finds.")
            inner = words[at + 1 :]
            call.command([unknown_word(w) if "{" in w.text else w for w in inner] + [unknown_word(word)])
            words = words[:at]
            break
        if word.text.startswith(("--exec=", "--exec-batch=")):
            call.add(Risk.CODE_EXECUTION, "option.fd-x", "fd starts a program for what it finds.")
    judge_parsed(call, call.entry, parse(call, words))
