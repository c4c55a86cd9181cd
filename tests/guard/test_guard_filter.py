"""The seccomp filter and Landlock: what the kernel refuses, whatever the gate does."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from broker.enforce import wire
from guard_harness import Sandbox, deny, setup

Start = Callable[..., AbstractContextManager[Sandbox]]

# Anything but EPERM for these would mean that the kernel looked at the call.
ENOSYS = {"clone3", "x32", "int80", "unknown"}


def outcomes(box: Sandbox) -> tuple[dict[str, str], dict[str, str]]:
    """Run the probe: what must fail, what must work."""
    refused, allowed = box.run("/attacks/calls").out.decode().split("-- these must work\n")
    return tuple(dict(line.split() for line in part.splitlines()) for part in (refused, allowed))  # type: ignore[return-value]


def test_dangerous_calls_are_refused(box: Sandbox) -> None:
    refused, _ = outcomes(box)
    wrong = {}
    for name, error in refused.items():
        want = "ENOSYS" if name in ENOSYS else "EPERM"
        if name.startswith("socket.") and name[7:].isdigit():
            want = "EAFNOSUPPORT"
        if name == "socket.sctp":
            want = "EPROTONOSUPPORT"
        if error != want:
            wrong[name] = error
    assert wrong == {}
    assert len(refused) > 100


def test_calls_that_programs_need_work(box: Sandbox) -> None:
    _, allowed = outcomes(box)
    assert set(allowed.values()) == {"ok"}
    assert {"unix", "tcp", "route", "memfd"} <= set(allowed)


@pytest.mark.parametrize(
    ("how", "install", "getppid"),
    [
        ("trace", "ok", "ok"),
        ("trace-read", "ok", "ENOSYS"),
        ("listener", "EPERM", "ok"),
        ("allow", "ok", "ok"),
        ("errno", "ok", "?"),
    ],
)
def test_a_filter_of_the_workload_cannot_get_an_exec_past_the_gate(
    start: Start, how: str, install: str, getppid: str
) -> None:
    with start(policy=deny("date")) as box:
        prctl_first = box.run("/attacks/filters", how, "/bin/date")
        lines = dict(line.split() for line in prctl_first.out.decode().splitlines())
        assert lines["install"] == install
        assert getppid in ("?", lines["getppid"])
        assert lines["exec"] == "EACCES"
    with start() as box:
        allowed = box.run("/attacks/filters", how, "/bin/date")
        assert b"20" in allowed.out
        assert [q.path for q in box.asked()] == ["/attacks/filters", "/bin/date"]


def test_a_filter_of_the_workload_also_works_with_file_labels_on(start: Start) -> None:
    with start(policy=deny("date"), flags=wire.SetupFlag.FILE_CHANGES) as box:
        lines = box.run("/attacks/filters", "trace", "/bin/date").out.decode().splitlines()
        assert lines[-1] == "exec EACCES"


# Landlock


def test_writes_outside_the_rules_are_refused(box: Sandbox) -> None:
    tried = box.shell(
        "for f in /usr/x /x /run/broker/x /proc/self/comm /proc/self/oom_score_adj /proc/sys/kernel/core_pattern "
        "/proc/1/mem /dev/x /sys/x; do (echo x >$f) 2>/dev/null && echo wrote $f; done; echo x > /work/ok && echo x > /tmp/ok"
    )
    assert (tried.out, tried.code) == (b"", 0)


def test_rights_are_what_the_letters_say(start: Start, tmp_path: Path) -> None:
    rules = (
        wire.LandlockRule(rights="rx", path="/"),
        wire.LandlockRule(rights="r", path="/work"),
        wire.LandlockRule(rights="w", path="/work/w"),
        wire.LandlockRule(rights="c", path="/work/c"),
        wire.LandlockRule(rights="rwd", path="/dev/null"),
    )
    for name in ("f", "w/f", "c/f"):
        (tmp_path / "work" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "work" / name).write_text("old")
    with start(landlock=rules) as box:
        box.shell(
            "echo new >f; echo new >w/f; touch w/new; rm w/f; mv c/f c/g; mkdir c/d; ln -s x c/l; mknod c/n p; rm f"
        )
        # Rules of a folder above add up: / gives r and x everywhere below.
        assert (box.work / "f").read_text() == "old"
        assert (box.work / "w/f").read_text() == "new\n"
        assert not (box.work / "w/new").exists()
        assert sorted(os.listdir(box.work / "c")) == ["d", "g", "l", "n"]


def test_no_letter_allows_a_device(box: Sandbox) -> None:
    assert box.shell("mknod /work/c c 1 3 || mknod /work/b b 1 3").code != 0
    assert not os.listdir(box.work)


def test_a_missing_landlock_can_be_accepted(start: Start) -> None:
    with start(flags=wire.SetupFlag.NO_LANDLOCK_IS_ACCEPTABLE) as box:
        assert box.run("/bin/true").code == 0


def test_the_tree_can_signal_itself_across_spawns_but_not_the_guard(box: Sandbox) -> None:
    sleeper = box.start(["sleep", "1000"])
    pid = box.started(sleeper).pid
    assert box.shell("kill -9 1; kill -STOP 1; kill -TERM 1; kill -INT 1; kill -CHLD 1; true").code == 0
    assert box.shell(f"kill -TERM {pid}").code == 0
    assert os.waitstatus_to_exitcode(box.exited(sleeper).status) == -15


def test_the_guards_own_memory_and_descriptors_are_out_of_reach(box: Sandbox) -> None:
    result = box.shell(
        "cd /proc/1; cat mem environ maps fd/* 2>/dev/null; readlink exe cwd root fd/*; head -c 1 <fd/3"
    )
    assert result.out == b""
    assert result.code != 0


def test_unknown_rights_grant_nothing(start: Start) -> None:
    rules = (*setup().landlock[:1], wire.LandlockRule(rights="rw?", path="/work"))
    with start(landlock=rules) as box:
        assert box.shell("echo x > /work/f").code != 0
