"""Step 4: one step of a landing, forwards and back. Each is a rename that either has happened or not.

What is replaced or deleted changes places with what replaces it, and is looked at again afterwards: what was swapped in
between is put back, and is a conflict. `again`: the step may have been done before a crash.
"""

from __future__ import annotations

import errno
import os
import stat

from broker.enforce.beneath import NO_SUCH_FLAG, RENAME_EXCHANGE, hard_link, lies_in, rename
from broker.enforce.changes import Change, Facts, Kind, Thing
from broker.enforce.landing_intent import Step
from broker.enforce.staging import ACL, Tree, belong, facts_of, unmark


def do_step(tree: Tree, step: Step, *, again: bool) -> str:
    """Do one step. Returns '' or why the path is a conflict; then nothing of it was done."""
    change = step.change
    folder, name = tree.real.parent(change.path)
    if not again and change.kind not in (Kind.MODE, Kind.TIMES) and not _could_change(tree, folder, name):
        return "its folder belongs to somebody else"
    if change.kind is Kind.DELETED:
        return _take_away(tree, step, folder, name, again=again)
    if change.kind in (Kind.MODE, Kind.TIMES):
        return _set_facts(tree, folder, name, change, again=again)
    place, new = tree.source(step)
    if again:
        _complete_swap(tree, step, folder, name)
        if not _is_staged(tree, step):
            return _is_placed(tree, step, folder, name)
        if lies_in(folder, name) and facts_of(name, folder).inode == step.staged:  # killed between link and unlink
            os.unlink(new, dir_fd=place)
            return ""
    if change.old is not None and not facts_of(name, folder).same_file(change.old):
        return "the real one changed since the task began"
    if step.in_layer and change.marked:
        unmark(f"/proc/self/fd/{place}/{new}")
    if change.old is None:
        rename(place, new, folder, name)
        return ""
    _swap(tree, step, folder, name)
    if facts_of(new, place).same_file(change.old):
        return ""
    _swap(tree, step, folder, name)
    return "the real one changed while it landed"


def _could_change(tree: Tree, folder: int, name: str) -> bool:
    """Whether the task's user could make, replace or remove this name. Root does no more here than they could.

    What they cannot the task could not either; but another process of theirs can put anything into the layer.
    """
    if os.geteuid() != 0 or tree.owner[0] == 0:
        return True
    facts, (uid, gid) = os.fstat(folder), tree.owner
    if facts.st_uid == uid:
        return True
    bits = stat.S_IWGRP if facts.st_gid == gid or ACL in os.listxattr(f"/proc/self/fd/{folder}") else stat.S_IWOTH
    if not facts.st_mode & bits:
        return False
    if not facts.st_mode & stat.S_ISVTX or not lies_in(folder, name):
        return True
    return os.stat(name, dir_fd=folder, follow_symlinks=False).st_uid == uid


def _swap(tree: Tree, step: Step, folder: int, name: str) -> None:
    """Let a path, and what takes its place, change places.

    Where the file system cannot exchange, in three steps, each of which leaves the old and the new one with a name.
    """
    place, new = tree.source(step)
    try:
        rename(place, new, folder, name, RENAME_EXCHANGE)
        return
    except OSError as error:
        if error.errno not in NO_SUCH_FLAG:
            raise
    if not hard_link(folder, name, tree.staging, step.kept):
        os.rename(name, step.kept, src_dir_fd=folder, dst_dir_fd=tree.staging)
    try:
        os.rename(new, name, src_dir_fd=place, dst_dir_fd=folder)
    except OSError:
        _complete_swap(tree, step, folder, name)
        raise
    os.rename(step.kept, new, src_dir_fd=tree.staging, dst_dir_fd=place)


def _complete_swap(tree: Tree, step: Step, folder: int, name: str) -> None:
    """Complete or undo an exchange in three steps that ended in the middle."""
    if not tree.holds(step.kept):
        return
    place, new = tree.source(step)
    if not lies_in(place, new):
        os.rename(step.kept, new, src_dir_fd=tree.staging, dst_dir_fd=place)
    elif not lies_in(folder, name):
        os.rename(step.kept, name, src_dir_fd=tree.staging, dst_dir_fd=folder)
    else:
        os.unlink(step.kept, dir_fd=tree.staging)


def _is_staged(tree: Tree, step: Step) -> bool:
    """Whether what takes the path's place is still where it was (and not what it replaced)."""
    if not step.in_layer and not tree.holds(step.name):
        return False
    place, new = tree.source(step)
    try:
        return facts_of(new, place).inode == step.staged
    except FileNotFoundError:
        return False


