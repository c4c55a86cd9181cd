"""Step 5: whether an event can hold a secret at all: the quick look before the long one (redact.py).

In: an event's plain fields. Out: yes or no, and never a wrong no (test_redact.py). Most texts of most events come again
and again, so that those without a needle are remembered.
"""

from __future__ import annotations

from typing import Any

from broker.record.redact_rules import RULES

# Where none of these is in a text, in small letters, no rule can match it, and it names no program whose short options hold one.
NEEDLES = (
    *dict.fromkeys(needle for rule in RULES for needle in rule.needles),
    "mysql", "mariadb", "mongo", "redis-cli", "login", "curl", "smbclient", "rpcclient", "zip", "sqlcmd", "bcp", "7z", "rar", "ldap",
)  # fmt: skip

_REMEMBERED, _REMEMBERED_LENGTH = 4096, 256
_HOLD = frozenset({dict, list, tuple})
# Fields that hold words of ours only, wherever they stand.
OURS = frozenset((
    "run", "task", "type", "time", "classifier", "tables", "digest", "sha256", "rule", "class", "layer", "kind", "effects", "refused", "verdict",
))  # fmt: skip
_ODD_LETTERS = str.maketrans({"\u0130": "i", "\u0131": "i", "\u017f": "s", "\u212a": "k"})
_clean: set[str] = set()  # short texts that hold no needle


def in_small_letters(text: str) -> str:
    """Return a text as expressions read it that ignore case: four letters more than ASCII's are its i, k and s."""
    return (text if text.isascii() else text.translate(_ODD_LETTERS)).lower()


def may_hold(text: str) -> bool:
    """Tell whether a rule can match at all: quick, and never wrongly no."""
    if text in _clean:
        return False
    small = in_small_letters(text)
    if any(needle in small for needle in NEEDLES):
        return True
    if len(text) <= _REMEMBERED_LENGTH:
        if len(_clean) >= _REMEMBERED:
            _clean.clear()
        _clean.add(text)
    return False


def may_hold_any(value: Any) -> bool:
    """The same for what an event holds. Most of its texts come again and again: those are looked at once."""
    # Loops, not any(): it is half the time, and every event pays it.
    if isinstance(value, dict):
        for name, item in value.items():
            if name in OURS:
                continue
            if name not in _clean and may_hold(name):
                return True
            if item not in _clean and may_hold(item) if type(item) is str else type(item) in _HOLD and may_hold_any(item):
                return True
        return False
    if isinstance(value, (list, tuple)):
        for item in value:
            if item not in _clean and may_hold(item) if type(item) is str else type(item) in _HOLD and may_hold_any(item):
                return True
        return False
    return isinstance(value, str) and may_hold(value)
