"""Calls from inside: who called, what is read of it and when, and that no caller harms another."""

from __future__ import annotations

import array
import fcntl
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from test_guard_protocol import is_gone

from broker.enforce import wire
from broker.enforce.calls import CallEnded, CallLine
from guard_harness import Sandbox, allow_all, guard_binary, setup

Start = Callable[..., AbstractContextManager[Sandbox]]
Message = TypeVar("Message", bound=wire.GuardMessage)
CALLER = "/attacks/caller"
OPEN_CALLS = 16


@pytest.fixture
def open_to_calls(start: Start) -> Start:
    """Start sandboxes that take calls."""
    return partial(start, flags=wire.SetupFlag.CALLS)


@pytest.fixture
def box(open_to_calls: Start) -> Iterator[Sandbox]:
    """A sandbox that takes calls, and allows everything."""
    with open_to_calls() as sandbox:
        yield sandbox


def seen(box: Sandbox, kind: type[Message], call: int | None = None) -> list[Message]:
    """The messages of a kind so far, of one call or of all."""
    return [m for m in box.seen if isinstance(m, kind) and call in (None, getattr(m, "call", None))]


def get(box: Sandbox, kind: type[Message], call: int | None = None, *, nth: int = 1) -> Message:
    """The first, second … message of a kind, of one call or of all: seen already, or waited for."""
    while len(seen(box, kind, call)) < nth:
        box.until(lambda m: isinstance(m, kind))
    return seen(box, kind, call)[nth - 1]


def settle(box: Sandbox) -> None:
    """Go on until the guard has done whatever it was told: it reads in order, and so do we."""
    assert box.run("/bin/true").code == 0


class Caller:
    """A caller that runs; what it says comes through a pipe."""

    def __init__(self, box: Sandbox, *words: str, scope: int = 7) -> None:
        self.box = box
        self.pipe, theirs = os.pipe()
        box.pipes.append(self.pipe)
        self.spawn = box.start([CALLER, *words], stdout=theirs, scope=scope)
        os.close(theirs)

    def call(self) -> wire.Call:
        """Its call."""
        message = self.box.of(self.spawn, wire.Call)
        assert isinstance(message, wire.Call)
        return message

    def line(self) -> str:
        """The next line that it says, the guard's questions answered meanwhile."""
        line = b""
        while not line.endswith(b"\n"):
            if select.select([self.pipe, self.box.link], [], [], 20)[0] == [self.box.link]:
                self.box.receive()
                continue
            byte = os.read(self.pipe, 1)
            assert byte, f"it said {line!r} and ended"
            line += byte
        return line.decode().rstrip()

    def rest(self) -> list[str]:
        """All that it says until it ends."""
        self.box.exited(self.spawn)
        return os.read(self.pipe, 4096).decode().splitlines()

    def kill(self) -> None:
        """End it."""
        self.box.send(wire.Signal(spawn=self.spawn, signal=signal.SIGKILL))


# Who calls


def test_a_call_names_the_process_its_spawn_and_its_scope(box: Sandbox) -> None:
    def policy(question: wire.ExecAsked | wire.FileAsked) -> wire.Answer:
        inner = isinstance(question, wire.ExecAsked) and question.path == CALLER
        return wire.Answer(request=question.request, allow=True, scope=42 if inner else wire.SCOPE_UNCHANGED)

    box.policy = policy
    box.run("/bin/true")
    spawn = box.start(["/bin/bash", "-c", f"{CALLER} mute & wait"], scope=7)
    call = get(box, wire.Call)
    asked = next(question for question in box.asked() if question.path == CALLER)
    assert (call.spawn, call.scope, call.pid) == (spawn, 42, asked.pid)
    assert asked.scope == 7


def full(box: Sandbox) -> list[Caller]:
    """Callers that take every place; what connects now stays in the kernel's queue."""
    callers = [Caller(box, "mute") for _ in range(OPEN_CALLS)]
    for caller in callers:
        caller.call()
    return callers


def test_a_call_belongs_to_the_program_that_connected(box: Sandbox) -> None:
    """And not to the one that it has turned into, which may be allowed more."""
    callers = full(box)

    def policy(question: wire.ExecAsked | wire.FileAsked) -> wire.Answer:
        later = isinstance(question, wire.ExecAsked) and question.argv[:1] == ("/bin/sleep",)
        return wire.Answer(request=question.request, allow=True, scope=99 if later else wire.SCOPE_UNCHANGED)

    box.policy = policy
    becoming = Caller(box, "become", "/bin/sleep", "1000", scope=3)
    get(box, wire.Executed, nth=OPEN_CALLS + 2)  # its own start, and the other program's
    assert not [call for call in seen(box, wire.Call) if call.spawn == becoming.spawn]
    callers[0].kill()
    assert becoming.call().scope == 3


