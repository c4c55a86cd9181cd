"""What the page is told: every run of this user as it comes and goes, what is refused, in pieces of text, and never more than fits."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from page_visitor import Served, news, read, served

from broker.classify.risk import Risk
from broker.decide.envelope import Envelope
from broker.decide.profile import Profile
from broker.decide.trust import Trust
from broker.decide.verdict import Deny, Layer
from broker.decide.wording import stands_alone
from broker.serve.page import server
from broker.serve.page.picture import DENIALS, _question, digest, lines_of, pieces
from broker.task.control import Control
from broker.task.tree import Node, Tree

RUN, OTHER = "20261130-043055-7f3a", "20261130-043056-1b2c"
ENVELOPE = Envelope(profile=Profile(name="lead"), trust=Trust.TRUSTED)


def denial(what: str, reason: str = "no") -> Deny:
    return Deny(what=what, effects=frozenset({Risk.NETWORK_EGRESS}), layer=Layer.PROFILE, rule="program.curl", reason=reason, hint="do not")


class Run:
    """A tree of one task, which can be refused things."""

    def __init__(self, run: str, argv: tuple[str, ...]) -> None:
        self.tree = Tree()
        self.root = Node(path="root", envelope=ENVELOPE, argv=argv)
        self.control = Control(run, self.tree, {"engine": "bubblewrap", "workspace": "/w"})

    def refuse(self, what: str) -> None:
        self.tree.denied(self.root, "exec", denial(what))


@contextmanager
def running(run: str = RUN, argv: tuple[str, ...] = ("agent",)) -> Iterator[Run]:
    made = Run(run, argv)
    with made.control:
        made.tree.plant(made.root)
        made.tree.running(made.root, lambda _: None)
        yield made


class Stream:
    """What a page knows by now, from what it was sent."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._seen = connection, bytearray()
        self.runs: list[str] = []
        self.trees: dict[str, dict[str, Any]] = {}
        self.denied: dict[str, dict[str, Any]] = {}
        self.messages = 0

    def until(self, look: Callable[[], Any]) -> Any:
        """Take what comes until there is something to see."""
        while not (found := look()):
            said = news(self._connection, self._seen)
            self.messages += 1
            self.runs = said.get("runs", self.runs)
            self.trees |= {tree["run"]: tree for tree in said.get("trees", ())}
            self.denied |= {row["name"]: row for row in said.get("denied", ())}
        return found


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setenv("BROKER_RUNTIME_DIR", str(tmp_path / "runtime"))
    with served() as made:
        yield made


@contextmanager
def following(page: Served) -> Iterator[Stream]:
    with page.connect() as connection:
        lines = [f"GET {page.door.path}stream HTTP/1.1", f"Host: {page.host}", f"Cookie: {page.cookie['Cookie']}", "", ""]
        connection.sendall("\r\n".join(lines).encode())
        yield Stream(connection)


def test_a_run_that_begins_later_appears_and_one_that_ends_goes(page: Served) -> None:
    with following(page) as stream:
        with running():
            stream.until(lambda: stream.runs == [RUN] and RUN in stream.trees)
            with running(OTHER):
                stream.until(lambda: stream.runs == [RUN, OTHER] and OTHER in stream.trees)
            stream.until(lambda: stream.runs == [RUN])
        stream.until(lambda: stream.runs == [])


def test_a_task_is_shown_with_what_broker_tasks_says_of_it(page: Served) -> None:
    with following(page) as stream, running(argv=("agent", "--fix", "it")) as run:
        stream.until(lambda: RUN in stream.trees)
        (task,) = stream.trees[RUN]["tasks"]
        assert {name: task[name] for name in ("id", "place", "ceiling", "trust", "state", "denied", "over")} == {
            "id": RUN, "place": "root", "ceiling": "safe", "trust": "trusted", "state": "running", "denied": 0, "over": False,
        }  # fmt: skip
        assert (task["what"], task["profile"]) == (["agent --fix it"], ["lead"])
        run.refuse("curl x")
        stream.until(lambda: stream.trees[RUN]["tasks"][0]["denied"] == 1)


def test_what_is_refused_comes_as_it_happens_and_the_same_again_is_counted(page: Served) -> None:
    with following(page) as stream, running() as run:
        stream.until(lambda: RUN in stream.trees)
        run.refuse("curl x")
        (row,) = stream.until(lambda: list(stream.denied.values()))
        assert {name: row[name] for name in ("id", "class", "rule", "what", "reason", "hint", "count")} == {
            "id": RUN, "class": "network_egress", "rule": "program.curl", "what": ["curl x"], "reason": ["no"], "hint": ["do not"], "count": 1,
        }  # fmt: skip
        for _ in range(20):
            run.refuse("curl x")
        stream.until(lambda: stream.denied[row["name"]]["count"] == 21)
        assert len(stream.denied) == 1


def test_how_to_allow_it_is_asked_for_one_denial_that_is_kept(page: Served) -> None:
    with following(page) as stream, running() as run:
        stream.until(lambda: RUN in stream.trees)
        run.refuse("curl x")
        (name,) = stream.until(lambda: list(stream.denied))
        reply = page.get(f"denial?{name}")
        assert json.loads(reply.body) == {"id": "R:1", "what": "w", "why": "y", "how": "h"}
        assert page.asked == [(RUN, "root", "exec", "program.curl", "curl x")]
        assert page.get("denial?nothing").status == 404


