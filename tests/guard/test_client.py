"""The client inside: what it sends, what it does with the broker's frames, and how it ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from broker.enforce import wire
from guard_harness import CLIENT, Sandbox, guard_binary

Start = Callable[..., AbstractContextManager[Sandbox]]


@pytest.fixture
def box(start: Start) -> Iterator[Sandbox]:
    """A sandbox that takes calls."""
    with start(flags=wire.SetupFlag.CALLS) as sandbox:
        yield sandbox


class Client:
    """A client under way, and the broker's side of its call."""

    def __init__(self, box: Sandbox, *words: str, cwd: str = "/work", stdin: int | None = None, script: str = "") -> None:
        self.box, self.taken = box, 0
        (self.out, out), (self.err, err) = os.pipe(), os.pipe()
        box.pipes += [self.out, self.err]
        argv = ["/bin/bash", "-c", script, "sh", *words] if script else [CLIENT, *words]
        self.spawn = box.start(argv, stdin=stdin, stdout=out, stderr=err, cwd=cwd)
        os.close(out)
        os.close(err)

    @property
    def call(self) -> int:
        message = self.box.of(self.spawn, wire.Call)
        assert isinstance(message, wire.Call)
        return message.call

    def packet(self) -> bytes:
        """Its next packet."""
        while True:
            came = [m.data for m in self.box.seen if isinstance(m, wire.CallData) and m.call == self.call]
            if len(came) > self.taken:
                self.taken += 1
                return came[self.taken - 1]
            self.box.receive()

    def request(self) -> list[bytes]:
        """All pieces of its request."""
        pieces = []
        while (piece := self.packet()) != b"s":
            pieces.append(piece)
            self.box.send(wire.CallNext(call=self.call))
        return pieces

    def reply(self, *frames: bytes) -> None:
        """Send frames, each when the one before was taken."""
        for frame in frames:
            before = sum(isinstance(m, wire.CallTaken) for m in self.box.seen)
            self.box.send(wire.Reply(call=self.call, data=frame))
            while sum(isinstance(m, wire.CallTaken) for m in self.box.seen) == before:
                self.box.receive()

    def end(self) -> tuple[int, bytes, bytes]:
        """Its exit code (minus the signal), and what it wrote."""
        status = self.box.exited(self.spawn).status
        return os.waitstatus_to_exitcode(status), os.read(self.out, 1 << 16), os.read(self.err, 1 << 16)

    def gone(self) -> bool:
        """Wait until the guard says that the call is over."""
        while not any(isinstance(m, wire.CallGone) and m.call == self.call for m in self.box.seen):
            self.box.receive()
        return True


def test_its_folder_its_words_and_the_broker_s_answer(box: Sandbox) -> None:
    (box.work / "deep").mkdir()
    client = Client(box, "can-i", "--", "", "a b", "\udcff", cwd="/work/deep")
    assert client.request() == [b"c/work/deep\0" + CLIENT.encode() + b"\0can-i\0--\0\0a b\0\xff\0"]
    client.reply(b"oone", b"etwo", b"o", b"o\0three\n", b"x\x02")
    assert client.end() == (2, b"one\0three\n", b"two")
    assert client.gone()


def test_many_words_come_in_pieces(box: Sandbox) -> None:
    words = ["x" * 100_000, "y" * 50_000]
    client = Client(box, *words)
    pieces = client.request()
    assert [len(piece) for piece in pieces[:2]] == [65536, 65536]
    assert all(piece[:1] == b"c" for piece in pieces)
    whole = b"".join(piece[1:] for piece in pieces)
    assert whole == b"/work\0" + b"".join(word.encode() + b"\0" for word in (CLIENT, *words))
    client.reply(b"x\0")
    assert client.end() == (0, b"", b"")


@pytest.mark.parametrize("spare", [65536 - 1, 65536 - 2, 65536], ids=["exact", "one less", "one more"])
def test_a_request_that_fills_its_packet_is_followed_by_no_empty_one(box: Sandbox, spare: int) -> None:
    fixed = len(b"/work\0") + len(CLIENT) + 1
    client = Client(box, "x" * (spare - fixed - 1))
    pieces = client.request()
    assert sum(len(piece) - 1 for piece in pieces) == spare
    assert all(len(piece) > 1 for piece in pieces)
    client.reply(b"x\0")
    assert client.end()[0] == 0


def test_a_folder_that_was_deleted_is_unknown(box: Sandbox) -> None:
    client = Client(box, script=f"mkdir gone && cd gone && rmdir ../gone && exec {CLIENT} profiles")
    assert client.request() == [b"c\0" + CLIENT.encode() + b"\0profiles\0"]
    client.reply(b"x\0")
    assert client.end()[0] == 0


# Input


def test_input_is_read_when_asked_for_and_not_before(box: Sandbox) -> None:
    theirs, mine = os.pipe()
    box.pipes += [theirs, mine]
    os.write(mine, b"first")
    client = Client(box, "mcp", stdin=theirs)
    client.request()
    client.reply(b"ohello")
    assert select.select([theirs], [], [], 0)[0], "it was read already"
    box.send(wire.CallNext(call=client.call))
    client.reply(b"i")
    assert client.packet() == b"ifirst"
    os.write(mine, b"second")
    client.reply(b"x\0")
    assert client.end()[0] == 0
    assert os.read(theirs, 100) == b"second"  # the next program's


