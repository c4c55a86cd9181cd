"""The copy-on-write workspace as an operator sees it: nothing real changes while a task runs, and at its end exactly
what the profile permits is there. The rest is reported, kept, and the operator's to look at, land or throw away.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.driver import Broker, until
from conformance.fixtures import PROJECT, SOMEBODY, as_root, reachable_for_others
from conformance.terminal import terminal

# Who runs broker, and whose the workspace is.
WAYS = [
    pytest.param(("bubblewrap", None, None), id="bubblewrap-root", marks=[pytest.mark.needs_bubblewrap, as_root]),
    pytest.param(("bubblewrap", SOMEBODY, None), id="bubblewrap-root-for-somebody", marks=[pytest.mark.needs_bubblewrap, as_root]),
    pytest.param(("bubblewrap", SOMEBODY, SOMEBODY), id="bubblewrap-somebody", marks=[pytest.mark.needs_bubblewrap, as_root]),
    pytest.param(("docker", None, None), id="docker-root", marks=[pytest.mark.needs_docker(image="python"), as_root]),
    pytest.param(("docker", SOMEBODY, None), id="docker-root-for-somebody", marks=[pytest.mark.needs_docker(image="python"), as_root]),
]  # fmt: skip


@pytest.fixture(params=WAYS)
def anybody(request: pytest.FixtureRequest, make_broker: Callable[..., Broker]) -> Iterator[Broker]:
    """A broker for each way in which somebody may run one on somebody's workspace."""
    engine, owner, user = request.param
    if user is not None and not reachable_for_others(PROJECT):
        pytest.skip(f"{PROJECT} cannot be read by other users, so none of them can run broker from it")
    made = make_broker(engine, owner=owner, user=user)
    yield made
    assert made.nothing_survives()


def tree(root: Path) -> dict[str, tuple[Any, ...]]:
    """What is below a folder: kind and mode, owner, content or target, and time of each file."""
    found: dict[str, tuple[Any, ...]] = {}
    for path in sorted(root.rglob("*")):
        facts = path.lstat()
        what: bytes | str | None = None
        if stat.S_ISREG(facts.st_mode):
            what = path.read_bytes()
        elif stat.S_ISLNK(facts.st_mode):
            what = os.readlink(path)
        when = 0 if stat.S_ISDIR(facts.st_mode) else facts.st_mtime_ns
        found[str(path.relative_to(root))] = (oct(facts.st_mode), facts.st_uid, facts.st_gid, what, when)
    return found


def rows(changes: list[dict[str, Any]]) -> dict[str, str]:
    """Path and kind of the rows of a result."""
    return {row["path"]: row["change"] for row in changes}


def say(running: Any, text: bytes = b"\n") -> None:
    """Answer what a program inside waits for."""
    assert running.process.stdin is not None
    running.process.stdin.write(text)
    running.process.stdin.flush()


WAITS = "echo ready; read -r line"


def test_nothing_real_changes_while_the_task_runs(anybody: Broker) -> None:
    for name in ("changed", "deleted", "folder/inner"):
        anybody.file(name, "old\n")
    before = tree(anybody.workspace)
    script = f"echo new >changed; rm deleted; mv folder moved; echo x >made; chmod 600 changed; {WAITS}"

    with anybody.started("bash", "-c", script, stdin=subprocess.PIPE) as running:
        running.read_until(b"ready")
        assert tree(anybody.workspace) == before
        say(running)
        done = running.finish()

    assert done.code == 0, done.err
    after = tree(anybody.workspace)
    assert set(after) == {"changed", "made", "moved", "moved/inner"}
    assert after["changed"][3] == b"new\n"
    assert after["moved/inner"] == before["folder/inner"]


MIXED = """
echo new >changed; rm deleted; mv renamed other-name; chmod 750 mode; mkdir -p made/deep/empty; echo x >made/file
ln -s changed link; rm -r gone; ln made/file made/second; rm was-file; mkdir was-file; rm -r was-folder; echo y >was-folder
touch -d '2001-02-03T04:05:06Z' times; echo same >rewritten; mv -T replacing replaced; echo >'new\nline'; echo >$'\\xff'
"""
BEFORE = {
    "changed": "old\n", "deleted": "x", "renamed": "r\n", "mode": "m", "gone/a": "a", "gone/b/c": "c", "was-file": "f",
    "was-folder/x": "x", "times": "t", "rewritten": "same\n", "untouched": "u", "replaced/old": "o", "replacing/new": "n",
}  # fmt: skip


