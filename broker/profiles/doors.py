"""Which invocations are wide-open doors. In: an argv. Out: why it is one, or None.

An exact entry fixes a command's words, not what it does: an interpreter without arguments runs whatever it reads, and
as an entry it opens a grant for it. The gate still judges each program that it starts; what it does in its own process,
nobody judges.
"""

from __future__ import annotations

import posixpath
import re

from broker.decide.decide import names_a_shell

_INTERPRETERS = frozenset(
    "python python2 python3 pypy pypy3 ipython node nodejs deno bun perl ruby irb php lua luajit tclsh wish expect guile "
    "ghci Rscript R julia octave groovy jshell scala kotlin swift racket sbcl clisp erl iex".split()
)
_SESSIONS = frozenset("gdb lldb psql mysql sqlite3 redis-cli bc ed ex vi vim nvim emacs nano less more man screen tmux script".split())
_RAISES = frozenset("sudo su doas pkexec runuser setpriv chroot unshare nsenter".split())
_ELSEWHERE = {
    "ssh": "another machine",
    "docker": "an engine outside the sandbox",
    "podman": "an engine outside the sandbox",
    "kubectl": "a cluster",
    "at": "a daemon that starts it later",
    "batch": "a daemon that starts it later",
    "crontab": "a daemon that starts it later",
    "systemd-run": "a daemon that starts it later",
}
# Programs that run the command behind them, and so are that command.
_FRONTS = frozenset("env timeout nice nohup setsid stdbuf ionice chrt taskset time command exec caffeinate".split())
_VERSIONED = re.compile(r"(python|perl|ruby|node|php|lua)[0-9.]+")
_READS_INPUT = frozenset({"-", "-i", "-s", "-q", "-u", "-O", "-B", "-E", "-I", "-l", "--login", "--interactive", "-x", "-e"})


def open_door(argv: tuple[str, ...]) -> str | None:
    """Return what the invocation leaves open, as the end of a sentence that begins with it."""
    name = posixpath.basename(argv[0]).lstrip("-")
    rest = argv[1:]
    if name in _RAISES:
        return "asks for privileges that nothing gets in a sandbox, and says nothing about what then runs"
    if name in _ELSEWHERE:
        return f"has {_ELSEWHERE[name]} run things, where no gate sees them"
    if name == "xargs" or (name == "parallel" and not rest):
        return "starts a command with whatever words it reads from its input"
    if name in _FRONTS:
        return _front(name, rest)
    if names_a_shell(argv):
        return _shell(rest)
    if name in _INTERPRETERS or _VERSIONED.fullmatch(name):
        if all(word in _READS_INPUT for word in rest) and "-e" not in rest:
            return "is an interpreter that runs whatever it reads from its input"
        return None
    if name in _SESSIONS and not [word for word in rest if not word.startswith("-")]:
        return "can run commands that it reads from its input"
    return None


def _front(name: str, rest: tuple[str, ...]) -> str | None:
    """What stands behind env, timeout … is what counts."""
    for at, word in enumerate(rest):
        if word.startswith("-") or "=" in word or re.fullmatch(r"[0-9.]+[smhd]?", word):
            continue
        inner = open_door(rest[at:])
        return f"starts `{word}`, which {inner}" if inner else None
    if name == "env":
        return "prints the whole environment, with whatever secret was passed in"
    return None


def _shell(rest: tuple[str, ...]) -> str | None:
    words = rest[1:] if rest and names_a_shell(rest[:1]) else rest  # busybox sh
    for at, word in enumerate(words):
        if word.startswith("-") and not word.startswith("--") and "c" in word:
            text = words[at + 1] if at + 1 < len(words) else ""
            if re.search(r"\$[@*0-9]|\$\{[@*0-9]|\beval\b", text):
                return "is a shell whose text runs what it is given as words"
            return None
        if not word.startswith("-"):
            return None  # a script
    return "is a shell that runs whatever it reads from its input"