def test_output_goes_on_while_input_is_waited_for(box: Sandbox) -> None:
    theirs, mine = os.pipe()
    box.pipes += [theirs, mine]
    client = Client(box, "mcp", stdin=theirs)
    client.request()
    client.reply(b"i", b"omeanwhile")
    assert os.read(client.out, 100) == b"meanwhile"
    os.write(mine, b"late")
    box.send(wire.CallNext(call=client.call))
    assert client.packet() == b"ilate"
    client.reply(b"x\0")
    assert client.end()[0] == 0


@pytest.mark.parametrize("how", ["</dev/null", "<&-", "</work"], ids=["empty", "closed", "a folder"])
def test_input_that_has_ended_or_is_none_is_said_to_have_ended(box: Sandbox, how: str) -> None:
    client = Client(box, script=f"exec {CLIENT} mcp {how}")
    client.request()
    client.reply(b"i")
    box.send(wire.CallNext(call=client.call))
    assert client.packet() == b"i"
    client.reply(b"x\0")
    assert client.end() == (0, b"", b"")


def test_long_input_comes_in_packets_each_asked_for(box: Sandbox, tmp_path: Path) -> None:
    content = os.urandom(150_000)
    (tmp_path / "input").write_bytes(content)
    with (tmp_path / "input").open("rb") as file:
        client = Client(box, "mcp", stdin=file.fileno())
        client.request()
    got = b""
    while True:
        client.reply(b"i")
        box.send(wire.CallNext(call=client.call))
        packet = client.packet()
        assert packet[:1] == b"i"
        if packet == b"i":
            break
        got += packet[1:]
    assert got == content
    client.reply(b"x\0")
    assert client.end()[0] == 0


# Ends


def test_a_broker_that_hangs_up_is_said_so(box: Sandbox) -> None:
    client = Client(box, "profiles")
    client.request()
    client.reply(b"opart")
    box.send(wire.HangUp(call=client.call))
    assert client.end() == (70, b"part", b"broker: the broker hung up\n")


def test_an_answer_that_comes_before_everything_was_read_counts(box: Sandbox) -> None:
    """The guard closes with packets of the client's unread, which resets the connection."""
    client = Client(box, "x" * 100_000)
    client.packet()
    client.reply(b"etoo long\n", b"x\x40")
    box.send(wire.HangUp(call=client.call))
    assert client.end() == (64, b"", b"too long\n")


@pytest.mark.parametrize("frame", [b"", b"z", b"x", b"x\0\0", b"imore", b"\0o"], ids=bytes.hex)
def test_a_frame_that_makes_no_sense_is_the_end(box: Sandbox, frame: bytes) -> None:
    client = Client(box, "profiles")
    client.request()
    box.send(wire.Reply(call=client.call, data=frame))
    code, out, err = client.end()
    assert (code, out) == (70, b"")
    assert err in (b"broker: the broker sent what this client does not understand\n", b"broker: the broker hung up\n")
    assert client.gone()


def test_output_that_nobody_reads_any_more_ends_it_quietly(box: Sandbox) -> None:
    client = Client(box, "profiles")
    client.request()
    os.close(client.out)
    box.pipes.remove(client.out)
    client.reply(b"oanything")
    assert os.waitstatus_to_exitcode(box.exited(client.spawn).status) == 141
    assert client.gone()
    assert os.read(client.err, 100) == b""


def test_output_that_cannot_be_written_is_said_so(box: Sandbox) -> None:
    client = Client(box, script=f"exec {CLIENT} profiles >&-")
    client.request()
    client.reply(b"oanything")
    assert client.end() == (74, b"", b"broker: cannot write the output: Bad file descriptor\n")


def test_a_reader_that_made_the_output_non_blocking_loses_nothing(box: Sandbox) -> None:
    client = Client(box, "profiles")
    client.request()
    os.set_blocking(client.out, False)
    client.reply(*[b"o" + b"x" * 65535] * 2)  # a pipe's worth and as much again
    box.send(wire.Reply(call=client.call, data=b"x\x03"))
    os.set_blocking(client.out, True)
    got = 0
    while got < 2 * 65535:
        got += len(os.read(client.out, 65536))
    assert client.end() == (3, b"", b"")
    assert got == 2 * 65535


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_killing_it_cancels_the_call(box: Sandbox, number: signal.Signals) -> None:
    client = Client(box, "delegate")
    client.request()
    box.send(wire.Signal(spawn=client.spawn, signal=number))
    assert client.gone()
    assert client.end() == (-number, b"", b"")


@pytest.fixture(scope="session")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client on the host, where there is no broker to call."""
    path = tmp_path_factory.mktemp("client") / "broker"
    path.symlink_to(guard_binary())
    return path


NO_CALLS = b"broker: this is not a sandbox of broker's, or its broker takes no calls\n"


def test_where_nobody_listens_it_says_so(outside: Path, start: Start) -> None:
    done = subprocess.run([outside, "profiles"], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (69, b"", NO_CALLS)
    with start() as box:
        result = box.run(CLIENT, "profiles")
        assert (result.code, result.out, result.err) == (69, b"", NO_CALLS)


def test_more_words_than_the_broker_takes_are_no_call(outside: Path) -> None:
    done = subprocess.run([outside, "x" * 100_000, "y" * 100_000], capture_output=True, check=False)
    assert done.returncode == 64
    assert b"longer than 188 KiB: pass long text on standard input" in done.stderr
