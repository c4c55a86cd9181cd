"""`broker tasks` and `broker tasks kill` on real runs: what an operator sees, and that nothing outlives its end."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.cli.main import main
from broker.enforce.usage import pid_namespace
from conformance.driver import Broker, kill, until
from conformance.fixtures import SOMEBODY, engine, folder, make_broker, reachable_for_others  # noqa: F401 - fixtures
from conformance.terminal import CTRL_C
from conformance.terminal import terminal as opened

# What an orchestrator inside has: it starts sub-tasks and waits for what they say.
PRELUDE = """
import os, subprocess, sys, time

def delegate(*command, label="", profile="any"):
    words = ["broker", "delegate", "--profile", profile, "--trust", "trusted", "--stream", "--label", label, "--", *command]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL)
"""
# Ignores what can be ignored, and has children in sessions of their own.
STUBBORN = (
    "trap '' TERM HUP INT; setsid sleep 600 >/dev/null 2>&1 & setsid bash -c 'trap \"\" TERM; sleep 600 & wait' >/dev/null 2>&1 &"
    " sleep 600 & echo up >&2; while :; do sleep 1; done"
)
NESTED = f"""
import sys
below = {PRELUDE + 'import sys; delegate("bash", "-c", sys.argv[1], label="deep").wait()'!r}
one = delegate("python3", "-c", below, {STUBBORN!r}, label="middle")
two = delegate("bash", "-c", {STUBBORN!r}, label="other")
print("started", flush=True)
one.wait()
two.wait()
"""


@pytest.fixture
def broker(engine: str, make_broker: Callable[..., Broker]) -> Iterator[Broker]:  # noqa: F811
    """A broker with a runtime folder of its own, so that nobody else's runs are seen."""
    made = alone(make_broker(engine))
    yield made
    assert made.nothing_survives()


@pytest.fixture
def bubblewrap(make_broker: Callable[..., Broker]) -> Iterator[Broker]:  # noqa: F811
    """The same, where the engine makes no difference."""
    made = alone(make_broker("bubblewrap"))
    yield made
    assert made.nothing_survives()


on_bubblewrap = pytest.mark.needs_bubblewrap


def alone(made: Broker) -> Broker:
    made.environment["BROKER_RUNTIME_DIR"] = str(made.folder / "runtime")
    made.profile("any", delegate={"depth": 4, "breadth": 64, "tasks": 100, "agents": ["/usr/bin/bash", "/usr/bin/python3",
                                                                                     "/usr/local/bin/python3"]})  # fmt: skip
    return made


def sockets(broker: Broker) -> list[str]:
    place = broker.folder / "runtime" / "control"
    return sorted(os.listdir(place)) if place.exists() else []


def orchestrated(broker: Broker, code: str, *arguments: str, **how: Any) -> Any:
    return broker.started("python3", "-c", PRELUDE + textwrap.dedent(code), *arguments, **how)


def seen(broker: Broker) -> list[dict[str, Any]]:
    done = broker.verb("tasks", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, list)
    return found


def states(broker: Broker) -> dict[str, str]:
    return {row["task"]: row["state"] for run in seen(broker) for row in run["tasks"]}


def namespaces(broker: Broker) -> dict[int, list[int]]:
    """The pid namespaces of our sandboxes, each with its processes. The engine's own pause there is none."""
    found: dict[int, list[int]] = {}
    for pid in broker.inside():
        if namespace := pid_namespace(pid):
            found.setdefault(namespace, []).append(pid)
    found.pop(pid_namespace(os.getpid()), None)  # what prepares a container, not in it yet
    return found


def alive(broker: Broker, before: dict[int, list[int]]) -> list[int]:
    """Those of these namespaces in which something of ours lives. (The kernel gives a number to another one when it is free.)"""
    now = namespaces(broker)
    return [namespace for namespace in before if namespace in now]


def all_up(broker: Broker, running: Any, count: int) -> dict[int, list[int]]:
    """Wait until the tree stands and everything stubborn runs; return the namespaces."""
    running.read_until(b"started")
    until(lambda: list(states(broker).values()) == ["running"] * count, f"{count} running tasks")
    return until(lambda: (found := namespaces(broker)) and len(found) == count
                 and sum(command(pid) == "sleep" for group in found.values() for pid in group) >= 8 and found, "the daemons")  # fmt: skip


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


# Ending


