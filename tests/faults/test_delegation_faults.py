"""Things break while tasks delegate: nothing survives, nothing lands that should not, nothing is lost of the record."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.driver import Broker, kill, until
from conformance.test_delegation import PRELUDE, orchestrate, with_profiles

# A tree of nine: the operator's task, and children that each change something, leave a daemon behind and wait.
EIGHT = """
import time
def tree(count=8):
    held = [start("--profile", "coder", "--trust", "trusted", "--stdin", "--stream", "--", "bash", "-c",
                  "echo $0 > made-$0; setsid sleep 600 & trap '' TERM HUP INT; echo ready >&2; read line; sleep 600",
                  str(number), stdin=subprocess.PIPE) for number in range(count)]
    for one in held:
        assert one.stderr.readline() == b"ready\\n"
    return held
"""


@pytest.fixture
def lead(broker: Broker) -> Broker:
    return with_profiles(broker)


def test_a_broker_that_is_killed_over_a_tree_leaves_nothing_and_the_next_start_sweeps(lead: Broker) -> None:
    with lead.started("python3", "-c", PRELUDE + EIGHT + "tree(); open('parents', 'w'); say('all'); input()", stdin=-1) as running:
        running.read_until(b"all")
        kill(running.pid)
        running.process.wait(30)

        assert lead.nothing_survives()
    assert lead.verified()
    assert os.listdir(lead.workspace) == []
    run = lead.journals()[-1].stem
    assert lead.kept() == sorted([run, *(f"{run}.{number}" for number in range(1, 9))])

    assert lead.run("true").code == 0
    base = lead.task_folders()
    assert base == []
    assert not list(Path("/run/broker").glob(f"task-{run}*"))
    assert lead.containers() == []


def test_the_changes_of_a_dead_child_are_kept_for_the_operator_by_its_own_name(lead: Broker) -> None:
    with lead.started("python3", "-c", PRELUDE + EIGHT + "tree(2); open('parents', 'w'); say('all'); input()", stdin=-1) as running:
        running.read_until(b"all")
        kill(running.pid)
        running.process.wait(30)
    assert lead.nothing_survives()
    run = lead.journals()[-1].stem

    made = [word for one in (1, 2) for word in ("made-0", "made-1") if word in lead.verb("diff", f"{run}.{one}").stdout]
    assert sorted(made) == ["made-0", "made-1"]  # whichever of the two came first
    unjudged = lead.verb("land", f"{run}.1")
    assert unjudged.returncode == 64
    assert "--all" in unjudged.stderr
    assert lead.verb("land", f"{run}.1", "--all").returncode == 0
    assert sorted(os.listdir(lead.workspace)) == [made[0]]
    assert lead.verb("discard", f"{run}.2").returncode == 0
    assert lead.verb("land", f"{run}.10").returncode == 64
    assert lead.kept() == [run]
    assert lead.verb("discard", run).returncode == 0
    assert lead.kept() == []


@pytest.mark.parametrize("moment", ["delegation.decided", "spawn.started", "layers.proven", "landing.intended"])
def test_a_broker_that_is_killed_while_a_child_begins_or_lands_leaves_nothing(lead: Broker, moment: str) -> None:
    code = "while True: delegate('--profile', 'worker', '--', 'bash', '-c', 'echo x > made; rm -f made; echo y > other')"
    with lead.started("python3", "-c", PRELUDE + code) as running:
        until(lambda: [event for event in lead.events() if event["type"] == moment and event.get("task", "root") != "root"]
              or [event for event in lead.events() if event["type"] == moment == "delegation.decided"], moment)  # fmt: skip
        kill(running.pid)
        running.process.wait(30)

        assert lead.nothing_survives()
    assert lead.verified()
    assert os.listdir(lead.workspace) == []
    assert lead.run("true").code == 0
    assert not list(Path("/run/broker").glob(f"task-{lead.journals()[0].stem}*"))


def guards(lead: Broker) -> list[int]:
    return [pid for pid in lead.inside() if _command(pid) == "guard"]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def test_a_child_whose_guard_is_killed_has_failed_and_its_parent_goes_on(lead: Broker) -> None:
    code = EIGHT + """
