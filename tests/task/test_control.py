"""The control socket of a run: who reaches it, what they are told, and that no reader holds anything up."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.classify.risk import Risk
from broker.decide.envelope import Envelope
from broker.decide.profile import Profile
from broker.decide.trust import Trust
from broker.decide.verdict import Deny, Layer
from broker.enforce.runtime import OwnerMark
from broker.errors import HostCannotEnforce
from broker.task import watching
from broker.task.control import MOST_DENIALS, MOST_READERS, MOST_REQUEST, MOST_WAITING, Control
from broker.task.control_socket import FOLDER, control_folder, is_operator_himself, listen, socket_name
from broker.task.desk import ApprovalDesk, Given, NotTaken, Taken, WordWanted
from broker.task.tree import Node, Tree

RUN = "20261130-043055-7f3a"
ENVELOPE = Envelope(profile=Profile(name="lead"), trust=Trust.TRUSTED)


def denial(what: str = "curl x") -> Deny:
    return Deny(what=what, effects=frozenset({Risk.NETWORK_EGRESS}), layer=Layer.PROFILE, rule="program.curl", reason="no", hint="do not")


class Run:
    """A tree with one task that runs, and its control socket."""

    def __init__(self) -> None:
        self.tree = Tree()
        self.root = Node(path="root", envelope=ENVELOPE, argv=("agent",))
        self.control = Control(RUN, self.tree, {"engine": "bubblewrap"})
        self.stops: list[str] = []

    def plant(self) -> None:
        self.tree.plant(self.root)
        self.tree.running(self.root, self.stops.append)

    def child(self, argv: tuple[str, ...] = ("work",)) -> Node:
        made = self.tree.branch(
            self.root, "lead", "delegate", lambda path, above: Node(path=path, envelope=ENVELOPE, argv=argv, parent=above)
        )
        assert isinstance(made, Node)
        self.tree.running(made, self.stops.append)
        return made

    def end(self, node: Node) -> None:
        self.tree.landing(node)
        self.tree.ended(node, "finished")


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime base of this test's own, with a path that is too long for a socket's address."""
    base = tmp_path / ("r" * 100) / "base"
    base.parent.mkdir()
    monkeypatch.setenv("BROKER_RUNTIME_DIR", str(base))
    return base


@pytest.fixture
def run(base: Path) -> Iterator[Run]:
    made = Run()
    with made.control:
        made.plant()
        yield made


_ends: list[watching.Watched] = []


@pytest.fixture(autouse=True)
def ends_are_closed() -> Iterator[None]:
    yield
    while _ends:
        _ends.pop().close()


def looked() -> list[str]:
    """The runs that there are."""
    found = watching.connect()
    _ends.extend(found.values())
    return list(found)


def connected(*, follow: bool = False) -> watching.Watched:
    """The other end, with the picture."""
    [one] = watching.connect().values()
    _ends.append(one)
    watching.pictures({one.run: one}, follow=follow)
    assert one.answers
    return one


def socket_of(base: Path) -> Path:
    [found] = (base / FOLDER).iterdir()
    return found