def _is_placed(tree: Tree, step: Step, folder: int, name: str) -> str:
    """Look, after a crash, at what a step did before it: what it replaced may have changed in between."""
    old = step.change.old
    if not step.in_layer and not tree.holds(step.name):
        # What was replaced is gone already, or somebody removed the staging folder before it was empty.
        there = lies_in(folder, name) and facts_of(name, folder).inode == step.staged
        return "" if there else "what was to land is gone from the staging folder"
    place, new = tree.source(step)
    if old is None or not lies_in(place, new) or facts_of(new, place).same_file(old):
        return ""
    _swap(tree, step, folder, name)
    return "the real one changed while it landed"


def _take_away(tree: Tree, step: Step, folder: int, name: str, *, again: bool) -> str:
    old = step.change.old
    assert old is not None
    if again and tree.holds(step.name):
        taken = facts_of(step.name, tree.staging)
        if not old.is_folder and lies_in(folder, name) and facts_of(name, folder).inode == taken.inode:
            os.unlink(name, dir_fd=folder)  # killed between link and unlink
    else:
        facts = facts_of(name, folder)
        if not (facts.is_folder and facts.inode == old.inode if old.is_folder else facts.same_file(old)):
            return "the real one changed since the task began"
        tree.real.moved(step.change.path)
        try:
            rename(folder, name, tree.staging, step.name)
        except OSError as error:
            if error.errno != errno.EXDEV or not old.is_folder:
                raise
            # The workspace is an overlay itself, which moves no folder of a lower layer.
            os.rmdir(name, dir_fd=folder)
            return ""
        taken = facts_of(step.name, tree.staging)
    if old.is_folder:
        if taken.inode == old.inode and _is_empty(tree.staging, step.name):
            return ""
        why = "there is something in it that the task did not delete"
    else:
        if taken.same_file(old):
            return ""
        why = "the real one changed while it landed"
    rename(tree.staging, step.name, folder, name)
    return why


def _set_facts(tree: Tree, folder: int, name: str, change: Change, *, again: bool) -> str:
    """Give a path another mode, or other times. Root does no more here than the task's user could."""
    assert change.new is not None
    assert change.old is not None
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        found = os.fstat(descriptor)
        if os.geteuid() == 0 and found.st_uid != tree.owner[0]:
            return "it belongs to somebody else"
        facts = Facts.of(found)
        if facts.inode != change.old.inode or stat.S_IFMT(facts.mode) != stat.S_IFMT(change.old.mode):
            return "the real one changed since the task began"
        if not again and change.thing is Thing.FILE and not facts.same_file(change.old):
            return "the real one changed since the task began"
        place = f"/proc/self/fd/{descriptor}"
        if change.kind is Kind.MODE:
            os.chmod(place, stat.S_IMODE(change.new.mode))
        else:
            os.utime(place, ns=(change.new.atime, change.new.mtime))
    finally:
        os.close(descriptor)
    return ""


def _is_empty(folder: int, name: str) -> bool:
    """Whether a folder is known to be empty."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return False
    try:
        return not os.listdir(descriptor)
    finally:
        os.close(descriptor)


def undo_step(tree: Tree, step: Step) -> None:
    """Take one step back. What cannot be taken back stays in the staging folder, whose name the error says."""
    change = step.change
    folder, name = tree.real.parent(change.path)
    if change.kind is Kind.DELETED:
        _put_back(tree, step, folder, name)
    elif change.kind in (Kind.MODE, Kind.TIMES):
        assert change.old is not None
        _set_facts(tree, folder, name, change._replace(new=change.old), again=True)
    elif change.old is not None:
        _swap(tree, step, folder, name)
    else:
        tree.real.moved(change.path)
        place, new = tree.source(step)
        rename(folder, name, place, new)
        if change.thing is Thing.FOLDER and not _is_empty(place, new):
            rename(place, new, folder, name)  # somebody put something in it meanwhile: that stays


def _put_back(tree: Tree, step: Step, folder: int, name: str) -> None:
    """Undo a deletion."""
    old = step.change.old
    assert old is not None
    if tree.holds(step.name) or not old.is_folder:
        rename(tree.staging, step.name, folder, name)
        return
    os.mkdir(name, 0o700, dir_fd=folder)
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        belong(tree, descriptor, os.fstat(folder))
        os.fchmod(descriptor, stat.S_IMODE(old.mode))
    finally:
        os.close(descriptor)
