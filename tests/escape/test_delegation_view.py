"""A child's changes land in its parent's view while the parent lives, and may be hostile itself.

Whatever the two of them do together: nothing lands elsewhere, nobody becomes somebody else, and the real files are as they
were until the operator's own task has ended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.task.changes import _read
from conformance.driver import PROJECT, Broker
from conformance.fixtures import SOMEBODY, reachable_for_others
from conformance.test_delegation import PRELUDE, orchestrate, with_profiles

HOSTILE = """
import errno, os, socket, sys

def tries(name, act):
    try:
        act()
        print(name, "done")
    except OSError as error:
        print(name, errno.errorcode[error.errno])

open("plain", "w").write("plain")
tries("device", lambda: os.mknod("device", 0o20666, os.makedev(1, 3)))
tries("whiteout", lambda: os.mknod("whiteout", 0o20000, 0))
tries("block", lambda: os.mknod("block", 0o60666, os.makedev(8, 0)))
tries("pipe", lambda: os.mkfifo("pipe"))
tries("socket", lambda: socket.socket(socket.AF_UNIX).bind("socket"))
for bits in (0o4755, 0o2755, 0o1755):
    tries("special", lambda: (open(f"special-{bits:o}", "w").close(), os.chmod(f"special-{bits:o}", bits)))
    tries("folder", lambda: (os.mkdir(f"folder-{bits:o}"), os.chmod(f"folder-{bits:o}", bits)))
tries("out", lambda: os.symlink("/etc/passwd", "out"))
tries("up", lambda: os.symlink("../../../../etc", "up"))
tries("proc", lambda: os.symlink("/proc/1/root", "proc"))
tries("hard", lambda: os.link("parents", "hard"))
tries("name", lambda: open("n" * 255, "w").close())
tries("odd", lambda: open(b"\\xff\\n\\x1b[2J", "w").close())
tries("staging", lambda: os.mkdir(".broker-landing-x"))
for attribute in ("user.overlay.opaque", "trusted.overlay.opaque", "user.overlay.redirect", "user.overlay.metacopy", "security.capability", "user.fine"):
    tries(attribute, lambda: os.setxattr("plain", attribute, b"y"))
    tries(attribute, lambda: (os.makedirs("d", exist_ok=True), os.setxattr("d", attribute, b"/etc")))
deep = "deep"
for _ in range(40):
    tries("deep", lambda: os.mkdir(deep))
    deep += "/" + "x" * 80
