"""Rules on command texts, as most agents have them: a pattern, and allow, ask or deny.

In: a tool's rules, and how that tool settles which of them counts. Out: a draft with what can be said here: exact commands that
the tool really permits, denied beginnings, and a ceiling where it permits everything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from broker.classify.risk import Risk
from broker.profiles.command_line import CommandLineError, parse_command_line
from broker.profiles.importers.draft import PREFIX, Draft
from broker.values import dataclass

ALLOW, ASK, DENY = "allow", "ask", "deny"
_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRule:
    """One rule. `exact` is the command if the pattern is one; `pattern` is matched against a whole command's text.

    `words` are the literal words it begins with; `whole`: those words with anything behind them, and nothing else, are what
    it matches. `shown` is how people wrote it.
    """

    decision: str
    shown: str
    pattern: re.Pattern[str]
    exact: str | None = None
    words: tuple[str, ...] = ()
    whole: bool = False

    @property
    def everything(self) -> bool:
        """Whether it is about every command."""
        return self.exact is None and not self.words and self.pattern.fullmatch("x y -z 'q'") is not None

    def matches(self, text: str) -> bool:
        """Whether the rule is about this command."""
        return self.pattern.fullmatch(text) is not None


def glob_rule(decision: str, text: str, shown: str) -> CommandRule:
    """Return the rule of a pattern with `*` and `?`, a trailing ` *` or `:*` standing for any arguments, or none."""
    stem = text.strip()
    tail = ""
    for ending in (":*", " *"):
        if stem.endswith(ending):
            stem, tail = stem[: -len(ending)], r"(\s.*)?"
            break
    body = "".join(".*" if char == "*" else "." if char == "?" else re.escape(char) for char in stem)
    pattern = re.compile(body + tail, re.DOTALL)
    literal = _GLOB.search(stem) is None
    if literal and not tail:
        return CommandRule(decision=decision, shown=shown, pattern=pattern, exact=stem)
    if literal:
        words = _words(stem)
        return CommandRule(decision=decision, shown=shown, pattern=pattern, words=words, whole=bool(words))
    before = stem[: _GLOB.search(stem).start()]  # type: ignore[union-attr]
    whole_words = before.rpartition(" ")[0]  # the word that holds the wildcard is not known
    return CommandRule(decision=decision, shown=shown, pattern=pattern, words=_words(whole_words))


def _words(text: str) -> tuple[str, ...]:
    try:
        return parse_command_line(text) if text.strip() else ()
    except CommandLineError:
        return tuple(text.split()[:1])


def apply_rules(draft: Draft, rules: Sequence[CommandRule], settle: Callable[[str], str]) -> None:
    """Carry the rules over. `settle` says what the tool does with a command: allow, ask or deny."""
    for rule in rules:
        if rule.decision == ALLOW:
            _allow(draft, rule, settle)
    for rule in rules:
        if rule.decision != ALLOW:
            _refuse(draft, rule)


def _allow(draft: Draft, rule: CommandRule, settle: Callable[[str], str]) -> None:
    if rule.everything:
        draft.raise_to(Risk.LOCAL_WRITE)
        draft.narrowed(rule.shown, 'every command: max_risk = "local_write". List what is to run code')
    elif rule.exact is None:
        draft.dropped(rule.shown, PREFIX)
    elif (decided := settle(rule.exact)) != ALLOW:
        draft.dropped(rule.shown, f"another rule makes it {decided}")
    else:
        draft.list_exact(rule.exact, rule.shown)


def _refuse(draft: Draft, rule: CommandRule) -> None:
    asked = rule.decision == ASK
    shown = f"{rule.shown} ({rule.decision})"
    if rule.everything:
        draft.lower_to(Risk.SAFE)
        if not asked:
            draft.disabled.setdefault("shell")
            draft.narrowed(shown, "the tool shell is taken away, and the ceiling is safe")
        else:
            draft.imported(shown, "what is not listed is not permitted")
        return
    words = rule.words or (_words(rule.exact) if rule.exact else ())
    if words:
        draft.deny_beginning(words, shown, exactly=not asked and rule.whole)
        return
    draft.lower_to(Risk.SAFE)
    draft.narrowed(shown, "no beginning of a command, so the ceiling is safe; what is safe is permitted all the same")
