"""Processes: endings, limits, ancestry, job control, terminals, and that nothing survives."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import struct
import termios
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import psutil
import pytest

from broker.enforce import wire
from guard_harness import Sandbox, SpawnRefused, allow_all

Start = Callable[..., AbstractContextManager[Sandbox]]


def inside(box: Sandbox) -> list[psutil.Process]:
    """Every process of the sandbox, as the host sees them."""
    return psutil.Process(box.process.pid).children(recursive=True)


def words(process: psutil.Process) -> list[str]:
    """A process's command line; empty when it is gone, or going."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # ZombieProcess is one
        return []


def runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def all_gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=10)
    return not alive


# Endings


@pytest.mark.parametrize("code", [0, 1, 77, 255])
def test_exit_codes_are_reported(box: Sandbox, code: int) -> None:
    assert box.shell(f"exit {code}").code == code


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGTRAP, signal.SIGPIPE]
)
def test_a_death_by_signal_is_told_apart(box: Sandbox, number: int) -> None:
    assert box.shell(f"kill -{number} $$; sleep 100").code == -number


def test_signals_are_at_their_defaults_even_if_the_guards_starter_ignored_them(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (32, 33):  # libc's own, which its sigaction(3) does not touch: an inherited one stays ignored
        ignored = (ctypes.c_ulong * 4)(1, 0, 0, 0)
        assert ctypes.CDLL(None).syscall(13, number, ignored, None, 8) == 0  # rt_sigaction
    try:
        with start() as box:
            status = box.run("/bin/cat", "/proc/self/status").out.decode()
    finally:
        signal.signal(signal.SIGINT, before)
        for number in (32, 33):
            ctypes.CDLL(None).syscall(13, number, (ctypes.c_ulong * 4)(0, 0, 0, 0), None, 8)
    fields = dict(line.split(":", 1) for line in status.splitlines())
    assert {int(fields[name], 16) for name in ("SigIgn", "SigBlk", "SigCgt")} == {0}
    assert {int(fields[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
    assert (fields["NoNewPrivs"].strip(), fields["Umask"].strip()) == ("1", "0022")


def test_only_the_three_descriptors_are_open(box: Sandbox) -> None:
    assert box.shell("ls /proc/self/fd").out.split() == [b"0", b"1", b"2", b"3"]  # 3 is the listing itself


def test_no_descriptors_means_dev_null(box: Sandbox) -> None:
    box.send(
        wire.Spawn(
            spawn=50,
            scope=0,
            cwd="/work",
            argv=("/bin/bash", "-c", "readlink /proc/self/fd/[012] > f"),
            env=("PATH=/usr/bin",),
            no_descriptors=True,
        )
    )
    box.exited(50)
    assert (box.work / "f").read_text().split() == ["/dev/null", "/work/f", "/dev/null"]


def test_resource_use_is_reported(box: Sandbox) -> None:
    done = box.shell("for i in {1..200000}; do :; done; x=$(printf %050000000d 0)").exited
    assert done.user_us > 10_000
    assert done.max_rss > 50_000


def test_limits_reach_the_program(start: Start) -> None:
    with start(nofile=77, file_size=1024 * 100, nproc=4000) as box:
        assert box.shell("ulimit -n; ulimit -f; ulimit -c; ulimit -u").out.split() == [
            b"77",
            b"100",
            b"0",
            b"4000",
        ]
        assert box.shell("head -c 200k /dev/zero > f").code != 0


def test_idle_comes_when_nothing_is_left(box: Sandbox) -> None:
    box.shell("sleep 0.3 & exit 0")
    assert not any(isinstance(m, wire.Idle) for m in box.seen)
    box.until(lambda m: isinstance(m, wire.Idle))


# Limits


def test_no_more_tasks_than_the_limit_live_at_once(start: Start) -> None:
    with start(live_limit=64) as box:
        box.start(["/bin/bash", "-c", "for i in {1..300}; do sleep 1000 & done; exit 0"])
        box.exited(1)
        sleeping = 0
        for process in inside(box):
            with contextlib.suppress(psutil.NoSuchProcess):  # what is being killed may go while it is looked at
                sleeping += process.name() == "sleep"
        assert sleeping <= 64
        assert len(box.notes(wire.NoteKind.TASKS_LIMIT)) >= 1
        with pytest.raises(SpawnRefused):
            while True:
                box.started(box.start(["sleep", "1000"]))


def test_a_fork_bomb_stays_within_the_limit_and_can_be_killed(start: Start) -> None:
    with start(live_limit=40) as box:
        bomb = box.start(["/bin/bash", "-c", "f() { f | f & }; f; sleep 1000"])
        box.started(bomb)
        end = time.monotonic() + 1
        while time.monotonic() < end:
            assert len([p for p in inside(box) if runs(p)]) <= 60  # what is being killed may still be seen
        box.send(wire.Kill(spawn=bomb))
        box.exited(bomb)
        box.until(lambda m: isinstance(m, wire.Idle))
        assert len(box.notes(wire.NoteKind.TASKS_LIMIT)) <= 4  # counted, not repeated
        assert box.run("/bin/true").code == 0


# Ancestry


def test_every_descendant_belongs_to_its_spawn(box: Sandbox) -> None:
    text = "setsid bash -c '(/bin/date &) ; sleep 0.2'; (/bin/date | /bin/cat); coproc /bin/date; wait"
    for spawn in (1, 2):
        box.shell(text)
        assert {q.spawn for q in box.asked() if q.pid} == set(range(1, spawn + 1))


def test_a_child_given_to_the_grandparent_keeps_the_scope_of_who_made_it(box: Sandbox) -> None:
    def policy(question: wire.ExecAsked | wire.FileAsked) -> wire.Answer:
        narrow = isinstance(question, wire.ExecAsked) and question.path == "/attacks/execs"
        return wire.Answer(request=question.request, allow=True, scope=1 if narrow else wire.SCOPE_UNCHANGED)

    box.policy = policy
    box.shell("/attacks/execs clone-parent /bin/date; /bin/date", scope=9)
    assert [(q.path, q.scope) for q in box.asked()][1:] == [
        ("/attacks/execs", 9),
        ("/bin/date", 1),
        ("/bin/date", 9),
    ]


# Kill


def test_kill_ends_daemons_in_other_sessions_and_leaves_other_spawns_alone(box: Sandbox) -> None:
    other = box.start(["sleep", "1000"])
    box.started(other)
    daemon = box.start(
        [
            "/bin/bash",
            "-c",
            "setsid setsid sleep 777 & (setsid bash -c 'while :; do sleep 778; done' &) ; exit 0",
        ]
    )
    box.exited(daemon)
    deadline = time.monotonic() + 10
    while len([p for p in inside(box) if words(p)[:1] == ["sleep"]]) < 3 and time.monotonic() < deadline:
        box.run("/bin/true")
    box.send(wire.Kill(spawn=daemon))
    while [p for p in inside(box) if "77" in " ".join(words(p))] and time.monotonic() < deadline:
        box.run("/bin/true")
    left = [words(p) for p in inside(box) if words(p) and "guard" not in words(p)[0]]
    assert left == [["sleep", "1000"]]


def test_kill_while_a_tree_forks_leaves_nothing(box: Sandbox) -> None:
    spawn = box.start(["/bin/bash", "-c", "for i in 1 2 3 4; do (while :; do (:) & wait; done) & done; wait"])
    box.started(spawn)
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        box.run("/bin/true")
    box.send(wire.Kill(spawn=spawn))
    box.until(lambda m: isinstance(m, wire.Idle), timeout=10)
    assert [p.name() for p in inside(box)] in (["guard"], ["guard.sanitize"])


@pytest.mark.parametrize("how", ["guard", "socket", "bubblewrap"])
def test_nothing_survives_the_guard(start: Start, how: str) -> None:
    with start() as box:
        box.policy = lambda q: None if isinstance(q, wire.ExecAsked) and "date" in q.path else allow_all(q)
        box.start(["/bin/bash", "-c", "setsid sleep 1000 & sleep 1000 | sleep 1000 & /bin/date"])
        box.until(lambda m: isinstance(m, wire.ExecAsked) and "date" in m.path)
        processes = inside(box)
        assert len(processes) > 4
        match how:
            case "guard":
                processes[0].kill()
            case "socket":
                box.link.close()
            case "bubblewrap":
                box.process.kill()
        assert all_gone(processes)


def test_the_guard_ends_on_sigterm_from_outside(box: Sandbox) -> None:
    box.started(box.start(["sleep", "1000"]))
    processes = inside(box)
    os.kill(processes[0].pid, signal.SIGTERM)
    assert all_gone(processes)


# Signals and job control


def test_a_signal_goes_to_the_main_process_or_to_its_group(box: Sandbox) -> None:
    text = "trap 'echo main' TERM; (trap 'echo child; exit' TERM; echo ready; while :; do sleep 0.05; done) & wait; wait"
    for group, expected in ((False, {b"main"}), (True, {b"main", b"child"})):
        read, write = os.pipe()
        spawn = box.start(["/bin/bash", "-c", text], stdout=write)
        os.close(write)
        with open(read, "rb") as out:
            while not select.select([out], [], [], 0)[0]:
                box.receive()
            assert out.readline() == b"ready\n"
            box.send(wire.Signal(spawn=spawn, signal=signal.SIGTERM, group=group))
            if group:
                box.exited(spawn)
                assert set(out.read().split()) == expected
            else:
                assert out.readline() == b"main\n"
        box.send(wire.Kill(spawn=spawn))


def test_a_signal_to_spawn_0_reaches_everybody(box: Sandbox) -> None:
    spawns = [box.start(["sleep", "1000"]) for _ in range(3)]
    for spawn in spawns:
        box.started(spawn)
    box.send(wire.Signal(spawn=0, signal=signal.SIGTERM))
    box.until(lambda m: isinstance(m, wire.Idle))
    assert len([m for m in box.seen if isinstance(m, wire.Exited) and m.status == signal.SIGTERM]) == 3


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGTSTP])
def test_the_main_process_can_be_stopped_and_continued(box: Sandbox, number: int) -> None:
    spawn = box.start(["/bin/bash", "-c", "sleep 1000 & sleep 1000"])
    box.started(spawn)
    for _ in range(3):
        box.send(wire.Signal(spawn=spawn, signal=number, group=True))
        stopped = box.until(lambda m: isinstance(m, wire.Stopped))
        assert isinstance(stopped, wire.Stopped)
        assert stopped.signal == signal.SIGSTOP
        box.send(wire.Signal(spawn=spawn, signal=signal.SIGCONT, group=True))
        box.until(lambda m: isinstance(m, wire.Continued))
    box.send(wire.Signal(spawn=spawn, signal=signal.SIGTERM, group=True))
    assert box.exited(spawn).status == signal.SIGTERM


class Terminal:
    """What a person sees and types."""

    def __init__(self, box: Sandbox, spawn: int) -> None:
        box.started(spawn)
        self.box, self.master, self.seen = box, box.descriptors[spawn], b""

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def expect(self, text: str, timeout: float = 15) -> None:
        """Read until a text comes; answer the guard's questions meanwhile."""
        end = time.monotonic() + timeout
        while text.encode() not in self.seen:
            assert time.monotonic() < end, self.seen
            ready, _, _ = select.select([self.master, self.box.link], [], [], 1)
            if self.box.link in ready:
                self.box.receive()
            if self.master in ready:
                self.seen += os.read(self.master, 4096)
        self.seen = self.seen.split(text.encode(), 1)[1]


def test_a_terminal_has_its_size_and_passes_resizes_on(box: Sandbox) -> None:
    text = "trap 'stty size; exit' WINCH; stty size; while :; do sleep 0.05; done"
    terminal = Terminal(box, box.start(["/bin/bash", "-c", text], terminal=True))
    terminal.expect("24 80")
    fcntl.ioctl(terminal.master, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 132, 0, 0))
    terminal.expect("50 132")


def test_ctrl_c_interrupts_and_ctrl_z_stops_a_command_on_a_terminal(box: Sandbox) -> None:
    spawn = box.start(["/bin/cat"], terminal=True)
    terminal = Terminal(box, spawn)
    terminal.type("hello\n")
    terminal.expect("hello\r\nhello\r\n")
    terminal.type("\x1a")
    box.until(lambda m: isinstance(m, wire.Stopped) and m.spawn == spawn)
    box.send(wire.Signal(spawn=spawn, signal=signal.SIGCONT, group=True))
    box.until(lambda m: isinstance(m, wire.Continued))
    terminal.type("again\n")
    terminal.expect("again\r\nagain\r\n")
    terminal.type("\x03")
    assert box.exited(spawn).status == signal.SIGINT


def test_a_shell_on_a_terminal_has_job_control(box: Sandbox) -> None:
    shell = box.start(["/bin/bash", "--norc", "-i"], terminal=True, env=["PS1=ready> ", "TERM=dumb"])
    terminal = Terminal(box, shell)
    terminal.expect("ready> ")
    terminal.type("cat\n")
    box.until(lambda m: isinstance(m, wire.Executed))  # what is typed earlier, readline may keep
    terminal.type("in cat\n")
    terminal.expect("in cat\r\nin cat")
    terminal.type("\x1a")
    terminal.expect("Stopped")
    terminal.type("jobs; echo and $((40+2))\n")
    terminal.expect("and 42")
    terminal.type("fg\n")
    terminal.expect("cat")
    terminal.type("once more\n")
    terminal.expect("once more\r\nonce more")
    terminal.type("\x03")  # which also discards what was typed ahead
    terminal.expect("ready> ")
    terminal.type("sleep 1000\n")
    box.until(lambda m: isinstance(m, wire.Executed))
    terminal.type("\x03")
    terminal.expect("ready> ")
    terminal.type("echo alive $((1+1)); exit 5\n")
    terminal.expect("alive 2")
    assert os.waitstatus_to_exitcode(box.exited(shell).status) == 5


def test_nobody_types_into_the_terminal_for_the_user(box: Sandbox) -> None:
    terminal = Terminal(box, box.start(["/attacks/calls"], terminal=True))
    terminal.expect("ioctl.tiocsti EPERM")
    terminal.expect("ioctl.tiocsti.high EPERM")


# Storms


def test_three_hundred_pipelines_under_a_fast_timer_all_finish(box: Sandbox) -> None:
    python = "/usr/bin/python3"
    box.policy = lambda q: wire.Answer(request=q.request, allow=True, cache=True)
    text = "for i in $(seq 300); do echo $i | cat | sed s/x/y/ | tail -1; done | tail -1"
    if os.path.exists(python):
        code = (
            "import signal, subprocess, sys\n"
            "signal.signal(signal.SIGALRM, lambda *_: None); signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)\n"
            f"print(subprocess.run(['bash', '-c', {text!r}], capture_output=True).stdout.decode().strip())\n"
            "for i in range(100): assert subprocess.run(['/bin/true']).returncode == 0\n"
        )
        result = box.run(python, "-c", code, timeout=100)
    else:
        result = box.shell(text, timeout=100)
    assert (result.out, result.err) == (b"300\n", b"")


def test_a_signal_storm_between_processes_loses_no_exit(box: Sandbox) -> None:
    text = (
        "trap 'n=$((n+1))' USR1; (for i in {1..300}; do kill -USR1 $$; done) & "
        "for i in {1..100}; do /bin/true || echo lost; done; wait; wait; echo done"
    )
    assert box.shell(text).out == b"done\n"


def test_exec_of_threads_and_forks_at_once_keeps_the_table_right(box: Sandbox) -> None:
    box.policy = lambda q: wire.Answer(request=q.request, allow=True, cache=True)
    text = (
        "for i in {1..40}; do /attacks/execs threads /bin/true & /attacks/execs vfork /bin/true & done; wait"
    )
    assert box.shell(text).code == 0
    box.until(lambda m: isinstance(m, wire.Idle))
    assert not box.notes(wire.NoteKind.EXEC_RACE)