def test_a_call_belongs_to_its_process_when_that_is_gone(box: Sandbox) -> None:
    """Its number is free then, and the connection in another's hands."""
    callers = full(box)
    leaving = Caller(box, "leave", scope=3)
    box.exited(leaving.spawn)
    callers[0].kill()
    call = leaving.call()
    assert (call.pid, call.scope) == (box.started(leaving.spawn).pid, 3)


def test_a_process_that_the_guard_does_not_know_is_closed_at_once(box: Sandbox) -> None:
    if os.geteuid() or not shutil.which("nsenter"):
        pytest.skip("only root can enter the sandbox's network")
    guard = Path(f"/proc/{box.process.pid}/task/{box.process.pid}/children").read_text().split()[0]
    command = ["nsenter", f"--net=/proc/{guard}/ns/net", "bash", "-c", f"exec -a broker {guard_binary()} profiles"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=20)
    assert (done.returncode, done.stderr) == (70, b"broker: the broker hung up\n")
    settle(box)
    assert seen(box, wire.Call) == []


def test_the_host_has_no_such_socket(box: Sandbox) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client, pytest.raises(ConnectionRefusedError):
        client.connect("\0broker")
    assert Caller(box, "bind").rest() == ["EADDRINUSE"]  # while inside it is there


def test_without_the_flag_nobody_can_call(start: Start) -> None:
    with start() as box:
        assert Caller(box, "mute").rest() == ["connect: ECONNREFUSED"]


def test_numbers_are_fresh(box: Sandbox) -> None:
    for i in range(3):
        caller = Caller(box, "mute")
        caller.call()
        caller.kill()
        get(box, wire.CallGone, nth=i + 1)
    numbers = [call.call for call in seen(box, wire.Call)]
    assert len(set(numbers)) == 3
    assert 0 not in numbers
    assert [gone.call for gone in seen(box, wire.CallGone)] == numbers


# What is read


def test_packets_come_whole_and_one_at_a_time(box: Sandbox) -> None:
    caller = Caller(box, "send", "1", "0", "65536", "5")
    number = caller.call().call
    sizes = [len(get(box, wire.CallData).data)]
    for i in range(3):
        settle(box)
        assert len(seen(box, wire.CallData)) == len(sizes)  # none that was not asked for
        box.send(wire.CallNext(call=number))
        sizes.append(len(get(box, wire.CallData, nth=i + 2).data))
    assert sizes == [1, 0, 65536, 5]
    box.send(wire.CallNext(call=number))
    box.send(wire.HangUp(call=number))
    assert get(box, wire.CallGone).call == number
    assert caller.rest() == ["packets 0", "bytes 0"]


def test_a_packet_that_is_too_long_ends_the_call(box: Sandbox) -> None:
    caller = Caller(box, "send", "65537")
    number = caller.call().call
    assert get(box, wire.CallGone).call == number
    assert seen(box, wire.CallData) == []
    assert caller.rest() == ["packets 0", "bytes 0"]


def test_a_client_that_floods_is_read_no_further_than_asked(box: Sandbox) -> None:
    caller = Caller(box, "flood")
    number = caller.call().call
    assert int(caller.line().split()[1]) >= 2  # it was stopped by its own socket
    settle(box)
    assert len(seen(box, wire.CallData)) == 1
    box.send(wire.CallNext(call=number))
    settle(box)
    assert len(seen(box, wire.CallData)) == 2


def test_a_client_that_closes_its_sending_side_is_gone(box: Sandbox) -> None:
    caller = Caller(box, "half")
    number = caller.call().call
    get(box, wire.CallData)
    box.send(wire.CallNext(call=number))
    assert get(box, wire.CallGone).call == number
    assert caller.rest() == ["packets 0", "bytes 0"]


@pytest.mark.parametrize("mode", ["mute", "flood"], ids=["while it is listened to", "while it is not"])
def test_a_client_that_dies_is_gone(box: Sandbox, mode: str) -> None:
    caller = Caller(box, mode)
    number = caller.call().call
    caller.line()
    settle(box)
    caller.kill()
    assert get(box, wire.CallGone).call == number


def test_descriptors_that_a_client_sends_are_not_taken(box: Sandbox) -> None:
    guard = Path(f"/proc/{box.process.pid}/task/{box.process.pid}/children").read_text().split()[0]
    before = len(os.listdir(f"/proc/{guard}/fd")) if os.geteuid() == 0 else None
    caller = Caller(box, "descriptors")
    assert get(box, wire.CallData).data == b"sc"
    assert caller.rest() == ["sent 2", "left open 0"]  # nobody held the other end any more
    get(box, wire.CallGone)
    settle(box)
    if before is not None:
        assert len(os.listdir(f"/proc/{guard}/fd")) == before


