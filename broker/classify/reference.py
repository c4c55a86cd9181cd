"""The reference: what the tables say, for people. `python -m broker.classify.reference docs` writes the pages.

In go the tables; out comes Markdown. Nothing is judged here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from broker.classify.tables import NO_PROGRAMS, sources

_INTRODUCTION = """\
# What the classifier knows

Made from `broker/classify/tables/*.toml` by `make reference`: change the tables, not this page. How an answer comes
about, and why things count as what they count, is in [classifier.md](classifier.md).

- [Protected paths](classifier-reference/protected-paths.md): who trusts them, and where that was learned
- [File changes that need their content](classifier-reference/contents.md)
- [Variables that change what runs](classifier-reference/variables.md)
- programs by family, below, with what each does however it is called, and what options and operands add
- the rules' ids in the reasons, at the end
"""

_RULES = {
    "program.NAME": "what a program does however it is called, or one of its sub-commands (`program.git.push`)",
    "program.help": "it only prints its help or version",
    "program.unrecognised": "no table has this program",
    "program.script": "no table has this program, and its name is a script's",
    "program.dynamic": "which program runs is only known when it runs",
    "program.task_made": "the program lies where the task can write",
    "option.NAME-OPTION": "what an option adds",
    "option.unrecognised": "the program is not known to have this option",
    "path.write, path.delete": "a change in the workspace, the temporary space or the home folder",
    "path.outside": "a change outside the task's own folders",
    "path.persistence:KEY": "a protected target: it runs later, or is obeyed, in a context that somebody trusts",
    "path.secret:KEY": "reading, or changing, what holds a secret",
    "path.system:KEY": "the system's own",
    "path.raw_device": "a disk, a partition or the machine's memory itself",
    "path.link_outside": "a link that makes something outside reachable from inside",
    "path.sets_id, path.capability, path.special_file, path.owner, path.attribute": "what gives its next user other rights, or is no plain file",
    "path.dynamic": "where a path lies is only known when it runs",
    "path.delete_root, path.delete_home, path.delete_history, path.delete_outside, path.delete_unknown": "deleting what nobody gets back",
    "contents.RULE": "what a change of content means, by the rules listed below",
    "contents.planted-command": "a command was put into a file that somebody runs to build or test, and does more than that",
    "contents.project-code": "the project's own code: run when somebody tells its tool to",
    "contents.unreadable": "a content that cannot be looked into counts as the worse",
    "environment.NAME": "a variable that changes what runs",
    "interpreter.code, interpreter.script, interpreter.stdin": "code that the text does not show, or that comes in from elsewhere",
    "network.host, network.connect, network.inner_address, network.unix": "a connection",
    "shell.*": "what the shell itself does: substitutions that run, aliases, functions, `/dev/tcp`",
    "text.*": "a text that cannot be read with certainty, or is too large",
    "git.*, npm.*, wrapper.*": "what a reader of arguments that are a language of their own found",
}


def pages() -> dict[str, str]:
    """All pages, by their paths below docs/."""
    import tomllib

    tables = {name: tomllib.loads(content.decode()) for name, content in sources()}
    families = {name: table for name, table in tables.items() if name not in NO_PROGRAMS}
    rules = _table("## Rules", ("rule", "meaning"), [(f"`{rule}`", text) for rule, text in _RULES.items()])
    made = {
        f"{FOLDER}/protected-paths.md": _paths(tables["paths"]),
        f"{FOLDER}/contents.md": _contents(tables["contents"]["file"]),
        f"{FOLDER}/variables.md": _environment(tables["environment"]),
    }
    made |= {f"{FOLDER}/programs-{name}.md": _programs(name, table) for name, table in families.items()}
    links = [
        (f"[{name}]({FOLDER}/programs-{name}.md)", str(sum(len(names.split()) for names in table)))
        for name, table in families.items()
    ]
    programs = _table("## Programs by family", ("family", "names"), links)
    made[f"{FOLDER}.md"] = f"{_INTRODUCTION}\n{programs}\n{rules}"
    return {path: text if path == f"{FOLDER}.md" else _BACK + text for path, text in made.items()}


FOLDER = "classifier-reference"
_BACK = "[What the classifier knows](../classifier-reference.md), made from the tables: change those, not this page.\n\n"


def _table(title: str, heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [title, "", f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines += [
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows
    ]
    return "\n".join(lines) + "\n"


def _programs(family: str, table: dict[str, Any]) -> str:
    title = f"# Programs: {family}\n\nAn option that is not listed in the table makes a program that is `safe` `unknown`."
    shown = [(" ".join(f"`{name}`" for name in names.split()), raw) for names, raw in table.items()]
    plain: dict[str, list[str]] = {}
    rows: list[tuple[str, ...]] = []
    for names, raw in shown:
        found = list(_program(names, raw))
        if len(found) == 1 and not found[0][2]:
            plain.setdefault(found[0][1], []).append(names)
        else:
            rows += found
    rows += [(" ".join(names), effects, "") for effects, names in plain.items()]
    return _table(title, ("program", "effects", "adds, by options and operands"), rows)


def _program(shown: str, raw: dict[str, Any], sub: str = "") -> Iterator[tuple[str, ...]]:
    """The rows of an entry: itself, its lines of sub-commands, and those that have entries of their own."""
    if "same" in raw and len(raw) == 1:
        yield (shown + sub, f"as `{raw['same']}`", "")
        return
    effects = raw.get("effects", "") or (f"as `{raw['same']}`" if "same" in raw else "safe")
    if raw.get("commands") or raw.get("sub"):
        effects = raw.get("effects", "by its sub-commands")
    yield (shown + sub, effects, _adds(raw))
    for labels, names in raw.get("commands", {}).items():
        words = ", ".join(f"`{name.replace('~', ' ')}`" for name in names.split())
        yield (f"{shown}{sub} …", labels, words)
    for name, inner in raw.get("sub", {}).items():
        yield from _program(shown, inner, f"{sub} `{name}`")


def _adds(raw: dict[str, Any]) -> str:
    """What options and operands add, in the tables' own words, the harmless left out."""
    found: list[str] = []
    for token in raw.get("options", "").split():
        match = re.match(r"([^=?!>]+)[=?]?([a-z_]*)((?:![a-z_]+)*)", token)
        if match is None:
            continue
        names, role, marks = match.groups()
        what = " ".join([role] * (role not in ("", "text", "list", "two")) + re.findall(r"!([a-z_]+)", marks))
        if what:
            found.append(f"`{names}` {what}")
    roles = " ".join(
        role
        for role in raw.get("operands", "").split()
        if role.removesuffix("...") not in ("text", "list", "two")
    )
    if roles:
        found.insert(0, f"operands: {roles}")
    if raw.get("reader"):
        found.insert(0, f"read by `{raw['reader']}`")
    return "; ".join(found)


