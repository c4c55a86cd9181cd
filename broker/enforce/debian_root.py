"""Step 4, Docker only: a small Debian root made without any registry, for the base image.

In: a suite, and apt's own configuration (which mirror, which key). Out: a tar stream of a minimal root whose
apt is set up for the same mirrors. No host is named here: an operator's mirror is the operator's choice.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from broker.errors import HostCannotEnforce
from broker.values import dataclass

# What no sandbox needs, kept out of every package that is installed later, too.
NO_DOCUMENTS = """\
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/man/*
path-exclude /usr/share/info/*
path-exclude /usr/share/locale/*
path-exclude /usr/share/lintian/*
"""
NO_CACHES = """\
APT::Install-Recommends "false";
Acquire::Languages "none";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
"""
_EMPTIED = (
    "usr/share/doc", "usr/share/man", "usr/share/info", "usr/share/locale",
    "var/cache/apt/archives", "var/lib/apt/lists", "var/log", "dev",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class AptSource:
    """One line of apt's configuration that serves packages."""

    uri: str
    suite: str
    component: str

    def line(self) -> str:
        """The line as sources.list has it."""
        return f"deb {self.uri} {self.suite} {self.component}"


def apt_sources() -> tuple[AptSource, ...]:
    """Return what apt is configured to take packages from, in its order. Empty without apt."""
    wanted = "$(CREATED_BY)\t$(REPO_URI)\t$(RELEASE)\t$(COMPONENT)"
    try:
        answer = subprocess.run(
            ["apt-get", "indextargets", "--format", wanted], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ()
    found: dict[AptSource, None] = {}
    for line in answer.stdout.splitlines():
        created_by, uri, release, component = line.split("\t")
        if created_by == "Packages" and uri.startswith(("http://", "https://")):
            found[AptSource(uri=uri.rstrip("/"), suite=release, component=component)] = None
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class DebianRoot:
    """How to make a root: its suite, the mirror, and the sources its own apt will have."""

    suite: str
    mirror: str
    sources: tuple[AptSource, ...]

    @classmethod
    def plan(cls, suite: str) -> DebianRoot:
        """Find a mirror of `suite` in apt's configuration. Raises HostCannotEnforce if there is none."""
        sources = tuple(
            source
            for source in apt_sources()
            if source.component == "main" and source.suite.startswith(suite)
        )
        main = next((source for source in sources if source.suite == suite), None)
        if main is None:
            raise HostCannotEnforce(
                "docker image",
                f"no registry can be reached, and apt here has no mirror of Debian {suite} to make a root from",
                f"Add one to apt's sources, or load an image by hand: docker load, then docker tag … debian:{suite}-slim",
            )
        return cls(suite=suite, mirror=main.uri, sources=sources)

    @contextmanager
    def made(self, progress: Callable[[str], None]) -> Iterator[IO[bytes]]:
        """Make the root in a temporary folder and give its tar stream. The folder is gone afterwards.

        Raises HostCannotEnforce if debootstrap is missing, if we are not root, or if it fails.
        """
        if shutil.which("debootstrap") is None:
            raise HostCannotEnforce(
                "docker image", "debootstrap is missing", "Run: sudo apt-get install debootstrap"
            )
        if os.geteuid() != 0:
            raise HostCannotEnforce(
                "docker image", "only root can make a Debian root", "Run the same command with sudo"
            )
        with tempfile.TemporaryDirectory(prefix="broker-debian-", dir="/var/tmp") as folder:
            root = Path(folder, "root")
            self._bootstrap(root, progress)
            self._trim(root)
            with subprocess.Popen(
                ["tar", "--create", "--numeric-owner", "--one-file-system", "--directory", str(root), "."],
                stdout=subprocess.PIPE,
            ) as tar:
                assert tar.stdout is not None
                yield tar.stdout
                tar.stdout.close()
            if tar.returncode:
                raise HostCannotEnforce(
                    "docker image", "the Debian root could not be packed", "Is the disk full?"
                )

    def _bootstrap(self, root: Path, progress: Callable[[str], None]) -> None:
        command = ["debootstrap", "--variant=minbase"]
        if self.mirror.startswith("https://"):
            command.append("--include=ca-certificates")
        command += [self.suite, str(root), self.mirror]
        last: list[str] = []
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                last = [*last[-8:], line.strip()]
                progress(f"debian {self.suite}: {line.strip()}")
        if process.returncode:
            raise HostCannotEnforce(
                "docker image",
                f"debootstrap failed: {' / '.join(last)}",
                "Is apt's mirror reachable? apt-get update",
            )

    def _trim(self, root: Path) -> None:
        for name in _EMPTIED:
            folder = root / name
            if folder.is_dir():
                for entry in list(folder.iterdir()):
                    shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        sources = "".join(f"{source.line()}\n" for source in self.sources)
        (root / "etc/apt/sources.list").write_text(sources, encoding="ascii")
        (root / "etc/apt/apt.conf.d/90-sandbox").write_text(NO_CACHES, encoding="ascii")
        (root / "etc/dpkg/dpkg.cfg.d/90-sandbox").write_text(NO_DOCUMENTS, encoding="ascii")
