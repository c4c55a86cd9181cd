"""The codec of broker/guard/PROTOCOL.md."""

from __future__ import annotations

import struct
import timeit

import pytest

from broker.enforce import wire
from broker.errors import GuardError
from broker.request.operation import FileAction


def blob(raw: bytes) -> bytes:
    return struct.pack("<I", len(raw)) + raw


def packet(kind: int, number: int, body: bytes = b"", flags: int = 0) -> bytes:
    return struct.pack("<HHI", kind, flags, number) + body


EXEC = packet(
    5,
    77,
    struct.pack("<IIIQQ", 12, 1, 3, 2049, 99)
    + b"".join(map(blob, (b"/bin/git", b"/usr/bin/git", b"/w", b"", b"git\0st\xff\0\0", b"Z=1\0A=b=c\0"))),
)

GUARD_PACKETS = [
    (
        packet(1, 0, struct.pack("<IiI", 1, 7, 1) + blob(b"x86_64")),
        wire.Hello(protocol=1, landlock_abi=7, features=1, machine="x86_64"),
    ),
    (
        packet(2, 0, struct.pack("<I", 1) + blob(b"x32\0refused\0ENOSYS")),
        wire.Ready(proofs=(wire.Proof(name="x32", result=wire.ProofResult.REFUSED, evidence="ENOSYS"),)),
    ),
    (packet(3, 4, struct.pack("<I", 9), flags=1), wire.Spawned(spawn=4, pid=9, terminal=True)),
    (packet(4, 4, struct.pack("<I", 2) + blob(b"exec")), wire.SpawnFailed(spawn=4, error=2, step="exec")),
    (
        EXEC,
        wire.ExecAsked(
            request=77,
            pid=12,
            spawn=1,
            scope=3,
            dev=2049,
            ino=99,
            path="/bin/git",
            program="/usr/bin/git",
            cwd="/w",
            shebang="",
            argv=("git", "st\udcff", ""),
            env=(("A", "b=c"), ("Z", "1")),
        ),
    ),
    (
        packet(6, 8, struct.pack("<IIII", 12, 1, 3, 3) + blob(b"/a") + blob(b"/b")),
        wire.FileAsked(request=8, pid=12, spawn=1, scope=3, op=wire.FileOp.RENAME, path="/a", other="/b"),
    ),
    (
        packet(7, 1, struct.pack("<iQQQ", 9, 10, 20, 30)),
        wire.Exited(spawn=1, status=9, user_us=10, system_us=20, max_rss=30),
    ),
    (packet(8, 1, struct.pack("<I", 20)), wire.Stopped(spawn=1, signal=20)),
    (packet(9, 1), wire.Continued(spawn=1)),
    (
        packet(10, 0, struct.pack("<III", 1, 2, 3) + blob(b"why")),
        wire.Note(kind=wire.NoteKind.EXEC_RACE, pid=2, spawn=3, text="why"),
    ),
    (packet(11, 0, struct.pack("<I", 0)), wire.Idle(live=0)),
    (packet(12, 0, blob(b"landlock") + struct.pack("<I", 38)), wire.Fatal(step="landlock", error=38)),
    (packet(13, 77, struct.pack("<I", 12)), wire.Executed(request=77, pid=12)),
    (packet(14, 3, struct.pack("<III", 12, 1, 2)), wire.Call(call=3, pid=12, spawn=1, scope=2)),
    (packet(15, 3, blob(b"c/w\0\xff")), wire.CallData(call=3, data=b"c/w\0\xff")),
    (packet(16, 3), wire.CallTaken(call=3)),
    (packet(17, 3), wire.CallGone(call=3)),
    (packet(18, 65535), wire.Connected(port=65535)),
    (packet(19, 3), wire.Withdrawn(request=3)),
]
IDS = [type(message).__name__ for _, message in GUARD_PACKETS]


@pytest.mark.parametrize(("raw", "message"), GUARD_PACKETS, ids=IDS)
def test_each_message_of_the_guard_is_read(raw: bytes, message: wire.GuardMessage) -> None:
    assert wire.decode(raw) == message


@pytest.mark.parametrize(("raw", "_message"), GUARD_PACKETS, ids=IDS)
def test_a_packet_that_ends_early_or_late_is_an_error(raw: bytes, _message: wire.GuardMessage) -> None:
    for damaged in [raw[:length] for length in range(len(raw))] + [raw + b"\0", raw + raw]:
        with pytest.raises(GuardError):
            wire.decode(damaged)


@pytest.mark.parametrize(
    "raw",
    [
        packet(0, 0),
        packet(18, 0),
        packet(18, 65536),
        packet(20, 0),
        packet(15, 3, blob(b"x" * (64 * 1024 + 1))),
        packet(64, 0),
        packet(9, 1, flags=1),
        packet(3, 1, struct.pack("<I", 9), flags=2),
        packet(11, 5, struct.pack("<I", 0)),
        packet(6, 8, struct.pack("<IIII", 1, 1, 1, 13) + blob(b"/a") + blob(b"")),
        packet(10, 0, struct.pack("<III", 99, 2, 3) + blob(b"")),
        packet(2, 0, struct.pack("<I", 0xFFFFFFFF)),
        packet(2, 0, struct.pack("<I", 1) + blob(b"x32\0refused")),
        packet(2, 0, struct.pack("<I", 1) + blob(b"x32\0maybe\0")),
        packet(4, 1, struct.pack("<II", 2, 0xFFFFFFFF)),
        EXEC.replace(b"A=b=c\0", b"A=b=cx"),
        packet(4, 4, struct.pack("<I", 2) + blob(b"x" * 200_000)),
    ],
)
def test_nonsense_from_the_guard_is_an_error(raw: bytes) -> None:
    with pytest.raises(GuardError):
        wire.decode(raw)


