"""What the client may do with a pass: put the approved file in place, and nothing else."""

from __future__ import annotations

import os

import pytest

from broker.request.operation import FileAction, FileChange
from broker.task.passes import Passes

PATH = "/w/.git/hooks/post-merge"
BESIDE = "/w/.git/hooks/.post-merge.broker-0123456789abcdef"


@pytest.mark.parametrize(
    ("action", "path", "other", "step"),
    [
        (FileAction.WRITE, BESIDE, "", True),
        (FileAction.MODE, BESIDE, "", True),
        (FileAction.RENAME, BESIDE, PATH, True),
        (FileAction.DELETE, BESIDE, "", True),
        (FileAction.MKDIR, "/w/.git/hooks", "", True),
        (FileAction.MKDIR, "/w/.git/other", "", False),
        (FileAction.WRITE, PATH, "", False),  # never in place: the client replaces it
        (FileAction.RENAME, BESIDE, "/w/.git/hooks/pre-commit", False),
        (FileAction.RENAME, "/w/evil", PATH, False),
        (FileAction.RENAME, PATH, BESIDE, False),
        (FileAction.DELETE, PATH, "", False),
        (FileAction.SYMLINK, PATH, "/etc/passwd", False),
        (FileAction.WRITE, "/w/.git/hooks/.pre-commit.broker-0123456789abcdef", "", False),
        (FileAction.WRITE, "/w/.git/hooks/.post-merge.broker-0123456789abcdef/x", "", False),
    ],
)
def test_only_the_steps_of_one_write_are_covered(action: FileAction, path: str, other: str, step: bool) -> None:
    passes = Passes()
    passes.give_spawn(7, PATH)

    assert passes.covers("", 7, 1, FileChange(action=action, path=path, other=other)) is step
    assert not passes.covers("", 8, 1, FileChange(action=action, path=path, other=other))


def test_a_pass_ends_with_its_spawn() -> None:
    passes = Passes()
    passes.give_spawn(7, PATH)
    assert passes.of_spawn(7, PATH)
    assert not passes.of_spawn(7, "/w/other")
    passes.take_back(7)

    assert not passes.covers("", 7, 1, FileChange(action=FileAction.WRITE, path=BESIDE))
    assert not passes


def test_a_process_that_got_the_number_of_another_has_not_got_its_pass() -> None:
    passes, change = Passes(), FileChange(action=FileAction.WRITE, path=BESIDE)
    passes.give_process("", os.getpid(), PATH)
    assert passes.covers("", 0, os.getpid(), change)
    [(pid, (began, path))] = passes._processes.items()
    passes._processes[pid] = began + 1, path

    assert not passes.covers("", 0, os.getpid(), change)
