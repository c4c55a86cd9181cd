"""Leave to write a file whose content is known beforehand: from the profile, or from the operator, who is shown the change.

In: a path inside, and the content that is to be there. Out: a Leave, or why there is none. What the operator agrees to is this content
in the place of the version that he was shown, once: `broker file` is started for it with a pass (broker/task/passes.py).
"""

from __future__ import annotations

import os
import posixpath

from broker.classify.risk import Assessment
from broker.decide.verdict import Allow, Ask, Deny
from broker.enforce.beneath import open_inside, path_inside
from broker.request.operation import FileAction, FileChange
from broker.serve.tools_inside import Call, Problem, Workplace
from broker.values import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from broker.serve.tools_files import Contents

MOST_SHOWN = 1 << 20  # bytes of a file of which a change can be shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """What may be written, and where. `agreed`: the operator said so, to this content in the place of that `version` ('': of nothing)."""

    allowed: Allow
    path: str
    version: str = ""
    agreed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the operator would have to agree to."""

    operation: FileChange
    judged: tuple[Assessment, Ask]


def wanted(here: Workplace, tool: str, path: str) -> Leave | Wanted | Problem:
    """Judge a write, and record that. A Wanted: it is for the operator to say."""
    task = here.stage.task
    operation = FileChange(action=FileAction.WRITE, path=path)
    assessment, verdict = task.judge(operation, at_gate=True, can_wait=True)
    if task.approvals is not None and not isinstance(verdict, Deny) and (real := real_path(task.seen_at, path)) != path:
        operation = FileChange(action=FileAction.WRITE, path=real)
        behind, answer = task.judge(operation, at_gate=True, can_wait=True)
        if not isinstance(answer, Allow):  # else it is the link's own name that was refused, or nothing
            assessment, verdict = behind, answer
    match verdict:
        case Allow():
            return Leave(allowed=verdict, path=path)
        case Deny():
            return here.refuse(tool, verdict)
        case Ask():
            return Wanted(operation=operation, judged=(assessment, verdict))


def agreed(here: Workplace, call: Call, tool: str, wish: Wanted, content: bytes, was: Contents | None) -> Leave | Problem:
    """Ask the operator about a content, and wait for his answer. `was` is what is there now; None: nothing."""
    from broker.task.asking import ask
    from broker.task.question import Proposal

    call.note = "the operator is asked"
    version = was.version if was is not None else ""
    proposal = Proposal(old=was.data if was is not None else None, new=content, version=version)
    answer = ask(here.stage.task, tool, wish.operation, wish.judged, proposal, call.does)
    if isinstance(answer, Deny):
        return here.refuse(tool, answer)
    return Leave(allowed=answer, path=wish.operation.path, version=version, agreed=True)


def leave_to_write(here: Workplace, call: Call, tool: str, path: str, content: bytes) -> Leave | Problem:
    """Judge the write of a whole file; ask the operator, with the change, where he can be asked."""
    from broker.serve.tools_files import read

    found = wanted(here, tool, path)
    if not isinstance(found, Wanted):
        return found
    was = read(here, call, found.operation.path, length=MOST_SHOWN)
    if isinstance(was, Problem):
        if was.code != "not_found":
            return was
        return agreed(here, call, tool, found, content, None)
    if was.size > MOST_SHOWN:
        return Problem(code="too_large", message=f"{path} has {was.size} bytes: a change of over {MOST_SHOWN} cannot be shown to the operator")
    return agreed(here, call, tool, found, content, was)


def real_path(root: str, path: str) -> str:
    """Return where a path leads to inside, links followed; for what is not there yet, where it would come to be."""
    folder, rest = path, ""
    try:
        top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return path
    try:
        while folder != "/":
            try:
                found = open_inside(top, folder)
            except OSError:
                folder, name = posixpath.split(folder)
                rest = posixpath.join(name, rest) if rest else name
                continue
            try:
                lies = path_inside(top, found)
                return posixpath.join(lies, rest) if rest else lies
            finally:
                os.close(found)
    finally:
        os.close(top)
    return path