# What is replied


def fill(box: Sandbox, number: int) -> int:
    """Reply to a client that does not read until its socket is full and the guard keeps one. How many were sent."""
    sent = 0
    while True:
        box.send(wire.Reply(call=number, data=b"o" + b"x" * 60000))
        sent += 1
        settle(box)
        if len(seen(box, wire.CallTaken, number)) < sent:
            return sent


def test_a_stopped_client_holds_up_nobody_else(box: Sandbox) -> None:
    deaf = Caller(box, "deaf")
    number = deaf.call().call
    deaf.line()
    fill(box, number)

    other = Caller(box, "send", "3")
    assert get(box, wire.CallData, other.call().call).data == b"xxx"
    box.send(wire.Reply(call=other.call().call, data=b"hello"))
    box.send(wire.HangUp(call=other.call().call))
    assert other.rest() == ["packets 1", "bytes 5"]

    box.send(wire.HangUp(call=number))
    settle(box)
    assert seen(box, wire.CallGone, number) == []  # the last reply is still under way
    box.send(wire.HangUp(call=number))
    assert get(box, wire.CallGone, number)


def test_a_client_that_reads_late_gets_all_of_it(box: Sandbox) -> None:
    deaf = Caller(box, "deaf")
    number = deaf.call().call
    deaf.line()
    sent = fill(box, number)
    box.send(wire.HangUp(call=number))
    box.send(wire.Signal(spawn=deaf.spawn, signal=signal.SIGUSR1))
    assert get(box, wire.CallGone).call == number
    assert deaf.rest() == [f"packets {sent}", f"bytes {sent * 60001}"]
    assert len(seen(box, wire.CallTaken, number)) == sent


def test_a_client_that_dies_with_a_reply_under_way_is_gone(box: Sandbox) -> None:
    deaf = Caller(box, "deaf")
    number = deaf.call().call
    deaf.line()
    fill(box, number)
    deaf.kill()
    assert get(box, wire.CallGone).call == number


@pytest.mark.parametrize("first", [None, wire.HangUp], ids=["before it was taken", "after hanging up"])
def test_a_reply_that_may_not_be_sent_yet_ends_the_guard(box: Sandbox, first: type[wire.HangUp] | None) -> None:
    deaf = Caller(box, "deaf")
    number = deaf.call().call
    deaf.line()
    fill(box, number)
    if first:
        box.send(first(call=number))
    box.send(wire.Reply(call=number, data=b"too early"))
    assert is_gone(box)
    assert box.process.wait(10) == 70


def test_calls_that_are_not_known_are_ignored(box: Sandbox) -> None:
    for message in (wire.Reply(call=999, data=b"x"), wire.CallNext(call=999), wire.HangUp(call=999)):
        box.send(message)
    settle(box)


# Many


def test_no_more_calls_are_open_than_sixteen_and_the_others_wait_in_their_order(box: Sandbox) -> None:
    callers = full(box)
    late = []
    for _ in range(3):
        late.append(Caller(box, "mute"))
        late[-1].line()  # it has connected
    settle(box)
    assert len(seen(box, wire.Call)) == OPEN_CALLS
    for i, expected in enumerate(late):
        callers[i].kill()
        assert get(box, wire.Call, nth=OPEN_CALLS + i + 1).spawn == expected.spawn


def test_a_flood_of_callers_leaves_the_gate_and_later_callers_alone(box: Sandbox) -> None:
    crowd = Caller(box, "many", "150")
    crowd.line()
    for _ in range(20):  # each end of a process makes the guard look at who waits
        settle(box)
    assert len(seen(box, wire.Call)) == OPEN_CALLS
    box.send(wire.Kill(spawn=crowd.spawn))
    box.exited(crowd.spawn)

    caller = Caller(box, "send", "3")
    number = caller.call().call
    get(box, wire.CallData, number)
    box.send(wire.HangUp(call=number))
    assert caller.rest() == ["packets 0", "bytes 0"]
    settle(box)
    opened = {call.call for call in seen(box, wire.Call)}
    while len(seen(box, wire.CallGone)) < len(opened):
        box.receive()
    assert {gone.call for gone in seen(box, wire.CallGone)} == opened


def test_callers_who_say_nothing_make_room_for_those_who_do(box: Sandbox) -> None:
    full(box)
    late = Caller(box, "mute")
    ended = []

    def listen(message: wire.Call) -> None:
        with pytest.raises(CallEnded):
            CallLine(message.call, message.pid, box.send).words(0.05)
        ended.append(message.call)

    threads = [threading.Thread(target=listen, args=(message,)) for message in seen(box, wire.Call)]
    for thread in threads:
        thread.start()
    assert late.call().call not in [message.call for message in seen(box, wire.Call)[:OPEN_CALLS]]
    for thread in threads:
        thread.join()
    assert len(ended) == OPEN_CALLS


