"""The exec gate: what is asked, what a denial looks like, and every unusual way to start a program."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from broker.enforce import wire
from guard_harness import Sandbox, SpawnRefused, allow_all, deny

Start = Callable[..., AbstractContextManager[Sandbox]]
Question = wire.ExecAsked | wire.FileAsked


def test_a_question_says_everything_about_the_exec(box: Sandbox) -> None:
    box.run("true", "a b", "", env=["LD_X=1", "OTHER=2"], scope=42)
    (asked,) = box.asked()
    program = os.stat("/usr/bin/true")
    assert (asked.path, asked.program, asked.cwd) == ("/usr/bin/true", "/usr/bin/true", "/work")
    assert (asked.argv, asked.shebang) == (("true", "a b", ""), "")
    assert asked.env == (("LD_X", "1"), ("PATH", "/usr/local/bin:/usr/bin:/bin"))
    assert (asked.scope, asked.spawn, asked.ino) == (42, 1, program.st_ino)
    assert any(isinstance(m, wire.Executed) and m.request == asked.request for m in box.seen)


def test_links_in_the_path_are_resolved_and_the_name_is_kept(box: Sandbox) -> None:
    (box.work / "link").symlink_to("/bin/true")
    assert box.shell("./link; cd /usr; bin/true; ../work/link").code == 0
    assert [(q.path, q.program) for q in box.asked()[1:]] == [
        ("/work/./link", "/usr/bin/true"),
        ("/usr/bin/true", "/usr/bin/true"),
        ("/usr/../work/link", "/usr/bin/true"),
    ]


@pytest.mark.parametrize("error", [errno.EACCES, errno.EPERM, errno.ENOENT])
def test_a_denied_exec_fails_with_the_errno_of_the_answer(box: Sandbox, error: int) -> None:
    box.policy = deny("date", error=error)
    result = box.run("/usr/bin/env", "/bin/date")
    assert os.strerror(error).encode() in result.err


def test_a_denied_spawn_is_reported_with_its_step(box: Sandbox) -> None:
    box.policy = deny("date")
    with pytest.raises(SpawnRefused) as refused:
        box.run("/bin/date")
    assert (refused.value.failed.error, refused.value.failed.step) == (errno.EACCES, "exec")


def test_a_program_that_does_not_exist_is_not_asked_about(box: Sandbox) -> None:
    assert box.shell("nosuch; /nowhere/x; /etc/passwd; /usr; /dev/null; PATH=/a:/b:/usr/bin ls /").code == 0
    assert [q.argv[0] for q in box.asked()] == ["/bin/bash", "ls"]
    for argv, error in (
        (["nosuch"], errno.ENOENT),
        (["/work"], errno.EACCES),
        (["/etc/passwd"], errno.EACCES),
    ):
        with pytest.raises(SpawnRefused) as refused:
            box.run(*argv)
        assert (refused.value.failed.error, refused.value.failed.step) == (error, "exec")


def test_a_folder_that_does_not_exist_is_reported_as_chdir(box: Sandbox) -> None:
    with pytest.raises(SpawnRefused) as refused:
        box.run("/bin/true", cwd="/nowhere")
    assert (refused.value.failed.error, refused.value.failed.step) == (errno.ENOENT, "chdir")


# Unusual ways to start a program: each must be asked about, and be refused when denied.

WAYS = {
    "thread": ("/usr/bin/date",),
    "threads": ("/usr/bin/date",),
    "vfork": ("/usr/bin/date",),
    "memfd": ("/memfd:hidden (deleted)",),
    "memfd-proc": ("/memfd:hidden (deleted)",),
    "opath": ("/usr/bin/date",),
    "dirfd": ("/usr/bin/date",),
    "clone-nosignal": ("/usr/bin/date",),
    "clone-parent": ("/usr/bin/date",),
    "unaligned": ("/usr/bin/date",),
    "no-argv": ("/usr/bin/date",),
    "no-words": ("/usr/bin/date",),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_unusual_exec_is_asked_about_and_works(box: Sandbox, way: str) -> None:
    result = box.run("/attacks/execs", way, "/usr/bin/date")
    assert (result.code, result.err) == (0, b"")
    if way == "clone-parent":
        box.until(lambda m: isinstance(m, wire.Idle))
    programs = [q.program for q in box.asked()[1:]]
    assert set(programs) == set(WAYS[way])
    assert b"20" in result.out or way == "clone-parent"  # a year
    assert all(q.spawn == 1 and q.scope == 7 for q in box.asked())


def test_a_thread_that_another_ones_exec_ends_takes_nobody_along(box: Sandbox) -> None:
    for _ in range(150):
        result = box.run("/attacks/execs", "threads", "/usr/bin/date")
        assert (result.code, result.err) == (0, b"")


@pytest.mark.parametrize("way", WAYS)
def test_an_unusual_exec_is_refused_when_denied(box: Sandbox, way: str) -> None:
    def policy(question: Question) -> wire.Answer:
        attack = isinstance(question, wire.ExecAsked) and question.program == "/attacks/execs"
        return wire.Answer(request=question.request, allow=attack)

    box.policy = policy
    result = box.run("/attacks/execs", way, "/usr/bin/date")
    assert b"20" not in result.out
    assert not [m for m in box.seen if isinstance(m, wire.Executed)][1:]


@pytest.mark.parametrize(
    ("way", "error"),
    [
        ("untraced", "EPERM"),
        ("clone3", "ENOSYS"),
        ("emptyflag", "ENOENT"),
        ("bad-pointer", "EFAULT"),
        ("bad-path", "EFAULT"),
        ("undumpable", "EACCES"),
        pytest.param(
            "x32", "ENOSYS", marks=pytest.mark.skipif(os.uname().machine != "x86_64", reason="x86 only")
        ),
        pytest.param(
            "int80", "ENOSYS", marks=pytest.mark.skipif(os.uname().machine != "x86_64", reason="x86 only")
        ),
    ],
)
def test_a_way_around_the_gate_is_refused_without_asking(box: Sandbox, way: str, error: str) -> None:
    result = box.run("/attacks/execs", way, "/usr/bin/date")
    assert result.out.decode().split() == ["errno", error]
    assert len(box.asked()) == 1


def test_memory_that_cannot_be_read_is_a_refusal_and_a_note(box: Sandbox) -> None:
    box.run("/attacks/execs", "undumpable", "/usr/bin/date")
    box.run("/attacks/execs", "bad-pointer", "/usr/bin/date")
    secret = box.run("/attacks/execs", "secret", "/usr/bin/date").out
    assert len(box.notes(wire.NoteKind.EXEC_UNREADABLE)) == (2 if b"no memfd_secret" in secret else 3)
    assert b"20" not in secret


def test_a_program_that_cannot_be_read_is_refused(box: Sandbox) -> None:
    program = box.work / "unreadable"
    program.write_bytes(b"#!/bin/sh\n")
    program.chmod(0o111)
    if os.geteuid() == 0:
        os.chown(program, 12345, 12345)  # root in the sandbox has no capabilities
    assert b"Permission denied" in box.shell("./unreadable").err
    assert box.notes(wire.NoteKind.EXEC_UNREADABLE)


def test_two_megabytes_of_argv_are_refused_with_e2big_and_a_note(box: Sandbox) -> None:
    result = box.shell("x=$(printf %0100000d 0); /bin/true $x $x $x $x $x $x $x $x $x $x; echo $?")
    assert b"Argument list too long" in result.err
    assert len(box.notes(wire.NoteKind.EXEC_TOO_LARGE)) == 1


def test_xargs_may_fill_its_command_lines(box: Sandbox) -> None:
    env = [f"V{i}={'v' * 1000}" for i in range(100)]  # a large environment, of which nothing is watched
    text = "printf '%0200d\\n' $(seq 2000) | xargs /bin/echo | wc -c"
    result = box.run("/bin/bash", "-c", text, env=env)
    assert (result.out.strip(), result.err) == (b"402000", b"")
    assert max(sum(map(len, q.argv)) for q in box.asked()) > 100_000
    assert not box.notes(wire.NoteKind.EXEC_TOO_LARGE)


def test_a_watched_environment_that_is_too_large_is_refused(box: Sandbox) -> None:
    text = "for i in {1..10}; do export LD_$i=$(printf %020000d 0); done; /bin/true; echo $?"
    assert b"Argument list too long" in box.shell(text).err
    assert box.notes(wire.NoteKind.EXEC_TOO_LARGE)


def test_argv_up_to_the_limit_is_carried_whole(box: Sandbox) -> None:
    word = "x" * 120_000
    assert box.run("/bin/true", word).code == 0
    assert box.asked()[0].argv == ("/bin/true", word)


def test_argv_that_is_not_utf8_survives(box: Sandbox) -> None:
    result = box.run("/bin/echo", "-n", "\udcff\udc80 \x1b[31m\n")
    assert result.out == b"\xff\x80 \x1b[31m\n"
    assert box.asked()[0].argv[2] == "\udcff\udc80 \x1b[31m\n"


# Scripts


def script(box: Sandbox, name: str, text: str) -> str:
    path = box.work / name
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    path.chmod(0o755)
    return f"/work/{name}"


@pytest.mark.parametrize(
    ("line", "shebang", "words"),
    [
        ("#!/bin/echo", "/bin/echo", []),
        ("#! /bin/echo -n a  b ", "/bin/echo -n a  b", ["-n a  b"]),
        ("#!\t/bin/echo\t-e", "/bin/echo\t-e", ["-e"]),
        ("#!/bin/echo " + "x" * 400, "/bin/echo " + "x" * 243, ["x" * 243]),
        ("#!/usr/bin/../bin/echo x\r", "/usr/bin/../bin/echo x\r", ["x\r"]),
    ],
)
def test_a_script_starts_with_the_words_that_the_kernel_gives_it(
    box: Sandbox, line: str, shebang: str, words: list[str]
) -> None:
    path = script(box, "s", line + "\n")
    result = box.run(path, "1", "2")
    assert result.code == 0, box.notes(wire.NoteKind.EXEC_RACE)
    assert box.asked()[0].shebang == shebang
    assert (box.asked()[0].argv, box.asked()[0].program) == ((path, "1", "2"), path)
    assert path.encode() in result.out


def test_scripts_may_be_interpreters_of_scripts(box: Sandbox) -> None:
    script(box, "a", "#!/bin/echo one\n")
    script(box, "b", "#!/work/a two\n")
    script(box, "c", "#!/work/b\n")
    assert box.run("/work/c", "x").out == b"one /work/a two /work/b /work/c x\n"
    assert box.shell("./c x").out == b"one /work/a two /work/b ./c x\n"
    assert not box.notes(wire.NoteKind.EXEC_RACE)


def test_a_chain_that_is_too_long_fails_as_in_the_kernel(box: Sandbox) -> None:
    script(box, "s0", "#!/bin/echo\n")
    for i in range(1, 9):
        script(box, f"s{i}", f"#!/work/s{i - 1}\n")
    assert box.shell("./s4 x").code == 0
    assert box.shell("./s8 x").code != 0
    assert not box.notes(wire.NoteKind.EXEC_RACE)


@pytest.mark.parametrize("line", ["#!", "#!   ", "#!/nowhere", "#!/work", "#!" + "/" * 300, "echo hello", ""])
def test_a_script_that_cannot_start_fails_as_outside(box: Sandbox, line: str) -> None:
    script(box, "s", line + "\n")
    with pytest.raises(SpawnRefused) as refused:
        box.run("/work/s")
    assert refused.value.failed.error in (errno.ENOEXEC, errno.ENOENT, errno.EACCES)


def test_a_shell_may_read_a_script_without_a_first_line(box: Sandbox) -> None:
    script(box, "s", "echo from the script\n")
    assert box.shell("./s").out == b"from the script\n"


def test_a_script_through_a_folder_descriptor_gets_its_dev_fd_name(box: Sandbox) -> None:
    script(box, "s", "#!/bin/echo\n")
    (box.work / "f.py").write_text(
        "import os,ctypes\n"
        "d=os.open('/work',os.O_PATH); os.set_inheritable(d,True)\n"
        "a=(ctypes.c_char_p*3)(b's',b'x',None); e=(ctypes.c_char_p*1)(None)\n"
        "ctypes.CDLL(None).syscall(322,d,b's',a,e,0)\n"
    )
    if os.uname().machine == "x86_64" and os.path.exists("/usr/bin/python3"):
        result = box.run("/usr/bin/python3", "/work/f.py")
        assert result.out.startswith(b"/dev/fd/") and result.out.endswith(b"/s x\n")


# Answers


def test_the_scope_of_an_answer_holds_from_that_exec_on_and_is_inherited(box: Sandbox) -> None:
    def policy(question: Question) -> wire.Answer:
        inner = isinstance(question, wire.ExecAsked) and "inner" in question.argv
        return wire.Answer(request=question.request, allow=True, scope=99 if inner else wire.SCOPE_UNCHANGED)

    box.policy = policy
    box.shell("/bin/bash -c '/bin/date; (/bin/date)' inner; /bin/date", scope=5)
    assert [q.scope for q in box.asked()] == [5, 5, 99, 99, 5]


def test_a_scope_is_not_taken_over_when_the_exec_fails(box: Sandbox) -> None:
    script(box, "s", "/bin/date\n")  # no #!: the kernel refuses, bash reads it itself
    box.policy = lambda q: wire.Answer(
        request=q.request,
        allow=True,
        scope=99 if isinstance(q, wire.ExecAsked) and q.path.endswith("s") else 5,
    )
    box.shell("./s", scope=5)
    assert [(q.path, q.scope) for q in box.asked()][-1] == ("/bin/date", 5)


def test_a_cached_answer_serves_identical_questions_only(box: Sandbox) -> None:
    box.policy = lambda q: wire.Answer(request=q.request, allow=True, cache=True)
    box.shell("/bin/true; /bin/true; /bin/true")
    assert [q.path for q in box.asked()] == ["/bin/bash", "/bin/true"]
    before = len(box.asked())
    box.shell("/bin/true x; cd /; /bin/true; LD_X=1 /bin/true; OTHER=1 /bin/true; exec -a other /bin/true")
    asked = box.asked()[before:]
    assert [(q.argv[0], q.cwd, q.env[0][0]) for q in asked[1:]] == [
        ("/bin/true", "/work", "PATH"),
        ("/bin/true", "/", "PATH"),
        ("/bin/true", "/", "LD_X"),
        ("other", "/", "PATH"),
    ]
    before = len(box.asked())
    box.run("/bin/true", scope=8)
    assert len(box.asked()) == before + 1


def test_a_changed_program_is_asked_about_again(box: Sandbox) -> None:
    box.policy = lambda q: wire.Answer(request=q.request, allow=True, cache=True)
    path = script(box, "s", "#!/bin/true\n")
    for _ in range(2):
        box.run(path)
    assert len(box.asked()) == 1
    script(box, "s", "#!/bin/true \n")
    box.run(path)
    os.utime(box.work / "s", (1, 1))
    box.run(path)
    assert len(box.asked()) == 3


def test_a_denial_is_never_cached(box: Sandbox) -> None:
    box.policy = lambda q: wire.Answer(
        request=q.request, allow=isinstance(q, wire.ExecAsked) and q.path != "/bin/date", cache=True
    )
    box.shell("/bin/date; /bin/date")
    assert len(box.asked()) == 3


def test_no_answer_in_time_is_a_denial_with_a_note(start: Start) -> None:
    with start(answer_timeout_ms=200) as box:
        box.policy = lambda q: None if isinstance(q, wire.ExecAsked) and "date" in q.path else allow_all(q)
        assert b"Permission denied" in box.shell("/bin/date").err
        assert len(box.notes(wire.NoteKind.ANSWER_TIMEOUT)) == 1
        late = next(q for q in box.asked() if "date" in q.path)
        box.send(wire.Answer(request=late.request, allow=True))
        assert box.run("/bin/true").code == 0


def test_wait_longer_restarts_the_timer(start: Start) -> None:
    with start(answer_timeout_ms=400) as box:
        waits = [3]

        def policy(question: Question) -> wire.Answer | None:
            if isinstance(question, wire.ExecAsked) and "date" in question.path:
                return None
            return allow_all(question)

        box.policy = policy
        box.start(["/bin/bash", "-c", "/bin/date"])
        question = box.until(lambda m: isinstance(m, wire.ExecAsked) and "date" in m.path)
        assert isinstance(question, wire.ExecAsked)
        while waits[0]:
            ready, _, _ = select.select([box.link], [], [], 0.25)
            assert not ready
            box.send(wire.Answer(request=question.request, allow=False, wait_longer=True))
            waits[0] -= 1
        box.send(wire.Answer(request=question.request, allow=True))
        box.until(lambda m: isinstance(m, wire.Executed) and m.request == question.request)
        assert not box.notes(wire.NoteKind.ANSWER_TIMEOUT)


def test_others_go_on_while_one_waits_for_its_answer(box: Sandbox) -> None:
    box.policy = lambda q: None if isinstance(q, wire.ExecAsked) and "date" in q.path else allow_all(q)
    waiting = box.start(["/bin/bash", "-c", "/bin/date"])
    question = box.until(lambda m: isinstance(m, wire.ExecAsked) and "date" in m.path)
    assert isinstance(question, wire.ExecAsked)
    for _ in range(5):
        assert box.run("/bin/true").code == 0
    box.send(wire.Answer(request=question.request, allow=True))
    assert box.exited(waiting).status == 0


def test_a_process_killed_while_it_waits_leaves_no_trouble(box: Sandbox) -> None:
    box.policy = lambda q: None if isinstance(q, wire.ExecAsked) and "date" in q.path else allow_all(q)
    spawn = box.start(["/usr/bin/env", "/bin/date"])
    question = box.until(lambda m: isinstance(m, wire.ExecAsked) and "date" in m.path)
    assert isinstance(question, wire.ExecAsked)
    box.send(wire.Kill(spawn=spawn))
    assert os.waitstatus_to_exitcode(box.exited(spawn).status) == -9
    box.send(wire.Answer(request=question.request, allow=True))
    assert box.run("/bin/true").code == 0
    assert not any(isinstance(m, wire.Withdrawn) for m in box.seen)


def test_who_keeps_a_dead_process_waiting_is_told_so(box: Sandbox) -> None:
    box.policy = lambda q: None if isinstance(q, wire.ExecAsked) and "date" in q.path else allow_all(q)
    spawn = box.start(["/usr/bin/env", "/bin/date"])
    question = box.until(lambda m: isinstance(m, wire.ExecAsked) and "date" in m.path)
    assert isinstance(question, wire.ExecAsked)
    wait = wire.Answer(request=question.request, allow=False, wait_longer=True)
    box.send(wait)
    box.send(wire.Kill(spawn=spawn))
    box.exited(spawn)
    assert not any(isinstance(m, wire.Withdrawn) for m in box.seen)
    box.send(wait)
    assert box.until(lambda m: isinstance(m, wire.Withdrawn)) == wire.Withdrawn(request=question.request)


def test_the_note_reaches_a_pipe_a_socket_and_a_terminal_but_no_file_of_the_hosts(box: Sandbox) -> None:
    box.policy = deny("date", note="broker: no dates\n")
    read, write = os.pipe()
    box.exited(box.start(["/usr/bin/env", "/bin/date"], stderr=write))
    os.close(write)
    with open(read, "rb") as pipe:
        assert b"broker: no dates\n" in pipe.read()

    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            box.exited(box.start(["/usr/bin/env", "/bin/date"], stderr=theirs.fileno()))
        assert b"broker: no dates\n" in ours.recv(1000)

    spawn = box.start(["/usr/bin/env", "/bin/date"], terminal=True)
    box.exited(spawn)
    assert b"broker: no dates\r\n" in os.read(box.descriptors[spawn], 1000)

    assert b"no dates" not in box.run("/usr/bin/env", "/bin/date").err  # stderr is a file


@pytest.mark.parametrize(("opened", "told"), [(">>/tmp/out", 1), (">/tmp/out", 0), (">>/work/out", 0)])
def test_the_note_reaches_a_file_that_collects_output_in_temporary_space_and_no_other(box: Sandbox, opened: str, told: int) -> None:
    box.policy = deny("date", note="broker: no dates\n")
    text = f"echo first {opened}; /bin/date 2{opened}; /bin/cat {opened.lstrip('>')}"
    assert box.shell(text).out.count(b"broker: no dates\n") == told


def test_the_note_does_not_spoil_a_full_screen(box: Sandbox) -> None:
    no_dates = deny("date", note="broker: no dates\n")
    box.policy = lambda q: no_dates(q) if isinstance(q, wire.ExecAsked) and "date" in q.path else allow_all(q)
    spawn = box.start(["/bin/bash", "-c", "stty raw; /bin/date; stty sane; echo after; /bin/date"], terminal=True)
    box.exited(spawn)
    seen = b""
    with contextlib.suppress(OSError):  # EIO: the terminal's other side is closed (pty(7)), and all was read
        while piece := os.read(box.descriptors[spawn], 4000):
            seen += piece
    _, _, after = seen.partition(b"after")
    assert (seen.count(b"broker: no dates"), after.count(b"broker: no dates")) == (1, 1), seen


def test_a_note_to_a_full_pipe_does_not_block(box: Sandbox) -> None:
    box.policy = deny("date", note="x" * 60_000)
    read, write = os.pipe()
    box.exited(
        box.start(
            ["/bin/bash", "-c", "for i in 1 2 3 4; do /bin/date; done 2>&1 >/dev/null; exit 0"], stderr=write
        )
    )
    os.close(read)
    os.close(write)
    assert box.run("/bin/true").code == 0


def test_every_exec_is_allowed_in_the_baseline(start: Start) -> None:
    with start(policy=deny("bash", "true"), flags=wire.SetupFlag.ALLOW_EVERY_EXEC) as box:
        assert box.shell("/bin/true").code == 0
        assert box.asked() == []
