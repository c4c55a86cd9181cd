"""Run a function in a process whose system calls are made to fail, or to be its last (strace -e inject)."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import traceback
from collections.abc import Callable

PR_SET_PTRACER, ANYBODY = 0x59616D61, ctypes.c_ulong(-1)


def under_strace(act: Callable[[], object], *injections: str) -> int:
    """Return how the process ended: 0, 1 when `act` raised, or minus the signal that killed it.

    An injection is what strace's `-e inject=` takes, like `renameat2:signal=KILL:when=3`.
    """
    child = os.fork()
    if not child:
        ctypes.CDLL(None).prctl(PR_SET_PTRACER, ANYBODY)
        os.kill(os.getpid(), signal.SIGSTOP)
        try:
            act()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.waitpid(child, os.WUNTRACED)
    names = {name for one in injections for name in one.partition(":")[0].split(",")}
    words = ["strace", "-p", str(child), "-o", "/dev/null", "-e", f"trace={','.join(sorted(names))}"]
    words += [word for one in injections for word in ("-e", f"inject={one}")]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        said = tracer.stderr.readline()
        os.kill(child, signal.SIGCONT)
        _, status = os.waitpid(child, 0)
        tracer.wait()
    assert "attached" in said, said
    return os.waitstatus_to_exitcode(status)
