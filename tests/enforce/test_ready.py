"""Waiting for descriptors works for any of them, however many there are."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys

import pytest

from broker.enforce.ready import readable, writable


def test_a_descriptor_above_1023_is_waited_for_like_any_other() -> None:
    reader, writer = os.pipe()
    high = fcntl.fcntl(reader, fcntl.F_DUPFD_CLOEXEC, 1500)
    try:
        assert readable([high], 0.0) == []
        os.write(writer, b"x")
        assert readable([high, reader], 5.0) == [high, reader]
    finally:
        for descriptor in (reader, writer, high):
            os.close(descriptor)


def test_an_end_is_something_to_read_and_a_socket_is_returned_as_itself() -> None:
    one, other = socket.socketpair()
    with one:
        assert readable([one], 0.001) == []
        other.close()
        assert readable([one], 5.0) == [one]


def test_a_pipe_that_nobody_reads_any_more_is_not_waited_for() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 65536)
    except BlockingIOError:
        os.close(reader)
    writable(writer)
    os.close(writer)


@pytest.mark.parametrize(
    ("soft", "hard", "most", "then"), [(256, 2048, 65_536, 2048), (2048, 2048, 65_536, 2048), (256, 2048, 1024, 1024), (1500, 2048, 1024, 1500)]
)
def test_as_many_descriptors_as_may_be_and_never_fewer_than_before(soft: int, hard: int, most: int, then: int) -> None:
    code = f"""
import resource
from broker.enforce import ready
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
ready.MOST_DESCRIPTORS = {most}
ready.make_room()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == [str(then), str(hard)]