def test_kill_ends_a_sub_tree_with_all_that_hides_in_it_and_nothing_else(broker: Broker) -> None:
    with orchestrated(broker, NESTED) as running:
        before = all_up(broker, running, 4)
        [run] = seen(broker)
        rows = {row["label"]: row for row in run["tasks"]}  # which of two begins first is nobody's business
        middle, deep, other = (rows[label] for label in ("middle", "deep", "other"))

        began = time.monotonic()
        done = broker.verb("tasks", "kill", middle["id"], "--json")
        seconds = time.monotonic() - began

        assert json.loads(done.stdout) == {"ended": [middle["id"], deep["id"]], "left": [], "nothing": []}
        assert done.returncode == 0
        assert len(alive(broker, before)) == 2  # the operator's own task, and the other child
        assert seconds < 10  # it takes a fraction of one (docs/benchmarks.md)
        assert until(lambda: states(broker)[middle["task"]] == "ended", "the end")
        assert states(broker)[other["task"]] == "running"

        assert broker.verb("tasks", "kill", run["run"]).returncode == 0
        assert alive(broker, before) == []
        assert running.finish()["status"] == "killed"
    assert broker.verified()


def test_a_second_kill_and_one_of_what_has_ended_have_nothing_to_do(broker: Broker) -> None:
    with orchestrated(broker, 'delegate("true").wait(); delegate("sleep", "600").wait(); time.sleep(600)') as running:
        until(lambda: states(broker).get("root/2") == "running", "the second task")
        [run] = seen(broker)
        name = run["run"].rpartition("-")[2]

        ended = broker.verb("tasks", "kill", f"{name}.1")
        assert (ended.returncode, ended.stdout) == (1, "")
        assert "it had ended already (finished)" in ended.stderr

        assert broker.verb("tasks", "kill", f"{name}.2").returncode == 0
        until(lambda: states(broker)["root/2"] == "ended", "the end")
        again = broker.verb("tasks", "kill", f"{name}.2")
        assert (again.returncode, again.stdout) == (1, "")
        assert "it had ended already (killed)" in again.stderr

        assert broker.verb("tasks", "kill", "last").stdout.startswith(f"ended  {run['run']}  any  ")
        running.finish()
        gone = broker.verb("tasks", "kill", name)
        assert (gone.returncode, gone.stderr) == (1, f"broker: {name}: no such run runs now\n")


@pytest.mark.parametrize("event", ["run.started", "task.created", "layers.proven", "spawn.started"])
def test_kill_during_the_start_ends_it_before_or_after_it_runs(broker: Broker, event: str) -> None:
    with broker.started("bash", "-c", STUBBORN) as running:
        broker.wait_for_event(event)
        done = broker.verb("tasks", "kill", "last", "--json")

        assert len(json.loads(done.stdout)["ended"]) == 1, (done.stdout, done.stderr)
        ended = running.finish()
        assert (ended.code, ended["status"]) == (137, "killed")
        assert broker.nothing_survives()


def test_kill_of_a_sub_task_during_its_start(broker: Broker) -> None:
    with orchestrated(broker, f'delegate("bash", "-c", {STUBBORN!r}).wait(); print("over", flush=True)') as running:
        until(lambda: any(one["type"] == "delegation.decided" for one in broker.events()), "the delegation")
        done = broker.verb("tasks", "kill", "last.1", "--json")

        assert len(json.loads(done.stdout)["ended"]) == 1, (done.stdout, done.stderr)
        running.read_until(b"over")
        assert running.finish()["status"] == "finished"
        results = [one for one in broker.events() if one["type"] == "task.finished" and one["task"] == "root/1"]
        assert [one["status"] for one in results] == ["killed"]


@on_bubblewrap
def test_kill_during_landing_lets_it_be_finished(bubblewrap: Broker) -> None:
    count = 3000
    code = f"""
        for number in range({count}):
            open(f"file-{{number}}", "w").write("whole")
    """
    with orchestrated(bubblewrap, code) as running:
        until(lambda: states(bubblewrap).get("root") == "landing", "the landing")
        done = bubblewrap.verb("tasks", "kill", "last")
        ended = running.finish()

    assert done.returncode == 1
    assert "its changes are being looked at" in done.stderr or "had ended" in done.stderr or "no such run" in done.stderr
    assert ended["status"] == "finished"
    assert ended["changes"]["counts"] == {"landed": count, "withheld": 0, "conflicts": 0}
    assert {path.read_text() for path in bubblewrap.workspace.iterdir()} == {"whole"}
    assert len(list(bubblewrap.workspace.iterdir())) == count


