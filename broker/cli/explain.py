"""`broker explain`: the tree of a command, with spans, classes and the rules that spoke."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from broker.classify.risk import Risk
from broker.cli.classify import _clean, _printable, add_context_arguments, answer_of, context_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.classify.risk import Assessment, Part

SUMMARY = "show how a command was understood, and which rules spoke"
EXAMPLES = """\
broker explain 'cd src && make | tee ~/.bashrc'
broker explain --json "env -S 'rm -rf build'"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare this verb's options."""
    parser.add_argument(
        "text", nargs="*", help="a shell text, quoted as one word; `-` reads it from standard input"
    )
    parser.usage = "broker explain [OPTION ...] TEXT"
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_context_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Classify one text and draw what was found."""
    from broker.classify import classify
    from broker.errors import UsageError
    from broker.request.operation import ShellText

    match args.text:
        case [word]:
            text = sys.stdin.read() if word == "-" else word
        case []:
            raise UsageError("what is to be explained? Give a shell text: broker explain 'git status'")
        case words:
            import shlex

            raise UsageError(f"give the text as one word: broker explain {shlex.quote(' '.join(words))}")
    context = context_of(args)
    answer = classify(ShellText(text=text, dialect=context.dialect), context)
    if args.json:
        print(json.dumps(explained(text, answer), ensure_ascii=False, indent=2))
    else:
        print("\n".join(drawn(text, answer)))
    return 0


def explained(text: str, answer: Assessment) -> dict[str, Any]:
    """Everything that was found, as plain data."""
    return {
        "text": _clean(text),
        **answer_of(answer),
        "parts": [
            {
                "kind": part.kind.value,
                "argv": [_clean(word) for word in part.argv],
                "static": part.static,
                "effects": [risk.label for risk in sorted(part.effects)],
                "span": part.span,
                "within": part.within,
                "reasons": [
                    {"rule": _clean(reason.rule), "class": reason.risk.label, "text": _clean(reason.text)}
                    for reason in part.reasons
                ],
            }
            for part in answer.parts
        ],
    }


def drawn(text: str, answer: Assessment) -> list[str]:
    """The tree as lines for people."""
    lines = [
        _printable(text) if "\n" not in text else _printable(text.split("\n", 1)[0]) + " …",
        f"= {_labels(answer.effects)}",
    ]
    children: dict[int | None, list[int]] = {}
    for index, part in enumerate(answer.parts):
        children.setdefault(part.within, []).append(index)

    def draw(parent: int | None, indent: str) -> None:
        below = children.get(parent, [])
        for position, index in enumerate(below):
            last = position == len(below) - 1
            part = answer.parts[index]
            passes_on = bool(children.get(index)) and part.risk is Risk.SAFE and not part.reasons
            said = "nothing of its own" if passes_on else _labels(part.effects)
            lines.append(f"{indent}{'└─' if last else '├─'} {_headline(text, part)}: {said}")
            inner = indent + ("   " if last else "│  ")
            bar = "│ " if children.get(index) else "  "
            lines.extend(f"{inner}{bar}{line}" for line in _reasons(part))
            draw(index, inner)

    draw(None, "")
    lines.append(f"classifier {answer.classifier}, tables {answer.tables[:12]}")
    return lines


def _quoted(word: str) -> str:
    """A word as one would type it: quoted only where it must be."""
    if word and not set(word) & set(" \t\n'\"\\$`|&;<>()*?[]{}#~!"):
        return word
    return "'" + word.replace("'", "'\\''") + "'"


def _labels(effects: Iterable[Risk]) -> str:
    """The classes, worst first. That something is also safe is worth a word only where nothing else is."""
    return ", ".join(risk.label for risk in sorted(effects, reverse=True) if risk) or Risk.SAFE.label


def _reasons(part: Part) -> list[str]:
    """A part's reasons, worst first; those that say the same of several classes are one."""
    said: dict[tuple[str, str], list[Risk]] = {}
    for reason in sorted(part.reasons, key=lambda reason: -reason.risk):
        if reason.risk or part.risk is Risk.SAFE:
            said.setdefault((reason.text, reason.rule), []).append(reason.risk)
    return [
        f"{_labels(risks)}: {_printable(text)} [{_printable(rule)}]" for (text, rule), risks in said.items()
    ]


def _headline(text: str, part: Part) -> str:
    # The operator of a redirection is not a word of its own.
    operator, operands = ("", part.argv) if part.kind != "redirect" else (part.argv[0] + " ", part.argv[1:])
    words = operator + " ".join(_printable(_quoted(word)) for word in operands)
    if not words and part.span is not None:
        words = _printable(text[part.span[0] : part.span[1]].split("\n", 1)[0])
    if len(words) > 90:
        words = words[:89] + "…"
    place = f" @{part.span[0]}-{part.span[1]}" if part.span is not None else ""
    kind = f"{part.kind.value} " if part.kind.value in ("redirect", "assignment") else ""
    return f"{kind}{words}{place}"
