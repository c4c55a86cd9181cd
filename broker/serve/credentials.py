"""The credentials that gateways add outside: read when they are needed, held nowhere inside, and never in a message.

In: where a header's value comes from. Out: the value. A command's answer is kept for a while, because a command takes
longer than a request may. An upstream that repeats one, in a redirect or an error, is not passed on with it.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from broker.decide.gateway import Secret
from broker.serve.addresses import Unreachable

COMMAND_SECONDS = 10.0
KEPT_SECONDS = 300.0
MOST_SECRET = 64 * 1024


class Credentials:
    """The values of one task's gateways. Safe to use from several threads."""

    def __init__(self, can_write: Callable[[str], bool]) -> None:
        """Start with none. `can_write` says whether the task could have put a file of its own at a path."""
        self._can_write = can_write
        self._kept: dict[tuple[str, ...], tuple[float, str]] = {}
        self._lock = threading.Lock()

    def value_of(self, secret: Secret) -> str:
        """Return what goes into a header's form. Raises Unreachable, which never holds it."""
        match secret.kind:
            case "text":
                value = secret.source[0]
            case "env":
                value = os.environ.get(secret.source[0], "")
                if not value:
                    raise Unreachable(
                        f"the credential is missing: {secret.source[0]} is not set in the environment that broker was started "
                        "in. The operator has to set it and start the task again"
                    )
            case "file":
                value = self._read(secret.source[0])
            case _:
                value = self._said(secret.source)
        value = value.strip()
        if not value or any(not 32 <= ord(char) < 127 for char in value):
            raise Unreachable("the credential is empty, or holds what no header can. The operator has to look at it")
        return value

    def forget(self, secret: Secret) -> None:
        """Have a command asked again: the upstream did not take what it said."""
        with self._lock:
            self._kept.pop(secret.source, None)

    def _read(self, path: str) -> str:
        path = os.path.expanduser(path)
        if self._can_write(path):
            raise Unreachable(f"the credential's file {path} lies where the task can write. The operator has to move it")
        try:
            with open(path, encoding="utf-8") as file:
                return file.read(MOST_SECRET)
        except (OSError, UnicodeDecodeError) as error:
            raise Unreachable(f"the credential's file {path} cannot be read: {type(error).__name__}") from None

    def _said(self, argv: tuple[str, ...]) -> str:
        with self._lock:  # one at a time: sixty requests at once want the same answer
            known = self._kept.get(argv)
            if known is not None and time.monotonic() - known[0] < KEPT_SECONDS:
                return known[1]
            value = self._run(argv)
            self._kept[argv] = (time.monotonic(), value)
            return value

    def _run(self, argv: tuple[str, ...]) -> str:
        """Run a command of the operator's. INVARIANT: nothing that a task could have written (test_gateway_credentials.py)."""
        words = [os.path.expanduser(word) for word in argv]
        for word in words:
            if word.startswith("/") and self._can_write(word):
                raise Unreachable(f"the credential's command uses {word}, where the task can write. The operator has to move it")
        try:
            done = subprocess.run(words, capture_output=True, timeout=COMMAND_SECONDS, check=False, stdin=subprocess.DEVNULL, cwd="/")
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unreachable(f"the credential's command {words[0]} failed: {type(error).__name__}") from None
        if done.returncode:
            raise Unreachable(f"the credential's command {words[0]} ended with {done.returncode}")
        return done.stdout[:MOST_SECRET].decode("utf-8", "replace")


def masked(text: bytes, secrets: Sequence[bytes]) -> bytes:
    """Return a text of the same length without the credentials in it."""
    for secret in secrets:
        text = text.replace(secret, b"*" * len(secret))
    return text


def without(pieces: Iterator[bytes | memoryview], secrets: Sequence[bytes]) -> Iterator[bytes]:
    """Yield a body without the credentials in it. Only what could be the beginning of one waits for the piece after it."""
    held = b""
    for piece in pieces:
        held = masked(held + bytes(piece), secrets)
        keep = max(_begun(held, secret) for secret in secrets)
        if ready := held[: len(held) - keep]:
            yield ready
        held = held[len(held) - keep :]
    if held:
        yield held


def _begun(text: bytes, secret: bytes) -> int:
    """Return how many bytes at the end of a text are the beginning of a secret."""
    at = text.find(secret[:1], max(0, len(text) - len(secret) + 1))
    while at >= 0 and not secret.startswith(text[at:]):
        at = text.find(secret[:1], at + 1)
    return len(text) - at if at >= 0 else 0
