"""What the tools of each agent do, as operations. In: an Event. Out: what is to be judged of it.

A tool that is not in this table is refused: nobody can say what it does. The operator names those that he wants all the
same (`--pass NAME`). docs/hooks.md shows the table to people (a test compares).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable

from broker.request.operation import Connection, FileAction, FileChange, FileRead, Operation
from broker.serve.hook_event import Dialect, Event, NotUnderstood
from broker.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What one call of a tool is: a shell's `command`, or `operations` that are each judged. Neither: it touches nothing.

    `key`: under which name the tool takes its command. `goes_on`: text for a command that runs already.
    """

    command: str = ""
    key: str = ""
    operations: tuple[Operation, ...] = ()
    goes_on: bool = False


Reader = Callable[[Event], Use]


def use_of(event: Event, passed: Iterable[str] = ()) -> Use | None:
    """Return what the call does; None for a tool that nobody knows. `passed`: names the operator lets go, `*` at the end for any.

    Raises NotUnderstood when the tool's input is not what the tool takes.
    """
    reader = TOOLS[event.dialect].get(event.tool)
    if reader is not None:
        return reader(event)
    for name in passed:
        if event.tool == name or (name.endswith("*") and event.tool.startswith(name[:-1])):
            return Use()
    return None


def _path(event: Event, text: str) -> str:
    if "\0" in text or not text:
        raise NotUnderstood(f"the tool {event.tool} was called with a path that is none")
    return os.path.normpath(os.path.join(event.cwd, os.path.expanduser(text)))


def _names(path: str) -> tuple[str, ...]:
    """Return the path and, where links lead elsewhere, what is really there: both must be permitted."""
    return tuple(dict.fromkeys((path, os.path.realpath(path))))


def _nothing(event: Event) -> Use:
    return Use()


def _goes_on(event: Event) -> Use:
    return Use(goes_on=True)


def _shell(key: str) -> Reader:
    def read(event: Event) -> Use:
        command = event.text(key)
        if event.dialect is Dialect.CODEX and (patch := _SHELL_PATCH.fullmatch(command)) and patch[2] not in patch[3].split("\n"):
            return _patched(event, patch[3])  # Codex takes this for its own tool, and starts no shell
        return Use(command=command, key=key)

    return read


def _reads(*keys: str, otherwise: str = "") -> Reader:
    """A tool that reads a file or looks through a folder. `otherwise`: where it looks when it is not told."""

    def read(event: Event) -> Use:
        here = otherwise if otherwise and not any(event.input.get(key) is not None for key in keys) else event.text(*keys)
        return Use(operations=tuple(FileRead(path=name) for name in _names(_path(event, here))))

    return read


def _reads_many(key: str) -> Reader:
    def read(event: Event) -> Use:
        paths = event.input.get(key)
        if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
            raise NotUnderstood(f"the tool {event.tool} was called without a list of {key}")
        return Use(operations=tuple(FileRead(path=name) for path in paths for name in _names(_path(event, path))))

    return read


def _writes(key: str, content: str) -> Reader:
    def read(event: Event) -> Use:
        return _written(_path(event, event.text(key)), event.text(content).encode("utf-8", "surrogateescape"))

    return read


def _edits(key: str, old: str, new: str, every: str) -> Reader:
    """A tool that replaces a text in a file. Several of them in `edits`, or one in the input itself."""

    def read(event: Event) -> Use:
        path = _path(event, event.text(key))
        edits = event.input.get("edits", [event.input])
        if not isinstance(edits, list) or not all(isinstance(edit, dict) for edit in edits):
            raise NotUnderstood(f"the tool {event.tool} was called with edits that are no list of objects")
        content = contents_of(path) or b""
        for edit in edits:
            was, now = edit.get(old), edit.get(new)
            if not isinstance(was, str) or not isinstance(now, str):
                raise NotUnderstood(f"the tool {event.tool} was called without {old} and {new}")
            content = content.replace(was.encode(), now.encode(), -1 if edit.get(every) else 1)
        return _written(path, content)

    return read


def _changes(key: str) -> Reader:
    """A tool whose change is not to be seen in its input: only the path is known."""
    return lambda event: _written(_path(event, event.text(key)), None)


def _written(path: str, new: bytes | None) -> Use:
    return Use(
        operations=tuple(
            FileChange(action=FileAction.WRITE, path=name, old=contents_of(name), new=new, landing=True) for name in _names(path)
        )
    )


