"""Hostile code in a copy-on-write workspace: the real one ends byte for byte as permitted, whatever the code makes.

Three ways are tried on each engine. Everything that a program can do inside; what a race makes of it, once a label has
been passed; and the worst that a layer could hold, put there from outside.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conformance.driver import Broker, Done
from conformance.fixtures import ENGINES, as_root
from escape.hostile import PROBES, Attacked, probe

BEFORE = {
    ".git/HEAD": "ref: refs/heads/main\n", ".git/config": "[core]\n\tbare = false\n", ".git/hooks/commit-msg": "#!/bin/sh\n",
    ".git/objects/keep": "", ".git/refs/keep": "", ".git/info/exclude": "", ".git/modules/sub/config": "[core]\n",
    ".git/modules/sub/HEAD": "ref: refs/heads/main\n", ".github/workflows/ci.yml": "on: push\n", "plain/fifo": "a file\n",
    "plain/tool": "a tool\n", "plain/folder/inner": "inner\n", "marks/folder/inner": "inner\n", "marks/empty": "",
    "marks/file": "a file\n", "package.json": '{"scripts": {"test": "node t.js"}}\n', "inside/deep/file": "x\n",
    "untouched": "untouched\n",
}  # fmt: skip

# What the code gives .git/config, which it also copies and exchanges.
CONFIGS = ("[core]\n\tfsmonitor = ./x\n", "[core]\n\thooksPath = ./x\n", "[alias]\n\tst = !./x\n")
# What the code makes and may: its own plain files, and links that stay.
COPY = {name.removeprefix(".git/"): text for name, text in BEFORE.items() if name.startswith(".git/")}
PERMITTED = {
    "at-whiteout-rename/x": "planted\n",
    "at-mark/x/file": "mine\n",
    "at-link-inside/deep/up": "-> ../../plain/tool", "at-link-inside/absolute": "-> {workspace}/plain/tool",
    "at-link-git/x": "-> ../.git", "at-link-called-git/x/hooks/post-checkout": "planted\n",
    "at-hard-link/alias": CONFIGS[0],
    "at-config/x": CONFIGS[1],
    **{f"at-git-copied/copy/{name}": text for name, text in COPY.items()},
    **{f"at-renamed/x/{name}": "planted\n" for name in ("HEAD", "config", "objects/keep", "refs/keep", "hooks/post-checkout")},
    "at-names/caf\u00e9": "composed\n", "at-names/cafe\u0301": "decomposed\n",
    "at-package/x": '{"scripts": {"prepare": "node x.js"}}\n', "at-caps/x": "planted\n",
    **{f"at-bits-{bit}-{way}/x": "planted\n" for bit in ("setuid", "setgid", "sticky") for way in ("chmod", "open", "unnamed", "moved")},
    **{f"at-bits-{bit}-{way}/x/inner": "planted\n" for bit in ("setuid", "setgid", "sticky") for way in ("folder", "folder-chmod")},
}  # fmt: skip


def contents(root: Path) -> dict[str, str]:
    """Every path below a folder that is no folder, with what is in it; a kind that cannot be permitted by name."""
    found = {}
    for path in sorted(root.rglob("*")):
        mode = path.lstat().st_mode
        name = str(path.relative_to(root))
        if stat.S_ISREG(mode):
            found[name] = path.read_text(errors="replace")
        elif stat.S_ISLNK(mode):
            found[name] = f"-> {os.readlink(path)}"
        elif not stat.S_ISDIR(mode):
            found[name] = f"special: {mode:o}"
    return found


def facts(root: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Mode, owner, time and content of all that is below a folder: bit for bit."""
    found = {}
    for path in sorted(root.rglob("*")):
        state = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(state.st_mode) else b""
        found[str(path.relative_to(root))] = (state.st_mode, state.st_uid, 0 if path.is_dir() else state.st_mtime_ns, content)
    return found


def furnish(broker: Broker) -> None:
    for name, text in BEFORE.items():
        broker.file(name, text)
    subprocess.run(["chown", "-hR", "--reference", str(broker.workspace), *broker.workspace.iterdir()], check=True)


@dataclass(frozen=True, slots=True)
class Tried:
    """What was tried inside, and the real workspace before and after."""

    results: dict[str, str]
    done: Done
    before: dict[str, tuple[int, int, int, bytes]]
    workspace: Path


OWNERS = [pytest.param(1000, id="somebody"), pytest.param(None, id="root")]


