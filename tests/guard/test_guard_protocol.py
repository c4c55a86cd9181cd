"""The guard's side of PROTOCOL.md: the opening, the self-test, and what it does with nonsense."""

from __future__ import annotations

import os
import random
import socket
import struct
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from broker.enforce import wire
from guard_harness import Sandbox, allow_all, bubblewrap, guard_binary, setup

Start = Callable[..., AbstractContextManager[Sandbox]]

PROOFS = {
    "exec.denied",
    "exec.untraced-enosys",
    "write.denied",
    "socket.vsock",
    "socket.packet",
    "socket.alg",
    "socket.netlink",
    "ptrace",
    "unshare",
    "io_uring",
    "proc.write",
    "x32",
    "clone3",
}


def is_gone(box: Sandbox) -> bool:
    """Wait until the guard has exited; messages that were under way do not matter."""
    while box.receive() is not None:
        pass
    return True


def test_hello_says_what_the_kernel_offers(box: Sandbox) -> None:
    assert box.hello is not None
    assert (box.hello.protocol, box.hello.machine) == (wire.PROTOCOL, os.uname().machine)
    assert box.hello.landlock_abi >= 1


def test_the_guard_can_connect_to_a_socket_file(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen(1)
        listener.settimeout(10)
        binds = [(tmp_path / "socket", "/run/broker/socket")]
        link = ("--connect", "/run/broker/socket")
        process = subprocess.Popen(bubblewrap(tmp_path / "work", guard_binary(), link, binds))
        link_here, _ = listener.accept()
    with link_here:
        box = Sandbox(link=link_here, process=process, work=tmp_path / "work")
        assert isinstance(box.receive(), wire.Hello)
        box.send(setup())
        assert isinstance(box.receive(), wire.Ready)
        assert box.run("/bin/true").code == 0
    process.wait(10)


def test_a_guard_without_a_broker_says_how_to_start_it() -> None:
    for arguments in ([], ["--fd", "77"], ["--connect", "/nowhere"], ["--connect", "x" * 200]):
        done = subprocess.run([guard_binary(), *arguments], capture_output=True, check=False)
        assert done.returncode == 64
        assert b"Usage" in done.stderr


def test_the_self_test_proves_every_refusal(start: Start) -> None:
    with start(flags=wire.SetupFlag.SELF_TEST) as box:
        assert box.ready is not None
        assert {proof.name for proof in box.ready.proofs} == PROOFS
        not_refused = [p for p in box.ready.proofs if p.result is not wire.ProofResult.REFUSED]
        assert [p.name for p in not_refused if p.name != "x32"] == []


def test_the_self_test_also_passes_with_file_labels_on(start: Start) -> None:
    with start(flags=wire.SetupFlag.SELF_TEST | wire.SetupFlag.FILE_CHANGES) as box:
        assert box.ready is not None
        assert all(proof.result is not wire.ProofResult.ALLOWED for proof in box.ready.proofs)


def test_the_self_test_admits_a_write_that_works(start: Start) -> None:
    with start(flags=wire.SetupFlag.SELF_TEST, selftest_write="/work/open") as box:
        assert box.ready is not None
        (proof,) = [p for p in box.ready.proofs if p.name == "write.denied"]
        assert proof.result is wire.ProofResult.ALLOWED


def test_a_rule_with_a_bad_path_ends_in_fatal_or_grants_nothing(start: Start) -> None:
    rules = (*setup().landlock, wire.LandlockRule(rights="rw", path="/nowhere/at/all"))
    with start(landlock=rules) as box:
        assert box.run("/bin/true").code == 0


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"x",
        struct.pack("<HHI", 99, 0, 0),
        struct.pack("<HHI", 1, 0, 0),
        struct.pack("<HHI", 69, 1, 0),
        struct.pack("<HHI", 69, 0, 0) + b"\0",
        struct.pack("<HHI", 65, 0, 1) + b"\xff" * 40,
        struct.pack("<HHI", 66, 0, 1) + struct.pack("<IIII", 2, 0, 13, 0),
        struct.pack("<HHI", 67, 0, 1) + struct.pack("<I", 65),
        wire.encode(setup()),
        wire.encode(wire.Spawn(spawn=1, scope=0, cwd="/", argv=("true",), env=())),  # without descriptors
        random.Random(12).randbytes(200_000),
    ],
    ids=lambda packet: packet[:12].hex(),
)
def test_nonsense_from_the_broker_ends_the_guard(box: Sandbox, packet: bytes) -> None:
    box.start(["sleep", "1000"])
    box.until(lambda m: isinstance(m, wire.Spawned))
    if packet:
        box.link.send(packet)
    else:
        box.link.close()
        return  # the fixture waits for the guard's end
    assert is_gone(box)
    box.process.wait(10)


def test_nothing_starts_before_setup(start: Start) -> None:
    with start(say_setup=False) as box:
        box.send(wire.Kill(spawn=1))
        assert is_gone(box)


def test_every_cut_of_a_setup_ends_the_guard(start: Start) -> None:
    whole = wire.encode(setup())
    for length in random.Random(1).sample(range(8, len(whole)), 5):
        with start(say_setup=False) as box:
            box.link.send(whole[:length])
            assert is_gone(box)


def test_shutdown_ends_everything_and_gives_the_cache_statistics(box: Sandbox) -> None:
    box.started(box.start(["sleep", "1000"]))
    box.send(wire.Shutdown())
    assert is_gone(box)
    assert box.notes(wire.NoteKind.CACHE_STATISTICS)[0].text == "hits=0 misses=1"
    assert box.process.wait(10) == 0


def test_answers_to_unknown_requests_and_signals_to_unknown_spawns_are_ignored(box: Sandbox) -> None:
    box.send(wire.Answer(request=12345, allow=True))
    box.send(wire.Signal(spawn=99, signal=9))
    box.send(wire.Kill(spawn=99))
    assert box.run("/bin/true").code == 0


def test_an_answer_that_comes_twice_counts_once(box: Sandbox) -> None:
    def twice(question: wire.ExecAsked | wire.FileAsked) -> wire.Answer:
        box.send(wire.Answer(request=question.request, allow=False))
        return allow_all(question)

    box.policy = twice
    spawn = box.start(["/bin/true"])
    refused = box.until(lambda m: isinstance(m, wire.SpawnFailed) and m.spawn == spawn)
    assert isinstance(refused, wire.SpawnFailed)
    assert refused.error == 13