def test_at_the_end_the_workspace_is_what_the_task_saw(anybody: Broker) -> None:
    """Everything that these commands do is permitted: then the real folder afterwards is the one inside."""
    for name, text in BEFORE.items():
        anybody.file(name, text)
    (anybody.workspace / "replaced/old").unlink()
    reference = anybody.folder / "reference"
    subprocess.run(["cp", "-a", str(anybody.workspace), str(reference)], check=True)
    subprocess.run(["bash", "-c", MIXED], cwd=reference, check=True)

    done = anybody.run("bash", "-c", MIXED)

    assert (done.code, done.err) == (0, b"")
    assert done["changes"]["withheld"] == done["changes"]["conflicts"] == []
    assert done["changes"]["kept"] == ""
    # Owner and time of what was made differ by who made it, and when.
    facts = anybody.workspace.stat()
    after, wanted = tree(anybody.workspace), tree(reference)
    assert {name: (row[0], row[3]) for name, row in after.items()} == {name: (row[0], row[3]) for name, row in wanted.items()}
    assert {row[1:3] for row in after.values()} == {(facts.st_uid, facts.st_gid)}
    kinds = rows(done["changes"]["landed"])
    assert (kinds["changed"], kinds["deleted"], kinds["made/file"]) == ("changed", "deleted", "created")
    assert (kinds["mode"], kinds["times"]) == ("mode", "times")
    assert not {"untouched", "rewritten"} & set(kinds) or kinds.get("rewritten") == "times"
    assert done["changes"]["counts"]["landed"] == len(done["changes"]["landed"]) >= len(kinds)
    assert anybody.kept() == []


def test_owner_mode_time_link_hole_and_attribute_are_kept(anybody: Broker) -> None:
    script = (
        "umask; umask 027; echo x >file; mkdir folder; mkdir -m 700 private; ln -s file link; ln -s nowhere dangling\n"
        "touch -d '2001-02-03T04:05:06.123456789Z' file; truncate -s 50M sparse; printf end >>sparse; chmod 751 folder\n"
        "python3 -c \"import os; os.setxattr('file', 'user.note', b'kept')\""
    )

    done = anybody.run("bash", "-c", script)

    assert (done.code, done.out) == (0, b"0022\n"), done.err
    owner = anybody.workspace.stat()
    for name, mode in (("file", 0o640), ("folder", 0o751), ("private", 0o700), ("link", 0o777), ("sparse", 0o640)):
        facts = (anybody.workspace / name).lstat()
        assert (stat.S_IMODE(facts.st_mode), facts.st_uid, facts.st_gid) == (mode, owner.st_uid, owner.st_gid), name
    assert (anybody.workspace / "file").stat().st_mtime_ns == 981173106123456789
    assert os.readlink(anybody.workspace / "dangling") == "nowhere"
    sparse = (anybody.workspace / "sparse").stat()
    assert (sparse.st_size, sparse.st_blocks * 512 < 1 << 20) == ((50 << 20) + 3, True)
    assert os.listxattr(anybody.workspace / "file") == ["user.note"]


PLANT = "mkfifo pipe; python3 -c 'import os; os.symlink(\"/etc/passwd\", \"out\")'; cp package.json p; sed 's/\"test/\"postinstall/' p >package.json"
WITHHELD = f"{PLANT}; rm p; echo ok >fine; exit 3"


def test_what_may_not_land_is_a_denial_with_its_reason_and_the_exit_code_is_the_commands(anybody: Broker) -> None:
    anybody.file("package.json", '{"scripts": {"test": "node t.js"}}\n')

    done = anybody.run("bash", "-c", WITHHELD)

    assert done.code == 3
    assert rows(done["changes"]["landed"]) == {"fine": "created"}
    held = {row["path"]: row for row in done["changes"]["withheld"]}
    assert {path: (row["change"], row["class"]) for path, row in held.items()} == {
        "pipe": ("created", "blocked"), "out": ("created", "blocked"), "package.json": ("changed", "persistence"),
    }  # fmt: skip
    assert "postinstall" in held["package.json"]["reason"]
    told = {row["what"]: row["reason"] for row in done["denials"] if row["tool"] == "landing"}
    assert told == {f"{row['change']} {anybody.workspace / path}": row["reason"] for path, row in held.items()}
    assert done["changes"]["counts"] == {"landed": 1, "withheld": 3, "conflicts": 0}
    assert (anybody.workspace / "package.json").read_text() == '{"scripts": {"test": "node t.js"}}\n'
    assert sorted(os.listdir(anybody.workspace)) == ["fine", "package.json"]
    assert anybody.kept() == [done["run"]] == [done["changes"]["kept"]]
    assert anybody.verified()