def test_a_setup_is_written_field_by_field() -> None:
    setup = wire.Setup(
        flags=wire.SetupFlag.SELF_TEST | wire.SetupFlag.FILE_CHANGES,
        answer_timeout_ms=1000,
        live_limit=64,
        nofile=1024,
        file_size=1 << 40,
        nproc=5,
        landlock=(wire.LandlockRule(rights="rx", path="/usr"),),
        writable_roots=("/w",),
        quiet_paths=("/dev/null", "/dev/tty"),
        watched_names=(".git",),
        watched_env=("LD_*",),
        selftest_exec="/bin/true",
        selftest_write="/etc/x",
        views=("/w", "/w/deep"),
        ports=(47100, 1),
    )
    assert wire.encode(setup) == packet(
        64,
        0,
        struct.pack("<IIIIQI", 3, 1000, 64, 1024, 1 << 40, 5)
        + struct.pack("<I", 1)
        + blob(b"rx\0/usr")
        + struct.pack("<I", 1)
        + blob(b"/w")
        + struct.pack("<I", 2)
        + blob(b"/dev/null")
        + blob(b"/dev/tty")
        + struct.pack("<I", 1)
        + blob(b".git")
        + struct.pack("<I", 1)
        + blob(b"LD_*")
        + blob(b"/bin/true")
        + blob(b"/etc/x")
        + struct.pack("<I", 2)
        + blob(b"/w")
        + blob(b"/w/deep")
        + struct.pack("<I", 2)
        + blob(b"47100")
        + blob(b"1"),
    )


def test_a_spawn_keeps_bytes_that_are_not_utf8() -> None:
    spawn = wire.Spawn(
        spawn=7, scope=2, cwd="/w", argv=("a", "\udcff"), env=("A=1",), terminal=True, rows=24, columns=80
    )
    assert wire.encode(spawn) == packet(
        65,
        7,
        struct.pack("<III", 2, 24, 80)
        + blob(b"/w")
        + struct.pack("<I", 2)
        + blob(b"a")
        + blob(b"\xff")
        + struct.pack("<I", 1)
        + blob(b"A=1"),
        flags=1,
    )


def test_the_small_messages_are_written() -> None:
    assert wire.encode(wire.Answer(request=5, allow=True, scope=2, cache=True)) == packet(
        66, 5, struct.pack("<III", 1, 2, 13) + blob(b""), flags=1
    )
    assert wire.encode(wire.Answer(request=5, allow=False, error=1, note="no", wait_longer=True)) == packet(
        66, 5, struct.pack("<III", 0, 0xFFFFFFFF, 1) + blob(b"no"), flags=2
    )
    assert wire.encode(wire.Signal(spawn=3, signal=2, group=True)) == packet(
        67, 3, struct.pack("<I", 2), flags=1
    )
    assert wire.encode(wire.Kill(spawn=3)) == packet(68, 3)
    assert wire.encode(wire.Shutdown()) == packet(69, 0)
    assert wire.encode(wire.Reply(call=3, data=b"o\0\xff")) == packet(70, 3, blob(b"o\0\xff"))
    assert wire.encode(wire.CallNext(call=3)) == packet(71, 3)
    assert wire.encode(wire.HangUp(call=3)) == packet(72, 3)


@pytest.mark.parametrize("word", ["a\0b", "\ud800", "x" * 200_000])
def test_a_word_that_the_guard_could_not_read_whole_is_not_sent(word: str) -> None:
    with pytest.raises(GuardError):
        wire.encode(wire.Spawn(spawn=1, scope=0, cwd="/", argv=(word,), env=()))


def test_what_the_guard_would_not_take_is_not_sent() -> None:
    assert len(wire.encode(wire.Reply(call=1, data=b"x" * wire.MAX_CALL_PACKET))) == 12 + wire.MAX_CALL_PACKET
    with pytest.raises(GuardError, match="65537 bytes, more than 65536"):
        wire.encode(wire.Reply(call=1, data=b"x" * (wire.MAX_CALL_PACKET + 1)))
    with pytest.raises(GuardError, match="9 views, more than 8"):
        wire.encode(wire.Setup(flags=wire.SetupFlag.NONE, answer_timeout_ms=1, views=("/w",) * 9))


@pytest.mark.parametrize(
    ("ports", "why"),
    [(tuple(range(1, 18)), "17 ports, more than 16"), ((0,), "each must be"), ((65536,), "each must be"), ((80, 80), "each must be")],
    ids=["seventeen", "zero", "too-large", "twice"],
)
def test_ports_that_the_guard_would_not_take_are_not_sent(ports: tuple[int, ...], why: str) -> None:
    with pytest.raises(GuardError, match=why):
        wire.encode(wire.Setup(flags=wire.SetupFlag.NONE, answer_timeout_ms=1, ports=ports))


def test_every_file_operation_has_the_word_of_the_contract() -> None:
    assert {op.action for op in wire.FileOp} == set(FileAction)


def test_reading_an_exec_question_takes_microseconds() -> None:
    seconds = min(timeit.repeat(lambda: wire.decode(EXEC), number=2000, repeat=5)) / 2000
    assert seconds < 50e-6  # about 5 µs here; the rest is room for a busy machine
