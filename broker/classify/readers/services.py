"""Readers for services and container engines: a verb among nouns, copies over a border, what a container is given."""

from __future__ import annotations

import re
from dataclasses import replace

from broker.classify import paths
from broker.classify.call import Call, like, reader
from broker.classify.commands import judge_parsed
from broker.classify.entries import Entry, entry_of
from broker.classify.grammar import parse
from broker.classify.risk import Risk
from broker.classify.roles import WHY, judge_operands, judge_options_of
from broker.classify.scope import shown
from broker.classify.word import Word

_LEADING = 6
"""No client that the tables know has more words in front of its verb."""


@reader("service")
def _service(call: Call) -> None:
    """A service's client (`aws ec2 terminate-instances`): its own commands, else the first verb among its words.

    In the commands of an entry, or of the one that `verbs` names (`_verbs`), `*~delete` is a verb wherever it stands,
    in `delete-bucket` and `records-delete` too; `*~secret~*` is a word that counts while the verb is looked for.
    """
    entry = call.entry
    parsed = parse(call, call.words[1:])
    if call.words[-1].text in ("--help", "-help") or [word.text for word in call.words[1:]] == ["-version"]:
        return
    judge_options_of(call, entry, parse(call, call.words[1:], _flat(entry)))
    parsed.options = []
    depth = entry.raw.get("depth", _LEADING)
    leading, behind = _leading_words(entry, parsed.rest, depth)
    own = {" ".join(word.text for word in leading[:length]) for length in (1, 2, 3)}
    if not leading or own & (entry.commands.keys() | entry.sub.keys()):
        parsed.rest = leading + behind
        judge_parsed(call, entry, parsed)
        return
    common = entry_of(entry.raw.get("verbs", "_verbs"))
    assert common is not None
    if common.commands.get(leading[0].text) == (Risk.SAFE,):
        return
    counting: list[tuple[str, tuple[Risk, ...]]] = []
    for word in leading:
        if not word.known:
            call.add(Risk.UNKNOWN, "program.dynamic", f"Which command of {entry.name} runs cannot be known.")
            return
        for part in re.split("[:/,.]" if depth == 1 else ":", word.text.lower()):  # apps:destroy, secret/name
            noun = _known(entry, common, f"* {part} *")
            if noun is not None:
                counting.append((part, noun))
                continue
            verb = _verb(entry, common, part)
            if verb is not None:
                _add_all(call, part, verb[1])
                for found in [] if verb[0] in _LOOKS else counting:
                    _add_all(call, *found)
                return
    for found in counting or [(leading[0].text, entry.commands.get("*") or entry.effects)]:
        _add_all(call, *found)


def _flat(entry: Entry) -> Entry:
    """The same client as if it had no commands: its own options may stand behind them, too."""
    flat = entry.subs.get("*flat")
    if flat is None:
        flat = replace(entry, commands={}, sub={}, style="gnu", prefix=(), repeated="text", suffix=())
        entry.subs["*flat"] = flat
    return flat


_LOOKS = frozenset(("list", "ls", "search", "status", "describe", "help"))
"""Verbs that name secrets, restores or runs, and do not show or start them."""


def _leading_words(entry: Entry, words: list[Word], most: int) -> tuple[list[Word], list[Word]]:
    """The words in front of the first option that is not the client's own, and all others."""
    found: list[Word] = []
    behind: list[Word] = []
    at = 0
    while at < len(words) and len(found) < most:
        word = words[at]
        at += 1
        if not word.text.startswith("-"):
            found.append(word)
            continue
        option = entry.options.get(word.text.partition("=")[0])
        if option is None and "=" not in word.text:
            at -= 1
            break
        behind.append(word)
        if option is not None and option.takes == "=" and "=" not in word.text:
            behind += words[at : at + 1]
            at += 1
    return found, behind + words[at:]


def _known(entry: Entry, common: Entry, key: str) -> tuple[Risk, ...] | None:
    found = entry.commands.get(key)
    return common.commands.get(key) if found is None else found


def _verb(entry: Entry, common: Entry, text: str) -> tuple[str, tuple[Risk, ...]] | None:
    """What the tables say of a word: of the longest beginning of it that ends at a hyphen, or of its end."""
    last = text.rpartition("-")[2]
    while text:
        found = _known(entry, common, f"* {text}")
        if found is not None:
            return text, found
        text = text.rpartition("-")[0]
    found = _known(entry, common, f"* {last}")
    return None if found is None else (last, found)


def _add_all(call: Call, what: str, risks: tuple[Risk, ...]) -> None:
    name = call.entry.name
    for risk in risks:
        if risk is not Risk.SAFE:
            call.add(risk, f"program.{name}.{what}".replace(" ", "."), WHY[risk].format(f"{name} {what}"))