@on_bubblewrap
def test_what_a_task_changed_that_was_ended_is_kept_and_not_landed(bubblewrap: Broker) -> None:
    with orchestrated(bubblewrap, 'open("file", "w").write("half"); print("ready", flush=True); time.sleep(600)') as running:
        running.read_until(b"ready")
        assert bubblewrap.verb("tasks", "kill", "last").returncode == 0
        ended = running.finish()

    assert list(bubblewrap.workspace.iterdir()) == []
    assert ended["changes"]["kept"] in bubblewrap.kept()


NONSENSE = [
    (["kill"], 64, "which task is to end?"),
    (["stop", "x"], 64, "there is no word 'stop' here"),
    (["kill", "nobody"], 1, "no such run runs now"),
    (["kill", "last.7"], 1, "there is no such task"),
    (["kill", "last.x"], 1, "there is no such task"),
    (["kill", "last."], 1, "there is no such task"),
    (["kill", "../root"], 1, "no such run runs now"),
    (["kill", "root/9"], 1, "there is no such task"),
    (["kill", "ev\x1b[31mil"], 1, r"ev\x1b[31mil: no such run runs now"),
    (["--run", "nobody"], 64, "no run called 'nobody' runs now"),
    (["kill", "root", "--run", "nobody"], 64, "no run called 'nobody' runs now"),
]


@on_bubblewrap
def test_what_means_nothing_gets_one_sentence_and_ends_nothing(bubblewrap: Broker) -> None:
    with bubblewrap.started("sleep", "600"):
        until(lambda: states(bubblewrap).get("root") == "running", "the task")
        for words, code, says in NONSENSE:
            done = bubblewrap.verb("tasks", *words)

            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1), (words, done.stderr)
            assert says in done.stderr
        assert states(bubblewrap)["root"] == "running"


@on_bubblewrap
def test_root_names_a_task_where_only_one_run_is_meant(bubblewrap: Broker) -> None:
    with bubblewrap.started("sleep", "600"), bubblewrap.started("sleep", "601"):
        until(lambda: sum(len(run["tasks"]) for run in seen(bubblewrap)) == 2, "both tasks")
        first, second = seen(bubblewrap)

        unclear = bubblewrap.verb("tasks", "kill", "root")
        assert (unclear.returncode, unclear.stdout) == (64, "")
        assert "2 runs have a task 'root'" in unclear.stderr
        newest = bubblewrap.verb("tasks", "kill", "last")
        assert (newest.returncode, newest.stdout) == (64, "")
        assert "'last' may not be the one you mean" in newest.stderr

        assert bubblewrap.verb("tasks", "kill", "root", "--run", second["run"]).returncode == 0
        until(lambda: [run["run"] for run in seen(bubblewrap)] == [first["run"]], "the end of the second")
        assert bubblewrap.verb("tasks", "kill", "root").returncode == 0


# Looking


def test_the_tree_says_what_each_task_is_may_do_and_was_refused(broker: Broker) -> None:
    broker.profile("small", max_risk="local_write", effects={})
    code = """
        one = delegate("bash", "-c", "curl https://example.com; echo up", profile="small", label="fetch")
        one.wait()
        two = delegate("sleep", "600", profile="small", label="wait")
        time.sleep(600)
    """
    with orchestrated(broker, code):
        until(lambda: states(broker).get("root/2") == "running", "the second task")
        until(lambda: any(row["memory"] for run in seen(broker) for row in run["tasks"] if row["task"] == "root/2"), "its memory")
        [run] = seen(broker)
        plain = broker.verb("tasks")
        names = broker.verb("completion", "--names", "tasks").stdout.split()
        broker.verb("tasks", "kill", "last")

    root, first, second = run["tasks"]
    assert (run["answers"], run["engine"], run["workspace"]) == (True, broker.engine, str(broker.workspace))
    assert [row["profile"] for row in run["tasks"]] == ["any", "small", "small"]
    assert [row["id"] for row in run["tasks"]] == [run["run"], f"{run['run']}.1", f"{run['run']}.2"]
    assert (root["argv"][0], first["label"], first["status"], second["label"]) == ("python3", "fetch", "finished", "wait")
    assert (second["ceiling"], second["trust"], second["state"], second["argv"]) == ("local_write", "trusted", "running", ["sleep", "600"])
    assert first["denied"] == 1
    assert "curl" in first["last_denial"]["what"]
    assert plain.returncode == 0
    assert "\x1b" not in plain.stdout
    assert "└─ 2" in plain.stdout
    assert "refused in 1: " in plain.stdout
    assert names == [run["run"], f"{run['run']}.2"]  # what has ended is not to be ended


