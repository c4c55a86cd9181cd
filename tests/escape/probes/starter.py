"""An agent that starts programs, as a hostile one would: any path, argv, environment and folder, by execve itself.

Usage: starter.py FILE with a JSON list of {id, path, argv, env, cwd, before}. Prints one JSON object: id -> the errno's name
when the start was refused, else what the program wrote. `before` is Python that runs first.
"""

import errno
import json
import os
import signal
import sys


def start(wish: dict) -> str:
    exec(wish.get("before", ""), {"os": os})
    out, out_write = os.pipe()
    failed, failed_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(out_write, 1)
        null = os.open("/dev/null", os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 2)
        try:
            os.chdir(wish.get("cwd", "."))
            os.execve(wish["path"], wish["argv"], {**os.environ, **wish.get("env", {})})
        except OSError as error:
            os.write(failed_write, errno.errorcode.get(error.errno or 0, "?").encode())
        os._exit(99)
    os.close(out_write)
    os.close(failed_write)
    signal.alarm(30)
    with os.fdopen(out, "rb") as written, os.fdopen(failed, "rb") as refused:
        text, error = written.read().decode(errors="replace"), refused.read().decode()
    os.waitpid(pid, 0)
    signal.alarm(0)
    return error or text.strip()


print(json.dumps({wish["id"]: start(wish) for wish in json.load(open(sys.argv[1]))}))