@pytest.fixture(scope="module", params=[(engine, owner) for engine in ("bubblewrap", "docker") for owner in (1000, None)],
                ids=["bubblewrap-somebody", "bubblewrap-root", "docker-somebody", "docker-root"])  # fmt: skip
def tried(request: pytest.FixtureRequest) -> Iterator[Tried]:
    engine, owner = request.param
    with Attacked(engine, owner) as broker:
        furnish(broker)
        broker.file("lander.py", (PROBES / "lander.py").read_text())
        before = facts(broker.workspace)
        done = broker.run("python3", "lander.py", stdin=b"", patience=100)
        assert done.out, done.err
        yield Tried(json.loads(done.out.splitlines()[-1]), done, before, broker.workspace)


def test_nothing_lands_but_what_is_permitted(tried: Tried) -> None:
    after = contents(tried.workspace)
    script = after.pop("lander.py")
    assert after.pop("at-exchange/x") in {*CONFIGS, BEFORE[".git/config"]}
    # A copy of a repository is one; what the code had put into its configuration stays out of it.
    assert after.pop("at-git-copied/copy/config", BEFORE[".git/config"]) == BEFORE[".git/config"]
    assert script == (PROBES / "lander.py").read_text()
    # By the letters of what may be there; not everything of it is made by every engine.
    allowed = {name: text.format(workspace=tried.workspace) if text.startswith("->") else text for name, text in PERMITTED.items()}
    assert {name: text for name, text in after.items() if {**allowed, **BEFORE}.get(name) != text} == {}


def test_nothing_that_was_there_has_changed(tried: Tried) -> None:
    after = facts(tried.workspace)
    assert {name: after.get(name) for name in tried.before} == tried.before


def test_no_special_bit_and_no_attribute_lands(tried: Tried) -> None:
    paths = list(tried.workspace.rglob("*"))
    assert [path for path in paths if path.lstat().st_mode & 0o7000] == []
    assert [path for path in paths if os.listxattr(path, follow_symlinks=False)] == []


def test_no_link_that_lands_leads_out(tried: Tried) -> None:
    links = [path for path in tried.workspace.rglob("*") if path.is_symlink()]
    assert [path for path in links if not path.resolve().is_relative_to(tried.workspace)] == []


def test_no_staging_folder_is_left_or_made(tried: Tried) -> None:
    assert [name for name in os.listdir(tried.workspace) if name.startswith(".broker")] == []


def test_the_layers_own_places_are_out_of_reach(tried: Tried) -> None:
    names = ("private_places", "private_places_uncovered", "layer_by_its_mount_options")
    assert {name: tried.results[name] for name in names} == dict.fromkeys(names, "nothing")


def test_what_did_not_land_has_a_reason_and_is_a_denial(tried: Tried) -> None:
    withheld = tried.done["changes"]["withheld"]
    assert withheld
    assert all(row["reason"] and row["rule"] for row in withheld)
    landing = [row for row in tried.done["denials"] if row["tool"] == "landing"]
    assert sum(row["count"] for row in landing) == len(withheld) == tried.done["changes"]["counts"]["withheld"]


# What a race makes: the label was passed, the landing holds


@pytest.mark.parametrize("target", [".envrc", ".git/hooks/pre-push", ".vscode/tasks.json"])
def test_what_a_race_makes_past_the_label_is_withheld_at_landing(for_somebody: Broker, target: str) -> None:
    furnish(for_somebody)
    before = facts(for_somebody.workspace)
    for_somebody.file("flip", probe("flip").read_bytes(), 0o755)
    # The folder of a label that covers all that is in it has to be there first: to make it is refused.
    for_somebody.file(".vscode/settings.json", "{}\n")

    done = for_somebody.run("./flip", target, "2000000", patience=110, options=["--timeout", "100"])

    assert b"planted" in done.out, "the race was not won once: then this tests nothing"
    assert [row["path"] for row in done["changes"]["withheld"]] == [target]
    assert done["changes"]["withheld"][0]["class"] == "persistence"
    assert not (for_somebody.workspace / target).exists()
    after = facts(for_somebody.workspace)
    assert {name: after.get(name) for name in before} == before


# The worst that a layer could hold


