"""What runs later, in a context that somebody trusts: hostile code that may run, and may write to the workspace, must
not plant it, by no name and no alias. Secrets stay hidden.

In a direct workspace two layers are at work: what exists is mounted read-only (sound), what does not exist yet is
refused by label (early, explained, and open to a race: the last tests say how far). In a copy-on-write one the label
comes first, and the landing is sound (see test_planted_changes.py for more of it).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from conformance.driver import Broker
from conformance.fixtures import ENGINES
from escape.hostile import PROBES, Attacked, probe

BEFORE = {
    ".git/HEAD": "ref: refs/heads/main\n", ".git/config": "[core]\n\tbare = false\n", ".git/hooks/commit-msg": "#!/bin/sh\n",
    ".git/objects/info/keep": "", ".git/refs/keep": "",
    ".git/modules/libs/inner/HEAD": "ref: refs/heads/main\n", ".git/modules/libs/inner/config": "[core]\n",
    ".git/modules/libs/inner/hooks/keep": "",
    "sub/.git/HEAD": "ref: refs/heads/main\n", "sub/.git/config": "[core]\n", "sub/.git/hooks/keep": "",
    ".github/workflows/ci.yml": "on: push\n", ".vscode/settings.json": "{}\n",
    ".env": "KEY=s3cret\n", "conf/.env.production": "KEY=s3cret\n", "conf/.ENV": "KEY=s3cret\n", "settings/prod": "KEY=s3cret\n",
}  # fmt: skip
LINKS = {".env.local": "settings/prod"}

EXISTING = [
    "hook_new", "hook_existing", "config_open", "config_truncate", "config_rename_over", "config_unlink", "config_hard_link",
    "config_by_proc_cwd", "config_by_proc_root", "config_by_descriptor", "config_by_path_descriptor",
    "config_by_folder_descriptor", "config_by_dots", "config_by_link", "config_mode", "config_times", "config_attribute",
    "config_exchange", "config_by_mapping", "git_renamed_away", "hooks_renamed_away", "submodule_hook", "submodule_config",
    "workflow_existing", "workflow_new", "workflow_folder_exchanged", "editor_existing", "editor_new",
]  # fmt: skip
NEW = {
    "new_by_rename": "at-rename/.envrc", "new_by_link": "at-link/.envrc", "new_by_symlink": "at-symlink/.envrc",
    "new_by_dangling_link": "at-dangling/.envrc", "new_by_unnamed_file": "at-unnamed/.envrc",
    "new_by_empty_path": "at-empty/.envrc", "new_by_mknod": "at-mknod/.envrc", "new_by_pipe": "at-pipe/.envrc",
    "new_by_openat2": "at-openat2/.envrc", "new_by_renamed_folder": "at-folder/.github",
    "new_by_renamed_folder_with_slash": "at-slash/.vscode", "new_by_linked_folder": "at-linked/.github",
    "new_by_exchange": "at-exchange/.vscode", "nested_repository": "at-nested/.git/hooks",
    "nested_repository_by_rename": "at-nested-rename/.git", "nested_repository_by_link": "at-nested-link/.git",
    "nested_repository_by_file": "at-nested-file/.git", "parent_renamed_and_rebuilt": "sub/.git/hooks/pre-commit",
}  # fmt: skip
# Below a workspace a shell profile or a key file is a file like any other: it is the home's that runs.
HARMLESS = (".zshrc", ".profile", ".ssh/authorized_keys", ".config/autostart/x.desktop")
SECRETS = ["secret_plain", "secret_renamed", "secret_linked", "secret_in_renamed_folder", "secret_behind_link",
           "secret_in_a_second_case", "secret_by_proc"]  # fmt: skip


def tree(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Mode, time and content of every file below a folder."""
    return {
        str(path.relative_to(root)): (path.lstat().st_mode, path.lstat().st_mtime_ns, path.read_bytes())
        for path in sorted(root.rglob("*")) if path.is_file() and not path.is_symlink()
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Planted:
    """What was tried, and the workspace before and after, as the host sees it."""

    results: dict[str, str]
    before: dict[str, tuple[int, int, bytes]]
    workspace: Path
    mode: str


WAYS = [
    pytest.param((engine.values[0], mode), id=f"{engine.values[0]}-{mode}", marks=engine.marks)
    for engine in ENGINES for mode in ("direct", "overlay")
]  # fmt: skip
in_a_direct_workspace = pytest.mark.parametrize("planted", WAYS[::2], indirect=True)


@pytest.fixture(scope="module", params=WAYS)
def planted(request: pytest.FixtureRequest) -> Iterator[Planted]:
    engine, mode = request.param
    with Attacked(engine) as broker:
        broker.profile("any", sandbox={"workspace": mode})
        furnish(broker)
        before = tree(broker.workspace)
        done = broker.run("python3", "planter.py", stdin=b"", patience=100)
        assert done.out, done.err
        yield Planted(json.loads(done.out.splitlines()[-1]), before, broker.workspace, mode)


def furnish(broker: Broker) -> None:
    """Make a workspace with what is worth protecting."""
    broker.file("planter.py", (PROBES / "planter.py").read_text())
    for name, text in BEFORE.items():
        broker.file(name, text)
    for name, target in LINKS.items():
        (broker.workspace / name).symlink_to(target)
    subprocess.run(["chown", "-hR", "1000:1000", str(broker.workspace)], check=True)


@in_a_direct_workspace
@pytest.mark.parametrize("name", EXISTING)
def test_what_exists_and_is_protected_cannot_be_changed_by_any_alias(planted: Planted, name: str) -> None:
    assert planted.results[name] in {"EACCES", "EROFS", "EPERM", "EBUSY", "EXDEV"}


def test_on_the_host_every_protected_file_is_as_it_was(planted: Planted) -> None:
    after = tree(planted.workspace)
    kept = {name: facts for name, facts in planted.before.items() if name.startswith((".git/", ".github/", ".vscode/"))}
    assert {name: after.get(name) for name in kept} == kept
    assert {name for name in after if name.startswith((".git/", ".github/", ".vscode/"))} == set(kept)


@pytest.mark.parametrize("name", [pytest.param(name, id=name) for name in NEW])
def test_what_does_not_exist_yet_cannot_be_made_by_any_means(planted: Planted, name: str) -> None:
    assert planted.mode == "overlay" or planted.results[name] != "ok"
    path = planted.workspace / NEW[name]
    # Where it is decided at landing, an empty folder may land: what was to be in it did not.
    assert not path.is_symlink()
    assert not path.exists() or (planted.mode == "overlay" and not any(one.is_file() for one in (path, *path.rglob("*"))))


def test_under_a_protected_name_nothing_lands_but_what_is_harmless(planted: Planted) -> None:
    landed = {str(path.relative_to(planted.workspace)) for at in ("at-plain", "at-case") for path in (planted.workspace / at).rglob("*")
              if path.is_file()}  # fmt: skip
    assert landed <= {f"at-plain/{name}" for name in (*HARMLESS, ".gitattributes", "x.pth")}


@in_a_direct_workspace
def test_no_protected_name_can_be_made_plainly(planted: Planted) -> None:
    made = {name for name, result in planted.results.items() if name.startswith("new:") and result == "ok"}
    assert made <= {f"new:{name}" for name in HARMLESS}


@in_a_direct_workspace
def test_no_protected_name_can_be_made_in_another_case(planted: Planted) -> None:
    """On a file system that ignores case they are the same file."""
    assert {name for name, result in planted.results.items() if name.startswith("case:") and result == "ok"} == set()


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_are_hidden_whatever_they_are_called_afterwards(planted: Planted, name: str) -> None:
    assert planted.results[name] != "READ"


def test_secrets_are_still_there_for_the_operator(planted: Planted) -> None:
    assert (planted.workspace / ".env").read_text() == "KEY=s3cret\n"


MAKEFILE = """test:
\t-printf planted > .envrc
\t-printf planted > .git/hooks/pre-commit
\t-mkdir -p new/.git/hooks && printf planted > new/.git/hooks/post-checkout
\t-printf planted >> .git/config
\t-mkdir .claude && printf planted > .claude/settings.json
\t-printf planted > $$HOME/.bashrc
\t-printf planted > /etc/cron.d/broker-escape
\t-curl -s http://192.0.2.1/ && printf planted > reached
\t-python3 -m pip install planted && printf planted > installed
\t-cat .env > seen
\t@echo recipes ran
"""


def test_under_builder_a_makefile_of_the_agents_own_gains_code_and_nothing_else(engine: str) -> None:
    """The shipped profile lists `make test`, and the agent writes the Makefile: by design that is code of its own."""
    with Attacked(engine) as broker:
        for name, text in BEFORE.items():
            broker.file(name, text)
        broker.file("Makefile", MAKEFILE)
        subprocess.run(["chown", "-hR", "1000:1000", str(broker.workspace)], check=True)
        before = tree(broker.workspace / ".git")
        done = broker.run("sh", "-c", "make test", profile="builder", patience=60)
        assert b"recipes ran" in done.out, done
        assert tree(broker.workspace / ".git") == before
        for name in (".envrc", "new/.git/hooks", ".claude/settings.json", "reached", "installed"):
            assert not (broker.workspace / name).exists(), name
        seen = broker.workspace / "seen"
        assert not seen.exists() or b"s3cret" not in seen.read_bytes()
        assert {row["class"] for row in done["denials"]} >= {"persistence"}


def test_a_config_that_somebody_outside_replaces_meanwhile_is_still_refused(for_somebody: Broker) -> None:
    """A rename over a mounted file, done on the host, takes the mount away in every other place (rename(2), since
    Linux 3.18). Then the label alone stands."""
    for_somebody.profile("any", sandbox={"workspace": "direct"})
    furnish(for_somebody)
    script = "import sys\nprint('ready', flush=True)\nsys.stdin.readline()\ntry: open('.git/config', 'a').write('planted')\nexcept OSError as e: print(e.errno)"
    with for_somebody.started("python3", "-c", script, stdin=subprocess.PIPE) as running:
        running.read_until(b"ready")
        subprocess.run(["git", "config", "-f", str(for_somebody.workspace / ".git/config"), "user.name", "somebody"], check=True)
        assert running.process.stdin is not None
        running.process.stdin.write(b"\n")
        running.process.stdin.flush()
        done = running.finish()
    assert done.out.split() == [b"ready", b"13"], done
    assert "planted" not in (for_somebody.workspace / ".git/config").read_text()


# Races: what a label cannot hold


def _race(broker: Broker, target: str, profile: str = "any") -> None:
    broker.file("flip", probe("flip").read_bytes(), 0o755)
    broker.run("./flip", target, "600", profile=profile, patience=60)


@pytest.mark.parametrize("mode", ["direct", "overlay"])
def test_a_race_does_not_change_what_exists(for_somebody: Broker, mode: str) -> None:
    """A link flips between temporary space and the workspace while a path through it is judged."""
    for_somebody.profile("any", sandbox={"workspace": mode})
    furnish(for_somebody)
    before = tree(for_somebody.workspace / ".git")
    _race(for_somebody, ".git/config")
    _race(for_somebody, ".git/hooks/pre-commit")
    assert tree(for_somebody.workspace / ".git") == before


def test_a_race_makes_nothing_in_a_read_only_workspace(for_somebody: Broker) -> None:
    for_somebody.profile("looks", sandbox={"workspace": "read-only"})
    _race(for_somebody, ".envrc", profile="looks")
    assert not (for_somebody.workspace / ".envrc").exists()


@pytest.mark.xfail(strict=False, reason="direct workspace: a label is no wall for what does not exist yet (docs/known-attacks.md)")
def test_a_race_makes_nothing_that_does_not_exist_yet_in_a_direct_workspace(for_somebody: Broker) -> None:
    for_somebody.profile("any", sandbox={"workspace": "direct"})
    _race(for_somebody, ".envrc")
    assert not (for_somebody.workspace / ".envrc").exists()