def contents_of(path: str) -> bytes | None:
    """Return what is in a file, if there is one and it is not too large to be looked into."""
    from broker.classify.contents import MAX_CONTENT

    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:  # a FIFO must not make us wait
            content = file.read(MAX_CONTENT + 1)
    except OSError:
        return None
    return content if len(content) <= MAX_CONTENT else None


_SHELL_PATCH = re.compile(r"\s*apply_patch\s*<<\s*(['\"])(\w+)\1\s*\n(.*)\n\2\s*", re.DOTALL)
_PATCHES = re.compile(r"^\*\*\* (Add File|Update File|Delete File|Move to): (.+?)\s*$", re.MULTILINE)


def _patch(*keys: str) -> Reader:
    return lambda event: _patched(event, event.text(*keys))


def _patched(event: Event, text: str) -> Use:
    """Return the changes of a patch in the form that Codex made. It says little of contents: those that decide are not known."""
    found = _PATCHES.findall(text)
    if not found:
        raise NotUnderstood(f"the tool {event.tool} was called with a patch that names no file")
    changes = []
    for what, name in found:
        path = _path(event, name)
        action = FileAction.DELETE if what == "Delete File" else FileAction.WRITE
        for real in _names(path):
            changes.append(FileChange(action=action, path=real, old=contents_of(real) if action is FileAction.WRITE else None, landing=True))
    return Use(operations=tuple(changes))


def _fetches(key: str) -> Reader:
    def read(event: Event) -> Use:
        from urllib.parse import urlsplit

        try:
            parts = urlsplit(event.text(key))
            host, port = parts.hostname or "", parts.port or 443
        except ValueError:
            host, port = "", 443
        return Use(operations=(Connection(address=host or "an address that cannot be read", port=port),))

    return read


def _searches(event: Event) -> Use:
    return Use(operations=(Connection(address="the agent's search service", port=443),))


def _all(words: str, reader: Reader) -> dict[str, Reader]:
    return dict.fromkeys(words.split(), reader)


TOOLS: dict[Dialect, dict[str, Reader]] = {
    Dialect.CLAUDE: {
        "Bash": _shell("command"), "Read": _reads("file_path"), "NotebookRead": _reads("notebook_path"),
        **_all("Glob Grep LS", _reads("path", otherwise=".")), "Write": _writes("file_path", "content"),
        **_all("Edit MultiEdit", _edits("file_path", "old_string", "new_string", "replace_all")),
        "NotebookEdit": _changes("notebook_path"), "WebFetch": _fetches("url"), "WebSearch": _searches,
        **_all("Agent AskUserQuestion BashOutput EnterPlanMode ExitPlanMode KillBash KillShell ListAgents ReportFindings Task "
               "TaskCreate TaskGet TaskList TaskOutput TaskStop TaskUpdate TodoRead TodoWrite ToolSearch", _nothing),
    },
    Dialect.CODEX: {
        "Bash": _shell("command"), "apply_patch": _patch("command", "input", "patch"), "view_image": _reads("path"),
        "write_stdin": _goes_on, **_all("create_goal get_goal request_user_input update_goal update_plan", _nothing),
    },
    Dialect.GEMINI: {
        "run_shell_command": _shell("command"), "read_file": _reads("file_path", "absolute_path", "path"),
        "read_many_files": _reads_many("include"), "list_directory": _reads("dir_path", "path", otherwise="."),
        **_all("glob grep_search search_file_content", _reads("dir_path", "path", otherwise=".")),
        "write_file": _writes("file_path", "content"),
        "replace": _edits("file_path", "old_string", "new_string", "allow_multiple"),
        "web_fetch": _searches, "google_web_search": _searches,
        **_all("ask_user enter_plan_mode exit_plan_mode invoke_agent list_background_processes read_background_output "
               "update_topic write_todos", _nothing),
    },
    Dialect.OPENCODE: {
        "bash": _shell("command"), "read": _reads("filePath"), **_all("glob grep list", _reads("path", otherwise=".")),
        "write": _writes("filePath", "content"), "edit": _edits("filePath", "oldString", "newString", "replaceAll"),
        **_all("apply_patch patch", _patch("patchText")), "webfetch": _fetches("url"), "websearch": _searches,
        **_all("invalid question task todoread todowrite", _nothing),
    },
}  # fmt: skip