_REMOTE = re.compile(r"[A-Za-z0-9_.@/-]+:")


@reader("remote-copy")
def _remote_copy(call: Call) -> None:
    """A copy over a border (`docker cp`, `kubectl cp`, `aws s3 cp`): the last operand is written, the others read.

    What names the other side (`pod:/path`, `s3://bucket/key`) is the entry's own effects.
    """
    parsed = parse(call, call.words[1:])
    operands, parsed.operands = parsed.operands, []
    judge_operands(call, call.entry, parsed)
    for at, word in enumerate(operands):
        if word.text == "-" or (_REMOTE.match(word.text) and not word.text.startswith((".", "/"))):
            continue
        if at < len(operands) - 1 or len(operands) == 1:
            call.read(word, whole=True)
        else:
            call.write(word, whole=True)


_SOCKETS = (
    "docker.sock",
    "podman.sock",
    "containerd.sock",
    "crio.sock",
    "unix.socket",
    "libvirt-sock",
)
_HOST = frozenset(
    ("/", "/etc", "/home", "/root", "/usr", "/var", "/boot", "/dev", "/proc", "/sys", "/run", "/var/run")
)


@reader("container")
def _container(call: Call) -> None:
    """A container that is made (`docker run`): what of this machine it is given."""
    parsed = parse(call, call.words[1:])
    judge_operands(call, call.entry, parsed)
    for option, value in parsed.options:
        if value is not None and "mount" in option.marks:
            _mounted(call, value)
        elif (
            value is not None
            and "share" in option.marks
            and value.text.startswith(
                (
                    "host",
                    "all",
                    "sys_",
                    "SYS_",
                    "ALL",
                    "seccomp=unconfined",
                    "apparmor=unconfined",
                    "label=disable",
                    "label:disable",
                    "systempaths=unconfined",
                    "cap_sys_",
                    "CAP_SYS_",
                )
            )
        ):
            _host_given(call, f"{option.name} {shown(value.text)} takes the wall to this machine away.")
        elif "wall" in option.marks and not (value is not None and value.text == "false"):
            _host_given(call, f"{option.name} takes the wall to this machine away.")


def _mounted(call: Call, value: Word) -> None:
    """`-v /here:/there:ro` and `--mount type=bind,source=/here,target=/there,readonly`."""
    text = value.text
    if "=" in text.split(":", 1)[0]:
        fields = dict(field.partition("=")[::2] for field in text.split(","))
        source = fields.get("source") or fields.get("src") or fields.get("device") or ""
        read_only = fields.get("readonly", fields.get("ro", "false")) in ("", "true", "1")
    else:
        source, _, behind = text.partition(":")
        read_only = "ro" in behind.rpartition(":")[2].split(",")
    word = like(value, source)
    if not source or (word.known and not source.startswith(("/", ".", "~"))):
        return  # a volume of the engine's
    path = paths.resolve(source, call.scope.cwd, call.inquiry.context)
    if path is not None and path.rsplit("/", 1)[-1] in _SOCKETS:
        _host_given(call, f"Who has {shown(path)} starts containers with all of this machine in them.")
        return
    call.read(word, whole=True)
    if not read_only:
        call.write(word, whole=True)
        if path is None or path in _HOST:
            _host_given(call, f"The container may change {shown(source)} of this machine.")


def _host_given(call: Call, why: str) -> None:
    """What gets out of its container may plant anything, and lose anything."""
    call.add(Risk.SYSTEM_WRITE, "container.host", why)
    call.add(Risk.PERSISTENCE, "container.host", why)


@reader("http-verbs")
def _http_verbs(call: Call) -> None:
    """`gh api`: a method, or POST where a body is given; the path says what it touches."""
    parsed = parse(call, call.words[1:])
    judge_operands(call, call.entry, parsed)
    method = "POST" if "body" in call.marks else "GET"
    for option, value in parsed.options:
        if "method" in option.marks and value is not None:
            method = value.text.upper()
        if value is not None and option.name in ("-F", "--field") and "=@" in value.text:
            call.read(like(value, value.text.split("=@", 1)[1]))
    path = parsed.operands[0].text if parsed.operands else ""
    if path == "graphql":
        query = " ".join(value.text for _, value in parsed.options if value is not None)
        method = (
            "DELETE" if re.search(r"mutation\b.*\b(?:delete|remove|archive)\w*", query, re.DOTALL) else "GET"
        )
    if method == "DELETE" or not (method.isalpha() and method.isascii()):
        call.add(Risk.DESTRUCTIVE, "service.delete", "It deletes what its path names.")
    if method != "GET" and re.search(
        r"secrets|keys|collaborators|hooks|tokens|permissions|protection|memberships|invitations", path
    ):
        call.add(Risk.SYSTEM_WRITE, "service.access", "It changes who may do what.")
