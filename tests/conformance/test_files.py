"""The workspace as the command sees it: its owner's files, whatever they are called, and room beside it."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from conformance.driver import Broker
from conformance.fixtures import SOMEBODY, as_root

MADE = "umask; umask 027; echo x >file; mkdir folder; mkdir -m 700 private; ln -s file link; id -u; id -g; id -un"


def test_the_command_starts_in_the_workspace_and_changes_are_real_when_it_has_ended(broker: Broker) -> None:
    broker.file("before", "there\n")

    done = broker.run("sh", "-c", "pwd; cat before; echo new >after; rm before; mkdir -p a/b; echo deep >a/b/c")

    assert done.out == f"{broker.workspace}\nthere\n".encode()
    assert (broker.workspace / "after").read_text() == "new\n"
    assert (broker.workspace / "a/b/c").read_text() == "deep\n"
    assert not (broker.workspace / "before").exists()


@as_root
def test_what_root_runs_in_somebodys_workspace_is_that_persons(for_somebody: Broker) -> None:
    done = for_somebody.run("sh", "-c", MADE)

    assert done.out.split() == [b"0022", b"%d" % SOMEBODY, b"%d" % SOMEBODY, b"agent"]
    for name, mode in (("file", 0o640), ("folder", 0o750), ("private", 0o700), ("link", 0o777)):
        facts = (for_somebody.workspace / name).lstat()
        assert (facts.st_uid, facts.st_gid, stat.S_IMODE(facts.st_mode)) == (SOMEBODY, SOMEBODY, mode), name


def test_an_ordinary_user_runs_broker_and_keeps_what_is_made(by_somebody: Broker) -> None:
    done = by_somebody.run("sh", "-c", MADE)

    assert done.code == 0, done.err
    assert done.out.split() == [b"0022", b"%d" % SOMEBODY, b"%d" % SOMEBODY, b"agent"]
    for name, mode in (("file", 0o640), ("folder", 0o750), ("private", 0o700)):
        facts = (by_somebody.workspace / name).lstat()
        assert (facts.st_uid, facts.st_gid, stat.S_IMODE(facts.st_mode)) == (SOMEBODY, SOMEBODY, mode), name
    assert by_somebody.verified()


def test_an_ordinary_user_gets_every_layer(by_somebody: Broker) -> None:
    done = by_somebody.run("true")

    assert {layer["name"]: layer["effective"] for layer in done["layers"]} == dict.fromkeys(
        ("network", "exec_gate", "landlock", "seccomp", "file_labels", "limits"), True
    )


@as_root
def test_roots_own_workspace_works_too(broker: Broker) -> None:
    done = broker.run("sh", "-c", "echo x >file; id -u")

    assert (done.code, done.out) == (0, b"0\n")
    assert (broker.workspace / "file").stat().st_uid == 0


def test_home_and_temporary_space_are_writable_and_vanish(for_somebody: Broker) -> None:
    script = (
        'for place in "$HOME" "$TMPDIR" /tmp /var/tmp /dev/shm; do echo x >"$place/note" && cat "$place/note"; done;'
        'mktemp >/dev/null && mkdir -p ~/.cache/tool && echo y >~/.cache/tool/z && cd && pwd'
    )

    done = for_somebody.run("bash", "-c", script)

    assert (done.code, done.out, done.err) == (0, b"x\n" * 5 + b"/home/agent\n", b"")
    again = for_somebody.run("bash", "-c", "ls -A ~ /tmp /dev/shm | grep -c note")
    assert again.out == b"0\n"


def test_programs_can_run_from_temporary_space_and_the_workspace(for_somebody: Broker) -> None:
    script = "for place in . /tmp ~; do cp /bin/echo $place/mine && $place/mine $place; done"

    assert for_somebody.run("bash", "-c", script).out == b".\n/tmp\n/home/agent\n"


def test_ten_thousand_files_can_be_made_read_and_removed(broker: Broker) -> None:
    script = (
        "import os\nos.mkdir('many')\n"
        "for n in range(10000):\n with open(f'many/{n}', 'w') as f: f.write(str(n))\n"
        "print(sum(int(open(f'many/{n}').read()) for n in os.listdir('many')))\n"
        "for n in range(5000): os.unlink(f'many/{n}')"
    )

    done = broker.run("python3", "-c", script)

    assert done.out == b"49995000\n"
    assert len(os.listdir(broker.workspace / "many")) == 5000


def test_ten_thousand_files_that_are_there_already_are_listed_whole(broker: Broker) -> None:
    (broker.workspace / "many").mkdir()
    for number in range(10_000):
        (broker.workspace / "many" / f"file-{number}").touch()

    assert broker.run("sh", "-c", "ls many | wc -l; find . -type f | wc -l").out.split() == [b"10000", b"10000"]


ODD = [
    b"with space",
    b"quote'double\"back`slash\\",
    b"new\nline",
    b"tab\tcolon:comma,equals=dollar$HOME;semi",
    b"percent%s%n{brace}[x]*?!#~",
    b"-rf",
    "umlaut-ü-\N{SNOWMAN}".encode(),
    b"not-utf8-\xff\xfe",
]  # fmt: skip


@pytest.mark.parametrize("name", ODD, ids=ascii)
def test_a_workspace_may_be_called_anything(broker: Broker, name: bytes) -> None:
    odd = Path(os.fsdecode(os.fsencode(broker.folder) + b"/" + name))
    odd.mkdir()
    (odd / "in").write_text("read\n")

    done = broker.run("sh", "-c", 'cat in && echo written >out && cd "$PWD" && pwd', workspace=odd)

    if broker.engine == "docker" and name == ODD[-1]:
        # Its API is JSON, which has no such names: a reason and a way out, not a container without a workspace.
        assert done.code == 78 and b"--engine bubblewrap" in done.err
        return
    assert done.code == 0, done.err
    assert done.out == b"read\n" + os.fsencode(odd) + b"\n"
    assert (odd / "out").read_text() == "written\n"
    assert broker.verified()


def test_files_in_it_may_be_called_anything(broker: Broker) -> None:
    script = 'for name; do echo x >"./$name" && mv "./$name" "./$name.2" && cat "./$name.2" && rm "./$name.2"; done'

    done = broker.run("sh", "-c", script, "sh", *ODD)

    assert (done.code, done.out, done.err) == (0, b"x\n" * len(ODD), b"")


@pytest.mark.parametrize("place", ["/var/tmp", "/dev/shm"])
def test_a_workspace_below_a_place_that_is_temporary_inside_is_the_hosts_all_the_same(
    broker: Broker, place: str
) -> None:
    workspace = Path(place) / f"{broker.folder.name}-elsewhere"
    workspace.mkdir()
    try:
        (workspace / "in").write_text("read\n")
        done = broker.run("sh", "-c", "cat in && echo written >out", workspace=workspace)

        assert (done.code, done.out) == (0, b"read\n"), done.err
        assert (workspace / "out").read_text() == "written\n"
    finally:
        for path in workspace.iterdir():
            path.unlink()
        workspace.rmdir()


def test_a_symbolic_link_to_the_workspace_may_name_it(broker: Broker) -> None:
    link = broker.folder / "link"
    link.symlink_to(broker.workspace)

    done = broker.run("sh", "-c", "pwd; echo x >file", workspace=link)

    assert (done.code, done.out) == (0, f"{broker.workspace}\n".encode())
    assert (broker.workspace / "file").exists()


def test_the_current_folder_is_the_workspace_when_none_is_named(broker: Broker) -> None:
    words = [word for word in broker.run_words(["pwd"]) if word not in ("-w", os.fsencode(broker.workspace))]

    done = subprocess.run(words, cwd=broker.workspace, env=broker.settings(), capture_output=True, timeout=60, check=False)

    assert done.stdout == f"{broker.workspace}\n".encode()


def test_two_tasks_at_once_in_one_direct_workspace_share_it_and_nothing_else(broker: Broker) -> None:
    broker.profile("any", sandbox={"workspace": "direct"})
    one = "echo one >/tmp/mine; until [ -e two ]; do sleep 0.02; done; cat two; ls -d /tmp/[mt]*; kill -0 $(cat pid) 2>/dev/null || echo alone"
    two = "echo $$ >pid; echo x >/tmp/theirs; echo hello >two; echo ready; until [ -e stop ]; do sleep 0.02; done; ls -d /tmp/[mt]*"
    with broker.started("bash", "-c", one) as first, broker.started("bash", "-c", two) as second:
        second.read_until(b"ready\n")
        ended = first.finish()
        assert second.process.poll() is None
        broker.file("stop", "")
        other = second.finish()

    assert (ended.code, ended.out.splitlines()[:2]) == (0, [b"hello", b"/tmp/mine"])
    assert (other.code, other.out) == (0, b"ready\n/tmp/theirs\n")
    assert ended["run"] != other["run"]
    assert len(broker.journals()) == 2
    assert broker.verified()


def test_nothing_of_the_run_is_left_on_the_host(broker: Broker) -> None:
    assert broker.run("true").code == 0

    assert broker.task_folders() == []
    assert broker.containers() == []
    assert sorted(os.listdir(broker.workspace)) == []


def test_a_workspace_that_is_no_folder_or_the_systems_is_refused_with_a_reason(broker: Broker) -> None:
    file = broker.file("file", "x")
    for path, why in ((file, b"not a folder"), (Path("/etc"), b"system"), (broker.folder / "missing", b"No such file")):
        done = broker.run("true", workspace=path)
        assert done.code == 64
        assert why in done.err
    assert broker.journals() == []