@on_bubblewrap
def test_control_characters_of_a_task_never_reach_the_terminal(bubblewrap: Broker) -> None:
    evil = "\x1b[2J\x1b]0;owned\x07\u202e\r\n\x9b31m"
    code = f"delegate('python3', '-c', 'import time; time.sleep(600)', {evil!r}, label={evil!r}); time.sleep(600)"
    with orchestrated(bubblewrap, code, evil):
        until(lambda: states(bubblewrap).get("root/1") == "running", "the task")
        plain = bubblewrap.verb("tasks").stdout
        with opened(bubblewrap.words("tasks"), bubblewrap.settings(), bubblewrap.folder) as terminal:
            terminal.resize(40, 200)
            terminal.expect("owned")
            terminal.expect("Ctrl-C leaves")
            terminal.type(CTRL_C)
            assert terminal.wait() == 0
        killed = bubblewrap.verb("tasks", "kill", "last").stdout

    for text in (plain, killed, terminal.seen.decode()):
        assert r"\x1b[2J" in text
        assert r"\u202e" in text
        for raw in ("\x1b[2J", "\x1b]0", "\x07", "\u202e", "\x9b"):
            assert raw not in text


@on_bubblewrap
def test_on_a_terminal_it_goes_on_and_a_denial_appears_by_itself(bubblewrap: Broker) -> None:
    with orchestrated(bubblewrap, "input(); subprocess.run(['git', 'push', 'somewhere']); time.sleep(600)", stdin=subprocess.PIPE) as running:
        until(lambda: states(bubblewrap).get("root") == "running", "the task")
        with opened(bubblewrap.words("tasks", "--run", "last"), bubblewrap.settings(), bubblewrap.folder) as terminal:
            terminal.expect("running")
            running.process.stdin.write(b"\n")
            running.process.stdin.flush()
            terminal.expect("denied.*git push somewhere")
            bubblewrap.verb("tasks", "kill", "last")
            assert terminal.wait() == 0  # it was asked for this run only, and that is over


@on_bubblewrap
def test_a_tree_of_64_tasks_is_shown_whole_and_ends_whole(bubblewrap: Broker) -> None:
    below = PRELUDE + 'all = [delegate("sleep", "600") for _ in range(7)]\nfor one in all: one.wait()'
    code = f"""
        all = [delegate("python3", "-c", {below!r}, label=str(number)) for number in range(7)]
        all += [delegate("sleep", "600") for _ in range(7)]
        time.sleep(600)
    """
    with orchestrated(bubblewrap, code):
        until(lambda: list(states(bubblewrap).values()) == ["running"] * 64, "64 tasks")
        plain = bubblewrap.verb("tasks").stdout
        before = namespaces(bubblewrap)
        done = bubblewrap.verb("tasks", "kill", "last", "--json")

        assert plain.count("sleep 600") == 56
        assert len(before) == 64
        assert len(json.loads(done.stdout)["ended"]) == 64
        assert alive(bubblewrap, before) == []


# Who is there


@on_bubblewrap
def test_a_broker_that_was_killed_is_not_shown_and_leaves_no_socket(bubblewrap: Broker) -> None:
    with bubblewrap.started("sleep", "600") as running:
        until(lambda: states(bubblewrap).get("root") == "running", "the task")
        assert len(sockets(bubblewrap)) == 1
        kill(running.pid)
        running.process.wait(30)
        assert len(sockets(bubblewrap)) == 1

        assert seen(bubblewrap) == []
        assert sockets(bubblewrap) == []