def test_an_operator_looks_at_what_was_withheld_and_lands_or_discards_it(anybody: Broker) -> None:
    anybody.file("package.json", '{"scripts": {"test": "node t.js"}}\n')
    run = anybody.run("bash", "-c", WITHHELD)["run"]

    shown = anybody.verb("diff", run, "--withheld", "package.json")
    assert shown.returncode == 0
    assert '+{"scripts": {"postinstall": "node t.js"}}' in shown.stdout
    assert "# withheld: " in shown.stdout

    landed = anybody.verb("land", run, "package.json")
    assert (landed.returncode, landed.stdout) == (0, "landed    package.json  (changed)\n"), landed.stderr
    assert "postinstall" in (anybody.workspace / "package.json").read_text()
    assert anybody.events()[0]["command"] == ["broker", "land", run, "package.json"]
    intended = next(event for event in anybody.events() if event["type"] == "landing.intended")
    assert intended["decided_by"] == "operator"

    never = anybody.verb("land", run, "--all")
    assert never.returncode == 77
    assert "never lands" in never.stderr
    assert sorted(os.listdir(anybody.workspace)) == ["fine", "package.json"]

    assert anybody.verb("discard", run).returncode == 0
    assert anybody.kept() == []
    assert anybody.verified()


def test_the_task_sees_what_it_wrote_although_it_will_not_land(anybody: Broker) -> None:
    script = f"{PLANT}; ls -F; cat package.json"
    anybody.file("package.json", '{"scripts": {"test": "node t.js"}}\n')

    done = anybody.run("bash", "-c", script)

    assert done.out.split(b"\n") == [b"out@", b"p", b"package.json", b"pipe|", b'{"scripts": {"postinstall": "node t.js"}}', b""]
    assert sorted(os.listdir(anybody.workspace)) == ["p", "package.json"]


def test_a_read_only_workspace_stays_one(anybody: Broker) -> None:
    anybody.file("file", "old\n")
    anybody.profile("looks", sandbox={"workspace": "read-only"})

    done = anybody.run("sh", "-c", "cat file; echo new >file; echo x >made", profile="looks")

    assert done.out == b"old\n"
    assert done.err.count(b"cannot create") == 2
    assert os.listdir(anybody.workspace) == ["file"]
    assert done["changes"] == {}


def test_a_direct_workspace_stays_one(anybody: Broker) -> None:
    anybody.file("file", "old\n")
    anybody.file(".git/config", "[core]\n")
    anybody.profile("direct", sandbox={"workspace": "direct"})

    script = f"echo new >file; echo x >>.git/config; {WAITS}"
    with anybody.started("bash", "-c", script, stdin=subprocess.PIPE, profile="direct") as running:
        running.read_until(b"ready")
        assert (anybody.workspace / "file").read_text() == "new\n"
        say(running)
        done = running.finish()

    assert (anybody.workspace / ".git/config").read_text() == "[core]\n"
    assert done["changes"] == {}


def test_with_land_never_nothing_lands_until_the_operator_says_so(anybody: Broker) -> None:
    done = anybody.run("sh", "-c", "echo x >made; mkfifo pipe", options=["--land", "never"])

    assert (done.code, os.listdir(anybody.workspace)) == (0, [])
    assert done["changes"]["landed"] == []
    assert anybody.kept() == [done["run"]]

    later = anybody.verb("land", "last", at=anybody.workspace)
    assert later.returncode == 0, later.stderr
    assert os.listdir(anybody.workspace) == ["made"]
    assert (anybody.workspace / "made").stat().st_uid == anybody.workspace.stat().st_uid


