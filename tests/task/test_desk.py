"""The desk where questions wait: who is held, what an answer is bound to, what is recorded before it, and what ends a question."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from broker.classify.context import Context
from broker.classify.risk import Risk
from broker.decide.approval import MOST_WITHDRAWN
from broker.decide.envelope import Envelope
from broker.decide.profile import Profile, up_to
from broker.decide.trust import Trust
from broker.decide.verdict import Deny
from broker.enforce import wire
from broker.record import event
from broker.record.journal import Journal, read
from broker.sha256 import sha256
from broker.task.desk import MOST_WAITING, ApprovalDesk, Given, NotTaken, Taken, WordWanted
from broker.task.question import MOST_NAMED
from broker.task.sight import MOST_WORDS
from broker.task.task import Task
from conformance.fits_schema import undescribed, unfit

PROFILE = Profile(name="builder", max_risk=Risk.LOCAL_WRITE, effects=up_to(Risk.LOCAL_WRITE))
T = TypeVar("T")


def until(look: Callable[[], T]) -> T:
    end = time.monotonic() + 20
    while not (found := look()):
        assert time.monotonic() < end
        time.sleep(0.002)
    return found


class Bench:
    """A task with a desk and a real journal, the questions of an imagined guard, and what that is sent."""

    def __init__(self, place: Path, **how: Any) -> None:
        self.root = place / "root"
        (self.root / "usr/bin").mkdir(parents=True)
        (self.root / "w").mkdir()
        self.tool("curl", "#!/bin/sh\n")
        (place / "run").mkdir()
        self.journal = Journal.create(place / "state")
        self.shown: list[dict[str, Any]] = []
        self.desk = ApprovalDesk(shown=self.shown.append, **how)
        self.sent: list[wire.Answer] = []
        self.ended: list[Exception] = []
        self.task = Task(
            path="root", envelope=Envelope(profile=PROFILE, trust=Trust.TRUSTED), journal=self.journal, run_dir=str(place / "run"),
            context=Context(cwd="/w", home="/home/agent", workspace="/w"),
        )  # fmt: skip
        self.task.send, self.task.seen_at = self.sent.append, str(self.root)
        self.task.ask_at(self.desk)
        self.task.end = self.ended.append
        self.number = 0

    def tool(self, name: str, content: str) -> None:
        (self.root / "usr/bin" / name).write_text(content)

    def ask(
        self, *argv: str, pid: int = 7, path: str = "", env: tuple[tuple[str, str], ...] = (), cwd: str = "/w", shebang: str = ""
    ) -> wire.Answer | None:
        self.number += 1
        program = f"/usr/bin/{argv[0]}"
        place = self.root / program[1:]
        facts = place.stat() if place.exists() else self.root.stat()
        return self.task.exec_asked(
            wire.ExecAsked(
                request=self.number, pid=pid, spawn=1, scope=0, dev=facts.st_dev, ino=facts.st_ino, path=path or program, program=program, cwd=cwd,
                shebang=shebang, argv=argv, env=env,
            )
        )  # fmt: skip

    def waits(self, *argv: str, **how: Any) -> int:
        """Ask, and wait until it is shown. Returns its name."""
        count = len(self.shown)
        assert self.ask(*argv, **how) is None
        until(lambda: len(self.shown) > count)
        return int(self.shown[-1]["approval"])

    def answers(self) -> list[wire.Answer]:
        return [one for one in self.sent if not one.wait_longer]

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        return [one for one in read(self.journal.path) if one["type"] in kinds]

    def say(self, name: int, how: str = "once", **more: str) -> Taken | WordWanted | NotTaken:
        return self.desk.answer(name, Given(how=how, who="ada (uid 1)", channel="test", **more))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def bench(**how: Any) -> Bench:
        made.append(Bench(tmp_path, **how))
        return made[-1]

    yield bench
    for one in made:
        one.desk.close()
        one.journal.close()


@pytest.fixture
def bench(make: Callable[..., Bench]) -> Bench:
    return make()


def test_what_an_approval_could_permit_is_held_and_everything_else_is_answered_meanwhile(bench: Bench) -> None:
    bench.waits("curl", "http://x")

    passed = bench.ask("ls")
    assert passed is not None
    assert passed.allow
    assert bench.sent == []


def test_a_question_about_the_network_says_that_a_yes_opens_none(bench: Bench) -> None:
    bench.tool("rm", "x")
    bench.waits("curl", "x")
    bench.waits("rm", "-rf", "/w")

    assert bench.shown[0]["note"].startswith("an approval opens no network")
    assert "note" not in bench.shown[1]


def test_an_approval_is_given_to_its_question_once_and_the_guard_keeps_nothing_of_it(bench: Bench) -> None:
    first, second = bench.waits("curl", "http://x"), bench.waits("curl", "http://y")

    assert isinstance(bench.say(second), Taken)
    assert [(one.request, one.allow, one.cache) for one in bench.answers()] == [(2, True, False)]
    assert isinstance(bench.say(second), NotTaken)
    assert [row["approval"] for row in bench.desk.rows()] == [first]
    assert bench.waits("curl", "http://y") == 3


def test_question_and_answer_are_recorded_in_that_order_before_the_answer_is_sent(make: Callable[..., Bench]) -> None:
    bench = make()
    recorded: list[list[str]] = []
    bench.task.send = lambda _answer: recorded.append([one["type"] for one in bench.events("approval.asked", "approval.answered")])

    bench.say(bench.waits("curl", "http://x"))

    assert recorded == [["approval.asked", "approval.answered"]]
    asked, answered = bench.events("approval.asked", "approval.answered")
    assert (asked["operation"]["argv"], asked["refused"]) == (["curl", "http://x"], ["network_egress"])
    assert len(asked["sha256"]) == 64
    assert (answered["who"], answered["channel"], answered["answer"], answered["layer"]) == ("ada (uid 1)", "test", "once", "approval")
    assert answered["seconds"] >= 0
    assert (unfit([asked, answered]), undescribed([asked, answered])) == ([], set())
    decided = bench.events("exec.decided")[0]
    assert (decided["verdict"], decided["given"]["interactive"]) == ("ask", True)


def test_a_denial_says_why_and_is_a_denial_like_any_other(bench: Bench) -> None:
    bench.say(bench.waits("curl", "http://x"), "deny", why="there is \x1b[31mno network")

    [answer] = bench.answers()
    assert (answer.allow, answer.note) == (False, (
        "broker: denied curl http://x: The operator was asked, and said no: there is \\x1b[31mno network. "
        "Instead: Do as the operator says.\n"
    ))  # fmt: skip
    [row] = bench.task.denials.as_result()
    assert (row["layer"], row["rule"], row["approvable"]) == ("approval", "approval.denied", False)


def test_a_program_that_was_changed_while_the_operator_looked_does_not_start(bench: Bench) -> None:
    name = bench.waits("curl", "http://x")
    bench.tool("curl", "#!/bin/sh\nrm -rf /\n")

    assert bench.say(name) == NotTaken(reason="What it would start, or work on, was changed while the operator was asked.")
    assert [one.allow for one in bench.answers()] == [False]
    assert bench.events("approval.answered")[0]["rule"] == "approval.changed"


def test_a_program_that_was_put_in_the_place_of_the_one_that_was_asked_about_is_not_even_shown(bench: Bench) -> None:
    bench.tool("other", "#!/bin/sh\nrm -rf /\n")
    place = bench.root / "usr/bin/curl"
    bench.desk._changed.acquire()  # the desk has not looked yet
    try:
        held = bench.ask("curl", "http://x")
        place.unlink()
        os.link(bench.root / "usr/bin/other", place)
    finally:
        bench.desk._changed.release()

    assert held is None
    assert [one.allow for one in until(bench.answers)] == [False]
    assert bench.shown == []
    assert bench.task.denials.as_result()[0]["rule"] == "approval.changed"


@pytest.mark.parametrize("how", ["written", "replaced", "made a link", "removed", "behind a link", "made, where there was none"])
def test_a_file_that_the_words_name_is_what_it_was_or_nothing_starts(bench: Bench, how: str) -> None:
    script = bench.root / "w/script.sh"
    (bench.root / "w/evil.sh").write_text("evil")
    if how != "made, where there was none":
        script.write_text("good")
    if how == "behind a link":
        script.rename(bench.root / "w/real.sh")
        script.symlink_to("real.sh")
    name = bench.waits("curl", "-K", "script.sh", "http://x")
    match how:
        case "replaced":
            (bench.root / "w/evil.sh").rename(script)
        case "made a link":
            script.unlink()
            script.symlink_to("/w/evil.sh")
        case "removed":
            script.unlink()
        case "behind a link":
            (bench.root / "w/real.sh").write_text("evil")
        case _:
            script.write_text("evil")

    assert isinstance(bench.say(name), NotTaken)
    assert bench.events("approval.answered")[0]["rule"] == "approval.changed"


def test_the_interpreter_of_a_script_and_a_file_that_a_variable_names_are_bound_as_well(bench: Bench) -> None:
    (bench.root / "w/sh").write_text("interpreter")
    (bench.root / "w/x.so").write_text("library")
    (bench.root / "w/real").write_text("runs")
    names = [
        bench.waits("curl", "http://x", shebang="#!/w/sh -e"), bench.waits("curl", "http://y", env=(("LD_PRELOAD", "/w/x.so"),)),
        bench.waits("curl", "http://z", shebang="#!/usr/bin/curl ./real\n"),
    ]  # fmt: skip
    (bench.root / "w/real").write_text("another")
    (bench.root / "w/sh").write_text("another")
    (bench.root / "w/x.so").write_text("another")

    assert [type(bench.say(name)) for name in names] == [NotTaken] * 3


def test_an_approval_for_the_session_does_not_outlive_a_change_of_what_it_names(bench: Bench) -> None:
    script = bench.root / "w/script.sh"
    script.write_text("good")
    assert isinstance(bench.say(bench.waits("curl", "-K", "script.sh"), "session"), Taken)
    assert bench.ask("curl", "-K", "script.sh") is None
    until(lambda: len(bench.answers()) == 2)
    script.write_text("evil")

    bench.waits("curl", "-K", "script.sh")
    (bench.root / "v").mkdir()
    assert isinstance(bench.say(bench.waits("curl", "http://x", cwd="/v"), "session"), Taken)
    shutil.rmtree(bench.root / "v")
    (bench.root / "u").mkdir()
    (bench.root / "v").mkdir()
    bench.waits("curl", "http://x", cwd="/v")


def test_what_the_words_name_is_shown_as_the_kernel_finds_it(bench: Bench) -> None:
    (bench.root / "etc").mkdir()
    (bench.root / "etc/passwd").write_text("root")
    (bench.root / "w/notes").symlink_to("/etc/passwd")
    (bench.root / "w/up").symlink_to("../../../../../etc")
    bench.waits("curl", "-d", "@notes", "--config=up/passwd", "http://x", "up", "nothing")

    [row] = bench.desk.rows()
    digest = sha256(b"root").hexdigest()
    assert row["files"] == [
        {"word": 2, "path": "/w/notes", "kind": "file", "to": "/etc/passwd", "sha256": digest},
        {"word": 3, "path": "/w/up/passwd", "kind": "file", "to": "/etc/passwd", "sha256": digest},
        {"word": 5, "path": "/w/up", "kind": "folder", "to": "/etc"},
    ]


def test_a_pipe_a_device_and_a_file_that_grows_are_not_waited_for(bench: Bench) -> None:
    os.mkfifo(bench.root / "w/pipe")
    (bench.root / "w/zero").symlink_to("/dev/zero")
    with (bench.root / "w/large").open("wb") as file:
        file.truncate(1 << 40)
    bench.waits("curl", "pipe", "zero", "large")

    assert [(one["word"], one["kind"]) for one in bench.desk.rows()[0]["files"]] == [(1, "other"), (3, "file")]


@pytest.mark.parametrize(
    "word", ["-Kscript.sh", '. "./script.sh"', "(./script.sh)", "`./script.sh`", "cat<script.sh|cat", "true&&./script.sh", "-d@script.sh"]
)
def test_a_file_is_bound_however_a_word_names_it(bench: Bench, word: str) -> None:
    script = bench.root / "w/script.sh"
    script.write_text("good")
    name = bench.waits("curl", "-x", word)
    script.write_text("evil")

    assert isinstance(bench.say(name), NotTaken)


def test_a_file_behind_many_words_is_bound_as_well_and_what_is_not_listed_is_counted(bench: Bench) -> None:
    for number in range(100):
        (bench.root / f"w/{number}").write_text("good")
    name = bench.waits("curl", *(f"http://{number}" for number in range(100)), *map(str, range(100)))
    row = bench.desk.rows()[0]
    assert (len(row["files"]), row["files_left_out"], row["session"]) == (MOST_NAMED, 100 - MOST_NAMED, True)
    (bench.root / "w/99").write_text("evil")

    assert isinstance(bench.say(name), NotTaken)


def test_more_words_than_are_looked_up_can_be_approved_once_only_and_are_counted(bench: Bench) -> None:
    name = bench.waits("curl", *(f"{number}" for number in range(MOST_WORDS + 10)))

    assert bench.desk.rows()[0]["words_not_looked_up"] == 10
    assert not bench.desk.rows()[0]["session"]
    assert isinstance(bench.say(name, "session"), NotTaken)
    assert isinstance(bench.say(name), Taken)


HIDDEN = """
import ctypes, os, sys
from broker.request.operation import Exec
from broker.task.sight import Asker, look
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
ready, say = os.pipe()
hidden = os.fork()
if not hidden:
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
    os.chdir("/usr"); os.write(say, b"x"); os.read(0, 1); os._exit(0)
