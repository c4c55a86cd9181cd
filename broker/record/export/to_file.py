"""Into a file, one message a line, or to stdout."""

from __future__ import annotations

import os
from collections.abc import Sequence

from broker.record.export.message import ExportError, Format, Message


class FileSink:
    """Appends to a file that others cannot read, and has it on the disk before it says so."""

    def __init__(self, path: str) -> None:
        """Open or make it. A last line that a crash tore is cut off: its message is sent again."""
        self._path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self._mend()
        except OSError as error:
            raise ExportError(f"cannot write {path}: {error.strerror}") from error

    def _mend(self) -> None:
        size = os.lseek(self._file, 0, os.SEEK_END) if os.path.isfile(self._path) else 0
        end = size
        while end and os.pread(self._file, 1, end - 1) != b"\n":
            start = max(0, end - (1 << 16))
            newline = os.pread(self._file, end - start, start).rfind(b"\n")
            end = start + newline + 1
        if end != size:
            os.ftruncate(self._file, end)

    def deliver(self, format_: Format, messages: Sequence[Message]) -> None:
        """Write the lines, and wait for the disk."""
        _write(self._file, b"".join(line + b"\n" for line in format_.lines(messages)), self._path)
        try:
            os.fsync(self._file)
        except OSError as error:
            if os.path.isfile(self._path):  # a pipe and a device cannot, and need not
                raise ExportError(f"cannot write {self._path}: {error.strerror}") from error

    def close(self) -> None:
        """Close it."""
        os.close(self._file)


class StdoutSink:
    """Writes to stdout, at once."""

    def deliver(self, format_: Format, messages: Sequence[Message]) -> None:
        """Write the lines. Raises BrokenPipeError when nobody reads them any more."""
        _write(1, b"".join(line + b"\n" for line in format_.lines(messages)), "stdout")

    def close(self) -> None:
        """Nothing to let go of."""


def _write(descriptor: int, data: bytes, name: str) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BrokenPipeError:
            raise
        except OSError as error:
            raise ExportError(f"cannot write {name}: {error.strerror}. What is missing is sent again the next time") from error
