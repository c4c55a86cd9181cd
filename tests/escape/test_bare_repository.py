"""A repository needs no `.git`: git obeys the configuration and hooks of any folder that has HEAD, objects and refs."""

from __future__ import annotations

import subprocess

from conformance.driver import Broker

BARE = """
import os
def make(where):
    for folder in ('objects', 'refs', 'hooks'):
        os.makedirs(f'{where}/{folder}', exist_ok=True)
    for name, text in (('HEAD', 'ref: refs/heads/main\\n'),
                       ('config', '[core]\\n\\tbare = false\\n\\tworktree = ..\\n\\tfsmonitor = touch /tmp/owned;\\n'),
                       ('hooks/post-checkout', '#!/bin/sh\\ntouch /tmp/owned\\n'), ('notes', 'plain')):
        with open(f'{where}/{name}', 'w') as file: file.write(text)
make('docs/attachments')
os.makedirs('whole'); make('whole')
"""


def test_a_new_repository_of_any_name_does_not_land_with_what_git_would_run(for_somebody: Broker) -> None:
    done = for_somebody.run("python3", "-c", BARE, stdin=b"")
    assert done.result["exit_code"] == 0, done
    for folder in ("docs/attachments", "whole"):
        real = for_somebody.workspace / folder
        assert (real / "notes").read_text() == "plain"
        assert sorted(path.name for path in real.rglob("*") if path.is_file()) == ["notes"]
        found = subprocess.run(["git", "-C", str(real), "rev-parse", "--git-dir"], capture_output=True, check=False)
        assert found.returncode, found


def test_one_that_is_made_bit_by_bit_does_not_land_with_what_git_would_run(for_somebody: Broker) -> None:
    first = "import os\nos.makedirs('x/objects'); os.makedirs('x/refs')\nopen('x/config', 'w').write('[core]\\n\\tfsmonitor = evil\\n')"
    assert for_somebody.run("python3", "-c", first, stdin=b"").result["changes"]["counts"]["withheld"] == 0
    second = "open('x/HEAD', 'w').write('ref: refs/heads/main\\n')"
    done = for_somebody.run("python3", "-c", second, stdin=b"")
    assert [row["path"] for row in done.result["changes"]["withheld"]] == ["x/HEAD"]
    assert not (for_somebody.workspace / "x/HEAD").exists()


def test_in_one_that_is_there_what_git_runs_is_withheld_and_ordinary_work_lands(for_somebody: Broker) -> None:
    bare = for_somebody.workspace / "fixture.git"
    subprocess.run(["git", "init", "-q", "--bare", str(bare)], check=True, capture_output=True)
    subprocess.run(["chown", "-R", "1000:1000", str(bare)], check=True)
    script = (
        "open('fixture.git/config', 'a').write('[core]\\n\\thooksPath = /tmp/evil\\n')\n"
        "open('fixture.git/refs/heads/main', 'w').write('0' * 40 + '\\n')"
    )
    done = for_somebody.run("python3", "-c", script, stdin=b"")
    held = sorted(row["path"] for row in done.result["changes"]["withheld"])
    assert held == ["fixture.git/config"], done
    assert (bare / "refs/heads/main").exists()
    assert "evil" not in (bare / "config").read_text()
