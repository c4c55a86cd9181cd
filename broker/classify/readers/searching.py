"""Readers for find and fd."""

from __future__ import annotations

import re
from dataclasses import field

from broker.classify import paths
from broker.classify.call import Call, like, reader, unknown_word
from broker.classify.commands import judge_parsed
from broker.classify.grammar import parse
from broker.classify.risk import Risk
from broker.classify.roles import apply_role
from broker.classify.scope import TAME, UNKNOWN, shown
from broker.classify.word import Word
from broker.values import dataclass


@dataclass(slots=True)
class _Tests:
    """Whether what an expression has let through so far is only a part of all files, bracket by bracket."""

    narrowed: bool = False
    before: list[tuple[bool, bool]] = field(default_factory=list)  # (outside, the alternatives until now)
    alternatives: bool = True

    def either(self) -> None:
        """`-o` and `,`: the next alternative starts from all files again."""
        self.alternatives &= self.narrowed
        self.narrowed = self.before[-1][0] if self.before else False

    def opened(self) -> None:
        """`(`."""
        self.before.append((self.narrowed, self.alternatives))
        self.alternatives = True

    def closed(self) -> None:
        """`)`: narrowed, if each of the alternatives was."""
        if self.before:
            inside = self.narrowed and self.alternatives
            outside, self.alternatives = self.before.pop()
            self.narrowed = outside or inside


MANY = 32  # so many folders are judged one by one; more of them count as any
_FLAGS = re.compile(r"-[HLPEXdsx]+|-O\d")
_DASHED_ACTION = re.compile(r"[\u2010-\u2015\u2212]+(?:exec|ok|delete|fprint|fls)")
_ALL_NAMES = frozenset(("*", "**", "./*", "?*", ".*", "*/*"))
_NEWER = re.compile(r"-newer[aBcm][aBcmt]")


@reader("find")
def _find(call: Call) -> None:
    words, roots = _find_roots(call.words[1:])
    tests = _Tests()
    negated = False
    options = call.entry.options
    at = 0
    while at < len(words):
        text = words[at].text
        step = 1
        match text:
            case "!" | "-not":
                negated = not negated
                at += 1
                continue
            case "(":
                tests.opened()
            case ")":
                tests.closed()
            case "-o" | "-or" | ",":
                tests.either()
            case "-a" | "-and":
                pass
            case "-exec" | "-execdir" | "-ok" | "-okdir":
                step = _find_exec(call, words, at, roots, narrowed=tests.narrowed) - at
            case "-delete" | "-rm":
                for root in roots:
                    _find_delete(call, root, narrowed=tests.narrowed)
            case _ if text[:1] != "-":
                # No find takes a word here: it refuses all of the line. Not so sure is a dash that a text program made.
                if _DASHED_ACTION.match(text):
                    call.add(
                        Risk.UNKNOWN, "option.unrecognised", f"find takes no {shown(text)}, but a reader may."
                    )
            case _:
                option = options.get(text)
                value = words[at + 1] if at + 1 < len(words) else None
                if option is None and not _NEWER.fullmatch(text):
                    if words[at].known:
                        call.add(
                            Risk.UNKNOWN,
                            "option.unrecognised",
                            f"find has no test {shown(text)} that we know.",
                        )
                elif option is None or option.takes == "=":
                    if option is not None and option.role and value is not None:
                        apply_role(call, option.role, value, f"find {text}")
                    narrows = option is None or "narrows" in option.marks
                    if narrows and not negated and (value is None or value.text not in _ALL_NAMES):
                        tests.narrowed = True
                    step = 3 if text == "-fprintf" else 2
                elif "narrows" in option.marks and not negated:
                    tests.narrowed = True
        negated = False
        at += step


def _find_roots(words: list[Word]) -> tuple[list[Word], list[Word]]:
    """Take the folders to search off the front. With -files0-from only a file knows them."""
    at = 0
    roots: list[Word] = []
    while at < len(words) and (_FLAGS.fullmatch(words[at].text) or words[at].text in ("-D", "-f", "--")):
        if words[at].text == "-f" and at + 1 < len(words):
            roots.append(words[at + 1])
        at += 2 if words[at].text in ("-D", "-f") else 1
    while at < len(words) and not (
        (words[at].text.startswith("-") and len(words[at].text) > 1) or words[at].text in ("(", ")", "!", ",")
    ):
        roots.append(words[at])
        at += 1
    rest = words[at:]
    roots += [unknown_word(word) for word in rest if word.text == "-files0-from"]
    return rest, roots or [Word(".", True, False, 0, 0)]


def _find_delete(call: Call, root: Word, *, narrowed: bool) -> None:
    if narrowed:
        call.delete(like(root, root.text.rstrip("/") + "/" + TAME))
        _note_root(call, root)
    else:
        call.delete(root, whole=True)


def _note_root(call: Call, root: Word) -> None:
    """What is deleted below the system's root or a home folder is more than one can name."""
    path = paths.resolve(root.text, call.scope.cwd, call.inquiry.context)
    if path is None or paths.holds_more_than_its_own(path, call.inquiry.context, is_contents=True):
        call.add(Risk.DESTRUCTIVE, "path.delete_root", f"It deletes files anywhere below {shown(root.text)}.")


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
        for root in roots if len(roots) <= MANY else [unknown_word(roots[0])]:
            found = (root.text.rstrip("/") or "") + "/" + piece
            call.command(
                [like(word, word.text.replace("{}", found)) if "{}" in word.text else word for word in inner]
            )
        if inner[0].text.rpartition("/")[2] in _DELETERS:
            for root in roots[:MANY]:
                _note_root(call, root)
    return end + 1


_DELETERS = frozenset(("rm", "unlink", "shred", "srm", "wipe"))


_ANY_NAME = frozenset(("", ".", ".*", "*", "^", "$"))  # as an expression, or as a pattern behind -g
_PLACE = re.compile(r"\{[./]*\}")


@reader("fd")
def _fd(call: Call) -> None:
    words = call.words[1:]
    inner: list[Word] = []
    for at, word in enumerate(words):
        if word.text in ("-x", "-X", "--exec", "--exec-batch") or re.fullmatch(
            r"-[HIsiagltLp0uE]*[xX]", word.text
        ):
            inner, words = words[at + 1 :], words[:at]
        elif word.text.startswith(("--exec=", "--exec-batch=")):
            inner = [like(word, word.text.partition("=")[2]), *words[at + 1 :]]
            words = words[:at]
        else:
            continue
        call.add(Risk.CODE_EXECUTION, "option.fd-x", "fd starts a program for what it finds.")
        break
    parsed = parse(call, words)
    judge_parsed(call, call.entry, parsed)
    if not inner:
        return
    roots = [value for option, value in parsed.options if "root" in option.marks and value is not None]
    roots = roots or parsed.operands[1:] or [like(inner[0], ".")]
    narrowed = any(word.text not in _ANY_NAME for word in parsed.operands[:1]) or any(
        option.takes == "=" and "root" not in option.marks for option, _ in parsed.options
    )
    piece = TAME if narrowed else UNKNOWN
    ends = next((at for at, word in enumerate(inner) if word.text == ";"), len(inner))
    named = any("{" in word.text for word in inner[:ends])
    for root in roots if len(roots) <= MANY else [unknown_word(roots[0])]:
        found = like(root, (root.text.rstrip("/") or "") + "/" + piece)
        filled = [
            like(word, found.text.join(_PLACE.split(word.text))) if "{" in word.text else word
            for word in inner[:ends]
        ]
        call.command(filled if named else [*filled, found])