say("before")
input()
[one] = tree(1)
say("ready")
found = finish(one)
say([found["status"], found["changes"].get("counts", {}).get("landed", 0), os.listdir()])
say(delegate("--profile", "worker", "--", "echo", "another")["stdout"])
"""
    with lead.started("python3", "-c", PRELUDE + code, stdin=-1) as running:
        running.read_until(b"before")
        parents = set(guards(lead))
        assert running.process.stdin is not None
        running.process.stdin.write(b"\n")
        running.process.stdin.flush()
        running.read_until(b"ready")
        for pid in set(guards(lead)) - parents:
            kill(pid)
        done = running.finish()

    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert json.loads(lines[2]) in (["failed", 0, []], ["signalled", 0, []]), lines
    assert lines[3] == b'"another\\n"'


def test_a_parent_whose_guard_is_killed_takes_its_whole_tree_along(lead: Broker) -> None:
    with lead.started("python3", "-c", PRELUDE + "say('before'); input()\n" + EIGHT + "tree(3); say('all'); input()", stdin=-1) as running:
        running.read_until(b"before")
        [parent] = guards(lead)
        assert running.process.stdin is not None
        running.process.stdin.write(b"\n")
        running.process.stdin.flush()
        running.read_until(b"all")
        kill(parent)
        done = running.finish()

    assert done.code != 0
    assert lead.nothing_survives()
    assert os.listdir(lead.workspace) == []
    finished = {event["task"]: event["status"] for event in lead.events() if event["type"] == "task.finished"}
    assert {f"root/{number}" for number in (1, 2, 3)} <= set(finished), finished
    assert lead.verified()


@pytest.mark.parametrize("how", ["its command ends", "its time is up", "it is asked to end"])
def test_sub_tasks_end_with_whatever_ends_their_parent(lead: Broker, how: str) -> None:
    ends = {"its command ends": "os._exit(3)", "its time is up": "time.sleep(600)", "it is asked to end": "time.sleep(600)"}[how]
    profile = lead.profile("short", sandbox={"time": "3s"}) if how == "its time is up" else "any"
    with lead.started("python3", "-c", PRELUDE + EIGHT + f"tree(4); say('all'); {ends}", profile=profile) as running:
        running.read_until(b"all")
        if how == "it is asked to end":
            kill(running.pid, signal.SIGTERM)
        done = running.finish()
        assert lead.nothing_survives()

    assert done.code == {"its command ends": 3, "its time is up": 124, "it is asked to end": 143}[how]
    ended = [event for event in lead.events() if event["type"] == "task.finished" and event["task"] != "root"]
    assert {event["status"] for event in ended} == {"killed"}
    assert len(ended) == 4
    assert os.listdir(lead.workspace) == []
    assert lead.verified()


@pytest.fixture
def small_disk(lead: Broker, request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """Give a folder of ours a small file system of its own, until the test is over: then it is looked for what survived."""
    def give(place: Path, size: str) -> None:
        place.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=0711", "tmpfs", str(place)], check=True)
        request.addfinalizer(lambda: subprocess.run(["umount", "-l", str(place)], check=True))

    return give


@pytest.mark.needs_root
def test_a_journal_that_cannot_be_written_while_a_child_runs_ends_them_both(lead: Broker, small_disk: Callable[[Path, str], None]) -> None:
    small_disk(lead.state, "192k")
    code = EIGHT + """
[one] = tree(1)
say("ready")
number = 0
while True:
    number += 1
    subprocess.run(["/bin/echo", "x" * 500, str(number)], capture_output=True)
"""
    with lead.started("python3", "-c", PRELUDE + code) as running:
        running.read_until(b"ready")
        done = running.finish()

    assert done.code == 73, done.err
    assert os.listdir(lead.workspace) == []


@pytest.mark.needs_root
def test_a_disk_that_fills_while_children_are_made_fails_them_with_a_reason(lead: Broker, small_disk: Callable[[Path, str], None]) -> None:
    small_disk(lead.layers, "256k")
    said, done = orchestrate(lead, """
        try:
            open("filler", "wb").write(b"x" * 10_000_000)
        except OSError:
            pass
        say([delegate("--profile", "worker", "--", "bash", "-c", "echo x > made") for _ in range(3)])
        os.unlink("filler")
        say(delegate("--profile", "worker", "--", "bash", "-c", "echo x > made")["status"])
    """)  # fmt: skip

    for found in said[0]:
        assert found["status"] == "failed" or found["changes"]["counts"]["landed"] == 0, found
    assert said[1] == "finished"
    assert done["status"] == "finished"
    assert lead.verified()


TEN_THOUSAND = """
import os
for number in range(10_000):
    try:
        os.execv("/usr/bin/curl", ["curl", "http://x.example"])
    except OSError:
        pass
