"""Step 5, reading: which events a reader wants.

In: an event, and what is known from the events before it (which profile its task is under). Out: yes or no.
Pure. The index keeps the facts of each event apart from its text, so a question that is about facts only is
answered by the same function for a line that was just read and for one that was indexed a year ago.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from broker.classify.risk import Risk
from broker.errors import UsageError
from broker.record import event
from broker.values import dataclass

# These refuse by their type, and carry no verdict of their own.
_REFUSALS = frozenset({event.EXEC_RACE, event.EXEC_UNREADABLE, event.EXEC_TOO_LARGE, "call.refused"})
_PROFILE_SAID = frozenset({event.RUN_STARTED, event.TASK_CREATED})


class Facts(NamedTuple):
    """What can be asked about an event without its text. Few combinations occur, however many events."""

    task: str
    type: str
    verdict: str  # allow, ask, deny; "" where nothing was decided
    effects: tuple[str, ...]  # classes, from harmless to forbidden
    rules: tuple[str, ...]  # who decided, then every rule that spoke
    profile: str  # of the event's task


class Reader:
    """Makes facts of one run's events, which must come in their order: a task's profile is said once."""

    def __init__(self, profiles: dict[str, str] | None = None) -> None:
        """Start before the first event, or where `profiles` (task path to name) is already known."""
        self.profiles = {} if profiles is None else profiles

    def facts(self, one: dict[str, Any]) -> Facts:
        """Return the facts of the next event. Any JSON object will do: a reader must not stop at strange ones."""
        task, kind = str(one.get("task", "")), str(one.get("type", ""))
        if kind in _PROFILE_SAID and isinstance(said := one.get("profile"), str):
            self.profiles[task] = said
        profile = self.profiles.get(task)
        if profile is None:
            profile = self._profile_of(task)
        return Facts(task, kind, _verdict(one, kind), _effects(one), _rules(one), profile)

    def _profile_of(self, task: str) -> str:
        """Return the task's profile, else its nearest ancestor's."""
        while task not in self.profiles and "/" in task:
            task = task.rpartition("/")[0]
        return self.profiles.get(task, "")


def _verdict(one: dict[str, Any], kind: str) -> str:
    said = one.get("verdict")
    if isinstance(said, str):
        return said
    return "deny" if kind.startswith(event.TASK_DENIED) or kind in _REFUSALS else ""


def _effects(one: dict[str, Any]) -> tuple[str, ...]:
    effects = one.get("effects")
    if isinstance(effects, list) and one.get("type") != event.TASK_CREATED:  # there: what the envelope permits
        return tuple(map(str, effects))
    worst = one.get("class")
    return (worst,) if isinstance(worst, str) else ()


def _rules(one: dict[str, Any]) -> tuple[str, ...]:
    rule, reasons = one.get("rule"), one.get("reasons")
    rules = [rule] if isinstance(rule, str) and rule else []
    if isinstance(reasons, list):
        rules += [str(each["rule"]) for each in reasons if isinstance(each, dict) and "rule" in each]
    return tuple(dict.fromkeys(rules))


def when(one: dict[str, Any]) -> int:
    """Return an event's time in microseconds since 1970; 0 for one that has none."""
    text = one.get("time")
    if not isinstance(text, str):
        return 0
    try:
        if len(text) == 27 and text[19] == "." and text[26] == "Z":  # as the journal writes it
            return _second(text[:19]) + int(text[20:26])
        return _micros(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        return 0


@lru_cache(maxsize=8)
def _second(text: str) -> int:
    return _micros(datetime.fromisoformat(text))


def _micros(moment: datetime) -> int:
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskFilter:
    """`install`: has this class. `==install`: is at worst this. `>=install`, `<=install`: at worst, by the order."""

    compare: Callable[[int, int], bool] | None
    risk: Risk

    def admits(self, effects: tuple[str, ...]) -> bool:
        """Tell whether an event with these classes is meant; one without any never is."""
        if self.compare is None:
            return self.risk.label in effects
        known = [_RISKS[label] for label in effects if label in _RISKS]
        return bool(known) and self.compare(max(known), self.risk)

    @classmethod
    def parse(cls, text: str) -> RiskFilter:
        """Read `>=install`. Raises UsageError with the classes there are."""
        match = re.fullmatch(r"\s*(>=|<=|==|=|>|<)?\s*([\w-]+)\s*", text)
        label = match[2].replace("-", "_") if match else ""
        if match is None or label not in _RISKS:
            raise UsageError(
                f"--risk takes a class, or a comparison with one ('>=install', quoted, or the shell redirects), "
                f"not {text!r}. Classes: {', '.join(_RISKS)}"
            )
        return cls(compare=_COMPARE[match[1] or ""], risk=_RISKS[label])


_RISKS = {risk.label: risk for risk in Risk}
_COMPARE: dict[str, Callable[[int, int], bool] | None] = {
    "": None, "=": operator.eq, "==": operator.eq, ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """All that is given must fit; of several values for one thing, one of them."""

    types: tuple[str, ...] = ()
    verdicts: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    profiles: tuple[str, ...] = ()
    risk: RiskFilter | None = None
    since: int | None = None  # microseconds since 1970, both ends included
    until: int | None = None
    grep: str = ""

    @property
    def by_facts(self) -> bool:
        """Whether anything is asked about facts."""
        return bool(self.types or self.verdicts or self.tasks or self.rules or self.profiles or self.risk)

    def admits(self, facts: Facts) -> bool:
        """Tell whether events with these facts are wanted, as far as facts can tell."""
        return (
            (not self.verdicts or facts.verdict in self.verdicts)
            and (not self.types or any(_within(facts.type, wanted, ".") for wanted in self.types))
            and (not self.tasks or any(_within(facts.task, wanted, "/") for wanted in self.tasks))
            and (not self.profiles or facts.profile in self.profiles)
            and (not self.rules or any(_within(rule, wanted, ".:/") for rule in facts.rules for wanted in self.rules))
            and (self.risk is None or self.risk.admits(facts.effects))
        )

    def in_time(self, micros: int) -> bool:
        """Tell whether a moment is within the times asked for."""
        return (self.since is None or micros >= self.since) and (self.until is None or micros <= self.until)

    def in_text(self, line: bytes) -> bool:
        """Tell whether a line holds the text asked for."""
        return not self.grep or needle(self.grep)[1].search(line) is not None


def _within(name: str, wanted: str, separators: str) -> bool:
    """Tell whether a name is the wanted one or below it: `task.denied.repeated` is within `task.denied`."""
    return name == wanted or (name.startswith(wanted) and (wanted[-1:] in separators or name[len(wanted)] in separators))


@lru_cache(maxsize=4)
def needle(text: str) -> tuple[bytes, re.Pattern[bytes]]:
    r"""Return how a text is looked for in a line: its longest word (a fast test), and an expression (the exact one).

    The text is what a person sees; the line holds it as JSON. A space also stands for the gap between two
    arguments, which in the line are two strings: `curl https://x` finds ["curl","https://x"].
    """
    words = [json.dumps(word)[1:-1].encode("ascii") for word in text.split(" ")]
    return max(words, key=len), re.compile(rb'(?: |",")'.join(re.escape(word) for word in words))


_AGO = re.compile(r"(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?:in)?)?(?:(\d+)s)?(?: ago)?")


def moment(text: str, now: datetime) -> int:
    """Return what `--since` and `--until` mean, in microseconds since 1970. A time without a zone is UTC.

    RFC 3339, a date, `HH:MM` of today, `now`, `today`, `yesterday`, or how long ago: `90s`, `10m`, `2h30m`, `1d`, `2w`.
    Raises UsageError.
    """
    day = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    named = {"now": now, "today": day, "yesterday": day - timedelta(days=1)}
    word = text.strip().lower()
    if word in named:
        return _micros(named[word])
    if (ago := _AGO.fullmatch(word)) and any(ago.groups()):
        weeks, days, hours, minutes, seconds = (int(each or 0) for each in ago.groups())
        try:
            span = timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)
            return max(0, _micros(now - span))
        except OverflowError:
            return 0
    try:
        if re.fullmatch(r"\d{1,2}:\d\d(:\d\d)?", word):
            return _micros(datetime.fromisoformat(f"{day:%Y-%m-%d}T{'0' * (word[1] == ':')}{word}"))
        return _micros(datetime.fromisoformat(text.strip()))
    except ValueError:
        raise UsageError(
            f"{text!r} is no time. Write 2026-11-30T04:30:00Z, 2026-11-30, 14:05, yesterday, or how long ago: 10m, 2h, 1d"
        ) from None
