"""Run one command under strace in throw-away namespaces, as nobody, and say what it tried.

No network but a loopback of its own, the system read-only, an own /tmp and processes that end with the command.
The workspace and the home are folders of the caller, who puts them back as they were.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field

NOBODY = 65534
PATIENCE = 2.0
WATCHED = (
    "execve,execveat,connect,bind,sendto,sendmsg,openat,open,creat,unlink,unlinkat,rename,renameat,renameat2,mkdir,mkdirat,"
    "rmdir,symlink,symlinkat,link,linkat,truncate,chmod,fchmod,fchmodat,chown,fchown,fchownat,lchown,utimensat,mknod,"
    "mknodat,setxattr,fsetxattr"
)
TRACE_FD = 9

READ_AND_WRITE = "open for both"
"""Some programs open what they only read so: whether they write is seen at the file."""

_LINE = re.compile(r"(?:(\d+) +)?(\w+)\((.*)")
_RESUMED = re.compile(r"(?:(\d+) +)?<\.\.\. (\w+) resumed>(.*)")
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
_FOLDER = re.compile(r"(?:AT_FDCWD|\d+)<([^>]*)>, ")
_ADDRESS = re.compile(
    r'sa_family=(AF_\w+)(?:, sin6?_port=htons\((\d+)\).*?"([^"]*)"|, sun_path=@?"([^"]*)")?'
)
_READS = re.compile(r"O_RDONLY|O_PATH")


@dataclass(slots=True)
class Seen:
    """What a command tried, whether it could or not. Paths are absolute, each once."""

    changed: dict[str, str] = field(default_factory=dict)  # path: the system call
    read: set[str] = field(default_factory=set)
    starts: list[tuple[str, ...]] = field(default_factory=list)
    reached: set[str] = field(default_factory=set)  # addresses, and the paths of sockets
    status: int | None = None  # None: it was stopped after PATIENCE seconds


def run(argv: tuple[str, ...], workspace: str, inside: str, home: str) -> Seen:
    """Run a command in the workspace, which it sees as `inside`; `home` is a folder that it sees as its home."""
    reading, writing = os.pipe()
    os.fchown(writing, NOBODY, NOBODY)  # strace opens it by its name
    cage = (
        "bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/usr", "/usr",
        "--symlink", "usr/bin", "/bin", "--symlink", "usr/sbin", "/sbin", "--symlink", "usr/lib", "/lib",
        "--symlink", "usr/lib64", "/lib64", "--ro-bind", "/etc", "/etc", "--proc", "/proc", "--dev", "/dev",
        "--tmpfs", "/tmp", "--tmpfs", "/var", "--bind", workspace, inside, "--bind", home, "/home/dev", "--chdir", inside,
        "--clearenv", "--setenv", "PATH", "/usr/bin:/usr/sbin", "--setenv", "HOME", "/home/dev", "--setenv", "LANG", "C.UTF-8",
        "--setenv", "TERM", "xterm",
    )  # fmt: skip
    strace = (
        "strace", "-f", "-qq", "-y", "--seccomp-bpf", "-s", "4096", "-e", "signal=none", "-e", f"trace={WATCHED}",
        "-o", f"/proc/self/fd/{TRACE_FD}", "--",
    )  # fmt: skip
    seen = Seen()
    with open(reading, "rb") as trace:
        try:
            process = subprocess.Popen(
                ("sh", "-c", f'exec {TRACE_FD}>&{writing}; exec "$@"', "sh", *cage, *strace, *argv),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=(writing,),
                user=NOBODY, group=NOBODY, extra_groups=(), start_new_session=True, env={"PATH": "/usr/bin:/bin"},
            )  # fmt: skip
        finally:
            os.close(writing)
        timer = _Timer(process)
        with timer.running():
            content = trace.read(64 << 20)
            trace.close()
            process.wait()
    seen.status = None if timer.over else process.returncode
    read_trace(content.decode("utf-8", "replace"), inside, seen)
    return seen


class _Timer:
    """Kills a process that takes too long."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process, self.over = process, False

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        import threading

        timer = threading.Timer(PATIENCE, self._kill)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _kill(self) -> None:
        self.over = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def read_trace(trace: str, cwd: str, seen: Seen) -> None:
    """Add what the lines of `strace -f -y` say."""
    pending: dict[str, str] = {}
    for line in trace.splitlines():
        resumed = _RESUMED.match(line)
        if resumed:
            begun = pending.pop(resumed[1] or "", "")
            line = begun + resumed[3]
        elif line.endswith("<unfinished ...>"):
            match = _LINE.match(line)
            pending[(match and match[1]) or ""] = line.removesuffix("<unfinished ...>")
            continue
        _read_line(line, cwd, seen)
    for line in pending.values():
        _read_line(line, cwd, seen)


def _read_line(line: str, cwd: str, seen: Seen) -> None:
    match = _LINE.match(line)
    if match is None:
        return
    call, rest = match[2], match[3]
    failed = re.search(r"\) += -1 E", rest) is not None
    if call in ("execve", "execveat"):
        if not failed:
            words = rest[rest.index("[") + 1 :] if "[" in rest else ""
            path = _TEXT.search(rest)
            listed = words[: words.find("], ")] if "], " in words else words
            argv = tuple(_plain(word) for word in _TEXT.findall(listed))
            seen.starts.append((_plain(path[1]) if path else "", *argv[1:]))
        return
    if call in ("connect", "bind", "sendto", "sendmsg"):
        for family, port, address, path in _ADDRESS.findall(rest):
            if family in ("AF_INET", "AF_INET6"):
                seen.reached.add(f"{call} {address}:{port}")
            elif family == "AF_UNIX" and path:
                seen.reached.add(f"{call} {_plain(path)}")
        return
    folders = _FOLDER.findall(rest)
    texts = [_plain(text) for text in _TEXT.findall(rest)]
    if call in ("open", "openat", "creat"):
        if not texts:
            return
        path_of = _absolute(texts[0], folders[0] if folders else cwd)
        if call != "creat" and _READS.search(rest) and "O_CREAT" not in rest and "O_TRUNC" not in rest:
            if not failed:
                seen.read.add(path_of)
        elif not (failed and "ENOENT" in rest):
            only_open = call == "openat" and "O_RDWR" in rest and "O_TRUNC" not in rest
            seen.changed.setdefault(path_of, READ_AND_WRITE if only_open else call)
        return
    if failed and re.search(r"ENOENT|EEXIST|ENOTDIR|ENOSYS", rest):
        return
    if call.startswith("f") and call not in ("fchmodat", "fchownat"):
        named = re.match(r"\d+<([^>]*)>", rest)
        if named:
            seen.changed.setdefault(named[1], call)
        return
    if call == "utimensat" and not texts:
        named = re.match(r"\d+<([^>]*)>", rest)
        texts = [named[1]] if named else []
    if call.startswith("symlink"):
        texts = texts[1:]
    elif call.startswith("link"):
        texts, folders = texts[1:], folders[1:]
    elif "xattr" in call:
        texts = texts[:1]
    for at, text in enumerate(texts):
        seen.changed.setdefault(_absolute(text, folders[min(at, len(folders) - 1)] if folders else cwd), call)


def _absolute(text: str, folder: str) -> str:
    return os.path.normpath(os.path.join(folder, text))


def _plain(text: str) -> str:
    """Undo strace's escapes."""
    if "\\" not in text:
        return text
    return (
        text.encode("latin-1", "backslashreplace")
        .decode("unicode_escape")
        .encode("latin-1", "replace")
        .decode("utf-8", "replace")
    )
