"""Readers for processes, services, disks and terminals."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

from broker.classify.call import Call, reader
from broker.classify.commands import by_grammar, judge_parsed
from broker.classify.entries import parse_entry
from broker.classify.grammar import parse
from broker.classify.risk import Risk
from broker.classify.roles import judge_operands
from broker.classify.scope import UNKNOWN, Finding, shown
from broker.classify.secret_names import is_secret_name


@reader("ps")
def _ps(call: Call) -> None:
    names_follow = False
    for word in call.words[1:]:
        text = word.text
        bsd = not text.startswith("-") and not names_follow and re.fullmatch(r"[a-zA-Z]+", text)
        if (bsd and "e" in text) or re.search(r"\benviron\b", text) or text == "-E":
            call.add(Risk.SYSTEM_WRITE, "secret.environment", "ps shows the environment of processes.")
        names_follow = bool(_PS_VALUE.fullmatch(text))


_PS_VALUE = re.compile(
    r"-[A-Za-z]*[CGgOopqstUu]|--(?:user|User|group|Group|tty|pid|ppid|sid|format|sort|cols|rows|quick-pid)"
)


@reader("printenv")
def _printenv(call: Call) -> None:
    names = [word.text for word in call.words[1:] if not word.text.startswith("-")]
    if not names:
        call.add(
            Risk.SYSTEM_WRITE, "secret.environment", "printenv prints the environment, secrets included."
        )
    for name in names:
        if is_secret_name(name) or UNKNOWN in name:
            call.add(Risk.SYSTEM_WRITE, "secret.variable", f"It prints ${shown(name)}, named like a secret.")


@reader("kill")
def _kill(call: Call) -> None:
    words = [word.text for word in call.words[1:]]
    if _only_asks(call.name, words):
        return
    targets = [text for text in words if text[:1] != "-"]
    if not targets or not all(_OWN_JOB.fullmatch(text) for text in targets):
        why = "It signals processes, which are the task's own as its files are: nobody else's can be seen in a sandbox."
        call.add(Risk.LOCAL_WRITE, "process.signal", why)
    if call.name == "kill":
        _judge_pids(call, words)
        return
    whose = [
        text
        for text in words
        if re.match(r"-(?!USR[12]|(?:SIG)?[A-Z]{3})[a-zA-Z0-9]*[uU]|--(?:e?uid|user)", text)
    ]
    if any(name in ("", ".", ".*", "^", "$") for name in targets) or (whose and len(targets) <= 1):
        call.add(Risk.DESTRUCTIVE, "process.kill_all", "It ends every process of a user.")


_OWN_JOB = re.compile(r"%[\w+%-]*")


_SIGNAL_FOLLOWS = {"kill": ("-s", "-n", "--signal"), "killall": ("-s", "--signal")}
_LISTS = {"kill": ("-l", "-L", "--list", "--table"), "killall": ("-l", "--list")}


def _only_asks(name: str, words: list[str]) -> bool:
    """Whether signals are only listed, or sent as 0, which tells whether a process is there."""
    follows = _SIGNAL_FOLLOWS.get(name, ("--signal",))
    signal = next((after for text, after in pairwise(words) if text in follows), "")
    return signal in ("0", "EXIT") or words[:1] == ["-0"] or bool(words and words[0] in _LISTS.get(name, ()))


def _judge_pids(call: Call, words: list[str]) -> None:
    """`kill -9 -1` and `kill -s KILL -- -1` signal everything; the first word with a dash is the signal."""
    if words[:1] and words[0] in ("-s", "-n", "--signal"):
        words = words[2:]
    elif words[:1] and words[0].startswith("-") and words[0] != "--":
        words = words[1:]
    if "-1" in words:
        call.add(Risk.DESTRUCTIVE, "process.kill_all", "It ends every process it may.")
    if "1" in words:
        call.add(Risk.SYSTEM_WRITE, "process.kill_init", "It signals process 1.")


@reader("crontab")
def _crontab(call: Call) -> None:
    texts = [word.text for word in call.words[1:]]
    if texts and all(text in ("-l", "-u") or not text.startswith("-") for text in texts) and "-l" in texts:
        return
    call.add(Risk.PERSISTENCE, "program.crontab", "crontab plants commands that cron runs later.")
    if any(re.fullmatch(r"-[a-z]*r[a-z]*", text) for text in texts):
        call.add(Risk.DESTRUCTIVE, "program.crontab-r", "crontab -r removes a user's whole table.")


@reader("at")
def _at(call: Call) -> None:
    """at, batch: what comes in on their input runs later; -l and -c show what waits."""
    parsed = parse(call, call.words[1:])
    if "look" in call.marks:
        return
    judge_parsed(call, call.entry, parsed)
    stdin = call.scope.stdin
    if stdin is not None and stdin.text is not None:
        call.shell_text(stdin.text)


@reader("init")
def _init(call: Call) -> None:
    call.add(Risk.DESTRUCTIVE, "program.init", "It changes the machine's run level.")


@reader("look")
def _look(call: Call) -> None:
    """Tools that show something when they are called in the ways that the table lists, and change it otherwise.

    `looks` are the options of a look, `!look` those that ask for one, `shows` the words that do (at the place
    `at`); `few` is the number of operands up to which it shows (`mount`, `e2label DEVICE`), `looked` their roles.
    """
    entry = call.entry
    look = entry.subs.get("*look")
    if look is None:
        raw = {"options": entry.raw.get("looks", ""), "operands": entry.raw.get("looked", "text...")}
        look = entry.subs["*look"] = parse_entry(entry.name, raw)
    trial = replace(call, finding=Finding(), marks=set())
    parsed = parse(trial, call.words[1:], look)
    operands, at = parsed.operands, entry.raw.get("at", 0)
    asked = (
        "look" in trial.marks
        or (len(operands) > at and operands[at].text in entry.raw.get("shows", "").split())
        or (len(operands) <= entry.raw.get("few", -1) and all(word.known for word in operands))
    )
    if asked and not trial.finding.effects:
        judge_operands(call, look, parsed)
    else:
        by_grammar(call)


@reader("verbs")
def _verbs(call: Call) -> None:
    """Tools with sub-commands that take their options anywhere: `apt-get install -o x=y z`, `systemctl stop --now x`."""
    entry = call.entry
    flat = entry.subs.get("*flat")
    if flat is None:
        flat = entry.subs["*flat"] = replace(
            entry, commands={}, sub={}, style="gnu", prefix=(), repeated="text"
        )
    parsed = parse(call, call.words[1:], flat)
    parsed.rest = parsed.operands
    judge_parsed(call, entry, parsed)


@reader("sysctl")
def _sysctl(call: Call) -> None:
    by_grammar(call)
    for word in call.words[1:]:
        if "=" in word.text and not word.text.startswith("-"):
            call.add(Risk.SYSTEM_WRITE, "program.sysctl", "It sets a parameter of the kernel.")


@reader("tmux")
def _tmux(call: Call) -> None:
    """Terminal multiplexers: everything but a look types into shells, or starts them.

    A look is one by its first word, for each of the commands that `;` separates; `#(…)` in a format runs.
    """
    entry = call.entry
    shows = entry.raw["shows"].split()
    texts = [word.text for word in call.words[1:]]
    at = 0
    while at < len(texts) and texts[at].startswith("-") and texts[at] not in shows:
        option = entry.options.get(texts[at][:2])
        if option is None or option.name in ("-f", "-c"):
            break
        at += 2 if option.takes == "=" and len(texts[at]) == 2 else 1
    rest = texts[at:]
    starts = [index for index, text in enumerate(rest) if index == 0 or rest[index - 1].endswith(";")]
    looks = [rest[index] in shows or rest[index].rstrip(";") in shows for index in starts]
    if looks and all(looks) and not any("#(" in text for text in rest):
        return
    call.add(
        Risk.CODE_EXECUTION, f"program.{call.name}", f"{call.name} types into, or starts, shells of its own."
    )
    from_command = [word for word in call.words[1:] if " " in word.text and word.known]
    for word in from_command:
        call.shell(word)
