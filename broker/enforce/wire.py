"""Step 4: the words that the broker and the guard exchange, as values.

In: packets from the guard's socket, messages of ours. Out: frozen messages, packets to send. The format is
broker/guard/PROTOCOL.md; the C side is broker/guard/message.c. What the guard sends is decoded strictly: a
packet that does not parse to its last byte is a GuardError, because a guard that speaks nonsense can no
longer be trusted to enforce anything. Descriptors travel beside the packet and are the caller's business.

Text from the sandbox is decoded as UTF-8 with `surrogateescape`, so every byte survives the round trip.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from enum import IntEnum, IntFlag, StrEnum
from struct import Struct
from typing import assert_never

from broker.errors import GuardError
from broker.request.operation import FileAction
from broker.values import dataclass

PROTOCOL = 3
MAX_PACKET = 192 * 1024
MAX_CALL_PACKET = 64 * 1024
MAX_VIEWS = 8
MAX_PORTS = 16
MAX_PORT = 65535
SCOPE_UNCHANGED = 0xFFFFFFFF


class MessageDamaged(GuardError):
    """The guard sent something that does not parse."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"the guard sent a damaged message: {why}. The task has ended; this is a bug or an attack"
        )
        self.why = why


class MessageUnsendable(GuardError):
    """A message of ours does not fit the protocol: too large, or text with a NUL in it."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what} cannot be sent to the guard: {why}")
        self.what, self.why = what, why


class NoteKind(IntEnum):
    """What a NOTE is about."""

    EXEC_RACE = 1
    EXEC_UNREADABLE = 2
    EXEC_TOO_LARGE = 3
    TASKS_LIMIT = 4
    ANSWER_TIMEOUT = 5
    CACHE_STATISTICS = 6
    PATH_UNREADABLE = 7
    INTERNAL = 8
    NET_REFUSED = 9


class FileOp(IntEnum):
    """The `op` of a FILE message."""

    WRITE = 1
    DELETE = 2
    RENAME = 3
    LINK = 4
    SYMLINK = 5
    MKDIR = 6
    MKNOD = 7
    MODE = 8
    OWNER = 9
    XATTR = 10
    TRUNCATE = 11
    TIMES = 12

    @property
    def action(self) -> FileAction:
        """The operation's word for it."""
        return _ACTIONS[self]


_ACTIONS = {op: FileAction[op.name] for op in FileOp}


class ProofResult(StrEnum):
    """How an attempt of the self-test ended. Only `allowed` is a failure."""

    REFUSED = "refused"
    ALLOWED = "allowed"
    SKIPPED = "skipped"


class SetupFlag(IntFlag):
    """The flags of SETUP."""

    NONE = 0
    FILE_CHANGES = 1
    SELF_TEST = 2
    NO_LANDLOCK_IS_ACCEPTABLE = 4
    ALLOW_EVERY_EXEC = 8
    CALLS = 16


