"""Where the files of a sandbox are found by who may not look behind its first process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from broker.request.operation import Exec
from broker.task.place import reach
from broker.task.sight import Asker, look

NOBODY = 65534
LOOKS = f"""
import os, sys
from broker.task.place import reach
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
for pid in (2, 1, 77):
    print(reach(sys.argv[1], pid))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a pid namespace, and a process that its reader may not look at")
def test_where_process_1_may_not_be_looked_behind_the_place_is_that_of_the_process_that_asks() -> None:
    inside = f"setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups sleep 60 & echo ready; wait"
    with subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", inside], stdout=subprocess.PIPE) as running:
        try:
            assert running.stdout is not None
            running.stdout.readline()
            first = _children(running.pid)[0]
            end = time.monotonic() + 20
            while not (asks := [one for one in _children(first) if os.stat(f"/proc/{one}").st_uid == NOBODY]):
                assert time.monotonic() < end
            done = subprocess.run([sys.executable, "-c", LOOKS, f"/proc/{first}/root"], capture_output=True, text=True, timeout=60)
            assert done.stdout.split() == [f"/proc/{asks[0]}/root", f"/proc/{first}/root", f"/proc/{first}/root"], done.stderr
            assert reach(f"/proc/{first}/root", 2) == f"/proc/{first}/root"  # root may
        finally:
            running.kill()


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_what_nobody_can_look_at_nobody_agrees_to() -> None:
    operation = Exec(argv=("curl",), path="/bin/sh", program="/bin/sh", cwd="/", env=())

    assert look("/proc/0/root", operation, Asker(pid=7)).wrong == "the process does not let itself be looked at"
