"""A checkpoint shows what nothing else can: a record that somebody made anew from its first line on."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from broker.errors import JournalError, UsageError
from broker.record import chain, event
from broker.record.chain import Chain
from broker.record.checkpoint import (
    KeyUnusable,
    check,
    check_kept,
    fingerprint,
    load_private,
    load_public,
    new_key,
    public_path,
    sign,
)
from broker.record.evidence import examine
from broker.record.journal import Journal


@pytest.fixture
def key(tmp_path: Path) -> Path:
    new_key(tmp_path / "keys" / "audit.key")
    return tmp_path / "keys" / "audit.key"


@pytest.fixture
def state(tmp_path: Path, key: Path) -> Path:
    """Two runs, a checkpoint, and a run after it."""
    folder = tmp_path / "state"
    for run in ("20261130-000001-000a", "20261130-000002-000b"):
        _run(folder, run)
    sign(folder, load_private(key))
    _run(folder, "20261130-000003-000c")
    return folder


def _run(folder: Path, run: str) -> None:
    with Journal.create(folder, run) as journal:
        journal.append(event.RUN_STARTED, command=["agent"])
        journal.append(event.EXEC_DECIDED, verdict="deny")
        journal.append(event.RUN_FINISHED)


def _all_made_anew(folder: Path) -> None:
    """Everything that somebody can do who may write every file: all runs and the chain file, right in themselves."""
    old = Chain(folder).read().entries
    (folder / chain.NAME).unlink()
    for entry in old:
        if entry.type != chain.STARTED:
            continue
        path = folder / "runs" / f"{entry.run}.jsonl"
        seq, digest = Chain(folder).head()
        head, lines = event.GENESIS, []
        for line in path.read_bytes().splitlines():
            record = event.decode(line) | {"prev": head}
            record.pop("seal", None)
            if "chain" in record:
                record["chain"] = {"seq": seq, "head": digest}
            if "verdict" in record:
                record["verdict"] = "allow"
            text = event.sealed(record) if record["type"] == event.RUN_FINISHED else event.encode(record)
            head = event.digest(text)
            lines.append(text + b"\n")
            if len(lines) == 1:
                Chain(folder).append(chain.STARTED, run=entry.run, count=1, head=head)
        path.write_bytes(b"".join(lines))
        Chain(folder).append(chain.FINISHED, run=entry.run, count=len(lines), head=head)
        if entry.run == "20261130-000002-000b":
            copied = {k: v for k, v in old[4].fields.items() if k not in ("seq", "prev", "time", "type")}
            Chain(folder).append(chain.CHECKPOINT, **copied)


def test_a_checkpoint_vouches_for_everything_before_it(state: Path, key: Path) -> None:
    signed = check(Chain(state).read(), load_public(public_path(key)))

    assert (signed.problem, signed.count, signed.vouched) == ("", 1, 5)


def test_a_record_that_was_made_anew_as_a_whole_is_found_by_nothing_but_a_checkpoint(state: Path, key: Path) -> None:
    _all_made_anew(state)

    assert all(finding.ok for finding in examine(state))
    assert Chain(state).read().problem == ""
    assert "entry 5 of the chain file was not signed with this key" in check(
        Chain(state).read(), load_public(public_path(key))
    ).problem


def test_checkpoints_that_are_gone_are_missed(state: Path, key: Path) -> None:
    path = state / chain.NAME
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:4]))

    assert "no checkpoint was made with this key" in check(Chain(state).read(), load_public(public_path(key))).problem


def test_a_checkpoint_of_another_key_vouches_for_nothing(state: Path, tmp_path: Path) -> None:
    new_key(tmp_path / "other.key")

    assert "no checkpoint was made with this key" in check(Chain(state).read(), load_public(tmp_path / "other.key.pub")).problem


def test_a_checkpoint_that_was_kept_elsewhere_shows_what_the_record_was(state: Path, key: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_bytes(event.encode(Chain(state).read().entries[4].fields) + b"\n")
    public = load_public(public_path(key))
    assert check_kept(Chain(state).read(), kept, public) == ""

    _all_made_anew(state)
    assert "is not the kept checkpoint" in check_kept(Chain(state).read(), kept, public)

    (state / chain.NAME).unlink()
    assert "the rest was cut off" in check_kept(Chain(state).read(), kept, None)

    kept.write_bytes(kept.read_bytes().replace(b'"seq":5', b'"seq":4'))
    assert "was not signed with this key" in check_kept(Chain(state).read(), kept, public)


def test_nothing_is_signed_on_top_of_a_damaged_chain_file(state: Path, key: Path) -> None:
    path = state / chain.NAME
    path.write_bytes(path.read_bytes().replace(b'"count":1', b'"count":2', 1))

    with pytest.raises(JournalError, match="nothing was signed"):
        sign(state, load_private(key))


def test_a_key_is_private_and_is_never_replaced(key: Path) -> None:
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    before = key.read_bytes()

    with pytest.raises(UsageError, match="exists"):
        new_key(key)
    assert key.read_bytes() == before


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_private_key_that_others_can_read_is_refused_with_the_remedy(mode: int, key: Path) -> None:
    key.chmod(mode)

    with pytest.raises(KeyUnusable, match="chmod 600"):
        load_private(key)


def test_a_public_key_that_others_can_replace_is_refused(key: Path) -> None:
    public_path(key).chmod(0o666)

    with pytest.raises(KeyUnusable, match="chmod go-w"):
        load_public(public_path(key))


def test_the_public_key_of_a_private_one_is_the_same(key: Path) -> None:
    assert fingerprint(load_public(key)) == fingerprint(load_public(public_path(key)))


@pytest.mark.parametrize("content", ["", "hello", "rsa", "passphrase"])
def test_what_is_no_key_of_the_kind_is_refused(content: str, tmp_path: Path) -> None:
    data = content.encode()
    if content == "rsa":
        data = generate_private_key(65537, 2048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    if content == "passphrase":
        from cryptography.hazmat.primitives.serialization import BestAvailableEncryption

        data = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x"))
    path = tmp_path / "bad.key"
    path.write_bytes(data)
    path.chmod(0o600)

    with pytest.raises(KeyUnusable, match="broker events key new"):
        load_private(path)
