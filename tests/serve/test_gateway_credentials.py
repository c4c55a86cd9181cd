"""Credentials: from where the operator keeps them to the upstream, and nowhere else."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serve.ways import House, house, says

from broker.decide.gateway import Secret
from broker.serve.addresses import Unreachable
from broker.serve.credentials import Credentials, without
from broker.serve.gateway import Gateways
from broker.task.task import Task

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture(name="house")
def a_house(tmp_path: Path) -> Iterator[House]:
    with house(tmp_path) as made:
        yield made


def nowhere(_path: str) -> bool:
    return False


@pytest.mark.parametrize("kind", ["env", "file", "command", "text"])
def test_a_credential_reaches_the_upstream_and_neither_the_record_nor_the_client(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("MODEL_KEY", "s3cret-value")
    (tmp_path / "key").write_text("s3cret-value\n")
    source = {"env": ("MODEL_KEY",), "file": (str(tmp_path / "key"),), "command": ("/bin/cat", str(tmp_path / "key")), "text": ("s3cret-value",)}
    seen: list[bytes] = []
    door = house.to(says(OK, seen), headers=(("Authorization", Secret(kind=kind, source=source[kind], form="Bearer {}")),))
    said = door.post(b"{}")
    assert b"authorization: bearer s3cret-value\r\n" in seen[0].lower()
    door.answered()
    assert b"s3cret" not in said + door.journal.path.read_bytes()


@pytest.mark.parametrize("answer", [
    pytest.param(b"302 Found\r\nLocation: /login?key=s3cret-value\r\nX-Was: Bearer s3cret-value\r\nContent-Length: 0\r\n\r\n", id="redirect"),
    pytest.param(b"401 No\r\nContent-Length: 30\r\n\r\nno such key: s3cret-value, sir", id="error"),
    pytest.param(
        b"500 No\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nkey s3\r\n4\r\ncret\r\n8\r\n-value s\r\nb\r\n3cret-value\r\n0\r\n\r\n", id="in pieces",
    ),
])  # fmt: skip
def test_a_credential_that_an_upstream_repeats_in_a_redirect_or_an_error_stays_outside(
    house: House, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    monkeypatch.setenv("MODEL_KEY", "s3cret-value")
    key = Secret(kind="env", source=("MODEL_KEY",), form="Bearer {}")
    door = house.to(says(b"HTTP/1.1 " + answer), headers=(("Authorization", key),))
    said = door.post(b"{}")
    assert said.startswith(b"HTTP/1.1 " + answer[:3])
    assert b"s3cret" not in said
    assert b"cret-value" not in said
    assert b"************" in said
    door.answered()
    assert b"s3cret" not in door.journal.path.read_bytes()


@given(st.lists(st.binary(max_size=6) | st.sampled_from([b"abcabcabd", b"abcab", b"cabd", b"a"]), max_size=8))
def test_whatever_the_pieces_are_a_credential_is_masked_and_the_rest_arrives(pieces: list[bytes]) -> None:
    secrets = [b"abcabcabd"]
    found = b"".join(without(iter(pieces), secrets))
    whole = b"".join(pieces)
    assert secrets[0] not in found
    assert len(found) == len(whole)
    if secrets[0] not in whole:
        assert found == whole


def test_what_cannot_be_the_beginning_of_a_credential_is_passed_on_at_once() -> None:
    passed = without(iter([b"data: hello\n", b"data: abc", b"x"]), [b"abcdefgh"])
    assert list(passed) == [b"data: hello\n", b"data: ", b"abcx"]


@pytest.mark.parametrize(("secret", "says_what"), [
    (Secret(kind="env", source=("NOT_SET_ANYWHERE",)), "NOT_SET_ANYWHERE is not set in the environment"),
    (Secret(kind="file", source=("/nonexistent/key",)), "/nonexistent/key cannot be read: FileNotFoundError"),
    (Secret(kind="command", source=("/nonexistent/tool",)), "/nonexistent/tool failed: FileNotFoundError"),
    (Secret(kind="command", source=("/bin/false",)), "/bin/false ended with 1"),
    (Secret(kind="command", source=("/bin/true",)), "is empty, or holds what no header can"),
    (Secret(kind="command", source=("/usr/bin/printf", "a\\nX-Smuggled: 1")), "holds what no header can"),
])  # fmt: skip
def test_a_credential_that_is_missing_is_one_sentence_and_nothing_is_sent(house: House, secret: Secret, says_what: str) -> None:
    seen: list[bytes] = []
    door = house.to(says(OK, seen), headers=(("X-Key", secret),))
    said = door.get()
    assert said.startswith(b"HTTP/1.1 502 ")
    message = json.loads(said.partition(b"\r\n\r\n")[2])["error"]["message"]
    assert says_what in message
    assert message.count("\n") == 0
    assert says_what in door.answered()[0]["error"]
    assert seen == []


def test_nothing_that_the_task_could_have_written_is_run_or_read(house: House, tmp_path: Path) -> None:
    program = tmp_path / "tool"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\necho x\n")
    program.chmod(0o755)
    for secret in (
        Secret(kind="command", source=(str(program),)),
        Secret(kind="command", source=("/bin/sh", str(program))),
        Secret(kind="file", source=(str(program),)),
    ):
        with pytest.raises(Unreachable, match="where the task can write"):
            Credentials(lambda path: path.startswith(str(tmp_path))).value_of(secret)
    assert not (tmp_path / "ran").exists()


def test_what_a_task_above_could_have_written_is_no_credential_of_a_task_below(house: House, tmp_path: Path) -> None:
    door = house.door()
    above = door.task
    (tmp_path / "below").mkdir()
    below = Task(
        path="root/1", envelope=above.envelope, context=replace(above.context, writable=()), journal=door.journal,
        run_dir=str(tmp_path / "below"), parent=above,
    )  # fmt: skip
    (tmp_path / "link").symlink_to("/w/key")
    assert not below.can_write("/w/key")
    for path in ("/w/key", str(tmp_path / "link")):
        with pytest.raises(Unreachable, match="where the task can write"):
            Gateways(below).credentials.value_of(Secret(kind="file", source=(path,)))


def test_a_command_is_found_without_the_folder_that_broker_runs_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "tool"
    program.write_text("#!/bin/sh\necho planted\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", ".:/usr/bin:/bin")
    for name in ("./tool", "tool"):
        with pytest.raises(Unreachable):
            Credentials(nowhere).value_of(Secret(kind="command", source=(name,)))


def test_a_command_is_asked_once_for_many_requests_and_again_when_its_answer_is_not_taken(house: House, tmp_path: Path) -> None:
    count = tmp_path / "count"
    secret = Secret(kind="command", source=("/bin/sh", "-c", f"echo x >> {count}; wc -l < {count}"))
    seen: list[bytes] = []
    statuses = iter([b"200", b"200", b"401", b"200"])

    def serve(client: object) -> None:
        says(b"HTTP/1.1 %s X\r\nContent-Length: 0\r\n\r\n" % next(statuses), seen)(client)  # type: ignore[arg-type]

    door = house.to(serve, headers=(("X-Key", secret),))
    for _ in range(4):
        door.get()
    keys = [line.partition(b": ")[2].strip() for head in seen for line in head.split(b"\r\n") if line.lower().startswith(b"x-key")]
    assert keys == [b"1", b"1", b"1", b"2"]


def test_many_requests_at_once_ask_a_command_once(tmp_path: Path) -> None:
    count = tmp_path / "count"
    kept = Credentials(nowhere)
    secret = Secret(kind="command", source=("/bin/sh", "-c", f"echo x >> {count}; echo key"))
    threads = [threading.Thread(target=kept.value_of, args=(secret,)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count.read_text() == "x\n"
