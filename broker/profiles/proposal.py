"""From what was refused to what could be listed: proposals, questions, and what is never proposed, with the reason.

In: refusals, and the profile as it is. Out: sorted suggestions. Only exact entries are ever proposed. What loses data, plants
something, or is not understood is not, however often it was tried: an agent could otherwise widen its own profile by trying.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import pairwise
from typing import Any

from broker.classify.risk import Risk
from broker.decide.envelope import GRANTED
from broker.decide.profile import AllowEntry, Profile
from broker.decide.verdict import Deny, Layer
from broker.decide.wording import classes, command_line, shorten
from broker.profiles.command_line import CommandLineError, parse_command_line
from broker.profiles.denials import Refusals, Tried, Withheld
from broker.profiles.doors import open_door
from broker.profiles.judge import judge
from broker.values import dataclass

# So many commands that differ in one word are one question: of data (a path, a number), the next one will be another;
# of plain words, such as targets of make, some are simply several commands.
ALIKE = 3
ALIKE_WORDS = 8

LONGEST = 500  # characters of an entry that is proposed

_NEVER = frozenset({Risk.PERSISTENCE, Risk.DESTRUCTIVE, Risk.UNKNOWN, Risk.BLOCKED})
_INLINE = frozenset({"-c", "-e", "-r", "--eval", "-p", "--print"})
_CODE = re.compile(r"""[ ();'"]""")
_PLAIN_WORD = re.compile(r"[A-Za-z][A-Za-z:_-]*")
_ASKED = frozenset({Risk.INSTALL, Risk.NETWORK_EGRESS, Risk.SYSTEM_WRITE})


class Kind(StrEnum):
    """What is done with a refused command."""

    PROPOSAL = "proposal"  # in the patch
    QUESTION = "question"  # in the patch if it is picked
    NEVER = "never"  # not proposed, whatever its count
    CANNOT = "cannot"  # an entry would not match it
    PERMITTED = "permitted"  # the profile permits it as it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """One refused command, or several that differ in one word. `number` is what --pick takes; 0: none."""

    kind: Kind
    commands: tuple[tuple[str, ...], ...]
    count: int
    tasks: tuple[str, ...]
    effects: frozenset[Risk]
    why: str
    number: int = 0

    @property
    def opens(self) -> str:
        """What the entry, or the entries, would open."""
        many = len(self.commands) > 1
        itself = self.effects - {Risk.SAFE}
        said = f"{'they are' if many else 'it is'} {classes(itself)}; " if itself else ""
        return f"{said}what {'they start' if many else 'it starts'} may be {classes(GRANTED)}"

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "number": self.number,
            "kind": self.kind.value,
            "commands": [list(argv) for argv in self.commands],
            "count": self.count,
            "tasks": list(self.tasks),
            "effects": [risk.label for risk in sorted(self.effects)],
            "opens": self.opens if self.kind in {Kind.PROPOSAL, Kind.QUESTION} else "",
            "why": self.why,
        }


def landing_question(rule: str) -> str:
    """Return what would let this kind of change land, or nothing: for what git itself obeys, nobody is even asked."""
    return "" if ".git/" in rule or rule.startswith("contents.git-") else f'land.allow = ["{rule}"]'


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestions:
    """Everything, sorted: what is proposed first, the most frequent first."""

    all: tuple[Suggestion, ...]
    landings: tuple[Withheld, ...]

    def of(self, kind: Kind) -> tuple[Suggestion, ...]:
        """Return those of one kind."""
        return tuple(each for each in self.all if each.kind is kind)

    def picked(self, numbers: Iterable[int] | None) -> tuple[tuple[str, ...], ...]:
        """Return the commands to list: all proposals, or those of the numbers."""
        wanted = None if numbers is None else set(numbers)
        return tuple(
            argv
            for each in self.all
            if each.number and (each.kind is Kind.PROPOSAL if wanted is None else each.number in wanted)
            for argv in each.commands
        )


def suggest(refusals: Refusals, profile: Profile, denies: Sequence[str] = ()) -> Suggestions:
    """Return what could be listed. `denies` are the profile's examples of what must be refused."""
    single = [_one(tried, profile, denies) for tried in refusals.of(profile.name)]
    merged: list[Suggestion] = []
    for kind in (Kind.PROPOSAL, Kind.QUESTION):
        merged += _merge([each for each in single if each.kind is kind])
    merged += [each for each in single if each.kind not in {Kind.PROPOSAL, Kind.QUESTION}]
    order = list(Kind)
    merged.sort(key=lambda each: (order.index(each.kind), -each.count, each.commands))
    numbered: list[Suggestion] = []
    for each in merged:
        pickable = each.kind in {Kind.PROPOSAL, Kind.QUESTION}
        numbered.append(replace(each, number=len(numbered) + 1) if pickable else each)
    landings = sorted(refusals.landings.values(), key=lambda each: (-each.count, each.rule))
    return Suggestions(all=tuple(numbered), landings=tuple(each for each in landings if each.rule not in profile.lands))


