"""Readers for what reaches out and has a language of its own: curl, ssh, copies between machines, socat, ip, browsers."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from broker.classify.call import Call, like, reader
from broker.classify.commands import by_grammar
from broker.classify.grammar import Parsed, parse
from broker.classify.risk import Risk
from broker.classify.roles import apply_role, destination, judge_operands, judge_options
from broker.classify.scope import shown
from broker.classify.word import Word

_LOOPBACK = re.compile(
    r"(?:[a-z]+://)?(?:[^@/]*@)?(?:localhost|127\.[\d.]+|\[?::1\]?|0\.0\.0\.0)(?=[:/?#]|$)", re.IGNORECASE
)
_DELETING = ("DELETE", "PURGE")


@reader("curl")
def _curl(call: Call) -> None:
    """curl, wget and their like: URLs, and files that are sent or written by the options' marks."""
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    if call.marks & {"local"} and not parsed.operands:
        return
    urls = list(parsed.operands)
    method = ""
    for option, value in parsed.options:
        if value is None:
            continue
        if "url" in option.marks:
            urls.append(value)
        elif "method" in option.marks:
            method = value.text.upper()
        elif "data" in option.marks:
            _sent(call, value)
        elif "cookie" in option.marks and "=" not in value.text and value.text:
            call.read(value)  # without `=` it names a file
        elif "format" in option.marks and (target := re.search(r"%output\{(?:>>)?([^}]*)\}", value.text)):
            call.write(like(value, target[1]))
        elif "wgetrc" in option.marks:
            _wgetrc(call, value)
    here = [word for word in urls if re.match(r"file:|[/.~]", word.text, re.IGNORECASE)]
    for word in here:
        call.read(like(word, re.sub(r"^file:(?://[^/]*)?", "", word.text, flags=re.IGNORECASE)))
    if urls and all(re.match(r"file:|/", word.text, re.IGNORECASE) for word in urls):
        return  # it reads files of this machine; `./x` is a host called `.`
    call.add(Risk.NETWORK_EGRESS, f"program.{call.entry.name}", f"{call.name} reaches out to the network.")
    if method in _DELETING:
        _delete_there(call, urls, method)
    if "remote_name" in call.marks:
        folder = next(
            (value.text + "/" for option, value in parsed.options if "folder" in option.marks and value), ""
        )
        for word in urls:
            name = re.sub(r"[?#].*", "", word.text).rstrip("/").rsplit("/", 1)[-1]
            call.write(like(word, folder + (name or "index.html")))
    elif call.entry.raw.get("saves") and not call.marks & {"named", "spider"}:
        call.write(like(call.words[0], "./."))  # wget stores under a name that the server may choose


def _sent(call: Call, value: Word) -> None:
    """`@file` in what is sent: `-d @file`, `-F x=@file;type=…`, `-F x=<file`, `--data-urlencode x@file`."""
    match = re.match(r"[^@<]*[@<](.*)", value.text, re.DOTALL)
    if match is not None and len(value.text) - len(match[1]) <= 64:
        for name in match[1].split(";", 1)[0].split(","):
            if name and name != "-":
                call.read(like(value, name))


# Settings of a .wgetrc that neither write, send nor run a file.
_WGETRC_HARMLESS = frozenset(
    "accept accept_regex adjust_extension auth_no_challenge background cache check_certificate ciphers compression "
    "connect_timeout content_disposition content_on_error continue convert_links cookies cut_dirs debug dir_struct "
    "dns_cache dns_timeout domains exclude_directories exclude_domains follow_ftp follow_tags force_html ftp_proxy glob "
    "header hsts http_keep_alive http_proxy https_only https_proxy ignore_case ignore_length ignore_tags "
    "include_directories inet4_only inet6_only iri limit_rate max_redirect method mirror netrc no_parent no_proxy "
    "noclobber page_requisites passive_ftp post_data prefer_family progress protocol_directories proxy_password "
    "proxy_user quiet quota random_wait read_timeout reclevel recursive referer regex_type reject reject_regex "
    "relative_only remote_encoding restrict_file_names retry_connrefused retry_on_http_error robots secure_protocol "
    "server_response show_all_dns_entries span_hosts spider strict_comments timeout timestamping tries use_proxy "
    "user_agent verbose wait wait_retry".replace("_", "").split()
)


