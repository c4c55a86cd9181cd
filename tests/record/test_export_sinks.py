"""Sinks: what a real server was sent when it fails now and then, when the exporter is killed, and what a refusal says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from exported import write_run

from broker.errors import JournalError, UsageError
from broker.record import event
from broker.record.export.cloudevents import CloudEvents
from broker.record.export.cursor import Cursor
from broker.record.export.message import Refused, Unreachable
from broker.record.export.pump import BATCH, Pump, followed, recorded
from broker.record.export.to_file import FileSink
from broker.record.export.to_http import HttpSink
from broker.record.journal import Journal
from broker.record.lines import START, Place


class Collector:
    """A real HTTP server. `script` says what becomes of each request: a status, or a function of its body."""

    def __init__(self) -> None:
        self.script: list[int | Callable[[bytes], int | None]] = []
        self.ids: list[str] = []
        self.requests: list[tuple[str, dict[str, str]]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                collector.requests.append((self.path, dict(self.headers)))
                step = collector.script.pop(0) if collector.script else 200
                status = step if isinstance(step, int) else step(data)
                if status is None:  # it hangs up, and nobody knows whether it took it
                    self.close_connection = True
                    return
                if status == 200:
                    collector.take(data)
                self.send_response(status)
                if status == 429:
                    self.send_header("Retry-After", "0")
                if status == 302:
                    self.send_header("Location", "http://127.0.0.1:1/elsewhere")
                body = b"the disk is full\x1b[2J" if status >= 400 else b""
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing on stderr."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def take(self, data: bytes) -> None:
        self.ids += [one["id"] for one in json.loads(data)]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


def all_ids(*runs: Path) -> list[str]:
    return [f"{run.stem}/{number}" for run in runs for number in range(1, len(run.read_bytes().splitlines()) + 1)]


def pump(state: Path, sink: Any, **how: Any) -> Pump:
    return Pump(CloudEvents(), sink, Cursor(state, "cloudevents", "test"), **how)


def carry(one: Pump, *runs: Path) -> None:
    assert one.cursor is not None
    try:
        one.carry(recorded(list(runs), one.cursor.place))
    finally:
        one.cursor.close()


# --- HTTP


def test_a_server_that_fails_now_and_then_has_everything_in_the_end(tmp_path: Path, collector: Collector) -> None:
    run = write_run(tmp_path, more=2 * BATCH)
    collector.script = [503, 200, lambda _: None, 429, 502, 200]
    said: list[str] = []
    one = pump(tmp_path, HttpSink(collector.url), tell=said.append)
    carry(one, run)

    assert collector.ids == all_ids(run)
    assert one.counts.retries == 4
    assert "answered 503" in said[0]
    assert "does not answer" in said[1]


def test_what_was_taken_is_not_sent_again_and_what_is_new_is(tmp_path: Path, collector: Collector) -> None:
    run = write_run(tmp_path)
    carry(pump(tmp_path, HttpSink(collector.url)), run)
    first = all_ids(run)
    second = write_run(tmp_path)
    carry(pump(tmp_path, HttpSink(collector.url)), run, second)

    assert collector.ids == first + all_ids(second)


@pytest.mark.parametrize(("status", "words"), [(401, "Authorization"), (400, "the disk is full"), (302, "redirect"), (501, "501")])
def test_a_refusal_is_a_sentence_at_once_and_moves_no_cursor(tmp_path: Path, collector: Collector, status: int, words: str) -> None:
    run = write_run(tmp_path)
    collector.script = [status]
    with pytest.raises(Refused, match=words) as refused:
        carry(pump(tmp_path, HttpSink(collector.url)), run)
    assert "\x1b" not in str(refused.value)
    assert len(collector.requests) == 1

    carry(pump(tmp_path, HttpSink(collector.url)), run)
    assert collector.ids == all_ids(run)


def test_patience_ends_and_the_next_export_goes_on(tmp_path: Path, collector: Collector) -> None:
    run = write_run(tmp_path)
    collector.script = [503]
    with pytest.raises(Unreachable):
        carry(pump(tmp_path, HttpSink(collector.url), patience=0), run)
    carry(pump(tmp_path, HttpSink(collector.url)), run)
    assert collector.ids == all_ids(run)


def test_headers_go_along_and_a_password_in_the_address_is_not_shown(tmp_path: Path, collector: Collector) -> None:
    run = write_run(tmp_path)
    collector.script = [403]
    address = collector.url.replace("//", "//me:hunter2@")
    with pytest.raises(Refused) as refused:
        carry(pump(tmp_path, HttpSink(address, {"X-Tenant": "one"})), run)
    assert "hunter2" not in str(refused.value)
    assert collector.requests[0][1]["X-Tenant"] == "one"
    assert collector.requests[0][1]["Content-Type"] == "application/cloudevents-batch+json"
    cursor = Cursor(tmp_path, "cef", address)
    cursor.save({run.stem: Place(0, 1)})
    cursor.close()
    assert "hunter2" not in cursor.path.read_text()


# --- killed in the middle


def test_an_exporter_that_is_killed_in_the_middle_loses_nothing(tmp_path: Path, collector: Collector) -> None:
    """SIGKILL before the server took a batch, after it took one and before it said so, and after it said so."""
    runs = [write_run(tmp_path, more=3 * BATCH), write_run(tmp_path, more=BATCH)]
    child: list[subprocess.Popen[bytes]] = []

    def before_it_is_taken(_: bytes) -> None:
        child[-1].kill()

    def taken_but_not_said(data: bytes) -> None:
        collector.take(data)
        child[-1].kill()

    def said(_: bytes) -> int:
        threading.Thread(target=child[-1].send_signal, args=(signal.SIGKILL,)).start()
        return 200

    collector.script = [200, before_it_is_taken, 200, said, 200, taken_but_not_said]
    codes: list[int] = []
    while not codes or codes[-1] != 0:
        assert len(codes) < 10
        child.append(_exporter(tmp_path, collector.url))
        codes.append(child[-1].wait(timeout=60))

    assert codes[0] == -signal.SIGKILL
    assert set(all_ids(*runs)) <= set(collector.ids)
    times = Counter(collector.ids)
    assert max(times.values()) == 2  # the batch that was taken but not said to be
    assert sum(times.values()) - len(times) <= 2 * BATCH


def _exporter(state: Path, to: str, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "broker", "export", "--all", "--format", "cloudevents", "--to", to, *words],
        env={**os.environ, "BROKER_STATE_DIR": str(state)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def test_a_file_has_whole_lines_and_every_event_whenever_the_exporter_was_killed(tmp_path: Path) -> None:
    run = write_run(tmp_path, more=4 * BATCH)
    out = tmp_path / "out.jsonl"
    for size in (1, 200_000, 900_000):
        child = _exporter(tmp_path, str(out))
        while child.poll() is None and (not out.exists() or out.stat().st_size < size):
            threading.Event().wait(0.001)
        child.kill()
        child.wait()
        if out.exists():
            with out.open("ab") as file:
                file.write(b'{"torn')  # as a crash of the machine leaves it
    assert _exporter(tmp_path, str(out)).wait(timeout=60) == 0

    found = [json.loads(line)["id"] for line in out.read_bytes().splitlines()]
    assert sorted(set(found)) == sorted(all_ids(run))
    assert out.stat().st_mode & 0o777 == 0o600


# --- cursors


def test_two_exporters_to_one_place_are_told_apart(tmp_path: Path) -> None:
    one = Cursor(tmp_path, "cef", "/x")
    with pytest.raises(UsageError, match="--cursor NAME"):
        Cursor(tmp_path, "cef", "/x")
    Cursor(tmp_path, "cef", "/x", "mine").close()
    Cursor(tmp_path, "ocsf", "/x").close()
    one.close()
    Cursor(tmp_path, "cef", "/x").close()


def test_a_broken_cursor_is_an_error_and_not_a_beginning(tmp_path: Path) -> None:
    one = Cursor(tmp_path, "cef", "/x")
    one.save({"r": Place(1, 2)})
    one.close()
    again = Cursor(tmp_path, "cef", "/x")
    assert (again.place("r"), again.place("other")) == (Place(1, 2), START)
    again.close()
    one.path.write_text('{"runs": {"r"')
    with pytest.raises(JournalError, match="Remove it"):
        Cursor(tmp_path, "cef", "/x")


def test_runs_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    one = Cursor(tmp_path, "cef", "/x")
    one.save({"gone": Place(0, 9), "here": Place(0, 9)})
    one.keep_only({"here"})
    one.save({})
    one.close()
    assert json.loads(one.path.read_text())["runs"] == {"here": [0, 9]}


def test_a_full_disk_is_a_sentence_and_the_rest_comes_when_there_is_room(tmp_path: Path, tiny_disk: Path) -> None:
    run = write_run(tmp_path, more=300)
    out = tiny_disk / "out.jsonl"
    with pytest.raises(Exception, match="No space left"):
        carry(pump(tmp_path, FileSink(str(out))), run)
    subprocess.run(["mount", "-o", "remount,size=4m", str(tiny_disk)], check=True)
    carry(pump(tmp_path, FileSink(str(out))), run)
    assert [json.loads(line)["id"] for line in out.read_bytes().splitlines()][-1] == all_ids(run)[-1]
    assert set(all_ids(run)) == {json.loads(line)["id"] for line in out.read_bytes().splitlines()}


# --- following


def test_following_sends_what_there_was_and_what_comes_and_ends_with_its_run(tmp_path: Path, collector: Collector) -> None:
    with Journal.create(tmp_path) as journal:
        journal.append(event.RUN_STARTED, command=["x"])
        one = pump(tmp_path, HttpSink(collector.url))
        assert one.cursor is not None
        place = one.cursor.place
        thread = threading.Thread(target=lambda: one.carry(followed([journal.path], place, None)), daemon=True)
        thread.start()
        _until(lambda: collector.ids == [f"{journal.run}/1"])
        journal.append(event.SPAWN_STARTED, argv=["x"])
        _until(lambda: f"{journal.run}/2" in collector.ids)
        journal.append(event.RUN_FINISHED, status="finished", exit_code=0)
        thread.join(timeout=30)
    assert collector.ids == all_ids(journal.path)
    assert one.cursor.place(journal.run).offset == journal.path.stat().st_size
    one.cursor.close()


def _until(true: Callable[[], bool]) -> None:
    waited = threading.Event()
    for _ in range(3_000):
        if true():
            return
        waited.wait(0.01)
    raise AssertionError("it did not come")
