"""Hostile input: a hostile process, a hostile broker, and a short run of the fuzzer."""

from __future__ import annotations

import random
import shutil
import socket
import struct
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from broker.enforce import wire
from broker.guard import build
from guard_harness import Sandbox, setup

Start = Callable[..., AbstractContextManager[Sandbox]]

VALID = (
    wire.encode(setup()),
    wire.encode(wire.Spawn(spawn=1, scope=0, cwd="/", argv=("a", ""), env=("A=1",), terminal=True)),
    wire.encode(wire.Answer(request=1, allow=True, note="no")),
    wire.encode(wire.Signal(spawn=1, signal=9, group=True)),
    wire.encode(wire.Kill(spawn=1)),
    wire.encode(wire.Shutdown()),
    wire.encode(wire.Reply(call=1, data=b"x\0")),
    wire.encode(wire.CallNext(call=1)),
    wire.encode(wire.HangUp(call=1)),
    wire.encode(setup(flags=wire.SetupFlag.CALLS, views=("/work", "/tmp"), ports=(47100, 65535))),
)


@pytest.mark.parametrize("seed", range(4))
def test_the_guard_outlives_a_hostile_process(start: Start, seed: int) -> None:
    flags = wire.SetupFlag.FILE_CHANGES
    with start(flags=flags, live_limit=200, answer_timeout_ms=2000) as box:
        choice = random.Random(seed)

        def moody(question: wire.ExecAsked | wire.FileAsked) -> wire.Answer | None:
            attack = isinstance(question, wire.ExecAsked) and "chaos" in question.path
            if not attack and choice.random() < 0.02:
                return None
            return wire.Answer(
                request=question.request,
                allow=attack or choice.random() < 0.5,
                cache=choice.random() < 0.5,
                scope=choice.randrange(1000),
                note="refused\n" if choice.random() < 0.5 else "",
            )

        box.policy = moody
        result = box.run("/attacks/chaos", str(seed), "60", timeout=100)
        assert result.out.endswith(b"done\n")
        box.send(wire.Kill(spawn=1))
        if not any(isinstance(m, wire.Idle) for m in box.seen):
            box.until(lambda m: isinstance(m, wire.Idle))
        box.policy = lambda q: wire.Answer(request=q.request, allow=True)
        assert box.run("/bin/true", cwd="/").code == 0  # the chaos may have closed /work to itself


def mutated(choice: random.Random) -> bytes:
    packet = bytearray(choice.choice(VALID))
    for _ in range(choice.randrange(1, 4)):
        match choice.randrange(4):
            case 0:
                packet[choice.randrange(len(packet))] = choice.randrange(256)
            case 1:
                at = choice.randrange(len(packet))
                packet[at : at + 4] = struct.pack(
                    "<I", choice.choice((0, 1, 0x7FFFFFFF, 0xFFFFFFFF, len(packet)))
                )
            case 2:
                del packet[choice.randrange(len(packet)) :]
            case 3:
                packet += choice.randbytes(choice.randrange(1, 9))
        if not packet:
            packet = bytearray(b"\0")
    return bytes(packet)


@pytest.mark.parametrize("seed", range(30))
def test_a_hostile_broker_gets_an_orderly_end(start: Start, seed: int) -> None:
    choice = random.Random(seed)
    with start(say_setup=choice.random() < 0.8) as box:
        null = open("/dev/null", "r+b", buffering=0)
        try:
            for _ in range(200):
                descriptors = [null.fileno()] * choice.choice((0, 0, 0, 1, 3))
                socket.send_fds(box.link, [mutated(choice)], descriptors)
        except (BrokenPipeError, ConnectionResetError):
            pass
        null.close()
        box.link.close()
        # Not by a signal, which would be 128 + n: AddressSanitizer, an abort, a crash.
        assert box.process.wait(20) in (0, 1, 70, 78)


@pytest.mark.skipif(not shutil.which("clang") and not shutil.which("clang-14"), reason="needs clang")
def test_a_few_seconds_of_fuzzing_find_nothing(tmp_path: Path) -> None:
    for i, packet in enumerate(VALID):
        (tmp_path / f"message{i}").write_bytes(b"\0" + packet)
    (tmp_path / "script").write_bytes(b"\x01#! /bin/sh -e\n")
    (tmp_path / "path").write_bytes(b"\x03/proc/self/root/work/../x")
    (tmp_path / "address").write_bytes(b"\x06\x02\0\0\x50\x7f\0\0\1" + bytes(8))
    (tmp_path / "address6").write_bytes(b"\x06\x0a\0\0\x50" + bytes(19) + b"\1" + bytes(4))
    (tmp_path / "calls").write_bytes(b"\x05" + bytes((8, 0, 0, 9, 0, 9, 29, 0, 255, 30, 0, 0, 31, 0, 0, 12, 0, 0)))
    fuzzer = build.build(build.FUZZER)
    done = subprocess.run(
        [fuzzer, "-max_total_time=5", "-max_len=4096", "-timeout=5", tmp_path],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