def _wgetrc(call: Call, value: Word) -> None:
    """`wget -e name=value`: a line of its settings, of which `use_askpass` names a program."""
    name = value.text.partition("=")[0].strip().lower()
    if re.sub("[-_]", "", name) not in _WGETRC_HARMLESS:
        call.add(
            Risk.CODE_EXECUTION, "option.wget-e", f"wget's setting {shown(name)} can name files or a program."
        )


def _delete_there(call: Call, urls: list[Word], method: str) -> None:
    """A request to delete. What answers on loopback is what the task itself started."""
    if not all(_LOOPBACK.match(word.text) for word in urls):
        call.add(
            Risk.DESTRUCTIVE, "network.delete", f"A {method} request deletes what the address stands for."
        )


@reader("httpie")
def _httpie(call: Call) -> None:
    """`http [METHOD] URL [ITEM…]`, where an item can be `name@file`, `name=@file` or `name:=@file`."""
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    if "offline" not in call.marks:
        call.add(
            Risk.NETWORK_EGRESS, f"program.{call.entry.name}", f"{call.name} reaches out to the network."
        )
    operands = parsed.operands
    if operands and operands[0].text.upper() in _DELETING:
        _delete_there(call, operands[1:2], operands[0].text.upper())
    for word in operands[1:]:
        item = re.fullmatch(r"[\w.\[\]-]*(?::?=@|:@|@)([^;]+).*", word.text, re.DOTALL)
        if item is not None:
            call.read(like(word, item[1]))


_RUNS_HERE = frozenset(
    "proxycommand localcommand permitlocalcommand knownhostscommand pkcs11provider securitykeyprovider include match "
    "xauthlocation".split()
)
_ON_THIS_MACHINE = frozenset(("proxycommand", "localcommand", "knownhostscommand"))
_SETTING_FILES = {"identityfile": "read", "certificatefile": "read", "userknownhostsfile": "write"}


@reader("ssh")
def _ssh(call: Call) -> None:
    """Options, a host, more options, and what the host is to run."""
    parsed = parse(call, call.words[1:])
    rest = parsed.rest
    behind = parse(call, rest[1:]) if rest else Parsed([], [], [])
    parsed.options += behind.options
    judge_options(call, parsed)
    if "local" in call.marks:
        return
    ssh_settings(call, parsed)
    if rest:
        call.add(
            Risk.NETWORK_EGRESS, f"program.{call.entry.name}", f"{call.name} reaches out to the network."
        )
        _remote_command(call, rest[0], behind.rest)


def ssh_settings(call: Call, parsed: Parsed) -> None:
    """Judge `-o Name=value` and `-o 'Name value'`."""
    for option, value in parsed.options:
        if "setting" not in option.marks or value is None:
            continue
        match = re.match(r"\s*(\w+)\s*[=\s]\s*(.*)", value.text, re.DOTALL)
        name, text = (match[1].lower(), match[2]) if match else (value.text.strip().lower(), "")
        if name in _RUNS_HERE and text.lower() not in ("none", "no"):
            call.add(
                Risk.CODE_EXECUTION,
                "option.ssh-o",
                f"ssh -o {match[1] if match else name} names a program to run.",
            )
            if name in _ON_THIS_MACHINE:
                _judge_apart(call, text.strip("\"'"), keep=True)
        elif name in _SETTING_FILES and text.lower() != "none":
            for path in text.split():
                apply_role(call, _SETTING_FILES[name], like(value, path), "ssh -o")


# What a command does on another machine counts for less: files there are not the task's, and its code runs there.
_THERE = {
    Risk.DESTRUCTIVE: Risk.DESTRUCTIVE,
    Risk.BLOCKED: Risk.DESTRUCTIVE,
    Risk.SYSTEM_WRITE: Risk.SYSTEM_WRITE,
    Risk.PERSISTENCE: Risk.SYSTEM_WRITE,
}