# Guard → broker


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The guard is alive. A NETLINK_ROUTE socket of the sandbox comes with it. `landlock_abi` 0: none."""

    protocol: int
    landlock_abi: int
    features: int
    machine: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """One attempt of the self-test: what was tried, how it ended, and what was seen."""

    name: str
    result: ProofResult
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The guard is set up; spawns are welcome. A descriptor for each of Setup.views comes along, in order."""

    proofs: tuple[Proof, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawned:
    """A spawn's program has really started. `pid` is the sandbox's number. `terminal`: its master comes along."""

    spawn: int
    pid: int
    terminal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnFailed:
    """A spawn did not start: `error` is an errno, `step` what failed (`chdir`, `exec` …)."""

    spawn: int
    error: int
    step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecAsked:
    """A process wants to start a program. `env` holds the watched variables, sorted, as (name, value)."""

    request: int
    pid: int
    spawn: int
    scope: int
    dev: int
    ino: int
    path: str
    program: str
    cwd: str
    shebang: str
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileAsked:
    """A process wants to change a path. `other` is the second path, or a symlink's target text."""

    request: int
    pid: int
    spawn: int
    scope: int
    op: FileOp
    path: str
    other: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exited:
    """A spawn's main process is gone. `status` is as from waitpid; times in µs, `max_rss` in KiB."""

    spawn: int
    status: int
    user_us: int
    system_us: int
    max_rss: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """A spawn's main process was stopped by `signal` (job control)."""

    spawn: int
    signal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued:
    """A spawn's main process runs again."""

    spawn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something that the broker must record."""

    kind: NoteKind
    pid: int
    spawn: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """No supervised process is left."""

    live: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fatal:
    """The guard could not set up, and exits. `error` is an errno."""

    step: str
    error: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """What was approved under `request` has really been started."""

    request: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A process inside has called. `pid`, `spawn` and `scope` are what it was when it connected."""

    call: int
    pid: int
    spawn: int
    scope: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallData:
    """A packet from the caller. The next one is read after CallNext."""

    call: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTaken:
    """The last Reply is in the caller's socket; the next one may be sent."""

    call: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallGone:
    """A call is over, whoever ended it. Comes once for each Call; its number means nothing any more."""

    call: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """Something inside connected to one of Setup.ports. The connected socket comes along; the guard keeps nothing of it."""

    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn:
    """Nobody waits for this request any more. Comes only for one that was told to wait longer."""

    request: int


GuardMessage = (
    Hello
    | Ready
    | Spawned
    | SpawnFailed
    | ExecAsked
    | FileAsked
    | Exited
    | Stopped
    | Continued
    | Note
    | Idle
    | Fatal
    | Executed
    | Call
    | CallData
    | CallTaken
    | CallGone
    | Connected
    | Withdrawn
)


# Broker → guard


@dataclass(frozen=True, slots=True, kw_only=True)
class LandlockRule:
    """Rights below a path: r read, w write files, c create and remove, x execute, d device (ioctl)."""

    rights: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Everything that the guard must know before it starts anything. 0 as a limit: leave it alone.

    `ports` (at most 16, from 1,024 on, each once): where the guard listens on the sandbox's 127.0.0.1.
    """

    flags: SetupFlag
    answer_timeout_ms: int
    live_limit: int = 0
    nofile: int = 0
    file_size: int = 0
    nproc: int = 0
    landlock: tuple[LandlockRule, ...] = ()
    writable_roots: tuple[str, ...] = ()
    quiet_paths: tuple[str, ...] = ()
    watched_names: tuple[str, ...] = ()
    watched_env: tuple[str, ...] = ()
    selftest_exec: str = "/bin/true"
    selftest_write: str = ""
    views: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawn:
    """Start a program. `env` is the whole environment, as `NAME=value`.

    Descriptors (stdin, stdout, stderr) go beside the packet unless `terminal` (a new one is made) or `no_descriptors` (/dev/null) says otherwise.
    """

    spawn: int
    scope: int
    cwd: str
    argv: tuple[str, ...]
    env: tuple[str, ...]
    terminal: bool = False
    no_descriptors: bool = False
    rows: int = 0
    columns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The broker's verdict on a request. `wait_longer` is no verdict: it restarts the guard's timer."""

    request: int
    allow: bool
    scope: int = SCOPE_UNCHANGED
    error: int = errno.EACCES
    cache: bool = False
    wait_longer: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """Send a signal to a spawn's main process; `group`: to its (foreground) process group. Spawn 0: to all."""

    spawn: int
    signal: int
    group: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """SIGKILL to everything that descends from a spawn, until nothing is left."""

    spawn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shutdown:
    """The guard exits, and the kernel kills everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A packet for a caller. The next one only after CallTaken: the guard ends when it gets a second one before."""

    call: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CallNext:
    """Read the caller's next packet. The first one counts as asked for."""

    call: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HangUp:
    """End a call once the last Reply is in the caller's socket; said again, at once."""

    call: int


BrokerMessage = Setup | Spawn | Answer | Signal | Kill | Shutdown | Reply | CallNext | HangUp


_HEADER = Struct("<HHI")
_NOTHING = Struct("<")
_U32 = Struct("<I")
_U32_2 = Struct("<II")
_ANSWER = Struct("<IIII")


# Decoding


def decode(packet: bytes) -> GuardMessage:
    """Read one packet from the guard. Raises MessageDamaged (a GuardError) unless all of it makes sense."""
    if not _HEADER.size <= len(packet) <= MAX_PACKET:
        raise MessageDamaged(f"{len(packet)} bytes")
    kind, flags, number = _HEADER.unpack_from(packet)
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise MessageDamaged(f"type {kind}")
    if flags and not (kind == 3 and flags == 1):
        raise MessageDamaged(f"flags {flags:#x} of type {kind}")
    return decoder(packet, number, flags)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _fixed(body: Struct, packet: bytes) -> tuple[int, ...]:
    """Unpack the numbers behind the header; nothing may follow."""
    if len(packet) != _HEADER.size + body.size:
        raise MessageDamaged(f"{len(packet)} bytes instead of {_HEADER.size + body.size}")
    return body.unpack_from(packet, _HEADER.size)


def _mixed(body: Struct, packet: bytes, blobs: int) -> tuple[tuple[int, ...], list[bytes]]:
    """Unpack the numbers behind the header, then exactly so many blobs."""
    offset = _HEADER.size + body.size
    if len(packet) < offset:
        raise MessageDamaged("it ends early")
    return body.unpack_from(packet, _HEADER.size), _blobs(packet, offset, blobs)


def _blobs(packet: bytes, offset: int, count: int) -> list[bytes]:
    end = len(packet)
    found = []
    for _ in range(count):
        start = offset + 4
        if start > end:
            raise MessageDamaged("it ends early")
        offset = start + int.from_bytes(packet[offset:start], "little")
        if offset > end:
            raise MessageDamaged("it ends early")
        found.append(packet[start:offset])
    if offset != end:
        raise MessageDamaged(f"{end - offset} bytes too many")
    return found


def _words(raw: bytes) -> list[str]:
    """Split a run of words, each ended by a NUL."""
    if not raw:
        return []
    words = _text(raw).split("\0")
    if words.pop():
        raise MessageDamaged("a word without its end")
    return words


def _zero(number: int) -> None:
    if number:
        raise MessageDamaged(f"id {number} where none belongs")


_HELLO = Struct("<IiI")


def _hello(packet: bytes, number: int, _flags: int) -> Hello:
    _zero(number)
    (protocol, abi, features), (machine,) = _mixed(_HELLO, packet, 1)
    return Hello(protocol=protocol, landlock_abi=abi, features=features, machine=_text(machine))


def _ready(packet: bytes, number: int, _flags: int) -> Ready:
    _zero(number)
    if len(packet) < _HEADER.size + 4:
        raise MessageDamaged("it ends early")
    (count,) = _U32.unpack_from(packet, _HEADER.size)
    proofs = []
    for blob in _blobs(packet, _HEADER.size + 4, count):
        parts = _text(blob).split("\0")
        if len(parts) != 3:
            raise MessageDamaged("a proof of other than three parts")
        try:
            result = ProofResult(parts[1])
        except ValueError:
            raise MessageDamaged(f"proof result {parts[1]!r}") from None
        proofs.append(Proof(name=parts[0], result=result, evidence=parts[2]))
    return Ready(proofs=tuple(proofs))


def _spawned(packet: bytes, number: int, flags: int) -> Spawned:
    (pid,) = _fixed(_U32, packet)
    return Spawned(spawn=number, pid=pid, terminal=bool(flags))


def _spawn_failed(packet: bytes, number: int, _flags: int) -> SpawnFailed:
    (error,), (step,) = _mixed(_U32, packet, 1)
    return SpawnFailed(spawn=number, error=error, step=_text(step))


_EXEC = Struct("<IIIQQ")


def _exec(packet: bytes, number: int, _flags: int) -> ExecAsked:
    (pid, spawn, scope, dev, ino), blobs = _mixed(_EXEC, packet, 6)
    path, program, cwd, shebang, argv, env = blobs
    pairs = [word.partition("=") for word in _words(env)] if env else ()
    return ExecAsked(
        request=number,
        pid=pid,
        spawn=spawn,
        scope=scope,
        dev=dev,
        ino=ino,
        path=_text(path),
        program=_text(program),
        cwd=_text(cwd),
        shebang=_text(shebang),
        argv=tuple(_words(argv)),
        env=tuple(sorted((name, value) for name, _, value in pairs)),
    )


_FILE = Struct("<IIII")


def _file(packet: bytes, number: int, _flags: int) -> FileAsked:
    (pid, spawn, scope, op), (path, other) = _mixed(_FILE, packet, 2)
    try:
        file_op = FileOp(op)
    except ValueError:
        raise MessageDamaged(f"file operation {op}") from None
    return FileAsked(
        request=number, pid=pid, spawn=spawn, scope=scope, op=file_op, path=_text(path), other=_text(other)
    )


_EXITED = Struct("<iQQQ")


def _exited(packet: bytes, number: int, _flags: int) -> Exited:
    status, user, system, rss = _fixed(_EXITED, packet)
    return Exited(spawn=number, status=status, user_us=user, system_us=system, max_rss=rss)


def _stopped(packet: bytes, number: int, _flags: int) -> Stopped:
    (signal,) = _fixed(_U32, packet)
    return Stopped(spawn=number, signal=signal)


def _continued(packet: bytes, number: int, _flags: int) -> Continued:
    _fixed(_NOTHING, packet)
    return Continued(spawn=number)


_NOTE = Struct("<III")


def _note(packet: bytes, number: int, _flags: int) -> Note:
    _zero(number)
    (kind, pid, spawn), (text,) = _mixed(_NOTE, packet, 1)
    try:
        note_kind = NoteKind(kind)
    except ValueError:
        raise MessageDamaged(f"note kind {kind}") from None
    return Note(kind=note_kind, pid=pid, spawn=spawn, text=_text(text))


def _idle(packet: bytes, number: int, _flags: int) -> Idle:
    _zero(number)
    (live,) = _fixed(_U32, packet)
    return Idle(live=live)


def _fatal(packet: bytes, number: int, _flags: int) -> Fatal:
    _zero(number)
    # The one message whose number comes last: blob step, u32 errno.
    if len(packet) < _HEADER.size + 8:
        raise MessageDamaged("it ends early")
    (step,) = _blobs(packet[:-4], _HEADER.size, 1)
    (error,) = _U32.unpack_from(packet, len(packet) - 4)
    return Fatal(step=_text(step), error=error)


def _executed(packet: bytes, number: int, _flags: int) -> Executed:
    (pid,) = _fixed(_U32, packet)
    return Executed(request=number, pid=pid)


_CALL = Struct("<III")


def _call(packet: bytes, number: int, _flags: int) -> Call:
    pid, spawn, scope = _fixed(_CALL, packet)
    return Call(call=number, pid=pid, spawn=spawn, scope=scope)


def _call_data(packet: bytes, number: int, _flags: int) -> CallData:
    (data,) = _blobs(packet, _HEADER.size, 1)
    if len(data) > MAX_CALL_PACKET:
        raise MessageDamaged(f"{len(data)} bytes of a call at once")
    return CallData(call=number, data=data)


def _call_taken(packet: bytes, number: int, _flags: int) -> CallTaken:
    _fixed(_NOTHING, packet)
    return CallTaken(call=number)


def _call_gone(packet: bytes, number: int, _flags: int) -> CallGone:
    _fixed(_NOTHING, packet)
    return CallGone(call=number)


def _connected(packet: bytes, number: int, _flags: int) -> Connected:
    _fixed(_NOTHING, packet)
    if not 0 < number <= MAX_PORT:
        raise MessageDamaged(f"port {number}")
    return Connected(port=number)


def _withdrawn(packet: bytes, number: int, _flags: int) -> Withdrawn:
    _fixed(_NOTHING, packet)
    return Withdrawn(request=number)


_DECODERS: dict[int, Callable[[bytes, int, int], GuardMessage]] = {
    1: _hello,
    2: _ready,
    3: _spawned,
    4: _spawn_failed,
    5: _exec,
    6: _file,
    7: _exited,
    8: _stopped,
    9: _continued,
    10: _note,
    11: _idle,
    12: _fatal,
    13: _executed,
    14: _call,
    15: _call_data,
    16: _call_taken,
    17: _call_gone,
    18: _connected,
    19: _withdrawn,
}


# Encoding


def encode(message: BrokerMessage) -> bytes:
    """Write one message for the guard. Raises MessageUnsendable when it is too large or holds a NUL."""
    match message:
        case Answer():
            packet = _encode_answer(message)
        case Spawn():
            packet = _encode_spawn(message)
        case Signal():
            packet = _HEADER.pack(67, int(message.group), message.spawn) + _U32.pack(message.signal)
        case Kill():
            packet = _HEADER.pack(68, 0, message.spawn)
        case Setup():
            packet = _encode_setup(message)
        case Shutdown():
            packet = _HEADER.pack(69, 0, 0)
        case Reply():
            if len(message.data) > MAX_CALL_PACKET:
                raise MessageUnsendable(
                    "a reply", f"it has {len(message.data)} bytes, more than {MAX_CALL_PACKET}"
                )
            packet = _HEADER.pack(70, 0, message.call) + _U32.pack(len(message.data)) + message.data
        case CallNext():
            packet = _HEADER.pack(71, 0, message.call)
        case HangUp():
            packet = _HEADER.pack(72, 0, message.call)
        case _:
            assert_never(message)
    if len(packet) > MAX_PACKET:
        what = type(message).__name__.lower()
        raise MessageUnsendable(what, f"it has {len(packet)} bytes, more than {MAX_PACKET}")
    return packet


def _blob(text: str) -> bytes:
    # INVARIANT: no text with a NUL reaches the guard, where it would end early (test_wire).
    if "\0" in text:
        raise MessageUnsendable(ascii(text), "it holds a NUL")
    try:
        raw = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise MessageUnsendable(ascii(text), "it holds a lone surrogate") from None
    return _U32.pack(len(raw)) + raw


def _list(blobs: Iterable[bytes]) -> bytes:
    packed = list(blobs)
    return _U32.pack(len(packed)) + b"".join(packed)


def _texts(texts: Iterable[str]) -> bytes:
    return _list(_blob(text) for text in texts)


def _encode_answer(answer: Answer) -> bytes:
    flags = int(answer.cache) | int(answer.wait_longer) << 1
    numbers = (66 | flags << 16, answer.request, int(answer.allow), answer.scope)
    return _ANSWER.pack(*numbers) + _U32.pack(answer.error) + _blob(answer.note)


def _encode_spawn(spawn: Spawn) -> bytes:
    flags = int(spawn.terminal) | int(spawn.no_descriptors) << 1
    return b"".join(
        (
            _HEADER.pack(65, flags, spawn.spawn),
            _U32.pack(spawn.scope),
            _U32_2.pack(spawn.rows, spawn.columns),
            _blob(spawn.cwd),
            _texts(spawn.argv),
            _texts(spawn.env),
        )
    )


_SETUP = Struct("<IIIIQI")


def _encode_setup(setup: Setup) -> bytes:
    numbers = _SETUP.pack(
        setup.flags,
        setup.answer_timeout_ms,
        setup.live_limit,
        setup.nofile,
        setup.file_size,
        setup.nproc,
    )
    rules = _list(_rule(rule) for rule in setup.landlock)
    lists = (setup.writable_roots, setup.quiet_paths, setup.watched_names, setup.watched_env)
    last = _blob(setup.selftest_exec) + _blob(setup.selftest_write)
    if len(setup.views) > MAX_VIEWS:
        raise MessageUnsendable("setup", f"it has {len(setup.views)} views, more than {MAX_VIEWS}")
    return b"".join(
        (_HEADER.pack(64, 0, 0), numbers, rules, *map(_texts, lists), last, _texts(setup.views), _ports(setup.ports))
    )


def _ports(ports: tuple[int, ...]) -> bytes:
    if len(ports) > MAX_PORTS:
        raise MessageUnsendable("setup", f"it has {len(ports)} ports, more than {MAX_PORTS}")
    if len(set(ports)) < len(ports) or not all(0 < port <= MAX_PORT for port in ports):
        raise MessageUnsendable("setup", f"its ports are {ports}, and each must be one of its own from 1 to {MAX_PORT}")
    return _texts(map(str, ports))


def _rule(rule: LandlockRule) -> bytes:
    raw = _blob(rule.rights)[4:] + b"\0" + _blob(rule.path)[4:]
    return _U32.pack(len(raw)) + raw