@pytest.mark.parametrize(("answer", "lands"), [("y\r", True), ("n\r", False), ("\r", False)], ids=["yes", "no", "return"])
def test_with_land_ask_the_operator_is_asked_at_the_terminal(for_somebody: Broker, answer: str, lands: bool) -> None:
    words = for_somebody.run_words(["sh", "-c", "echo x >made"], ["--land", "ask"], quiet=False)

    with terminal(words, for_somebody.settings(), for_somebody.folder) as screen:
        screen.expect("made")
        screen.expect(r"Land them\? \[y/N\]")
        assert os.listdir(for_somebody.workspace) == []
        screen.type(answer)
        assert screen.wait() == 0

    assert os.listdir(for_somebody.workspace) == (["made"] if lands else [])
    assert len(for_somebody.kept()) == (0 if lands else 1)


def test_with_land_ask_and_nobody_there_nothing_lands(for_somebody: Broker) -> None:
    done = for_somebody.run("sh", "-c", "echo x >made", options=["--land", "ask"])

    assert os.listdir(for_somebody.workspace) == []
    assert for_somebody.kept() == [done["run"]]


def test_what_was_done_before_the_time_was_over_lands(anybody: Broker) -> None:
    done = anybody.run("sh", "-c", "echo x >made; sleep 60", options=["--timeout", "2"])

    assert done.code == 124
    assert rows(done["changes"]["landed"]) == {"made": "created"}
    assert (anybody.workspace / "made").read_text() == "x\n"


def test_what_a_killed_command_did_lands(anybody: Broker) -> None:
    done = anybody.run("sh", "-c", "echo x >made; kill -9 $$")

    assert done.code == 137
    assert (anybody.workspace / "made").read_text() == "x\n"


def test_a_layer_may_not_grow_over_its_size_and_nothing_of_it_lands(anybody: Broker) -> None:
    anybody.profile("small", sandbox={"layer_size": "8M"})
    script = "echo x >made; dd if=/dev/zero of=big bs=1M count=64 2>/dev/null; sleep 60"

    done = anybody.run("sh", "-c", script, profile="small")

    assert "layer" in str(done["reason"]) or "layer_size" in str(done.err)
    assert os.listdir(anybody.workspace) == []
    assert [event["limit"] for event in anybody.events() if event["type"] == "limits.exceeded"] == ["layer"]
    assert anybody.kept() == [done["run"]]


def test_two_tasks_at_once_do_not_see_each_other_and_the_second_is_in_conflict(anybody: Broker) -> None:
    anybody.file("shared", "old\n")
    script = f"echo $1 >>shared; echo $1 >only-$1; {WAITS}; cat shared; ls"

    with anybody.started("bash", "-c", script, "-", "first", stdin=subprocess.PIPE) as first:
        first.read_until(b"ready")
        with anybody.started("bash", "-c", script, "-", "second", stdin=subprocess.PIPE) as second:
            second.read_until(b"ready")
            say(first)
            one = first.finish()
            say(second)
            two = second.finish()

    assert one.out == b"ready\nold\nfirst\nonly-first\nshared\n"
    assert rows(one["changes"]["landed"]) == {"shared": "changed", "only-first": "created"}
    # Whether a task sees what lands below it meanwhile is left open (overlayfs.rst); its own files are as it wrote them.
    assert two.out.startswith(b"ready\nold\nsecond\n")
    assert rows(two["changes"]["landed"]) == {"only-second": "created"}
    assert [(row["path"], "changed since" in row["reason"]) for row in two["changes"]["conflicts"]] == [("shared", True)]
    assert (anybody.workspace / "shared").read_text() == "old\nfirst\n"
    assert anybody.kept() == [two["run"]]
    assert "second" in anybody.verb("diff", two["run"]).stdout


def test_a_file_that_somebody_outside_changes_meanwhile_is_theirs(anybody: Broker) -> None:
    for name in ("changed", "deleted"):
        anybody.file(name, "old\n")
    script = f"echo mine >changed; rm deleted; echo mine >appears; {WAITS}"

    with anybody.started("bash", "-c", script, stdin=subprocess.PIPE) as running:
        running.read_until(b"ready")
        for name in ("changed", "deleted", "appears"):
            anybody.file(name, "theirs\n")
        say(running)
        done = running.finish()

    assert {row["path"] for row in done["changes"]["conflicts"]} == {"changed", "deleted", "appears"}
    assert {path.read_text() for path in anybody.workspace.iterdir()} == {"theirs\n"}
    assert len(os.listdir(anybody.workspace)) == 3