_KINDS = {
    "persistence": "Writing, deleting or replacing these is persistence",
    "system": "Writing these is system_write (`/proc/sysrq-trigger`: destructive)",
    "secret": "Reading these is system_write",
    "innocent": "These only look like secrets",
    "process": "Files of a process in `/proc` that it may write of itself",
    "quiet": "Nothing happens to these",
    "cache": "Below a home, and nobody's only copy",
}
_WHERE = {
    "workspace": "anywhere below a workspace",
    "home": "below any home folder",
    "absolute": "from the root",
    "name": "by the last component, anywhere",
}


def _paths(table: dict[str, dict[str, dict[str, str]]]) -> str:
    parts = [
        "# Protected paths\n\nA trailing slash means a folder and everything below it, `*` anything within a component, "
        "`**` one component or more. Case does not count.\n"
    ]
    for kind, sections in table.items():
        for where, entries in sections.items():
            rows = []
            for key, sentence in entries.items():
                why, _, source = sentence.removesuffix("]").partition(" [")
                rows.append((f"`{key}`", why, source))
            parts.append(_table(f"## {_KINDS[kind]}: {_WHERE[where]}", ("path", "why", "learned from"), rows))
    return "\n".join(parts)


def _contents(table: dict[str, dict[str, Any]]) -> str:
    decided = [
        (
            " ".join(f"`{name}`" for name in names.split()),
            f"`contents.{raw['rule']}`" if "rule" in raw else "",
            raw.get("why", ""),
            ", ".join(f"`{key}`" for key in [*raw.get("runs", "").split(), *raw.get("commands", "").split()]),
            ", ".join(f"`{key}`" for key in [*raw.get("harmless", "").split(), *raw.get("fits", {})]),
        )
        for names, raw in table.items()
        if "format" in raw
    ]
    code = [
        (" ".join(f"`{name}`" for name in names.split()), raw["runner"])
        for names, raw in table.items()
        if "format" not in raw
    ]
    heads = (
        "file",
        "rule",
        "why",
        "settings that run something",
        "harmless, or harmless while they look right",
    )
    return "\n".join(
        [
            _table("# File changes that need their content", heads, decided),
            _table("## The project's own code: a local write by default", ("file", "run by"), code),
        ]
    )


def _environment(table: dict[str, dict[str, Any]]) -> str:
    harmless = table["harmless"]
    rows = [
        (
            f"`{name}`",
            why,
            ", ".join(f"`{value}`" for value in harmless.get(name, ()) if value.strip()),
            reported,
        )
        for section, reported in (("runs", "yes"), ("set_by_a_text", ""))
        for name, why in table[section].items()
    ]
    heads = ("variable", "what it changes", "values that disarm", "looked at with each program start")
    return _table("# Variables that change what runs", heads, rows)


def main(docs: Path) -> None:
    """Write the pages, and remove those of families that are gone."""
    made = pages()
    (docs / FOLDER).mkdir(exist_ok=True)
    for old in (docs / FOLDER).glob("*.md"):
        if f"{FOLDER}/{old.name}" not in made:
            old.unlink()
    for path, text in made.items():
        (docs / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