@pytest.fixture(params=ENGINES)
def forged(request: pytest.FixtureRequest) -> Iterator[tuple[Broker, dict[str, Any]]]:
    """A layer into which was put, from outside, what no label and no kernel call refused."""
    with Attacked(str(request.param)) as broker:
        furnish(broker)
        before = facts(broker.workspace)
        script = "import sys; open('mine', 'w').write('mine'); print('ready', flush=True); sys.stdin.readline()"
        with broker.started("python3", "-c", script, stdin=subprocess.PIPE) as running:
            running.read_until(b"ready")
            [run] = broker.kept()
            forge(broker.layers / run / "0" / "upper", run)
            assert running.process.stdin is not None
            running.process.stdin.write(b"\n")
            done = running.finish()
        yield broker, {"before": before, "done": done, "run": run}


def forge(upper: Path, run: str) -> None:
    def put(name: str, text: str = "planted\n", mode: int = 0o644) -> Path:
        path = upper / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    for name in (".git/hooks/pre-commit", ".git/modules/sub/hooks/post-checkout", ".envrc", ".vscode/tasks.json",
                 ".github/workflows/new.yml", "nested/.git/hooks/post-checkout", "by-file/.git", ".bashrc",
                 f".broker-landing-{run}/0", ".broker-landing-20200101-000000-0000/1"):  # fmt: skip
        put(name, mode=0o755)
    put(".git/config", CONFIGS[0])
    put(".git/info/attributes", "* filter=x\n")
    put("package.json", '{"scripts": {"postinstall": "node x.js"}}\n')
    (upper / "bits").mkdir()
    for name, device in (("null", os.makedev(1, 3)), ("disk", os.makedev(8, 0))):
        os.mknod(upper / f"bits/{name}", (stat.S_IFBLK if name == "disk" else stat.S_IFCHR) | 0o666, device)
    os.mkfifo(upper / "bits/fifo")
    for name in ("untouched", ".git/hooks/commit-msg"):  # deletions
        os.mknod(upper / name, stat.S_IFCHR, os.makedev(0, 0))
    (upper / ".github").mkdir(exist_ok=True)
    os.setxattr(upper / ".github", "user.overlay.opaque", b"y")  # hides ci.yml: deletes it
    os.setxattr(put("marks/file"), "user.overlay.metacopy", b"")
    for name, target in (("absolute", "/etc/passwd"), ("up", "../../x"), ("through", "inside/../../x")):
        (upper / "links").mkdir(exist_ok=True)
        (upper / "links" / name).symlink_to(target)
    os.symlink("/tmp", upper / "inside")  # in place of a folder
    put("capable")
    for bit in (0o4755, 0o2755, 0o1755):
        put(f"bits/{bit:o}")
        (upper / f"bits/folder-{bit:o}").mkdir()
    subprocess.run(["chown", "-hR", "1000:1000", *upper.iterdir()], check=True)
    # A change of owner takes these away, so they come last.
    os.setxattr(upper / "capable", "security.capability", b"\x01\x00\x00\x02" + b"\xff\xff\xff\xff" * 4)
    for bit in (0o4755, 0o2755, 0o1755):
        (upper / f"bits/{bit:o}").chmod(bit)
        (upper / f"bits/folder-{bit:o}").chmod(bit)


@as_root
def test_of_a_forged_layer_nothing_lands_but_the_plain_file_and_the_plain_deletion(forged: tuple[Broker, dict[str, Any]]) -> None:
    broker, told = forged
    after, before = facts(broker.workspace), told["before"]
    del before["untouched"]
    assert (broker.workspace / "mine").read_text() == "mine"
    assert {name: after.get(name) for name in before} == before
    assert {name for name in after if not (broker.workspace / name).is_dir()} - set(before) == {"mine"}
    assert {row["path"] for row in told["done"]["changes"]["landed"]} == {"mine", "untouched"}


@as_root
def test_of_a_forged_layer_an_operator_can_land_what_is_a_file_and_never_the_rest(forged: tuple[Broker, dict[str, Any]]) -> None:
    broker, told = forged
    landed = broker.verb("land", told["run"], "--all")
    assert landed.returncode == 77
    after = contents(broker.workspace)
    assert after[".git/hooks/pre-commit"] == "planted\n"
    assert [name for name in after if name.startswith(("bits/", "links/", ".broker")) or name == "capable"] == []
    assert after["marks/file"] == "a file\n"
    assert after["inside/deep/file"] == "x\n"
    assert not any(path.lstat().st_mode & 0o7000 for path in broker.workspace.rglob("*"))
    assert (broker.workspace / "inside").is_dir()
