"""A recorded refusal in plain words: what happened, why, and which key of which profile would allow it.

In: the events about it. Out: three paragraphs. Nothing is proposed that could not work: where an entry would not
match, or a class cannot be given, that is said instead. Whether it *should* be allowed is the reader's to say.
"""

from __future__ import annotations

import contextlib
import json
import posixpath
import re
import shlex
from dataclasses import field
from typing import Any

from broker.cli.terminal import escape, shorten
from broker.decide.wording import listed
from broker.profiles.command_line import CommandLineError, parse_command_line
from broker.profiles.explain import MEANINGS
from broker.record.redact import MARK
from broker.values import dataclass

_MEANINGS = {risk.label: text for risk, text in MEANINGS.items()}
_NOT_FOR_DESCENDANTS = frozenset({"persistence", "unknown", "blocked"})
_DELEGATE_KEYS = frozenset({"profiles", "depth", "breadth", "tasks", "cpu_time", "time", "memory"})
_UNTRUSTED_MAY = frozenset({"safe", "local_write"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Denial:
    """One refusal, gathered from the events that tell of it."""

    run: str
    task: str
    time: str
    type: str
    what: str
    reason: str
    rule: str
    layer: str
    refused: tuple[str, ...]
    hint: str = ""
    operation: dict[str, Any] = field(default_factory=dict)
    count: int = 1
    profile: str = ""
    source: str = ""  # the profile's file
    trust: str = ""
    writable: tuple[str, ...] = ()
    planting: tuple[str, ...] = ()  # every rule that makes it persistence

    @property
    def argv(self) -> tuple[str, ...]:
        """What an entry would have to say; () when no program was to start."""
        words = self.operation.get("argv") if self.operation.get("kind") == "exec" else None
        return tuple(map(str, words)) if isinstance(words, list) else ()

    @property
    def landing(self) -> bool:
        """Whether the change was made, in the task's copy, and kept back at the end."""
        return self.layer == "landing"


def paragraphs(denial: Denial) -> tuple[str, str, str]:
    """Return what happened, why, and how to allow it. Safe to print; each one paragraph."""
    return _what(denial), _why(denial), _how(denial)


# --- what happened


def _what(denial: Denial) -> str:
    who = f"task {escape(denial.task)}"
    under = [f"profile {escape(denial.profile)}"] if denial.profile else []
    under += [escape(denial.trust)] if denial.trust == "untrusted" else []
    if under:
        who += f" ({', '.join(under)})"
    when = f"{escape(denial.time[11:19])} UTC on {escape(denial.time[:10])}"
    tried = f"`{_shown(denial.what)}`"
    kind = str(denial.operation.get("kind", ""))
    if denial.landing:
        text = f"{_capital(who)} {_shown(denial.what)}, in its own copy of the workspace. At {when} that was kept back: the real file is as it was."
    elif denial.rule == "sandbox.masked":
        text = f"At {when} {who} opened a file that looks like a secret: {tried}. It saw an empty one."
    elif denial.rule == "net.refused":
        text = f"At {when} {who} tried to {_shown(denial.what)}. It got ENETUNREACH: nothing was sent."
    elif kind == "file_change":
        text = f"At {when} {who} tried to {_shown(denial.what)}. It got EACCES, and nothing was changed."
    elif kind == "delegation" or denial.rule.startswith("delegate."):
        text = f"At {when} {who} asked for a sub-task: {tried}. It was refused, and none was started."
    elif denial.rule.startswith("exec.race"):
        text = f"At {when} {who} started something else than what had been approved: {tried}. It was killed before its first instruction."
    else:
        text = f"At {when} {who} tried to start {tried}. It got EACCES, and the program did not run."
    if denial.count > 1:
        text += f" It tried this {denial.count} times."
    return text


# --- why


def _why(denial: Denial) -> str:
    reason = escape(denial.reason).rstrip()
    text = f"{reason}{'' if reason.endswith(('.', '!', '?')) else '.'}" if reason else "No reason was recorded."
    refused = [name for name in denial.refused if name in _MEANINGS and name != "safe"]
    meanings = [f"{name}: {_MEANINGS[name].partition(' (')[0]}" for name in refused]
    if meanings:
        text += f" ({'; '.join(meanings)}.)"
    return f"{text} Rule {escape(denial.rule) or '-'}; {_LAYERS.get(denial.layer, 'decided by ' + escape(denial.layer))}."


_LAYERS = {
    "classifier": "decided by the classifier, for every profile",
    "profile": "decided by the profile",
    "denylist": "decided by the profile's denylist",
    "grant": "decided by the grant of the entry that it was started under",
    "kernel": "enforced by the kernel, whatever the profile says about classes",
    "landing": "decided when the changes were to land",
    "approval": "decided by whoever was asked",
}


# --- how to allow it


def _how(denial: Denial) -> str:
    if "blocked" in denial.refused or denial.layer == "classifier" or denial.rule in ("landing.broker", "landing.never"):
        return "Nothing can allow this: no profile, no entry, no approval." + _other_way(denial)
    if denial.rule == "sandbox.masked":
        path = _toml(denial.what.removeprefix("read "))
        return f"Show the file: put {path} into `show` of {_section(denial, 'sandbox')}. Whoever runs in the task can then read it."
    if denial.rule == "net.refused":
        return (
            f"Open a way out: a gateway to one upstream (`gateways` of {_section(denial)}), or the host in `hosts` of "
            f"{_section(denial, 'network')}, for programs that use a proxy. No task gets a network of its own."
        )
    if denial.layer == "kernel":
        return "Nothing in a profile allows this: it is what keeps the other answers true." + _other_way(denial)
    if denial.rule.startswith("delegate."):
        return _how_to_delegate(denial)
    if tool := re.fullmatch(r"tool\.(\w+)\.disabled", denial.rule):
        return f"Take {_toml(tool[1])} out of `disabled` in {_section(denial, 'tools')}. Nothing else does: no class, and no entry."
    if denial.landing:
        return _how_to_land(denial)
    if denial.layer == "denylist":
        return _how_past_the_denylist(denial)
    return _how_by_classes(denial)


def _how_to_delegate(denial: Denial) -> str:
    key = denial.rule.partition(".")[2]
    if key in _DELEGATE_KEYS:
        return f"Change `{key}` in {_section(denial, 'delegate')}; the profiles of the tasks above limit it as well."
    if key == "profile":
        return f"Define a profile of that name, where this run looks for profiles (`broker profile list`).{_other_way(denial)}"
    return f"No key of a profile allows this: the request has to be another one.{_other_way(denial)}"


def _how_to_land(denial: Denial) -> str:
    once = f"This once: look at it (`broker diff {denial.run}`), and land it yourself (`broker land {denial.run}`)."
    if _held_by_trust(denial):
        return f"{once} For good there is no way: nothing but workspace files lands for an untrusted task."
    if denial.refused == ("persistence",):
        warning = _obeyed_by_git(denial.rule) or "what lands there runs later, as you"
        return f"{once} Every time: put {_rules(denial)} into `allow` of {_section(denial, 'land')}; {warning}."
    return f"{once} Every time: {_add_classes(denial)}."


def _rules(denial: Denial) -> str:
    return listed(map(_toml, denial.planting or (denial.rule,)))


def _obeyed_by_git(rule: str) -> str:
    return "git itself obeys what is written there, so think twice" if ".git/" in rule or rule.startswith("contents.git-") else ""


def _how_past_the_denylist(denial: Denial) -> str:
    text = f"Take that beginning off the `denylist` of {_section(denial)}"
    entry, why_not = _entry(denial)
    if entry:
        return f"{text}; or put {entry} on its `allowlist`: an exact entry wins over the denylist, and permits this command alone."
    return f"{text}.{why_not}"


def _how_by_classes(denial: Denial) -> str:
    if denial.layer == "grant":
        return _how_within_a_grant(denial)
    entry, why_not = _entry(denial)
    ways = []
    if entry:
        ways.append(f"Put {entry} on the `allowlist` of {_section(denial)}: that permits exactly this command and no other.")
    if _held_by_trust(denial):
        ways.append("No class will help: an untrusted task is held to local_write, whatever its profile says.")
        return " ".join(ways) + (why_not if not entry else "") + _but(denial)
    if denial.refused == ("persistence",) and denial.rule.startswith(("path.", "contents.")):
        warning = _obeyed_by_git(denial.rule) or "what is written there runs later, as you"
        ways.append(
            f"{'Or let' if ways else 'Let'} this kind of change be made and land: put {_rules(denial)} into `allow` of "
            f"{_section(denial, 'land')}; {warning}."
        )
    else:
        ways.append(f"{'Or permit' if ways else 'Permit'} the class, for everything: {_add_classes(denial)}.")
    return " ".join(ways) + (why_not if not entry else "") + _but(denial)


def _how_within_a_grant(denial: Denial) -> str:
    found = re.findall(r"the grant of `([^`]*)`", denial.reason)
    above = f"`{escape(found[-1])}`" if found else "the entry that it was started under"
    own, why_not = _entry(denial)
    ways = []
    if not set(denial.refused) & _NOT_FOR_DESCENDANTS and not _held_by_trust(denial):
        ways.append(
            f"Let what {above} starts have the class: write `effects = {_toml_list(denial.refused)}` at that entry in the "
            f"`allowlist` of {_section(denial)}."
        )
    else:
        ways.append(f"No entry can give {listed(denial.refused)} to what it starts.")
    if own:
        ways.append(f"Or put {own} on the `allowlist` itself: that permits exactly this command.")
    return " ".join(ways) + (why_not if not own else "") + _but(denial)


def _held_by_trust(denial: Denial) -> bool:
    return denial.trust == "untrusted" and bool(set(denial.refused) - _UNTRUSTED_MAY)


def _entry(denial: Denial) -> tuple[str, str]:
    """Return the entry that would permit the program start, as TOML; or "" and, if that is worth a word, why none would."""
    argv = denial.argv
    if not argv:
        return _entry_for_part(denial) if denial.operation.get("kind") == "shell" else ("", "")
    if any(MARK.search(word) for word in argv):
        return "", " No entry can be written from the record: a secret in the command was redacted."
    text = shlex.join(argv)
    try:
        exact = parse_command_line(text) == argv
    except CommandLineError as error:
        return "", f" No entry can say it: {escape(str(error))}."
    if not exact:
        return "", ""
    program = str(denial.operation.get("program") or denial.operation.get("path") or "")
    if any(_below(program, folder) for folder in denial.writable):
        return "", f" No entry permits it: the task itself can write to {escape(program)}, and an entry counts for no such program."
    if posixpath.basename(program) not in ("", posixpath.basename(argv[0])):
        return "", f" No entry permits it: what would start is {escape(program)}, and not what it calls itself."
    return _toml(text), ""


def _entry_for_part(denial: Denial) -> tuple[str, str]:
    """Return the entry for the command of a text that was refused, as far as the record names it whole."""
    part = denial.what.partition(" (in: ")[0]
    with contextlib.suppress(CommandLineError):
        if "…" not in part and not MARK.search(part) and parse_command_line(part):
            return _toml(part), ""
    return "", " A text is permitted if each of its commands is: list those, one entry each."


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _add_classes(denial: Denial) -> str:
    return f"`add = {_toml_list(denial.refused)}` in {_section(denial, 'effects', file=False)}"


def _but(denial: Denial) -> str:
    """Say what being allowed would not change, or what it would cost."""
    refused = set(denial.refused)
    if refused & {"network_egress", "install"}:
        return " It would start, and still find no network: no task has one. What it needs belongs into the image."
    if denial.refused == ("persistence",) and not denial.argv:
        return ""  # said where the rule is named
    if grave := [name for name in denial.refused if name in ("system_write", "destructive", "persistence", "unknown")]:
        return f" Think twice before you permit all that is {listed(grave, 'or')}."
    return ""


def _other_way(denial: Denial) -> str:
    return f" {escape(denial.hint)}" if denial.hint and not denial.hint.startswith("Nothing") else ""


def _section(denial: Denial, part: str = "", *, file: bool = True) -> str:
    """Name the table of the profile that refused, which need not be the task's own."""
    name, where = denial.profile, f" ({escape(denial.source)})" if denial.source and file else ""
    # The last clause is broker's own; what stands before it can hold words of the task's.
    clause = re.split(r"; |: ", denial.reason)[-1] if denial.layer != "denylist" else denial.reason
    if found := re.match(r"[Pp]rofile (\S+?)(?:,|:)? (?:of (?:the parent|an ancestor) task)", clause):
        name, where = found[1], " (of a task above this one)"
    table = f"profiles.{escape(name) if name else 'NAME'}{'.' + part if part else ''}"
    return f"[{table}]{where}"


# --- writing


def _shown(text: str) -> str:
    return shorten(escape(text), 160)


def _toml(text: str) -> str:
    """Return a TOML string, in ASCII where it could be mistaken for something else."""
    return "".join(
        char if char.isprintable() else f"\\U{ord(char):08x}" for char in json.dumps(text, ensure_ascii=False)
    )


def _toml_list(words: tuple[str, ...]) -> str:
    return f"[{', '.join(map(_toml, words))}]"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