def _one(tried: Tried, profile: Profile, denies: Sequence[str]) -> Suggestion:
    kind, effects, why = _judged(tried, profile, denies)
    return Suggestion(
        kind=kind, commands=(tried.argv,), count=tried.count, tasks=tuple(tried.tasks), effects=effects, why=why
    )


def _judged(tried: Tried, profile: Profile, denies: Sequence[str]) -> tuple[Kind, frozenset[Risk], str]:
    answers = [judge(start, profile, context=context) for start, context in tried.starts.items()]
    effects = frozenset[Risk]().union(*(each.assessment.effects for each in answers))
    if tried.redacted:
        return Kind.CANNOT, effects, "a secret was left out of the record, and an entry needs each word as it was"
    if all(each.allowed for each in answers):
        return Kind.PERMITTED, effects, "the profile permits it: it was another then, or a task above refused it"
    if never := effects & _NEVER:
        return Kind.NEVER, effects, f"it is {classes(never)}"
    for answer in answers:
        if isinstance(answer.verdict, Deny) and (answer.verdict.layer is Layer.DENYLIST or answer.verdict.rule.startswith("tool.")):
            return Kind.NEVER, effects, answer.verdict.reason.rstrip(".")
    if problem := _not_an_entry(tried.argv):
        return Kind.CANNOT, effects, problem
    listed = replace(profile, allowlist=(*profile.allowlist, AllowEntry(argv=tried.argv)))
    after = zip(answers, tried.starts.values(), strict=True)
    if not any(each.under(listed, context).allowed for each, context in after):
        return Kind.CANNOT, effects, _why_no_match(tried)
    for example in denies:
        if judge(example, listed).allowed:
            return Kind.NEVER, effects, f"the profile's own denies has `{shorten(example)}`"
    return _how(tried, effects)


def _how(tried: Tried, effects: frozenset[Risk]) -> tuple[Kind, frozenset[Risk], str]:
    if asked := effects & _ASKED:
        return Kind.QUESTION, effects, f"it is {classes(asked)}" + (
            ", and there is no network to reach" if asked == {Risk.NETWORK_EGRESS} else ""
        )
    if door := open_door(tried.argv):
        return Kind.QUESTION, effects, f"it {door}"
    if any(option in _INLINE and _CODE.search(text) for option, text in pairwise(tried.argv)):
        return Kind.QUESTION, effects, "its program is written out in the command, and will be another next time"
    return Kind.PROPOSAL, effects, ""


def _not_an_entry(argv: tuple[str, ...]) -> str:
    """Return why no entry can be written for these words, or nothing."""
    if sum(map(len, argv)) + len(argv) > LONGEST:
        return "it is too long for anybody to read"
    try:
        same = parse_command_line(entry_text(argv)) == argv
    except CommandLineError as error:
        return f"no entry can be written for it: {error}"
    if "/" in argv[0] and not argv[0].startswith("/"):
        return f"{argv[0]} lies in the workspace, where the task can rewrite it"
    return "" if same else "no entry can be written for it"


def entry_text(argv: tuple[str, ...]) -> str:
    """Return the words as an entry is written."""
    return AllowEntry(argv=argv).text


def _why_no_match(tried: Tried) -> str:
    for start, context in tried.starts.items():
        for root in context.writable_roots:
            if start.program.startswith(root.rstrip("/") + "/"):
                return f"an entry would not match: {start.program} lies where the task can write"
    return "an entry would not match: it was started by another name, or with an environment that changes what runs"


def _merge(found: list[Suggestion]) -> list[Suggestion]:
    """Make one question of commands of one shape that differ in a single word."""
    groups: dict[tuple[int, tuple[str, ...], tuple[str, ...]], list[Suggestion]] = {}
    for each in found:
        argv = each.commands[0]
        for at in range(1, len(argv)):
            groups.setdefault((at, argv[:at], argv[at + 1 :]), []).append(each)
    taken: set[tuple[str, ...]] = set()
    made: list[Suggestion] = []
    for (at, _, _), members in sorted(groups.items(), key=lambda item: -len(item[1])):
        rest = [each for each in members if each.commands[0] not in taken]
        plain = all(_PLAIN_WORD.fullmatch(each.commands[0][at]) for each in rest)
        if len(rest) < (ALIKE_WORDS if plain else ALIKE):
            continue
        taken |= {each.commands[0] for each in rest}
        made.append(_alike(rest, at))
    return made + [each for each in found if each.commands[0] not in taken]


def _alike(members: list[Suggestion], at: int) -> Suggestion:
    first = members[0].commands[0]
    shape = f"{command_line(first[:at])} … {command_line(first[at + 1 :]) if first[at + 1 :] else ''}".strip()
    others = f"; {members[0].why}" if members[0].why else ""
    return Suggestion(
        kind=Kind.QUESTION,
        commands=tuple(sorted(each.commands[0] for each in members)),
        count=sum(each.count for each in members),
        tasks=tuple(dict.fromkeys(task for each in members for task in each.tasks)),
        effects=frozenset[Risk]().union(*(each.effects for each in members)),
        why=f"{len(members)} commands `{shape}` differ in one word, and the next one will be another: "
        f"is there one command that does for all?{others}",
    )
