"""Step 2: texts for other shells than bash. In goes a text and its shell; out comes why bash's reading is not that shell's.

Every text is read as bash reads it. Most of what people hand to sh, zsh or fish means the same there; what surely or
possibly does not is named here, and makes the answer `unknown`.
"""

from __future__ import annotations

import re

from broker.classify.braces import expand_braces
from broker.classify.risk import Reason, Risk
from broker.classify.tokens import Kind, Unreadable, cut

SH = frozenset(["sh", "dash", "ash", "posh", "yash", "mksh", "lksh", "rsh"])
OF_THEIR_OWN = frozenset(["fish", "csh", "tcsh"])
NOT_ALIKE = frozenset(["nu", "elvish", "xonsh", "pwsh", "powershell"])

# Where a command can start: `((` and `[[` are grammar in bash, and two parentheses or a program's name in sh.
_BASH_TEST = re.compile(r"(?:^|[\s;&|({!])(?:\(\(|\[\[\s)")

_ZSH_CODE_IN_PATTERN = re.compile(
    r"\((?:#q)?[#^.\w/@,*=%-]*(?:[eP]|[oO]?e)[:'\"\[{<]|\((?:#q)?[#^.\w/@,*=%-]*\+\w"
)
_ZSH_EVALUATES = re.compile(r"\$\{[=~^]*\([^()]{0,40}e")
_ZSH = re.compile(
    r"[>|]&?!|&?>>?&?!|>>?&[|]|&>>?\|"  # >! f, >>! f, &>! f: in bash `!` is the file and f an operand
    r"|\$\w+\["  # $x[1,3]: a piece of the value
    r"|\$\w+:[aAcehlpPqQrstuxw&](?![\w/])"  # $x:h: a modifier
    r"|\$[=~^]+\w"  # $=x: split, $~x: a pattern
    r"|\$\{\w+:[aAcehlpPqQrstux&](?![\w/])"
    r"|<\d*-\d*>"  # a range of numbers in a pattern
    r"|\bhash\s+-\w*d"  # ~name
    r"|(?:^|[\s;&|({])(?:repeat|foreach|noglob|nocorrect|always|-)\s"
    r"|(?:^|[\s;&|({])=\w"  # =program
    r"|\bfunction\s+\w+\s+\w+"
    r'|\$"|\{,|,,|,\}'  # no translation; an empty alternative is a word
    r"|\b(?:export|typeset|declare|local|readonly)\s[^;\n]{0,200}?=\{"
)

# Words, simple quotes, and what joins commands: these all shells read alike.
_ALIKE = re.compile(
    r"(?:[\w./:=@%+,~\-\[\] \t\n]|'[^'\\\n!]*'|\"[^\"\\$`!(\n]*\"|;|&&|\|\|?|[12]?>>?[ \t]*(?=[\w./~])|2>&1|<[ \t]*(?=[\w./~]))*+"
)


def unlike_bash(shell: str, text: str) -> Reason | None:
    """Return why a text may mean something else to this shell than it does to bash; None if it does not."""
    if shell in SH:
        if ("((" in text or "[[" in text) and _BASH_TEST.search(text):
            return _unknown("sh has neither [[ nor ((: what stands in them may be commands and redirections.")
        if ("{" in text or "$'" in text or '$"' in text or "~" in text) and _has_words_of_bash(text):
            return _unknown("sh expands neither braces nor $'…' nor ~+: its words are others.")
    elif shell == "zsh" or shell == "rzsh":
        if _ZSH_CODE_IN_PATTERN.search(text):
            why = "A zsh glob qualifier runs code for each name."
            return Reason(rule="shell.glob_qualifier", risk=Risk.CODE_EXECUTION, text=why)
        if _ZSH_EVALUATES.search(text):
            why = "zsh's ${(e)…} runs the commands inside the value."
            return Reason(rule="shell.zsh_evaluates", risk=Risk.CODE_EXECUTION, text=why)
        if (found := _ZSH.search(text)) is not None:
            return _unknown(f"zsh reads {found.group().strip()!r} in its own way.")
    elif shell in OF_THEIR_OWN:
        if _ALIKE.fullmatch(text) is None:
            return _unknown(
                f"{shell} has a language of its own, and this text need not mean there what it does in bash."
            )
    elif shell in NOT_ALIKE:
        return _unknown(f"{shell} has a language of its own.")
    return None


def _has_words_of_bash(text: str) -> bool:
    """Whether a word of the text expands in bash and not in sh."""
    try:
        tokens, _ = cut(text)
        return any(
            ("{" in token.raw and expand_braces(token.raw) != [token.raw])
            or token.raw.startswith(("~+", "~-"))
            or any(found.group(1) for found in _QUOTES.finditer(token.raw))
            for token in tokens
            if token.kind in (Kind.WORD, Kind.REDIRECT)
        )
    except Unreadable:
        return False  # it is unknown anyway


_QUOTES = re.compile(r"\\.|\$(['\"])|'[^']*'|\"(?:\\.|[^\"\\])*\"", re.DOTALL)


def _unknown(why: str) -> Reason:
    return Reason(rule="shell.dialect", risk=Risk.UNKNOWN, text=why)
