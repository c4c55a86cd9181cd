"""To a real JetStream: what it has is everything, each once, whatever was sent twice and whoever was away meanwhile."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from exported import write_run

from broker.record.export.cloudevents import CloudEvents
from broker.record.export.cursor import Cursor
from broker.record.export.message import Refused, Unreachable
from broker.record.export.ocsf import Ocsf
from broker.record.export.pump import BATCH, Pump, recorded
from broker.record.export.to_nats import NatsSink
from broker.record.lines import START

pytestmark = pytest.mark.needs_nats


class Server:
    """A nats-server of our own, with its store in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = -1  # any that is free
        self.start()

    def start(self) -> None:
        for old in self._folder.glob("nats-server_*.ports"):
            old.unlink()
        self._process = subprocess.Popen(
            ["nats-server", "-js", "-a", "127.0.0.1", "-p", str(self._port), "-sd", str(self._folder / "store"), "--ports_file_dir", str(self._folder)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        while not (found := list(self._folder.glob("nats-server_*.ports"))) or not found[0].read_text().strip():
            assert self._process.poll() is None, "nats-server ended"
        [self.url] = json.loads(found[0].read_text())["nats"]
        self._port = int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def ask(self, what: Any) -> Any:
        async def asked() -> Any:
            client = await nats.connect(self.url)
            try:
                return await what(client.jetstream())
            finally:
                await client.close()

        return asyncio.run(asked())

    def make(self, stream: str, *subjects: str, **more: Any) -> None:
        self.ask(lambda js: js.add_stream(name=stream, subjects=list(subjects), **more))

    def messages(self, stream: str) -> list[Any]:
        async def read(js: Any) -> list[Any]:
            info = await js.stream_info(stream)
            return [await js.get_msg(stream, seq) for seq in range(1, info.state.messages + 1)]

        found = self.ask(read)
        assert isinstance(found, list)
        return found


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "nats"
    folder.mkdir()
    made = Server(folder)
    yield made
    made.kill()


def send(server: Server, run: Path, stream: str = "BROKER", **how: Any) -> Pump:
    sink = NatsSink(server.url, stream)
    pump = Pump(CloudEvents(), sink, **how)
    try:
        pump.carry(recorded([run], how["cursor"].place if "cursor" in how else lambda _run: START))
    finally:
        sink.close()
    return pump


def test_a_stream_has_each_event_once_in_order_under_a_subject_that_says_what_it_is(tmp_path: Path, server: Server) -> None:
    run = write_run(tmp_path)
    server.make("BROKER", "broker.>")
    send(server, run)
    send(server, run)  # once more, from the beginning: the stream knows the ids

    found = server.messages("BROKER")
    assert [json.loads(one.data)["id"] for one in found] == [f"{run.stem}/{number}" for number in range(1, len(found) + 1)]
    assert len(found) == len(run.read_bytes().splitlines())
    assert found[2].subject == f"broker.{run.stem}.exec.decided"
    assert found[2].headers["Nats-Msg-Id"] == f"{run.stem}/3"


def test_a_server_that_goes_away_and_comes_back_has_everything(tmp_path: Path, server: Server) -> None:
    run = write_run(tmp_path, more=2 * BATCH)
    server.make("BROKER", "broker.>")
    cursor = Cursor(tmp_path, "cloudevents", "nats")
    away = []

    class Sink(NatsSink):
        def deliver(self, format_: Any, messages: Any) -> None:
            super().deliver(format_, messages)
            if not away:
                away.append(server.kill())

    def came_back(_: str) -> None:
        if len(away) == 1:
            away.append(server.start())

    sink = Sink(server.url, "BROKER")
    pump = Pump(CloudEvents(), sink, cursor, tell=came_back)
    pump.carry(recorded([run], cursor.place))
    sink.close()
    cursor.close()

    assert pump.counts.retries >= 1
    assert server.ask(lambda js: js.stream_info("BROKER")).state.messages == len(run.read_bytes().splitlines())


def test_no_stream_is_a_refusal_that_says_how_to_make_one(tmp_path: Path, server: Server) -> None:
    with pytest.raises(Refused, match="nats stream add BROKER --subjects 'BROKER.>'"):
        send(server, write_run(tmp_path))


def test_a_stream_that_is_full_and_refuses_more_is_an_error(tmp_path: Path, server: Server) -> None:
    from nats.js.api import DiscardPolicy

    server.make("BROKER", "broker.>", max_msgs=5, discard=DiscardPolicy.NEW)
    with pytest.raises((Refused, Unreachable), match="maximum messages exceeded"):
        send(server, write_run(tmp_path), patience=0)


def test_nobody_there_is_unreachable_and_a_password_is_not_shown(tmp_path: Path) -> None:
    sink = NatsSink("nats://me:hunter2@127.0.0.1:9", "BROKER")
    with pytest.raises(Unreachable) as error:
        Pump(Ocsf(), sink, patience=0).carry(recorded([write_run(tmp_path)], lambda _run: START))
    sink.close()
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(("subjects", "subject"), [(["events.*"], "events.exec_decided"), (["all"], "all")])
def test_the_subject_fits_the_streams(tmp_path: Path, server: Server, subjects: list[str], subject: str) -> None:
    server.make("BROKER", *subjects)
    send(server, write_run(tmp_path))
    assert server.messages("BROKER")[2].subject == subject