def raw(base: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(10)
    folder = os.open(base / FOLDER, os.O_PATH)
    try:
        connection.connect(f"/proc/self/fd/{folder}/{socket_of(base).name}")
    finally:
        os.close(folder)
    return connection


def lines(connection: socket.socket) -> Iterator[dict[str, Any]]:
    """What comes, line by line, until the end."""
    data = b""
    while more := connection.recv(1 << 16):
        data += more
        *whole, data = data.split(b"\n")
        yield from map(json.loads, whole)
    assert data == b""  # no line is cut in two


def hears(one: watching.Watched, what: str, *, seconds: float = 10.0) -> None:
    """Listen until `what` is true of the picture; the expression sees `one`."""
    deadline = time.monotonic() + seconds
    while not eval(what, {"one": one}):
        assert time.monotonic() < deadline, f"it did not come about that {what}"
        watching.listen([one], 0.1)


# What they are told


def test_the_picture_says_which_run_it_is_and_what_its_tasks_do(run: Run) -> None:
    run.child(("go", "vet"))

    one = connected()

    assert (one.run, one.facts["pid"], one.facts["engine"]) == (RUN, os.getpid(), "bubblewrap")
    assert [(row["task"], row["argv"]) for row in one.below()] == [("root", ["agent"]), ("root/1", ["go", "vet"])]
    assert [one.id_of(path) for path in one.tasks] == [RUN, f"{RUN}.1"]


def test_who_follows_hears_of_each_change_and_of_each_denial_itself(run: Run) -> None:
    one = connected(follow=True)
    task = run.child()
    hears(one, "'root/1' in one.tasks")
    run.tree.denied(task, "exec", denial("curl https://example.com"))
    hears(one, "one.denials")
    run.tree.measured(task, 1.0, 64 << 20, 4)
    hears(one, "one.tasks['root/1']['memory'] == 64 << 20")
    run.end(task)
    hears(one, "one.tasks['root/1']['state'] == 'ended'")

    row = one.denials[0]
    assert (row["task"], row["what"], row["class"], row["count"]) == ("root/1", "curl https://example.com", "network_egress", 1)
    assert (row["rule"], row["hint"], row["approvable"]) == ("program.curl", "do not", False)


def test_what_is_refused_again_within_a_moment_is_counted_and_none_is_lost(run: Run) -> None:
    one = connected(follow=True)
    for number in range(1000):
        run.tree.denied(run.root, "exec", denial(f"curl {number % 3}"))
    hears(one, "sum(row['count'] for row in one.denials) == 1000")

    assert {row["what"] for row in one.denials} == {"curl 0", "curl 1", "curl 2"}
    assert one.tasks["root"]["denied"] == 1000


def test_of_too_many_different_denials_some_are_left_out_and_that_is_said(base: Path, run: Run) -> None:
    with raw(base) as connection:
        connection.sendall(b'{"op":"follow"}\n')
        coming = lines(connection)
        assert next(coming)["event"] == "tree"
        for number in range(20 * MOST_DENIALS):
            run.tree.denied(run.root, "exec", denial(f"curl {number}"))
        counts = {"denied": 0, "denials_left_out": 0}
        while sum(counts.values()) < 20 * MOST_DENIALS:
            line = next(coming)
            if line["event"] in counts:
                counts[line["event"]] += line["count"]

    assert sum(counts.values()) == 20 * MOST_DENIALS
    assert counts["denials_left_out"] > 0


def test_nobody_who_looks_once_hears_more(base: Path, run: Run) -> None:
    with raw(base) as connection:
        connection.sendall(b'{"op":"tree"}\n')
        coming = lines(connection)
        assert len(next(coming)["tasks"]) == 1
        run.child()
        connection.sendall(b'{"op":"tree"}\n')
        assert len(next(coming)["tasks"]) == 2


# No reader holds anything up


def test_a_reader_who_does_not_read_costs_no_task_any_time_and_gets_a_fresh_picture(base: Path, run: Run) -> None:
    with raw(base) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(b'{"op":"follow"}\n')
        other = connected(follow=True)
        waiting = []
        text = "x" * 900
        while not any(reader.behind for reader in run.control._readers.values()):
            run.tree.denied(run.root, "exec", denial(f"{run.root.denied} {text}"))
            hears(other, f"one.tasks['root']['denied'] >= {run.root.denied - 400}")
            waiting.append(max(reader._waiting for reader in list(run.control._readers.values())))
        run.child(("the", "last"))
        hears(other, "'root/1' in one.tasks")

        assert max(waiting) <= MOST_WAITING
        fresh = next(line for line in lines(connection) if line["event"] == "tree" and line["missed"])
        assert fresh["tasks"][-1]["argv"] == ["the", "last"]


def test_a_change_is_noted_and_not_made_into_anything_while_the_tree_is_held(run: Run) -> None:
    one = connected(follow=True)
    with run.tree._lock:
        for number in range(20_000):
            run.tree.denied(run.root, "exec", denial(str(number)))
        assert len(run.control._denials) <= MOST_DENIALS
        assert len(run.control._changed) <= 1
    hears(one, "one.tasks['root']['denied'] == 20_000")


def test_without_a_follower_nothing_is_kept(run: Run) -> None:
    connected(follow=True).close()
    deadline = time.monotonic() + 10
    while run.control._followed and time.monotonic() < deadline:
        time.sleep(0.005)
    run.tree.denied(run.root, "exec", denial())

    assert (run.control._changed, run.control._denials) == ({}, {})


@pytest.mark.parametrize(
    "request_",
    [b"\n", b"{}\n", b"[]\n", b"null\n", b'{"op":"stop"}\n', b'{"op":"stop","task":1}\n', b'{"op":"stop","task":null}\n', b"\xff\xfe\n",
     b"[" * 4000 + b"\n", b'{"op":"grow"}\n', b"x" * (MOST_REQUEST + 1), b'{"op":["tree"]}\n', b"\0" * 100 + b"\n"],
    ids=lambda text: repr(text[:24]),
)  # fmt: skip
def test_nonsense_gets_one_sentence_and_the_run_goes_on(base: Path, run: Run, request_: bytes) -> None:
    with raw(base) as connection:
        connection.sendall(request_)
        assert [line["event"] for line in lines(connection)] == ["error"]

    assert run.stops == []
    assert connected().tasks


def test_a_flood_of_readers_is_turned_away_and_leaves_room_again(base: Path, run: Run) -> None:
    held = [raw(base) for _ in range(MOST_READERS)]
    with raw(base) as one_more:
        assert one_more.recv(1) == b""
    for connection in held:
        connection.close()

    deadline = time.monotonic() + 10
    while run.control._readers and time.monotonic() < deadline:
        time.sleep(0.005)
    assert connected().tasks


# Ending


def test_a_stop_ends_a_task_and_says_what_it_reaches(run: Run) -> None:
    one = connected(follow=True)
    task = run.child()

    assert watching.stop(one, "root/1", 0.0) == ([], [])  # no time at all: nothing is known yet
    hears(one, "one.stopping == ['root/1']")

    assert run.stops == ["killed"]
    assert task.stopped == "killed"


def test_a_stop_waits_until_no_process_is_left(run: Run) -> None:
    one = connected(follow=True)
    task = run.child()
    run.tree.running(task, lambda _reason: run.end(task))

    assert watching.stop(one, "root/1", 10.0) == (["root/1"], [])
    assert one.tasks["root/1"]["state"] == "ended"
    assert watching.stop(one, "root/1", 10.0) == ([], [])  # it has ended


def test_who_does_not_end_is_named(run: Run) -> None:
    one = connected(follow=True)
    run.child()

    assert watching.stop(one, "root/1", 0.3) == (["root/1"], ["root/1"])


def test_a_landing_is_not_cut_short(run: Run) -> None:
    one = connected(follow=True)
    task = run.child()
    run.tree.landing(task)

    assert watching.stop(one, "root/1", 10.0) == ([], [])
    assert (task.stopped, run.stops) == ("", [])


def test_a_follower_hears_the_end_of_the_run(base: Path) -> None:
    made = Run()
    with made.control:
        made.plant()
        one = connected(follow=True)
        made.tree.ended(made.root, "finished")
    hears(one, "one.over")

    assert one.tasks["root"]["status"] == "finished"
    assert list((base / FOLDER).iterdir()) == []


# Who reaches it


def test_nobody_else_can_reach_it(base: Path, run: Run) -> None:
    assert stat.S_IMODE(os.lstat(base / FOLDER).st_mode) == 0o700
    assert stat.S_IMODE(os.lstat(socket_of(base)).st_mode) == 0o600


ASK = """
import json, os, socket, sys
os.chdir(sys.argv[1])
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[2])
try:
    connection.sendall(b'{"op":"stop","task":"root"}\\n')
    print(json.dumps(connection.recv(100).decode()))
except OSError:
    print('""')
"""


def asked(base: Path, *become: str) -> str:
    done = subprocess.run(
        [*become, sys.executable, "-I", "-c", ASK, str(base / FOLDER), socket_of(base).name], capture_output=True, text=True, timeout=30,
        check=True,
    )  # fmt: skip
    return str(json.loads(done.stdout))


@pytest.mark.needs_root
def test_another_user_is_turned_away_even_where_the_modes_let_them_in(base: Path, run: Run) -> None:
    for folder in (base / FOLDER, *base.parents):
        os.chmod(folder, os.stat(folder).st_mode | 0o755)
    os.chmod(socket_of(base), 0o777)

    assert asked(base, "setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "--") == ""
    assert run.stops == []
    assert "stopping" in asked(base)  # the same, as root


@pytest.mark.needs_root
def test_a_process_of_a_pid_namespace_below_is_turned_away_even_as_root(base: Path, run: Run) -> None:
    assert asked(base, "unshare", "--pid", "--fork", "--") == ""
    assert run.stops == []


def test_a_reason_of_any_500_characters_is_a_request(base: Path) -> None:
    asking = Control(RUN, Tree(), {}, ApprovalDesk())
    with asking:
        (one,) = watching.connect().values()
        for why in ("\N{GRINNING FACE}" * 500, "\x00" * 500, "\udcff" * 500):
            assert watching.answer(one, 1, "deny", why=why, channel="page") == {"event": "refused", "reason": "there is no question 1 that waits"}
        one.close()


def test_only_the_operator_himself_answers_what_a_run_asks(base: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.control._approvals = ApprovalDesk()
    one = connected()

    with monkeypatch.context() as patch:
        patch.setattr("broker.task.control.is_operator_himself", lambda _connection: False)
        assert watching.answer(one, 1, "once") == {"event": "refused", "reason": "only the user whose run it is can answer"}
    assert watching.answer(one, 1, "once") == {"event": "refused", "reason": "there is no question 1 that waits"}


def test_an_answer_that_takes_long_to_be_looked_at_is_waited_for(base: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(ApprovalDesk):
        def answer(self, name: int, given: Given) -> Taken | WordWanted | NotTaken:
            over.wait()
            return Taken(seconds=1.0)

    over = threading.Event()
    run.control._approvals = Slow()
    one = connected()
    monkeypatch.setattr(watching, "PATIENCE", 0.01)
    threading.Timer(0.2, over.set).start()

    assert (watching.answer(one, 1, "once") or {}).get("event") == "answered"


def test_the_operator_himself_is_who_the_kernel_says_has_our_uid(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, other = socket.socketpair()
    with ours, other:
        assert is_operator_himself(ours)
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert not is_operator_himself(ours)


def test_a_run_in_which_nobody_is_asked_says_so(base: Path, run: Run) -> None:
    one = connected()

    assert watching.questions(one) == {"event": "approvals", "asks": False, "waiting": []}
    assert watching.answer(one, 1, "once") == {"event": "refused", "reason": "nobody is asked in this run"}


def test_a_folder_that_others_could_put_something_into_is_refused(base: Path) -> None:
    (base / FOLDER).mkdir(parents=True)
    (base / FOLDER).chmod(0o770)

    with pytest.raises(HostCannotEnforce, match="others can reach it"), Run().control:
        pass
    assert looked() == []


# What the dead leave behind


def test_a_dead_brokers_socket_is_not_shown_and_removed(base: Path, run: Run) -> None:
    folder = control_folder()
    dead = OwnerMark(2**22 - 1, "1", OwnerMark.mine().boot)
    listener = listen(folder, socket_name("20261130-000000-0000", dead), 1)
    (base / FOLDER / f".{socket_name('20261130-000000-0001', dead)}").touch()  # died before it had its name
    (base / FOLDER / "something else").touch()
    os.close(folder)

    assert looked() == [RUN]
    assert sorted(path.name for path in (base / FOLDER).iterdir()) == sorted([socket_name(RUN, OwnerMark.mine()), "something else"])
    listener.close()


def test_sweeping_names_the_dead_and_leaves_the_living_alone(base: Path, run: Run) -> None:
    folder = control_folder()
    name = socket_name("20261130-000000-0000", OwnerMark(2**22 - 1, "1", OwnerMark.mine().boot))
    listen(folder, name, 1).close()
    os.close(folder)

    assert watching.sweep() == [f"control socket {name}"]
    assert watching.sweep() == []
    assert connected().tasks


def test_without_any_run_there_is_nothing_and_nothing_is_made(base: Path) -> None:
    assert looked() == []
    assert watching.sweep() == []
    assert not base.exists()