"""
LOOK = """
import json, stat
rows = {}
for name in os.listdir():
    facts = os.lstat(name)
    rows[name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")] = [stat.filemode(facts.st_mode), facts.st_uid, facts.st_nlink]
say(rows)
"""


ENGINES = {"bubblewrap": pytest.mark.needs_bubblewrap, "docker": pytest.mark.needs_docker(image="python")}
# Root in its own workspace, root in somebody else's, and an ordinary user, to whom Docker's socket does not belong.
WHO = [("bubblewrap", "root"), ("bubblewrap", "somebodys"), ("bubblewrap", "by-somebody"), ("docker", "root"), ("docker", "somebodys")]


@pytest.fixture(params=[pytest.param(one, id="-".join(one), marks=ENGINES[one[0]]) for one in WHO])
def lead(request: pytest.FixtureRequest, make_broker: Callable[..., Broker]) -> Iterator[Broker]:
    engine, who = request.param
    if who == "by-somebody" and not reachable_for_others(PROJECT):
        pytest.skip(f"{PROJECT} cannot be read by other users, so none of them can run broker from it")
    owner, user = None if who == "root" else SOMEBODY, SOMEBODY if who == "by-somebody" else None
    made = with_profiles(make_broker(engine, owner=owner, user=user))
    yield made
    assert made.nothing_survives()


def test_what_a_hostile_child_leaves_is_not_in_its_parents_view(lead: Broker) -> None:
    lead.profile("wild", max_risk="destructive", effects={"add": ["unknown", "persistence", "system_write"]})
    said, done = orchestrate(lead, f"""
open("parents", "w").write("parent's")
say(delegate("--profile", "wild", "--trust", "trusted", "--", "python3", "-c", {HOSTILE!r}))
{LOOK}
say(open("parents").read())
""", profile=lead.profile("wild-root", max_risk="destructive", effects={"add": ["unknown", "persistence", "system_write"]}))  # fmt: skip

    child, rows, parents = said
    assert child["status"] == "finished", child
    owner = lead.workspace.stat().st_uid
    for name, (mode, uid, _) in rows.items():
        assert mode[0] in "-d" or (mode[0] == "l" and name not in ("out", "up", "proc")), (name, mode)
        assert not set(mode) & set("sStT"), (name, mode)
        assert uid == owner
        assert not name.startswith(".broker-landing-")
    assert child["changes"]["counts"]["withheld"] > 5
    assert "plain" not in rows  # with such attributes it is nothing that a layer of ours could hold
    assert "n" * 255 in rows
    assert parents == "parent's"
    for path in lead.workspace.rglob("*"):
        assert path.lstat().st_uid == owner
        assert not path.lstat().st_mode & 0o7000
        assert path.is_file() or path.is_dir()
    assert done["status"] == "finished"


RACER = """
import os, random, sys, time
chance = random.Random(int(sys.argv[1]))
while True:
    name = chance.choice(["a", "a/b", "a/b/file", "new", "gone", "a/mode"])
    try:
        act = chance.randrange(9)
        if act == 0:
            os.rename(name, "aside"); os.symlink(sys.argv[2], name)
        elif act == 1:
            os.rename("aside", name)
        elif act == 2:
            os.unlink(name)
        elif act == 3:
            os.makedirs("a/b", exist_ok=True); open("a/b/file", "w").write("raced")
        elif act == 4:
            os.chmod(name, chance.choice([0, 0o700, 0o755]))
        elif act == 5:
            for staging in os.listdir():
                if staging.startswith(".broker-landing-"):
                    os.rename(staging, "aside"); os.symlink(sys.argv[2], staging)
        elif act == 6:
            for staging in os.listdir():
                if staging.startswith(".broker-landing-"):
                    for held in os.listdir(staging):
                        os.unlink(f"{staging}/{held}"); os.symlink(sys.argv[2] + "/victim", f"{staging}/{held}")
        elif act == 7:
            os.rename("aside/file", "new")
        else:
            os.link("a/b/file", "new")
    except OSError:
        pass
"""
CHILD = """
import os
os.makedirs("a/b", exist_ok=True)
for name in ("a/b/file", "a/b/other", "new", "a/mode"):
    try:
        open(name, "w").write("child's")
        os.chmod(name, 0o600)
    except OSError:
        pass
for name in ("gone", "a/gone"):
    try:
        os.unlink(name)
    except OSError:
        pass
"""


def test_a_parent_that_races_the_landing_of_its_child_gains_nothing_outside_of_its_view(lead: Broker) -> None:
    victim = lead.folder / "victim"
    victim.mkdir()
    victim.chmod(0o777)
    (victim / "victim").write_text("untouched\n")
    (victim / "victim").chmod(0o666)
    for name in ("a/b/file", "a/mode", "a/gone", "gone"):
        lead.file(name, "real\n")
    for path in (lead.workspace / "a", lead.workspace / "a/b"):
        os.chown(path, lead.workspace.stat().st_uid, -1)
    before = snapshot(lead.workspace)
    # The folder of the victim is not even shown inside: a link that the broker followed would lead there all the same.
    code = f"""
racers = [subprocess.Popen(["python3", "-c", {RACER!r}, str(seed), {str(victim)!r}]) for seed in range(3)]
for _ in range(25):
    found = delegate("--profile", "coder", "--trust", "trusted", "--", "python3", "-c", {CHILD!r})
    assert found["status"] in ("finished", "failed"), found
for one in racers:
    one.kill()
    one.wait()
say("over")
input()
"""
    lead.profile("many", delegate={"tasks": 1000})
    with lead.started("python3", "-c", PRELUDE + code, stdin=-1, profile="many", options=("--land", "never")) as running:
        running.read_until(b'"over"')
        assert snapshot(lead.workspace) == before
        running._stdin = b"\n"
        done = running.finish()

    assert done.code == 0, done.err
    assert snapshot(lead.workspace) == before
    assert os.listdir(victim) == ["victim"]
    assert (victim / "victim").read_text() == "untouched\n"
    assert (victim / "victim").stat().st_mode & 0o777 == 0o666
    assert lead.verified()


def snapshot(folder: Path) -> dict[str, tuple[object, ...]]:
    """What is in a folder, with the times that tell of any change."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted([folder, *folder.rglob("*")]):
        facts = path.lstat()
        found[str(path)] = (facts.st_mode, facts.st_uid, facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size)
    return found


def test_deletions_and_folders_made_again_are_the_same_three_layers_down(lead: Broker) -> None:
    for name in ("d/one", "d/two", "d/e/three", "f", "g/x"):
        lead.file(name, "real\n")
    before = snapshot(lead.workspace)
    third = "import os, shutil; shutil.rmtree('d'); os.mkdir('d'); open('d/four', 'w').write('4'); os.unlink('f'); os.mkdir('f'); print(sorted(os.listdir('g')))"
    second = f"""
import os, subprocess, json
os.unlink("g/x"); os.rmdir("g"); os.mkdir("g"); open("g/y", "w").write("y"); open("d/one", "w").write("second")
found = json.loads(subprocess.run(["broker", "delegate", "--profile", "coder", "--trust", "trusted", "--", "python3", "-c", {third!r}], capture_output=True).stdout)
print(found["stdout"], found["changes"]["counts"], sorted(os.listdir("d")), os.path.isdir("f"), flush=True)
"""
    code = f"""
os.rename("g/x", "g/z"); os.rename("g/z", "g/x")
say(delegate("--profile", "coder", "--trust", "trusted", "--", "python3", "-c", {second!r}))
say([sorted(os.listdir("d")), os.path.isdir("f"), sorted(os.listdir("g"))])
input()
"""
    with lead.started("python3", "-c", PRELUDE + code, stdin=-1) as running:
        running.read_until(b'["y"]]')
        assert snapshot(lead.workspace) == before
        running._stdin = b"\n"
        done = running.finish()

    child, seen = (json.loads(line) for line in done.out.splitlines())
    assert child["stdout"].startswith("['y']"), child
    assert "['four'] True" in child["stdout"]
    assert seen == [["four"], True, ["y"]]
    assert sorted(os.listdir(lead.workspace / "d")) == ["four"]
    assert (lead.workspace / "f").is_dir()
    assert (lead.workspace / "g" / "y").read_text() == "y"
    assert not (lead.workspace / "g" / "x").exists()


def test_a_layer_that_is_full_ends_the_child_and_nothing_of_it_lands(lead: Broker) -> None:
    lead.profile("cramped", sandbox={"layer_size": "4M"}, max_risk="local_write", effects={})
    said, done = orchestrate(lead, """
        found = delegate("--profile", "cramped", "--", "bash", "-c", "head -c 64M /dev/zero > big; sleep 60")
        say([found["status"], found["changes"]["counts"]["landed"], os.listdir()])
    """)  # fmt: skip
    assert said == [["layer", 0, []]]
    assert done["status"] == "finished"


def test_what_is_read_to_judge_a_change_is_reached_through_no_link_and_waits_for_nothing(tmp_path: Path) -> None:
    view, elsewhere = tmp_path / "view", tmp_path / "elsewhere"
    (view / "d").mkdir(parents=True)
    elsewhere.mkdir()
    for folder in (view / "d", elsewhere):
        (folder / "package.json").write_text("{}")
    assert _read(str(view), "d/package.json") == b"{}"
    (view / "d").rename(view / "aside")
    (view / "d").symlink_to(elsewhere)
    (view / "link").symlink_to(elsewhere / "package.json")
    os.mkfifo(view / "pipe")
    for path in ("d/package.json", "link", "pipe", "d", "../elsewhere/package.json", "no-such/package.json"):
        assert _read(str(view), path) is None, path


@pytest.mark.needs_root
def test_acting_as_another_user_is_this_threads_alone_and_without_roots_groups() -> None:
    code = """
import os, sys, threading
from broker.enforce.beneath import file_user
os.setgroups([0, 4242])
def of(task): return {line.split(":")[0]: line.split()[1:] for line in open(f"/proc/self/task/{task}/status") if line[:4] in ("Uid:", "Gid:", "Grou")}
inside, leave = threading.Event(), threading.Event()
seen = {}
def act():
    with file_user(1000, 1000):
        seen["acting"] = of(threading.get_native_id())
        inside.set()
        leave.wait()
    seen["after"] = of(threading.get_native_id())
one = threading.Thread(target=act); one.start(); inside.wait()
seen["other"] = of(threading.get_native_id())
leave.set(); one.join()
try:
    with file_user(1000, 1000): raise ValueError
except ValueError:
    seen["raised"] = of(threading.get_native_id())
import json; print(json.dumps(seen))
"""
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seen = json.loads(made.stdout)
    assert seen["acting"] == {"Uid": ["0", "0", "0", "1000"], "Gid": ["0", "0", "0", "1000"], "Groups": []}
    ours = {"Uid": ["0"] * 4, "Gid": ["0"] * 4, "Groups": ["0", "4242"]}
    assert seen["other"] == seen["after"] == seen["raised"] == ours