@on_bubblewrap
def test_a_broker_that_is_stopped_is_said_not_to_answer(bubblewrap: Broker) -> None:
    with bubblewrap.started("sleep", "600") as running:
        until(lambda: states(bubblewrap).get("root") == "running", "the task")
        kill(running.pid, 19)
        shown, asked = bubblewrap.verb("tasks"), bubblewrap.verb("tasks", "kill", "last")
        kill(running.pid, 18)

        assert "its broker does not answer" in shown.stdout
        assert (asked.returncode, asked.stdout) == (1, "")
        assert "does not answer" in asked.stderr
        assert bubblewrap.verb("tasks", "kill", "last").returncode == 0
        assert running.finish()["status"] == "killed"


def test_a_run_that_is_over_has_no_socket(broker: Broker) -> None:
    assert broker.run("true").code == 0

    assert sockets(broker) == []
    assert broker.verb("tasks").stdout == "nothing runs\n"


@on_bubblewrap
@pytest.mark.needs_root
def test_a_run_of_another_user_is_neither_shown_nor_ended(bubblewrap: Broker) -> None:
    from conformance.driver import PROJECT

    if not reachable_for_others(PROJECT):
        pytest.skip(f"{PROJECT} cannot be read by other users, so none of them can run broker from it")
    other = Broker("bubblewrap", bubblewrap.folder, user=SOMEBODY, environment=dict(bubblewrap.environment))
    with bubblewrap.started("sleep", "600"):
        until(lambda: states(bubblewrap).get("root") == "running", "the task")
        os.chmod(bubblewrap.folder / "runtime", 0o755)

        assert other.verb("tasks").stdout == "nothing runs\n"
        assert other.verb("tasks", "kill", "last").returncode == 1
        assert states(bubblewrap)["root"] == "running"


# From inside

LOOK = """
import os, socket, sys
base = sys.argv[1]
found = []
for top in ("/run", "/var", "/tmp", "/home", "/dev", "/etc", "/opt", os.getcwd()):
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            try:
                if os.lstat(path).st_mode & 0o170000 == 0o140000:
                    found.append(path)
            except OSError:
                pass
ways = found + [base + "/control/" + sys.argv[2]]
ways += [f"/proc/{pid}/root{base}/control/{sys.argv[2]}" for pid in os.listdir("/proc") if pid.isdigit()]
ways += [f"/proc/{pid}/cwd/control/{sys.argv[2]}" for pid in os.listdir("/proc") if pid.isdigit()]
ways += ["\\0" + line.split("@", 1)[1] for line in open("/proc/net/unix").read().splitlines() if "@" in line]
for way in ways:
    end = socket.socket(socket.AF_UNIX)
    try:
        end.connect(way[:107])
        end.sendall(b'{"op":"tree"}\\n')
        if end.recv(10):
            print("reached", repr(way), flush=True)
    except OSError:
        pass
    end.close()
links = [os.readlink(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{number}")]
print("sockets", sorted(link for link in links if link.startswith("socket:")), flush=True)
print("looked", len(ways), flush=True)
sys.stdin.readline()
"""


def test_no_task_reaches_the_control_socket(broker: Broker) -> None:
    with broker.started("python3", "-c", "import sys; sys.stdin.readline(); exec(sys.stdin.readline())", stdin=subprocess.PIPE) as running:
        until(lambda: states(broker).get("root") == "running", "the task")
        [name] = sockets(broker)
        look = f"import sys; sys.argv = ['', {str(broker.folder / 'runtime')!r}, {name!r}]; exec({LOOK!r})"
        running.process.stdin.write(b"\n" + look.encode() + b"\n")
        running.process.stdin.flush()
        out = running.read_until(b"looked")
        assert states(broker) == {"root": "running"}
        running.process.stdin.write(b"\n")
        running.process.stdin.close()
        running.process.stdin = None

    assert b"reached" not in out
    assert b"sockets []" in out


@on_bubblewrap
@pytest.mark.parametrize("shown", ["runtime", "runtime/control", "."])
def test_a_profile_that_would_show_it_is_refused(bubblewrap: Broker, shown: str) -> None:
    bubblewrap.run("true")
    bubblewrap.profile("shows", sandbox={"read_only": [str((bubblewrap.folder / shown).resolve())]})

    done = bubblewrap.run("true", profile="shows")

    assert done.code == 64
    assert b"broker's own running folder" in done.err


def test_the_command_line_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "--help"]) == 0

    said = capsys.readouterr().out
    assert "broker tasks kill 9f6b.1" in said
    assert "--once" in said


def test_completion_offers_kill_and_the_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert main(["completion", shell]) == 0
        assert "broker completion --names tasks" in capsys.readouterr().out