def _remote_command(call: Call, host: Word, words: list[Word]) -> None:
    """What another machine's shell is to run: this one, where the host is loopback."""
    text = " ".join(word.text for word in words)
    stdin = call.scope.stdin
    if not words and stdin is not None:
        text = stdin.text or ""  # its shell reads what comes in
    if not text or not all(word.known for word in words):
        return
    if _LOOPBACK.match(host.text):
        call.add(Risk.CODE_EXECUTION, "option.ssh-loopback", f"{call.name} runs a command on this machine.")
        call.shell_text(text)
        return
    found = {_THERE[risk] for risk in _judge_apart(call, text, keep=False) if risk in _THERE}
    for risk in sorted(found):
        what = "can lose data for good" if risk is Risk.DESTRUCTIVE else "changes, or reads secrets of, it"
        call.add(risk, "network.remote_command", f"The other machine is to run {shown(text)}, which {what}.")


def _judge_apart(call: Call, text: str, *, keep: bool) -> set[Risk]:
    """Return the effects that a shell text would have here; its parts stay if they are to be kept and all known."""
    parts = call.inquiry.parts
    before = len(parts)
    call.shell_text(text)
    effects = {risk for part in parts[before:] if part for risk in part.effects}
    if not keep or Risk.UNKNOWN in effects:
        del parts[before:]
    return effects


_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*://|\[[0-9a-f:.]+\]:|:?[^/:\s]+:", re.IGNORECASE)


@reader("transfer")
def _transfer(call: Call) -> None:
    """Copies between machines, or within one: sources, then a target, each here or `elsewhere:path`."""
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    ssh_settings(call, parsed)
    marks = call.marks | set(call.entry.raw.get("marks", "").split())
    if "listens" in marks:
        call.add(Risk.NETWORK_EGRESS, f"program.{call.entry.name}", f"{call.name} listens for connections.")
    operands = parsed.operands
    sources, target = operands[:-1] or operands, operands[-1] if len(operands) > 1 else None
    for word in operands:
        if _ELSEWHERE.match(word.text):
            call.add(Risk.NETWORK_EGRESS, "network.host", f"{call.name} reaches {shown(word.text)}.")
    removes = "removes_sources" in marks and "dry" not in marks
    for word in sources:
        if not _ELSEWHERE.match(word.text):
            call.read(word, whole=True)
            if removes:
                call.delete(word, whole=True)
        elif removes:
            _deleted_there(call, word)
    if target is not None and "dry" not in marks:
        _arrives(call, sources, target, deletes="delete" in marks)


def _arrives(call: Call, sources: list[Word], target: Word, *, deletes: bool) -> None:
    if _ELSEWHERE.match(target.text):
        if deletes:
            _deleted_there(call, target)
        return
    if deletes:
        call.delete(target, whole=True)
    apply_role(call, "write", target, call.name)
    if not any(_ELSEWHERE.match(word.text) for word in sources):
        destination(call, sources, target)


def _deleted_there(call: Call, word: Word) -> None:
    call.add(Risk.DESTRUCTIVE, "network.delete", f"It deletes what is at {shown(word.text)}.")


_SOCAT_RUNS = frozenset(("EXEC", "SYSTEM", "SHELL"))
_SOCAT_FILES = frozenset(("OPEN", "FILE", "CREATE", "CREAT", "GOPEN", "PIPE", "FIFO"))
_SOCAT_LOCAL = (
    _SOCAT_RUNS
    | _SOCAT_FILES
    | frozenset(
        ("", "-", "STDIO", "STDIN", "STDOUT", "STDERR", "FD", "PTY", "READLINE", "ECHO", "SOCKETPAIR")
    )
)
_SOCAT_OPTION_FILES = {
    "link": "write",
    "lockfile": "write",
    "waitlock": "write",
    "unlink": "write",
    "history": "write",
    "cert": "read",
    "key": "read",
    "cafile": "read",
    "dhparams": "read",
}


