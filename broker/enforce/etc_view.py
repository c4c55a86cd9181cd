"""Step 4, bubblewrap only: a copy of the few files below /etc that tool chains need.

One folder that is mounted in place of /etc: each further mount costs bubblewrap about 0.2 ms, and a list
of what to show is safer than a list of what to hide (/etc holds host keys, shadow files, registry tokens).
The copy is made once and again when one of the originals changes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

# Names below /etc that hold no secret and that tool chains read.
SHOWN = (
    "alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "chromium", "chromium.d",
    "debian_version", "environment", "fonts", "gai.conf", "gitconfig", "groff", "gprofng.rc", "host.conf",
    "inputrc", "issue", "java-11-openjdk", "java-17-openjdk", "java-21-openjdk", "ld.so.cache", "ld.so.conf",
    "ld.so.conf.d", "locale.alias", "locale.conf", "localtime", "lsb-release", "magic", "magic.mime",
    "manpath.config", "maven", "mime.types", "os-release", "perl", "pki/tls/certs", "protocols", "python3",
    "python3.11", "python3.12", "python3.13", "rpc", "services", "shells", "skel", "ssl/certs",
    "ssl/openssl.cnf", "terminfo", "timezone", "tmux.conf", "vim", "X11/rgb.txt", "xattr.conf", "xml", "zsh",
)  # fmt: skip

NSSWITCH = "passwd: files\ngroup: files\nhosts: files\nnetworks: files\nservices: files\nprotocols: files\n"
HOSTS = "127.0.0.1 localhost sandbox\n::1 localhost\n"


def _signature() -> str:
    """Digest of what is there: a changed original gives another view."""
    lines = ["2"]
    for name in SHOWN:
        try:
            facts = os.lstat(f"/etc/{name}")
        except OSError:
            continue
        lines.append(f"{name} {facts.st_ino} {facts.st_mtime_ns} {facts.st_size}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _copy(name: str, view: Path) -> None:
    source, target = Path("/etc", name), view / name
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        target.symlink_to(os.readlink(source))
    elif source.is_dir():
        shutil.copytree(source, target, symlinks=True, ignore=_unreadable, dirs_exist_ok=True)
    elif source.is_file() and os.access(source, os.R_OK):
        shutil.copyfile(source, target)


def _unreadable(folder: str, names: list[str]) -> set[str]:
    """Leave out what others may not read: such a file is nobody's business inside."""
    hidden = set()
    for name in names:
        facts = os.lstat(os.path.join(folder, name))
        if not facts.st_mode & 0o004:
            hidden.add(name)
    return hidden


def etc_view(base: Path) -> Path:
    """Return the folder to mount as /etc, made if it is missing or stale."""
    view = base / f"etc-{_signature()}"
    if view.is_dir():
        return view
    making = base / f".etc-{os.getpid()}"
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(mode=0o755)
    for name in SHOWN:
        if os.path.lexists(f"/etc/{name}"):
            _copy(name, making)
    (making / "nsswitch.conf").write_text(NSSWITCH, encoding="ascii")
    (making / "hosts").write_text(HOSTS, encoding="ascii")
    (making / "hostname").write_text("sandbox\n", encoding="ascii")
    (making / "resolv.conf").touch()
    for name in ("passwd", "group"):
        (making / name).symlink_to(f"/run/broker/{name}")
    (making / "mtab").symlink_to("/proc/self/mounts")
    try:
        making.rename(view)
    except OSError:  # another broker made it meanwhile
        shutil.rmtree(making, ignore_errors=True)
    return view