def test_a_file_that_somebody_outside_removes_meanwhile_stays_away(anybody: Broker) -> None:
    anybody.file("removed", "old\n")

    with anybody.started("bash", "-c", f"echo mine >>removed; {WAITS}", stdin=subprocess.PIPE) as running:
        running.read_until(b"ready")
        (anybody.workspace / "removed").unlink()
        say(running)
        done = running.finish()

    assert [row["path"] for row in done["changes"]["conflicts"]] == ["removed"]
    assert os.listdir(anybody.workspace) == []
    assert "+mine" in anybody.verb("diff", done["run"]).stdout


def test_a_file_renamed_to_a_name_that_may_not_land_stays_where_it_was(anybody: Broker) -> None:
    anybody.file("draft.json", '{"scripts": {"postinstall": "node t.js"}}\n')
    anybody.file("file", "replaced by what never lands\n")

    done = anybody.run("sh", "-c", "mv draft.json package.json; rm file; mkfifo file; echo fine >fine")

    assert rows(done["changes"]["landed"]) == {"fine": "created"}
    assert {row["path"] for row in done["changes"]["withheld"]} == {"draft.json", "package.json", "file"}
    assert (anybody.workspace / "draft.json").exists() and (anybody.workspace / "file").is_file()


# Secrets


def test_secrets_are_shown_empty_and_opening_one_is_a_denial(anybody: Broker) -> None:
    anybody.file(".env", "KEY=s3cret\n")
    anybody.file("conf/id_rsa", "s3cret\n", 0o600)

    script = "import os\nfor name in ('.env', 'conf/id_rsa'): print(open(name).read(), os.stat(name).st_size)"
    done = anybody.run("python3", "-c", script, quiet=False)

    assert done.out == b" 0\n 0\n"
    assert b"shown empty: .env, conf/id_rsa" in done.err
    assert {row["what"] for row in done["denials"] if row["rule"] == "sandbox.masked"} == {
        f"read {anybody.workspace / name}" for name in (".env", "conf/id_rsa")
    }
    assert (anybody.workspace / ".env").read_text() == "KEY=s3cret\n"
    assert done["changes"]["landed"] == done["changes"]["withheld"] == []


def test_a_profile_may_show_a_secret(anybody: Broker) -> None:
    anybody.file(".env", "KEY=s3cret\n")
    anybody.file("server.key", "s3cret\n")
    anybody.profile("shows", sandbox={"show": [".env"]})

    done = anybody.run("python3", "-c", "print(open('.env').read() + open('server.key').read(), end='')", profile="shows")

    assert done.out == b"KEY=s3cret\n"


def test_a_secret_cannot_be_overwritten_or_taken_away(anybody: Broker) -> None:
    anybody.file(".env", "KEY=s3cret\n")
    anybody.file("conf/.env", "KEY=s3cret\n")

    done = anybody.run("sh", "-c", "rm -f .env; echo x >.env; mv conf other; rm -rf conf; echo fine >fine")

    assert (anybody.workspace / ".env").read_text() == "KEY=s3cret\n"
    assert (anybody.workspace / "conf/.env").read_text() == "KEY=s3cret\n"
    assert rows(done["changes"]["landed"]) == {"fine": "created"}


# What is mounted below, and what it costs


@pytest.fixture
def inner(for_somebody: Broker) -> Iterator[Path]:
    """Another file system below the workspace."""
    place = for_somebody.file("data/marker", "below").parent
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=777", "tmpfs", str(place)], check=True)
    (place / "there").write_text("on the other file system\n")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@as_root
def test_another_file_system_below_the_workspace_is_shown_read_only_or_refused_with_the_reason(
    for_somebody: Broker, inner: Path
) -> None:
    done = for_somebody.run("sh", "-c", "cat data/there; echo x >data/there; echo x >data/new; echo x >fine", quiet=False)

    if for_somebody.engine == "bubblewrap":  # the kernel does not let a user namespace look under a mount
        assert done.code == 78
        assert f"{inner} is another file system" in done.err.decode()
        assert b"--engine docker" in done.err
        return
    assert done.out == b"on the other file system\n"
    assert b"data: another file system, shown read-only" in done.err
    assert (inner / "there").read_text() == "on the other file system\n"
    assert os.listdir(inner) == ["there"]
    assert rows(done["changes"]["landed"]) == {"fine": "created"}