@reader("socat")
def _socat(call: Call) -> None:
    """Two addresses, each `TYPE:what,option=value…`, or two halves of one with `!!` between them."""
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    for word in parsed.operands:
        for half in word.text.split("!!"):
            _socat_address(call, like(word, half))


def _socat_address(call: Call, word: Word) -> None:
    head, *options = word.text.split(",")
    kind, colon, what = head.partition(":")
    kind = kind.upper()
    if not colon and "/" in head:
        kind, what = "GOPEN", head
    if kind in _SOCAT_RUNS:
        call.add(Risk.CODE_EXECUTION, "option.socat-exec", f"socat starts {shown(what)}.")
        call.shell(like(word, what))
    elif kind in _SOCAT_FILES or kind.startswith("UNIX"):
        call.write(like(word, what))
    elif kind in ("TUN", "INTERFACE") or kind.startswith(("TUN-", "IP-SENDTO", "SOCKET")):
        call.add(Risk.SYSTEM_WRITE, "option.socat-interface", "socat uses a network interface itself.")
    if kind not in _SOCAT_LOCAL and not kind.isdigit() and not kind.startswith(("UNIX", "ABSTRACT")):
        call.add(Risk.NETWORK_EGRESS, "program.socat", f"socat connects, or listens, as {shown(head)}.")
    for option in options:
        name, _, value = option.partition("=")
        role = _SOCAT_OPTION_FILES.get(name.lower().removeprefix("openssl-").removeprefix("pty-"))
        if role and value and value != "0":
            apply_role(call, role, like(word, value), f"socat {name}")


@reader("objects")
def _objects(call: Call) -> None:
    """`ip -br a s`, `nmcli c u x`: an object, then what to do with it, both abbreviated; without a verb it shows.

    The table lists the verbs that look; `a~b` is a verb and the word behind it.
    """
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    words = parsed.rest or parsed.operands
    texts = [word.text for word in words]
    raw = call.entry.raw
    runs = raw.get("runs", {}).get(" ".join(texts[:2]))
    if runs is not None and len(words) > runs:
        call.command(words[runs:])
    elif _only_shows(texts, raw):
        return
    call.add(
        Risk.SYSTEM_WRITE,
        f"program.{call.entry.name}",
        f"{call.name} {shown(' '.join(texts[:3]))} works on the system itself.",
    )


def _only_shows(texts: list[str], raw: dict[str, Any]) -> bool:
    if len(texts) < 2:
        return not texts or texts[0] not in raw.get("changes", "").split()
    verb, behind = texts[1], " ".join(texts[2:3])
    if texts[0].startswith("l") and verb == "s":
        return False  # `ip link s` is `ip link set`
    return any(
        look.startswith(verb) if "~" not in look else look in (f"{verb}~{behind}", f"{texts[0]}~{verb}")
        for look in raw["looks"].split()
    )


@reader("asked")
def _asked(call: Call) -> None:
    """Programs that do what their entry says, unless an option with the mark `asked` says what to do instead.

    With the mark `looks`, what an option would else write is only looked at (`ssh-keygen -l -f KEY`).
    """
    parsed = parse(call, call.words[1:])
    if "looks" in call.marks:
        parsed.options = [
            (option._replace(role="list") if option.role == "write" else option, value)
            for option, value in parsed.options
        ]
    entry = replace(call.entry, effects=()) if "asked" in call.marks else call.entry
    judge_operands(call, entry, parsed)


@reader("escapes")
def _escapes(call: Call) -> None:
    """Clients whose commands (in an option, or on their input) can begin with `!`: a shell here runs that one."""
    parsed = parse(call, call.words[1:])
    judge_operands(call, call.entry, parsed)
    texts = [value.text for option, value in parsed.options if value and "commands" in option.marks]
    stdin = call.scope.stdin
    if stdin is not None and stdin.text is not None:
        texts.append(stdin.text)
    for text in texts:
        for line in re.split(r"[;\n]", text):
            if line.lstrip().startswith("!"):
                call.add(Risk.CODE_EXECUTION, "client.escape", f"{call.name} has a shell run {shown(line)}.")
                call.shell_text(line.lstrip().removeprefix("!"))


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
