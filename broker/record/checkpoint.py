"""Step 5: checkpoints: the chain file's head, signed with an operator's key.

In: a key. Out: an entry of the chain file whose `signature` (Ed25519) covers the entry without that field, and so
every entry before it, and so every event that these vouch for. Whoever may write all of the record can make it anew,
but cannot sign it. The key belongs where the brokers' state does not: with another user, or on another machine.

`cryptography` is an extra (broker[audit]), loaded only here.
"""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.errors import BrokerError, JournalError, UsageError
from broker.record import chain, event
from broker.record.chain import Chain, ChainRecord, Entry
from broker.record.evidence import bind_dead
from broker.values import dataclass

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

LARGEST = 1 << 16  # bytes; no key comes near it


class KeyUnusable(BrokerError):
    """A key file that somebody else could read or replace, or that holds no Ed25519 key."""

    exit_code = UsageError.exit_code


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """What an operator's key says of a chain file. `vouched`: the number of the last entry that a checkpoint covers."""

    count: int
    vouched: int
    time: str
    problem: str = ""


def default_key() -> Path:
    """Return where the operator's key is unless named: $XDG_CONFIG_HOME/broker/audit.key, else below ~/.config."""
    shared = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(shared) if shared.startswith("/") else Path("~/.config").expanduser()) / "broker" / "audit.key"


def public_path(key: Path) -> Path:
    """Return where the public half of a new key is put."""
    return key.with_name(f"{key.name}.pub")


def new_key(path: Path) -> str:
    """Make a key: the private half at `path` (0600), the public half beside it. Returns its fingerprint.

    Raises UsageError when there is one already: what it signed could not be told from what a new one signs.
    """
    _need_cryptography()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = public_pem(key.public_key()).encode()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for place, content, mode in ((path, private, 0o600), (public_path(path), public, 0o644)):
        try:
            descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        except FileExistsError:
            raise UsageError(f"{place} exists. Name another file, or keep that key: broker events key show") from None
        except OSError as error:
            raise UsageError(f"cannot make {place}: {error.strerror}") from error
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    return fingerprint(key.public_key())


def fingerprint(key: Ed25519PublicKey) -> str:
    """Return the name that checkpoints call a key by: SHA-256 of its 32 bytes."""
    return event.digest(key.public_bytes_raw())


def load_private(path: Path) -> Ed25519PrivateKey:
    """Return the private key in a file that only its owner can read. Raises KeyUnusable."""
    _need_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    data = _read(path, forbidden=0o077, remedy="chmod 600")
    try:
        key = load_pem_private_key(data, password=None)
    except (ValueError, TypeError) as error:
        raise KeyUnusable(f"{path} holds no private key without a passphrase. Make one: broker events key new") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyUnusable(f"{path} holds a key of another kind than Ed25519. Make one: broker events key new")
    return key


def load_public(path: Path) -> Ed25519PublicKey:
    """Return the public key in a file that nobody else can replace. Raises KeyUnusable."""
    _need_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    data = _read(path, forbidden=0o022, remedy="chmod go-w")
    if b"PRIVATE KEY" in data:
        return load_private(path).public_key()
    try:
        key = load_pem_public_key(data)
    except ValueError as error:
        raise KeyUnusable(f"{path} holds no public key in PEM. It is the file that `broker events key new` calls .pub") from error
    if not isinstance(key, Ed25519PublicKey):
        raise KeyUnusable(f"{path} holds a key of another kind than Ed25519")
    return key


def public_pem(key: Ed25519PublicKey) -> str:
    """Return the public key as its file has it."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode("ascii")


def sign(state: Path, key: Ed25519PrivateKey) -> Entry:
    """Bind what dead brokers left unbound, and sign the chain file's head. Returns the new entry.

    Raises JournalError when the chain file does not hold: a signature would vouch for it.
    """
    if problem := Chain(state).read().problem:
        raise JournalError(f"nothing was signed: {problem}. See: broker events verify")
    bind_dead(state)
    name = fingerprint(key.public_key())
    return Chain(state).append(
        chain.CHECKPOINT, force=True, sign=lambda line: key.sign(line).hex(), key=name, uid=os.geteuid()
    )


def check(record: ChainRecord, key: Ed25519PublicKey) -> Signed:
    """Hold the chain file against a key: what it signed must be there, and must be what it signed."""
    name = fingerprint(key)
    signed = [entry for entry in record.entries if entry.type == chain.CHECKPOINT and entry.fields.get("key") == name]
    for entry in signed:
        if not _fits(entry.fields, key):
            problem = f"entry {entry.seq} of the chain file was not signed with this key: it is forged, or what it covers was made anew"
            return Signed(count=len(signed), vouched=0, time="", problem=problem)
    if not signed:
        problem = "no checkpoint was made with this key, or the ones that were made are gone"
        return Signed(count=0, vouched=0, time="", problem=problem)
    return Signed(count=len(signed), vouched=signed[-1].seq, time=signed[-1].time)


def check_kept(record: ChainRecord, kept: Path, key: Ed25519PublicKey | None) -> str:
    """Hold the chain file against a checkpoint that was kept elsewhere. Returns what does not fit ("": it does)."""
    try:
        line = kept.read_bytes().rstrip(b"\n")
        found = event.decode(line)
        seq = found["seq"]
    except OSError as error:
        raise UsageError(f"cannot read {kept}: {error.strerror}") from error
    except (ValueError, KeyError):
        raise UsageError(f"{kept} is no checkpoint: one line as `broker events checkpoint` prints it") from None
    if key is not None and not _fits(found, key):
        return f"{kept} was not signed with this key"
    if type(seq) is not int or not 0 < seq <= len(record.entries):
        return f"the chain file has {len(record.entries)} entries, and the kept checkpoint is entry {seq}: the rest was cut off"
    if record.entries[seq - 1].digest != event.digest(line):
        return f"entry {seq} of the chain file is not the kept checkpoint: it, or what stands before it, was made anew"
    return ""


def _fits(found: dict[str, Any], key: Ed25519PublicKey) -> bool:
    from cryptography.exceptions import InvalidSignature

    unsigned = {name: value for name, value in found.items() if name != "signature"}
    try:
        key.verify(bytes.fromhex(str(found.get("signature", ""))), event.encode(unsigned))
    except (InvalidSignature, ValueError):
        return False
    return True


def _read(path: Path, *, forbidden: int, remedy: str) -> bytes:
    """Return a key file's content, judged as it was opened."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise KeyUnusable(f"cannot read the key {path}: {error.strerror}. Make one: broker events key new") from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise KeyUnusable(f"{path} is no regular file")
        if status.st_uid not in (os.geteuid(), 0):
            raise KeyUnusable(f"{path} belongs to uid {status.st_uid}. Use a key of your own: broker events key new")
        if stat.S_IMODE(status.st_mode) & forbidden:
            mode = stat.S_IMODE(status.st_mode)
            raise KeyUnusable(f"{path} is open to others (mode {mode:04o}). Run: {remedy} {shlex.quote(str(path))}")
        return file.read(LARGEST)


def _need_cryptography() -> None:
    try:
        import cryptography  # noqa: F401 - whether it is there
    except ImportError:
        raise UsageError("signing needs the package cryptography. Run: pip install 'broker[audit]'") from None