"""


def test_ten_thousand_denials_are_counted_in_each_task_above(lead: Broker) -> None:
    inner = ["broker", "delegate", "--profile", "coder", "--trust", "trusted", "--", "python3", "tries.py"]
    lead.file("tries.py", TEN_THOUSAND)
    lead.file("outer.py", f"import json, subprocess; found = json.loads(subprocess.run({inner!r}, capture_output=True).stdout)\n"
              "print([row['count'] for row in found['denials']])")  # fmt: skip
    said, done = orchestrate(lead, """
        say(delegate("--profile", "coder", "--trust", "trusted", "--", "python3", "outer.py"))
    """)

    assert said[0]["stdout"] == "[10000]\n"
    assert [(row["of"], row["count"]) for row in said[0]["denials_below"]] == [("root/1/1", 10_000)]
    assert [(row["of"], row["count"]) for row in done["denials_below"]] == [("root/1/1", 10_000)]
    assert done["denied_below"] == 10_000
    lines = [event for event in lead.events() if event["type"].startswith("task.denied")]
    assert len(lines) < 30


def test_denials_of_children_are_all_in_the_record_when_their_parent_is_flooded_or_ends(lead: Broker) -> None:
    child = """
import os
print("begun", flush=True)
for number in range(200):
    try:
        os.execv("/usr/bin/curl", ["curl", f"http://x.example/{number}"])
    except OSError:
        pass
os.write(2, b"done\\n")
import time
time.sleep(600)
"""
    said, done = orchestrate(lead, f"""
        held = [start("--profile", "coder", "--trust", "trusted", "--stream", "--", "python3", "-c", {child!r}) for _ in range(3)]
        for number in range(300):
            try:
                os.execv("/usr/bin/wget", ["wget", str(number)])
            except OSError:
                pass
        for one in held:
            while one.stderr.readline() != b"done\\n":
                pass
    """)  # fmt: skip

    assert said == []
    assert done["denied_below"] == 600
    denied = [event for event in lead.events() if event["type"] == "task.denied"]
    for number in (1, 2, 3):
        assert sum(event["task"] == f"root/{number}" for event in denied) == 200
        assert sum(event["task"] == "root" and event.get("of") == f"root/{number}" for event in denied) == 200
    assert lead.verified()


def test_the_list_of_denials_that_cannot_be_written_costs_no_denial(lead: Broker) -> None:
    code = """
say("ready")
input()
try:
    os.execv("/usr/bin/curl", ["curl", "x"])
except OSError:
    say("refused")
"""
    with lead.started("python3", "-c", PRELUDE + code, stdin=-1, profile="coder") as running:
        running.read_until(b"ready")
        [folder] = lead.task_folders()
        (folder / "denials.jsonl").unlink()
        (folder / "denials.jsonl").mkdir()
        running._stdin = b"\n"
        done = running.finish()

    assert done.out.splitlines()[-1] == b'"refused"'
    assert done["denied"] == 1
    assert [event["rule"] for event in lead.events() if event["type"] == "task.denied"]


def test_a_task_cannot_be_its_own_ancestor(lead: Broker) -> None:
    # There is no name of a task to say; what calls itself again and again comes to the depth that there is.
    lead.file("again.py", """
import subprocess, sys
done = subprocess.run(["broker", "delegate", "--profile", "coder", "--trust", "trusted", "--", "python3", "again.py"], capture_output=True)
sys.stdout.buffer.write(done.stdout[:4000])
""")  # fmt: skip
    said, _ = orchestrate(lead, """
        say(delegate("--profile", "coder", "--trust", "trusted", "--", "python3", "again.py"))
    """)
    assert "delegate.depth" in said[0]["stdout"]
    tasks = [event["task"] for event in lead.events() if event["type"] == "task.created"]
    assert tasks == ["root", "root/1", "root/1/1", "root/1/1/1"]