def test_of_a_flood_of_refusals_the_last_are_kept_and_a_page_is_told_no_more(page: Served) -> None:
    with running() as run, following(page) as stream:
        stream.until(lambda: RUN in stream.trees)
        for number in range(5 * DENIALS):
            run.refuse(f"curl {number}")
            if number % 100 == 99:  # a run tells of 500 different ones at a time, and counts the others
                stream.until(lambda last=f"curl {number}": any(row["what"] == [last] for row in stream.denied.values()))
        assert len(stream.denied) > DENIALS
        with following(page) as late:
            late.until(lambda: late.denied)
            assert len(late.denied) == DENIALS
            assert late.messages == 1
            assert any(row["what"] == [f"curl {5 * DENIALS - 1}"] for row in late.denied.values())


def test_a_page_that_does_not_read_holds_nothing_up(page: Served) -> None:
    with running() as run, following(page), following(page) as stream:
        stream.until(lambda: RUN in stream.trees)
        for number in range(500):
            run.refuse(f"curl {number} {'y' * 1500}")
        stream.until(lambda: stream.trees[RUN]["tasks"][0]["denied"] == 500)


def test_so_many_pages_are_open_at_once(page: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_READERS", 1)
    with following(page) as stream, running():
        stream.until(lambda: RUN in stream.trees)
        assert page.get("stream").status == 503


def test_the_stream_is_what_a_browsers_own_event_source_takes(page: Served) -> None:
    with page.connect() as connection:
        connection.sendall(f"GET {page.door.path}stream HTTP/1.1\r\nHost: {page.host}\r\nCookie: {page.cookie['Cookie']}\r\n\r\n".encode())
        data = b""
        while b"\n\n" not in data.partition(b"\r\n\r\n")[2]:
            data += connection.recv(4096)
        assert b"content-type: text/event-stream" in data.lower()
        connection.shutdown(socket.SHUT_RDWR)
        read(connection)


HOSTILE = ("\x1b[31m", "\u202egnp.exe", "\udcff", "a\nb", "\x00", "\x85", "\u2028", "\u200b", "\u00a0", "\x7f", "<b>", "\\x1b", "", "é", "\U000e0001")


@pytest.mark.parametrize("text", HOSTILE)
def test_pieces_are_plain_or_written_out_and_say_all_of_the_text(text: str) -> None:
    found = pieces(f"x{text}y")
    assert all(map(stands_alone, "".join(found[::2])))
    assert "".join(found[1::2]).isascii()
    assert found[0].startswith("x")
    assert found[-1].endswith("y")
    assert "".join(found[::2]) == "".join(char for char in f"x{text}y" if stands_alone(char))


def test_what_was_typed_as_an_escape_is_told_from_one() -> None:
    assert pieces("a\\x1b\x1b") == ["a\\x1b", "\\x1b"]
    assert pieces("\x1b\x1ba") == ["", "\\x1b\\x1b", "a"]
    assert pieces("") == []
    assert pieces("a\nb") == ["a", "\\n", "b"]
    assert lines_of("a\nb\x1b") == ["a\nb", "\\x1b"]


def test_what_looks_like_nothing_or_covers_its_neighbour_is_written_out() -> None:
    assert pieces("a\u3164b\u2800") == ["a", "\\u3164", "b", "\\u2800"]
    assert pieces("rm\u0338 -f") == ["rm", "\\u0338", " -f"]


@pytest.mark.parametrize("cut", [True, False])
def test_a_text_of_a_shell_that_is_cut_says_so(cut: bool) -> None:
    row = {
        "approval": 1, "left": 9.0, "seconds": 1.0, "session": True, "word": "", "tool": "exec", "class": "install", "effects": [], "what": "x",
        "rule": "r", "reason": "no", "sha256": "", "reasons": [], "shell": {"text": "a\nb", "start": None, "end": None, "cut": cut},
    }  # fmt: skip
    assert _question(RUN, f"{RUN}.1", row, 0.0)["shell_cut"] is cut


def test_hostile_words_of_a_task_arrive_in_pieces(page: Served) -> None:
    with following(page) as stream, running(argv=("a", "\u202e<script>", "\x1b]0;x")) as run:
        stream.until(lambda: RUN in stream.trees)
        assert stream.trees[RUN]["tasks"][0]["what"] == ["a ", "\\u202e", "<script> ", "\\x1b", "]0;x"]
        run.refuse("\x1b<b>")
        (row,) = stream.until(lambda: list(stream.denied.values()))
        assert row["what"] == ["", "\\x1b", "<b>"]


def test_time_that_passes_is_no_other_question_and_everything_else_is() -> None:
    row = {"approval": 1, "what": "curl", "argv": ["curl"], "left": 119.0, "seconds": 1.0, "session": True, "word": "", "new": {"a": 1}}
    assert digest(row) == digest({**row, "left": 3.0, "seconds": 117.0, "session": False, "word": "approve"})
    for changed in ({"argv": ["curl", ""]}, {"approval": 2}, {"new": {"a": 2}}, {"what": "curl\u202e"}, {"more": None}):
        assert digest(row) != digest({**row, **changed})
