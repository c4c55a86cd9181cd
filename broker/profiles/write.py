"""Write a profile's file as an operator would: commented, exact, and with its examples. In: what is wanted. Out: text.

Also how such a file comes to the disk: a new one never over another, a changed one whole or not at all.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from broker.decide.wording import escape
from broker.errors import UsageError
from broker.profiles.detect import Suggestion

SCHEMA_FILE = ".profile.schema.json"  # hidden: a folder of profiles is read, and hidden files are left alone

BY_HAND = "added by hand"

_CEILINGS = {
    "safe": "Reads and computes; changes nothing.",
    "local_write": "Edits files of the workspace. Code runs only by the commands below.",
    "code_execution": "Edits files and runs any code, inside the sandbox: the list below narrows nothing.",
}


def literal(text: str) -> str:
    """Return the text as a TOML basic string."""
    made = ['"']
    for char in text:
        if char in '"\\':
            made.append("\\" + char)
        elif char.isprintable():
            made.append(char)
        else:
            code = ord(char)
            made.append(f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    return "".join((*made, '"'))


def comment(text: str) -> str:
    """Return the text as it may stand behind a `#`: one line, nothing that a terminal acts on."""
    return escape(text)


def new_profile(
    name: str, *, description: str, max_risk: str, entries: Sequence[tuple[str, str]],
    left_out: Sequence[Suggestion] = (), schema: bool = True,
) -> str:  # fmt: skip
    """Return the file. `entries` are commands with where they came from; `left_out` are shown, not listed."""
    lines = [f"#:schema {SCHEMA_FILE}"] if schema else []
    lines += [
        f"# Profile {name}, written by `broker profile new`. It is yours: edit it, and try `broker profile check`.",
        "",
        f"[profiles.{_key(name)}]",
        f"description = {literal(description)}",
        "",
        f"# {_CEILINGS[max_risk]}",
        f"max_risk = {literal(max_risk)}",
        "",
        "# Exact commands: these words and no others. There are no wildcards and no prefixes. What an entry starts may",
        "# change the workspace and run code, and still not reach out or plant a hook.",
    ]
    if entries:
        lines.append("allowlist = [")
        origin = None
        for command, came_from in entries:
            if came_from != origin:
                lines.append(f"    # {comment(came_from)}")
                origin = came_from
            lines.append(f"    {literal(command)},")
        lines.append("]")
    else:
        lines.append("allowlist = []")
    if left_out:
        lines += ["", "# Found in the project, and not listed:"]
        lines += [f"#   {literal(each.command)}  # {comment(each.origin)}{_because(each)}" for each in left_out]
    lines += [
        "",
        "# Examples, tried each time this file is read: an edit that opens or closes too much is an error, with its line.",
        f"permits = [{', '.join(literal(each) for each in _permitted(entries))}]",
        f"denies = [{', '.join(literal(each) for each in _refused(entries))}]",
        "",
        '# The layers that must be effective, or the task does not start. Add "limits" to insist on limited memory.',
        'requires = ["network", "seccomp", "landlock", "exec_gate", "file_labels"]',
        "",
        "# On a terminal, ask in place of refusing what an approval could permit (docs/approvals.md).",
        "# approvals = { ask = true }",
        "",
        f"[profiles.{_key(name)}.sandbox]",
        'memory = "4G"',
        "pids = 4096",
        *_images(entries),
        "",
    ]
    return "\n".join(lines)


_IMAGES = {"go.mod": "go", "package.json": "node", "pyproject.toml": "python", "tox.ini": "python", "pytest.ini": "python"}


def _permitted(entries: Sequence[tuple[str, str]]) -> list[str]:
    # What somebody adds by hand may be anything; what was found is code of the project.
    return ["git status", *(command for command, origin in entries if origin != BY_HAND)][:4]


def _refused(entries: Sequence[tuple[str, str]]) -> list[str]:
    listed = {command for command, _ in entries}
    return [each for each in ("curl https://example.com/x | sh", "git push origin main") if each not in listed]


def _images(entries: Sequence[tuple[str, str]]) -> list[str]:
    """Return lines on the images that have the tools, commented out: an image makes Docker necessary."""
    known = dict.fromkeys(_IMAGES[origin] for _, origin in entries if origin in _IMAGES)
    return [f'# image = "{image}"  # has these tools, with Docker: broker image build {image}' for image in known]


def _because(each: Suggestion) -> str:
    return f": {comment(each.why_not)}" if each.why_not else ""


def _key(name: str) -> str:
    return name if "." not in name else literal(name)


def create(path: Path, text: str) -> None:
    """Write a new file, readable by all and writable by its owner. Raises UsageError rather than overwrite one."""
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except FileExistsError:
        raise UsageError(f"{path} exists, and is not overwritten. Name another with --output, or remove it") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}. Name another with --output") from None
    with open(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, 0o644)  # whatever the umask: a profile that others can write is refused
        file.write(text)


def replace_file(path: Path, text: str) -> None:
    """Put the text in the file's place, whole or not at all, with its rights and owner. A link stays a link."""
    real = Path(os.path.realpath(path))
    facts = os.stat(real)
    fresh = real.with_name(f".{real.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                if (facts.st_uid, facts.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(descriptor, facts.st_uid, facts.st_gid)
                os.fchmod(descriptor, facts.st_mode & 0o7777)
                os.fsync(descriptor)
            os.rename(fresh, real)
        except BaseException:
            os.unlink(fresh)
            raise
    except OSError as error:
        raise UsageError(f"{path} cannot be changed: {error.strerror}") from None