def test_a_broker_that_sends_before_it_reads_is_not_waited_for(box: Sandbox) -> None:
    """Both sockets full, and both sides sending: the guard takes in what comes, or they would wait for ever."""
    many = 60
    script = f'word=$(printf "%08000d" 0); for i in $(seq {many}); do /bin/true $word & done; wait; echo end'
    mine, theirs = os.pipe()
    spawn = box.start(["/bin/bash", "-c", script], stdout=theirs)
    os.close(theirs)
    box.pipes.append(mine)
    box.started(spawn)
    count = array.array("i", [0])
    while count[0] < 60_000:  # unread questions: close to what the guard's socket holds
        message = box.receive() if count[0] == 0 else None
        fcntl.ioctl(box.link, termios.FIONREAD, count)
        assert message is None or not isinstance(message, wire.Exited)
        os.sched_yield()
    box.link.settimeout(20)
    for _ in range(30):
        box.send(wire.Reply(call=999, data=b"x" * wire.MAX_CALL_PACKET))
    box.link.settimeout(None)
    assert box.exited(spawn).status == 0
    assert os.read(mine, 10) == b"end\n"


def test_an_answer_does_not_wait_behind_what_callers_say(box: Sandbox) -> None:
    """Sixteen packets are asked for, far more than the broker's socket holds, and none of them is read."""
    callers = [Caller(box, "flood") for _ in range(OPEN_CALLS)]
    for caller in callers:
        get(box, wire.CallData, caller.call().call)
    box.policy = lambda _question: None
    mine, theirs = os.pipe()
    box.pipes.append(mine)
    box.start(["/bin/echo", "done"], stdout=theirs)
    os.close(theirs)
    question = get(box, wire.ExecAsked, nth=OPEN_CALLS + 1)
    for caller in callers:
        box.send(wire.CallNext(call=caller.call().call))
    box.send(allow_all(question))
    assert select.select([mine], [], [], 20)[0], "it was not started"
    assert os.read(mine, 10) == b"done\n"
    assert len(get(box, wire.CallData, callers[-1].call().call, nth=2).data) == 60000


# Views


def test_ready_brings_the_folders_as_the_sandbox_sees_them(start: Start) -> None:
    with start(views=("/work", "/tmp", "/")) as box:
        guard = Path(f"/proc/{box.process.pid}/task/{box.process.pid}/children").read_text().split()[0]
        expected = [os.stat(f"/proc/{guard}/root{path}") for path in ("/work", "/tmp", "/")]
        assert [os.fstat(view) for view in box.views] == expected
        for view in box.views:
            assert fcntl.fcntl(view, fcntl.F_GETFL) & os.O_PATH
        assert box.run("/bin/true").code == 0


@pytest.mark.parametrize(("path", "error"), [("/nowhere", 2), ("/etc/passwd", 20), ("/bin", 20)], ids=["missing", "file", "symlink"])
def test_a_view_that_cannot_be_opened_is_fatal(start: Start, path: str, error: int) -> None:
    with start(say_setup=False) as box:
        box.send(setup(views=("/work", path)))
        assert box.receive() == wire.Fatal(step="view", error=error)
        assert is_gone(box)


@pytest.mark.parametrize("views", [("work",), ("",), ("/work",) * 9], ids=["relative", "empty", "nine"])
def test_views_that_make_no_sense_end_the_guard(start: Start, views: tuple[str, ...]) -> None:
    whole = wire.encode(setup())[:-8]  # without the list of views, and that of ports behind it
    packed = b"".join(struct.pack("<I", len(view)) + view.encode() for view in views)
    with start(say_setup=False) as box:
        box.link.send(whole + struct.pack("<I", len(views)) + packed + struct.pack("<I", 0))
        assert is_gone(box)
        assert box.process.wait(10) == 70


@pytest.mark.parametrize(
    "packet",
    [
        struct.pack("<HHI", 71, 0, 0),
        struct.pack("<HHI", 71, 1, 1),
        struct.pack("<HHI", 72, 0, 1) + b"\0",
        struct.pack("<HHII", 70, 0, 0, 0),
        struct.pack("<HHII", 70, 0, 1, 65537) + b"x" * 65537,
        struct.pack("<HHII", 70, 0, 1, 5) + b"x",
        struct.pack("<HHI", 73, 0, 1),
    ],
    ids=lambda packet: packet[:8].hex(),
)
def test_nonsense_about_calls_ends_the_guard(box: Sandbox, packet: bytes) -> None:
    box.link.send(packet)
    assert is_gone(box)
    assert box.process.wait(10) == 70
