"""Readers for curl, ssh, socat and browsers."""

from __future__ import annotations

import re

from broker.classify.call import Call, like, reader
from broker.classify.commands import by_grammar
from broker.classify.grammar import parse
from broker.classify.risk import Risk
from broker.classify.roles import judge_options
from broker.classify.scope import shown


@reader("curl")
def _curl(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    if call.marks & {"local"} and not parsed.operands:
        return
    call.add(Risk.NETWORK_EGRESS, f"program.{call.entry.name}", f"{call.name} reaches out to the network.")
    for option, value in parsed.options:
        if value is not None and option.role == "" and "data" in option.marks and "@" in value.text[:64]:
            name = value.text.split("@", 1)[1].split(";", 1)[0]
            if name and name != "-":
                call.read(like(value, name))
    for word in parsed.operands:
        if word.text.startswith("file://"):
            call.read(like(word, word.text[7:]))


@reader("ssh")
def _ssh(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    if "local" in call.marks:
        return
    for option, value in parsed.options:
        if (
            "setting" in option.marks
            and value is not None
            and re.match(
                r"\s*(?:proxycommand|localcommand|permitlocalcommand|knownhostscommand|pkcs11provider|securitykeyprovider|include|match)\b",
                value.text,
                re.IGNORECASE,
            )
        ):
            call.add(
                Risk.CODE_EXECUTION, "option.ssh-o", f"ssh -o {shown(value.text)} can run a program here."
            )
    if parsed.rest or parsed.operands:
        call.add(
            Risk.NETWORK_EGRESS, f"program.{call.entry.name}", f"{call.name} reaches out to the network."
        )


@reader("socat")
def _socat(call: Call) -> None:
    by_grammar(call)
    for word in call.words[1:]:
        kind, _, rest = word.text.partition(":")
        if kind.upper() in ("EXEC", "SYSTEM", "SHELL"):
            call.add(Risk.CODE_EXECUTION, "option.socat-exec", f"socat starts {shown(rest)}.")
            if word.known:
                call.shell_text(rest.split(",", 1)[0])
        elif kind.upper() in ("OPEN", "FILE", "CREATE", "GOPEN"):
            call.write(like(word, rest.split(",", 1)[0]))


_ONLY_SAYS = frozenset(("--version", "--product-version", "--help", "-version", "-help", "-h"))
_SHORT_VERSION = frozenset(
    ("firefox", "firefox-esr", "firefox-bin", "librewolf")
)  # elsewhere -v is not version


@reader("browser")
def _browser(call: Call) -> None:
    """A browser asked for its version or help prints that and ends, whatever other options stand beside it.

    Distributions start the real program with options of their own in front (`chromium --show-component… --version`).
    An operand, or a word that is not known, makes it a start like any other.
    """
    words = call.words[1:]
    asked = any(
        word.text in _ONLY_SAYS or (word.text in ("-v", "-V") and call.name in _SHORT_VERSION)
        for word in words
    )
    if asked and all(word.known and not word.glob and word.text.startswith("-") for word in words):
        call.add(Risk.SAFE, "program.help", f"{call.name} only prints its help or version.")
        return
    by_grammar(call)