def test_a_start_costs_by_the_folders_and_never_by_the_files_in_them(for_somebody: Broker) -> None:
    """Names are read, for secrets; no file is looked at, opened or copied."""
    if shutil.which("strace") is None:
        pytest.skip("no strace on this machine")
    (for_somebody.workspace / "many").mkdir()
    for number in range(2_000):
        (for_somebody.workspace / "many" / f"entry-{number}").touch()
    trace = for_somebody.folder / "trace"
    words = ["strace", "-qq", "-o", trace, "-e", "trace=%file,%desc", *for_somebody.run_words(["true"])]

    subprocess.run(words, env=for_somebody.settings(), cwd=for_somebody.folder, check=True, stdin=subprocess.DEVNULL)

    calls = trace.read_text(errors="replace")
    assert str(for_somebody.workspace / "many") in calls
    assert "entry-" not in calls


# A broker that is killed


def _killed_with_changes(broker: Broker, script: str = "echo x >made; mkfifo pipe") -> str:
    with broker.started("bash", "-c", f"{script}; {WAITS}", stdin=subprocess.PIPE) as running:
        running.read_until(b"ready")
        os.kill(running.process.pid, signal.SIGKILL)
        running.process.wait(30)
    assert broker.nothing_survives()
    [run] = broker.kept()
    return run


def test_of_a_killed_broker_nothing_lands_and_the_changes_are_kept(anybody: Broker) -> None:
    run = _killed_with_changes(anybody)
    assert os.listdir(anybody.workspace) == []

    # The next task is not disturbed, and does not clear them away.
    done = anybody.run("sh", "-c", "ls -A; echo y >other")
    assert (done.code, done.out) == (0, b"")
    assert anybody.kept() == [run]

    assert "+x" in anybody.verb("diff", run).stdout
    unjudged = anybody.verb("land", run)
    assert unjudged.returncode == 64
    assert "nobody judged" in unjudged.stderr
    landed = anybody.verb("land", run, "--all")
    assert landed.returncode == 77  # the pipe
    assert sorted(os.listdir(anybody.workspace)) == ["made", "other"]
    assert (anybody.workspace / "made").stat().st_uid == anybody.workspace.stat().st_uid


def test_gc_shows_the_changes_of_a_killed_broker_and_removes_them_by_age(anybody: Broker) -> None:
    run = _killed_with_changes(anybody)

    dry = json.loads(anybody.verb("gc", "--dry-run", "--json").stdout)
    assert [(row["run"], row["workspace"], row["would_be_removed"]) for row in dry["layers"]] == [
        (run, str(anybody.workspace), False)
    ]
    assert anybody.kept() == [run]
    assert anybody.verb("gc").returncode == 0
    assert anybody.kept() == [run]
    gone = json.loads(anybody.verb("gc", "--older-than", "0.001s", "--json").stdout)
    assert f"changes of {run}" in gone["removed"]
    assert anybody.kept() == []


def test_a_killed_brokers_task_that_changed_nothing_leaves_nothing_after_gc(anybody: Broker) -> None:
    run = _killed_with_changes(anybody, "true")

    removed = json.loads(anybody.verb("gc", "--json").stdout)["removed"]
    assert f"changes of {run}" in removed
    assert anybody.kept() == []


def test_a_layer_of_a_task_that_still_runs_is_nobodys(for_somebody: Broker) -> None:
    with for_somebody.started("bash", "-c", f"echo x >made; {WAITS}", stdin=subprocess.PIPE) as running:
        running.read_until(b"ready")
        [run] = until(for_somebody.kept, "the layer")
        for words in (("land", run, "--all"), ("discard", run)):
            refused = for_somebody.verb(*words)
            assert (refused.returncode, "still runs" in refused.stderr) == (64, True)
        assert for_somebody.verb("gc", "--older-than", "0.001s").returncode == 0
        say(running)
        assert running.finish().code == 0
    assert (for_somebody.workspace / "made").read_text() == "x\n"


# Where no layer can be


def test_a_place_that_cannot_hold_a_layer_is_refused_with_what_to_do(for_somebody: Broker) -> None:
    base = for_somebody.folder / "of-others"
    base.mkdir()
    base.chmod(0o777)
    for_somebody.environment["BROKER_LAYER_DIR"] = str(base)

    done = for_somebody.run("true", quiet=False)

    assert done.code == 78
    assert b"others can write to it" in done.err
