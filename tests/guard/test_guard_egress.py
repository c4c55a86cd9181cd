"""Attempts to get out: which are noted, in which words, how often, and what goes on as if nobody had looked."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from broker.enforce import wire
from guard_harness import Sandbox

EGRESS = "/attacks/egress"
PYTHON = "from socket import *; import errno, os\n"


def texts(box: Sandbox) -> list[str]:
    """What was noted."""
    return [note.text for note in box.notes(wire.NoteKind.NET_REFUSED)]


def python(box: Sandbox, text: str) -> str:
    """Run a text of Python, and return what it printed."""
    done = box.run("/usr/bin/python3", "-c", PYTHON + text)
    assert done.code == 0, done.err
    return done.out.decode().strip()


def errors(box: Sandbox, *what: str) -> list[str]:
    """Run the attack program, and return the name of the errno that each of its attempts got."""
    done = box.run(EGRESS, *what)
    assert done.code == 0, (done.out, done.err)
    return done.out.decode().split()


def test_a_note_names_the_process_its_spawn_the_program_and_the_address(box: Sandbox) -> None:
    box.run("/bin/true")
    assert errors(box, "tcp4") == ["ENETUNREACH"]
    [note] = box.notes(wire.NoteKind.NET_REFUSED)
    asked = next(question for question in box.asked() if question.path == EGRESS)
    assert note == wire.Note(kind=wire.NoteKind.NET_REFUSED, pid=asked.pid, spawn=2, text=f"{EGRESS} 192.0.2.1:443 tcp")


@pytest.mark.parametrize(
    ("attempt", "said"),
    [
        ("udp4", "192.0.2.1:443 udp"),
        ("tcp6", "[2001:db8::1]:443 tcp"),
        ("udp6", "[2001:db8::1]:443 udp"),
        ("mapped", "192.0.2.1:443 tcp"),
        ("sendto4", "192.0.2.1:443 udp"),
        ("sendto6", "[2001:db8::1]:443 udp"),
        ("short6", "[2001:db8::1]:443 tcp"),
        ("long4", "192.0.2.1:443 tcp"),
        ("thread", "192.0.2.1:443 tcp"),
    ],
)
def test_every_way_to_name_an_address_is_understood(box: Sandbox, attempt: str, said: str) -> None:
    assert errors(box, attempt) == ["ENETUNREACH"]
    assert texts(box) == [f"{EGRESS} {said}"]


def test_what_is_no_address_out_goes_to_the_kernel(box: Sandbox) -> None:
    got = errors(
        box, "loopback4", "loopback6", "any4", "any6", "mapped-loopback", "unix", "unspec", "null", "wild", "end-of-page",
        "negative", "empty", "huge", "short4", "no-socket", "send",
    )  # fmt: skip
    refused = "ECONNREFUSED"
    assert got == [
        refused, refused, refused, refused, refused, "ENOENT", "ok", "EFAULT", "EFAULT", "EFAULT",
        "EINVAL", "EINVAL", "EINVAL", "EINVAL", "EBADF", "EPIPE",
    ]  # fmt: skip
    assert texts(box) == []


def test_the_names_of_links_are_asked_for_as_ever(box: Sandbox) -> None:
    # glibc sends the question with an address, of netlink.
    assert python(box, "import socket; print(socket.if_nameindex())") == "[(1, 'lo')]"
    assert texts(box) == []


def test_a_connect_that_signals_interrupt_goes_on(box: Sandbox) -> None:
    # The backlog is full, so that it waits. After each signal the kernel starts it again, and it is looked at again.
    said = python(box, """
import signal, threading
server = create_server(("127.0.0.1", 0), backlog=0)
first = create_connection(server.getsockname())
heard, told = socketpair()
told.setblocking(False)
signal.set_wakeup_fd(told.fileno())
signal.signal(signal.SIGALRM, lambda *_: None)
signal.siginterrupt(signal.SIGALRM, False)  # SA_RESTART
threading.Thread(target=lambda: (heard.recv(5, MSG_WAITALL), server.accept())).start()
second = socket()
signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
second.connect(server.getsockname())
signal.setitimer(signal.ITIMER_REAL, 0)
print(second.getpeername() == server.getsockname())
""")  # fmt: skip
    assert said == "True"
    assert texts(box) == []


def test_the_same_text_is_noted_once_a_second_and_another_at_once(box: Sandbox) -> None:
    said = python(box, """
import time
began = time.monotonic()
for _ in range(3000):
    for port in (1, 2): socket().connect_ex(("192.0.2.1", port))
print(time.monotonic() - began)
""")  # fmt: skip
    for port in (1, 2):
        noted = [text for text in texts(box) if text.endswith(f"192.0.2.1:{port} tcp")]
        assert 1 <= len(noted) <= 1 + float(said)


def test_a_long_name_of_a_program_is_cut_at_its_beginning(box: Sandbox) -> None:
    folder = box.work / "/".join(["d" * 200] * 3)
    folder.mkdir(parents=True)
    python3 = shutil.copy(os.path.realpath("/usr/bin/python3"), folder / "p y")
    inside = "/work/" + str(Path(python3).relative_to(box.work))
    box.run(inside, "-c", "import socket; socket.socket().connect_ex(('192.0.2.1', 80))")
    [text] = texts(box)
    program, address, protocol = text.rsplit(" ", 2)
    assert (program, address, protocol) == (inside[-400:], "192.0.2.1:80", "tcp")


def test_a_program_that_was_deleted_or_cannot_be_read_is_still_refused(box: Sandbox) -> None:
    shutil.copy(os.path.realpath("/usr/bin/python3"), box.work / "gone")
    attempt = "import os, socket; os.unlink('/work/gone'); print(socket.socket().connect_ex(('192.0.2.1', 80)))"
    assert box.run("/work/gone", "-c", attempt).out == b"101\n"
    assert texts(box) == ["/work/gone (deleted) 192.0.2.1:80 tcp"]
    # Whoever makes itself unreadable has no label, and no way out either.
    assert errors(box, "undumpable") == ["ENETUNREACH"]
    assert len(texts(box)) == 1


def test_an_address_that_changes_after_the_look_gains_nothing(box: Sandbox) -> None:
    counts = dict(word.split("=") for word in errors(box, "race"))
    assert set(counts) <= {"ENETUNREACH", "ECONNREFUSED"}
    assert counts["ECONNREFUSED"] != "0"


def test_a_workload_that_traces_its_own_calls_is_refused_as_well(box: Sandbox) -> None:
    # A filter of its own that answers RET_TRACE replaces our data; the call's number is what counts.
    assert errors(box, "own-filter") == ["ENETUNREACH"]
    assert texts(box) == [f"{EGRESS} 192.0.2.1:443 tcp"]