os.read(ready, 1)
print(look("/", Exec(argv=("curl",), path="/bin/sh", program="/bin/sh", cwd="/", env=()), Asker(pid=hidden)).wrong)
"""


def test_a_process_that_does_not_let_its_folder_be_seen_starts_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", HIDDEN], stdin=subprocess.PIPE, capture_output=True, text=True, timeout=60)

    assert done.stdout == "the process does not let itself be looked at\n", done.stderr


def test_for_the_session_is_for_the_same_argv_program_folder_and_environment(bench: Bench) -> None:
    assert isinstance(bench.say(bench.waits("curl", "http://x"), "session"), Taken)

    assert bench.ask("curl", "http://x") is None
    until(lambda: len(bench.answers()) == 2)
    assert [one.allow for one in bench.answers()] == [True, True]
    assert [one["channel"] for one in bench.events("approval.answered")] == ["test", "session"]
    assert len(bench.shown) == 1

    bench.waits("curl", "http://x", "-v")
    bench.waits("curl", "http://x", env=(("LD_PRELOAD", "/w/x.so"),))
    bench.tool("curl", "another")
    bench.waits("curl", "http://x")


def test_what_cannot_be_undone_is_never_approved_for_the_session(bench: Bench) -> None:
    bench.tool("rm", "x")
    name = bench.waits("rm", "-rf", "/w")

    assert not bench.shown[0]["session"]
    assert isinstance(bench.say(name, "session"), NotTaken)
    assert bench.answers() == []
    assert isinstance(bench.say(name), Taken)


def test_the_fourth_within_a_minute_takes_the_word_and_not_too_soon(bench: Bench) -> None:
    names = [bench.waits("curl", f"http://{number}") for number in range(4)]
    for name in names[:3]:
        assert isinstance(bench.say(name), Taken)

    assert bench.say(names[3], word="approve") == WordWanted(word="approve", pause=1.5)
    assert isinstance(bench.say(names[3], word="approve"), NotTaken)
    assert len(bench.answers()) == 3
    bench.desk._waiting[4].word_asked = time.monotonic() - 1.6
    assert isinstance(bench.say(names[3], word="approve"), Taken)
    assert bench.events("approval.answered")[-1]["word"]


def test_what_was_denied_is_not_asked_about_again_at_once(bench: Bench) -> None:
    bench.say(bench.waits("curl", "http://x"), "deny")

    assert bench.ask("curl", "http://x", pid=8) is None
    until(lambda: len(bench.answers()) == 2)
    assert [one.allow for one in bench.answers()] == [False, False]
    assert len(bench.shown) == 1


def test_who_is_denied_again_and_again_in_other_words_is_not_asked_about_any_more(bench: Bench) -> None:
    waits = bench.waits("curl", "http://waits")
    for number in range(5):
        bench.say(bench.waits("curl", f"http://{number}"), "deny")
    sent = len(bench.answers())
    bench.ask("curl", "http://another")
    until(lambda: len(bench.answers()) > sent)

    assert bench.task.denials.as_result()[-1]["rule"] == "approval.again"
    assert isinstance(bench.say(waits), Taken)


def test_questions_that_are_gone_before_they_can_be_read_are_not_asked_any_more(bench: Bench) -> None:
    for number in range(MOST_WITHDRAWN):
        bench.waits("curl", f"http://{number}")
        bench.task.withdrawn(bench.number)
    bench.ask("curl", "http://another")
    until(bench.answers)

    assert bench.task.denials.as_result()[-1]["rule"] == "approval.again"
    assert len(bench.shown) == MOST_WITHDRAWN


def test_the_same_start_by_another_name_of_the_path_is_not_another_question(bench: Bench) -> None:
    bench.say(bench.waits("curl", "http://x"), "deny")

    again = bench.ask("curl", "http://x", path="/bin/curl")
    assert again is not None
    assert not again.allow
    assert bench.task.denials.total == 1


def test_nobody_answers_in_time(make: Callable[..., Bench]) -> None:
    bench = make(patience=0.05)
    bench.waits("curl", "http://x")

    until(bench.answers)
    assert not bench.answers()[0].allow
    answered = bench.events("approval.answered")[0]
    assert (answered["channel"], answered["rule"], answered["verdict"]) == ("timeout", "approval.timeout", "deny")
    assert bench.desk.rows() == []


def test_the_guard_is_told_to_wait_on(make: Callable[..., Bench]) -> None:
    bench = make(tick=0.01)
    bench.waits("curl", "http://x")

    until(lambda: len(bench.sent) > 3)
    assert {(one.request, one.wait_longer, one.allow) for one in bench.sent} == {(1, True, False)}


def test_when_the_asker_is_gone_its_question_is_too(bench: Bench) -> None:
    name = bench.waits("curl", "http://x")

    bench.task.withdrawn(1)

    assert bench.desk.rows() == []
    assert isinstance(bench.say(name), NotTaken)
    withdrawn = bench.events("approval.withdrawn")
    assert [one["reason"] for one in withdrawn] == ["the process that asked is gone"]
    assert unfit(withdrawn) == []


def test_at_the_end_of_the_task_nothing_waits_and_nothing_more_is_taken(bench: Bench) -> None:
    bench.waits("curl", "http://x")
    bench.desk.close()

    refused = bench.ask("curl", "http://y")
    assert refused is not None
    assert not refused.allow
    assert [one["reason"] for one in bench.events("approval.withdrawn")] == ["the task has ended"]
    assert bench.answers() == []


def test_more_questions_than_anybody_can_answer_are_refused_at_once(bench: Bench) -> None:
    for number in range(MOST_WAITING):
        assert bench.ask("curl", f"http://{number}") is None

    refused = bench.ask("curl", "http://z")
    assert refused is not None
    assert not refused.allow
    assert bench.task.denials.as_result()[-1]["rule"] == "approval.queue"


def test_an_answer_that_cannot_be_recorded_is_not_given_and_ends_the_task(bench: Bench) -> None:
    name = bench.waits("curl", "http://x")
    bench.journal.close()

    assert isinstance(bench.say(name), NotTaken)
    assert bench.answers() == []
    assert len(bench.ended) == 1
    bench.desk._waiting.clear()


def test_of_two_answers_at_once_one_counts(bench: Bench) -> None:
    name = bench.waits("curl", "http://x")
    barrier, said = threading.Barrier(8), []

    def answer() -> None:
        barrier.wait()
        said.append(bench.say(name))

    threads = [threading.Thread(target=answer) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()

    assert sum(isinstance(one, Taken) for one in said) == 1
    assert len(bench.answers()) == 1
    assert len(bench.events(event.APPROVAL_ANSWERED)) == 1


def test_nobody_is_asked_where_there_is_no_desk(bench: Bench) -> None:
    bench.task.approvals = None

    refused = bench.ask("curl", "http://x")
    assert refused is not None
    assert not refused.allow
    assert bench.events("approval.asked") == []


def test_a_shell_whose_commands_come_to_the_gate_by_themselves_starts_without_a_question(bench: Bench) -> None:
    passed = bench.ask("bash", "-c", "curl http://x; echo done")

    assert passed is not None
    assert passed.allow
    assert bench.events("exec.decided")[0]["rule"] == "shell.deferred"


def test_a_change_to_a_path_is_held_and_never_approved_for_the_session(bench: Bench) -> None:
    asked = wire.FileAsked(request=1, pid=7, spawn=1, scope=0, op=wire.FileOp.WRITE, path="/w/.github/workflows/ci.yml", other="")
    assert bench.task.file_asked(asked) is None
    [row] = until(bench.desk.rows)

    assert row["content"] == "not known: nothing has been written yet"
    assert (row["path"], row["action"], row["class"], row["session"]) == ("/w/.github/workflows/ci.yml", "write", "persistence", False)
    assert isinstance(bench.say(1, "session"), NotTaken)
    assert isinstance(bench.say(1), Taken)
    assert bench.answers() == [wire.Answer(request=1, allow=True)]


def test_what_a_model_says_is_shown_to_who_asks_for_it_and_apart(bench: Bench) -> None:
    bench.task.claims = lambda: {"label": "harmless\x1b[2J", "step": ""}
    bench.waits("curl", "http://x")

    assert "claims" not in bench.desk.rows()[0]
    assert bench.desk.rows(claims=True)[0]["claims"] == {"label": "harmless\\x1b[2J"}


def test_numbers_are_never_used_again(bench: Bench) -> None:
    names = []
    for number in range(5):
        names.append(bench.waits("curl", f"http://{number}"))
        bench.task.withdrawn(number + 1) if number % 2 else bench.say(names[-1], "deny")

    assert names == [1, 2, 3, 4, 5]


def test_a_question_of_another_kind_is_never_held(bench: Bench) -> None:
    from broker.request.operation import Exec

    _, verdict = bench.task.judge(Exec(argv=("curl", "http://x"), path="/usr/bin/curl", program="/usr/bin/curl", cwd="/w"))

    assert isinstance(verdict, Deny)
