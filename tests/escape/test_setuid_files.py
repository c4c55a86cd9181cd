"""A file that is setuid runs with its owner's rights, for everybody on the host, long after the sandbox is gone.

Inside, no-new-privileges makes the bit harmless. In a workspace that is the host's own folder it must not be made.
"""

from __future__ import annotations

import pytest

from escape.hostile import Attempts

WAYS = ["chmod", "fchmod", "fchmodat2", "open", "creat", "openat2", "mknod", "tmpfile"]


@pytest.mark.parametrize("way", WAYS)
def test_no_setuid_file_survives_on_the_host(attempts: Attempts, way: str) -> None:
    made = attempts.broker.workspace / f"setuid-{way}"
    assert not made.exists() or made.stat().st_mode & 0o6000 == 0, attempts[f"setuid_by_{way}"]


def test_no_setgid_file_survives_on_the_host(attempts: Attempts) -> None:
    made = attempts.broker.workspace / "setgid-chmod"
    assert made.stat().st_mode & 0o6000 == 0


def test_no_file_gets_capabilities(attempts: Attempts) -> None:
    assert attempts["file_capabilities"] in {"EPERM", "EACCES", "EOPNOTSUPP"}
