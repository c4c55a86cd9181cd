"""Compare the labels `safe` and `local_write` with what programs do, by running them.

    python -m benchmarks.observed [--count 5000] [--seed 1] [--only NAME…] [FILE…]      under strace (root, bubblewrap)
    python -m benchmarks.observed --sandbox [--count 500] [FILE…]     in the product's own sandbox, its workspace a layer

Commands come from a generator (every program that is installed and that the tables know, with each option that the
tables, `--help` or the manual page name, in every spelling, with values that tell what they are used for), and from
JSON-lines files of `op`. Those whose label is exactly `safe` or `local_write` are run on a small project. A label is wrong when

- a `safe` command tries to change a file that is not one of its own in /tmp, and a `local_write` one a file that is protected;
- it starts a program whose own label is worse, or one that lies in the workspace;
- it opens a file with secrets;
- it tries to reach an address, or listens.

Findings are printed once for each program and kind, with the first command that showed it.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import itertools
import json
import os
import random
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from benchmarks import traced
from benchmarks.traced import NOBODY, Seen
from broker.classify import classify
from broker.classify.context import Context
from broker.classify.entries import Entry, entry_of, sub_entry
from broker.classify.names import known_name
from broker.classify.paths import is_secret
from broker.classify.risk import Risk
from broker.classify.tables import load
from broker.request.operation import Exec, FileAction, FileChange, ShellText

INSIDE = "/work/project"
CONTEXT = Context(cwd=INSIDE, home="/home/dev", workspace=INSIDE)
MILD = frozenset([Risk.SAFE, Risk.LOCAL_WRITE])

SECRET, PROTECTED, PROGRAM = ".env", ".git/hooks/post-merge", "./tool.sh"
VALUES = (SECRET, PROTECTED, PROGRAM, "1")
"""What options are given: opening the first, writing the second or starting the third tells what a value is for."""

OPERANDS = (
    "a.txt", "a.json", "a.csv", "a.xml", "a.html", "a.md", "a.yaml", "a.toml", "a.c", "a.o", "a.py", "a.js", "a.sh", "a.png",
    "a.wav", "a.pdf", "a.tar.gz", "a.zip", "a.gz", "a.xz", "a.db", "a.dot", "src", "a.patch",
)  # fmt: skip

OWN = (
    "/tmp/",
    "/dev/null",
    "/dev/tty",
    "/dev/zero",
    "/dev/full",
    "/dev/pts",
    "/dev/ptmx",
    "/dev/std",
    "/dev/fd",
    "/proc/",
)
"""Changing these changes nothing of anybody's."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A command to be looked at."""

    argv: tuple[str, ...]
    text: str = ""  # shell text; argv then starts a shell with it

    @property
    def shown(self) -> str:
        return self.text or shlex.join(self.argv)

    def label(self) -> Risk | None:
        """Its label when that is exactly `safe` or `local_write`."""
        operation = ShellText(text=self.text) if self.text else Exec(argv=self.argv, cwd=INSIDE)
        answer = classify(operation, CONTEXT)
        return answer.risk if answer.risk in MILD else None


# -- the project -------------------------------------------------------------------------------------------


def make_project(folder: Path) -> None:
    """Make a small project with a file of many kinds, a secret and a history."""
    (folder / "src").mkdir(parents=True)
    texts = {
        "a.txt": "one 1\ntwo 2\nthree 3\n", "b.txt": "one 1\n2\n", "a.json": '{"a": [1, 2], "b": "x"}\n',
        "a.csv": "name,n\nx,1\ny,2\n", "a.xml": "<a><b>1</b></a>\n", "a.html": "<html><title>t</title><p>x</p></html>\n",
        "a.md": "# T\n\ntext\n", "a.yaml": "a: 1\nb: [x]\n", "a.toml": "a = 1\n", "a.c": "int main(void) { return 0; }\n",
        "a.py": "print(1)\n", "a.js": "console.log(1)\n", "a.sh": "echo 1\n", "a.dot": "digraph { a -> b }\n",
        "src/x.c": "int x;\n", "Makefile": "all:\n\techo made\n", "list.txt": "a.txt\nb.txt\n", SECRET: "TOKEN=x\n",
        "a.patch": "--- a.txt\n+++ a.txt\n@@ -1,1 +1,1 @@\n-one 1\n+one 2\n", "tool.sh": "#!/bin/sh\n: started\n",
    }  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "tool.sh").chmod(0o755)
    (folder / "a.gz").write_bytes(gzip.compress(b"text\n"))
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        archive.writestr("in.txt", "text\n")
    with contextlib.closing(sqlite3.connect(folder / "a.db")) as database:
        database.execute("create table t (a)")
        database.commit()
    for command in (
        "tar czf a.tar.gz a.txt b.txt", "xz -k b.txt && mv b.txt.xz a.xz", "gcc -c a.c -o a.o", "gcc a.c -o a.out",
        "convert -size 4x4 xc:red a.png", "printf '.PP\\nx' | groff -ms -Tpdf > a.pdf", "sox -n a.wav synth 0.1 sine 440",
        "git init -q . && git -c user.name=a -c user.email=a@b add a.txt && git -c user.name=a -c user.email=a@b commit -qm one"
        " && git tag v1 && rm -rf .git/hooks/*",
    ):  # fmt: skip
        subprocess.run(["sh", "-c", command], cwd=folder, capture_output=True, check=False)
    plant(folder)
    home = folder.parent / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id_ed25519").write_text("key\n")
    (home / ".netrc").write_text("machine a login b password c\n")
    (home / ".gitconfig").write_text("[user]\n\tname = a\n\temail = a@b\n[safe]\n\tdirectory = *\n")


def plant(folder: Path) -> None:
    """Put code where tools look for their settings: whoever runs it leaves a file `ran-…` in the project."""
    python, node, ruby = (
        "open('ran-{0}', 'w')\n",
        "require('fs').writeFileSync('ran-{0}', '')\n",
        "File.write('ran-{0}', '')\n",
    )
    texts = {
        "conftest.py": python, "setup.py": python, "noxfile.py": python, "sitecustomize.py": python, "usercustomize.py": python,
        "planted_plugin.py": python, "tasks.py": python, "fabfile.py": python, "manage.py": python, "docs/conf.py": python,
        "pavement.py": python, "SConstruct": python, "wscript": python, ".pythonrc.py": python, ".pdbrc": python,
        ".prettierrc.js": node, ".eslintrc.js": node, "eslint.config.js": node, "webpack.config.js": node, "Gruntfile.js": node,
        "gulpfile.js": node, "jest.config.js": node, "babel.config.js": node, ".pnp.cjs": node, ".pnpmfile.cjs": node,
        "postcss.config.js": node, "stylelint.config.js": node, "vite.config.js": node, "rollup.config.js": node,
        "Gemfile": ruby, "Rakefile": ruby, ".irbrc": ruby, "Vagrantfile": ruby, ".rubocop.rb": ruby, "x.gemspec": ruby,
        "mypy.ini": "[mypy]\nplugins = planted_plugin.py\n", ".yarnrc": 'yarn-path "./planted.js"\n', "planted.js": node,
        ".flake8": "[flake8:local-plugins]\nextension = X = planted_plugin:x\npaths = .\n", "tox.ini": "[tox]\nenvlist = py\n",
        ".pylintrc": "[MASTER]\ninit-hook = open('ran-pylintrc', 'w')\n", "package.json": '{"name": "x", "version": "1.0.0"}\n',
        ".gdbinit": "shell touch ran-gdbinit\n", ".lldbinit": "platform shell touch ran-lldbinit\n", "CMakeLists.txt": "project(x)\n",
        ".exrc": "!touch ran-exrc\n", ".vimrc": ":!touch ran-vimrc\n", ".envrc": "touch ran-envrc\n", "justfile": "x := `touch ran-just`\n",
        "Jenkinsfile": "", "latexmkrc": "system('touch ran-latexmkrc');\n", ".latexmkrc": "system('touch ran-latexmkrc');\n",
        ".perltidyrc": "", ".proverc": "--exec ./tool.sh\n", ".ctags": "--options=x\n", "go.mod": "module x\n", "Cargo.toml": "",
        "GNUmakefile": "x := $(shell touch ran-make)\nall:\n", "json.py": python, "build.gradle": "new File('ran-gradle').createNewFile()\n",
        "settings.gradle": "new File('ran-gradle').createNewFile()\n", "phpstan.neon": "parameters:\n", "php.ini": "",
        ".php-cs-fixer.php": "<?php touch('ran-php');\n",
    }  # fmt: skip
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace("{0}", re.sub(r"\W", "-", name)))


@dataclass(slots=True)
class Place:
    """A copy of the project and its home that commands run in, put back when something was changed."""

    pristine: Path
    folder: Path

    def reset(self) -> None:
        """Make both as they were."""
        for name in ("project", "home"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
            subprocess.run(["cp", "-a", str(self.pristine / name), str(self.folder / name)], check=True)

    def run(self, candidate: Candidate) -> Seen:
        seen = traced.run(candidate.argv, f"{self.folder}/project", INSIDE, f"{self.folder}/home")
        for path in [path for path, call in seen.changed.items() if call == traced.READ_AND_WRITE]:
            if path.startswith(f"{INSIDE}/") and self.untouched(path.removeprefix(INSIDE)):
                del seen.changed[path]
        if any(path.startswith((INSIDE, "/home/dev")) for path in seen.changed) or seen.status is None:
            self.reset()
        return seen

    def untouched(self, path: str) -> bool:
        """Whether a file of the project has the time that it had."""
        try:
            times = [os.lstat(f"{top}/project{path}").st_mtime_ns for top in (self.folder, self.pristine)]
        except FileNotFoundError:
            return False
        return times[0] == times[1]


@contextlib.contextmanager
def places(count: int) -> Iterator[SimpleQueue[Place]]:
    """Copies of the project, for as many commands at a time."""
    with tempfile.TemporaryDirectory(prefix="broker-observed-") as top:
        os.chmod(top, 0o755)
        pristine = Path(top, "pristine")
        make_project(pristine / "project")
        subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", top], check=True)
        free: SimpleQueue[Place] = SimpleQueue()
        for number in range(count):
            place = Place(pristine, Path(top, str(number)))
            place.folder.mkdir()
            place.reset()
            free.put(place)
        yield free


# -- commands ----------------------------------------------------------------------------------------------

_OPTION = re.compile(r"(?<![\w-])(--?[A-Za-z0-9?@][\w-]*)")


def installed() -> list[str]:
    """The programs here that the tables know."""
    names = {name for folder in ("/usr/bin", "/usr/sbin") for name in os.listdir(folder)}
    programs = load()["programs"]
    return sorted(name for name in names if known_name(name) in programs)


def documented(name: str) -> set[str]:
    """The options that the manual page and `--help` name."""
    text = ""
    for section in ("1", "8", "6"):
        page = Path(f"/usr/share/man/man{section}/{name}.{section}.gz")
        if page.exists():
            text = gzip.decompress(page.read_bytes()).decode("utf-8", "replace").replace("\\-", "-")
            text = re.sub(r"\\f[A-Z]|\\f\(..|\\&", "", text)
            break
    if Candidate((name, "--help")).label() is Risk.SAFE:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(
                ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "unshare", "-Urn", name, "--help"],
                capture_output=True, check=False, timeout=3, stdin=subprocess.DEVNULL, cwd="/", env={"PATH": "/usr/bin:/usr/sbin"},
            )  # fmt: skip
            text += (done.stdout + done.stderr)[:200_000].decode("utf-8", "replace")
    return {found for found in _OPTION.findall(text) if len(found) < 40}


def verbs_of(entry: Entry, name: str) -> Iterator[tuple[tuple[str, ...], Entry]]:
    """The program, and each of its sub-commands, with the entry that says what its options are."""
    yield (name,), entry
    for verbs in entry.commands:
        yield (name, *verbs.split()), entry
    for verb in entry.sub:
        below = sub_entry(entry, verb)
        if below is not None:
            for rest, inner in verbs_of(below, verb):
                yield (name, *rest), inner


def commands_of(name: str, chance: random.Random) -> Iterator[tuple[str, ...]]:
    """Every option of a program in every spelling, and pairs of them."""
    entry = entry_of(known_name(name))
    if entry is None:
        return
    known = documented(name)
    for start, inner in verbs_of(entry, name):
        yield start
        for operand in OPERANDS:
            yield (*start, operand)
        yield (*start, "a.txt", PROTECTED)
        yield (*start, "a.txt", "b.txt")
        options = sorted(known | set(inner.options))
        for option in options:
            operand = chance.choice(OPERANDS)
            yield (*start, option)
            yield (*start, option, operand)
            for value in VALUES:
                yield (*start, option, value)
                yield (*start, option, value, operand)
                yield (*start, f"{option}={value}", operand)
                if not option.startswith("--"):
                    yield (*start, option + value, operand)
            if len(option) > 6 and option.startswith("--"):
                yield (*start, f"{option[:-2]}={PROTECTED}", operand)
                yield (*start, f"{option[:-2]}={PROGRAM}", operand)
        for _ in range(len(options)):
            one, other = chance.choice(options), chance.choice(options)
            yield (*start, one, other, chance.choice(OPERANDS))
            yield (*start, one, chance.choice(VALUES), other, chance.choice(VALUES), chance.choice(OPERANDS))


def generated(count: int, seed: int, only: Iterable[str]) -> Iterator[tuple[Candidate, Risk]]:
    """Return so many commands with mild labels: of each program its share, the programs in any order."""
    chance = random.Random(seed)
    names = list(only) or installed()
    chance.shuffle(names)
    share = max(8, 2 * count // max(1, len(names)))
    return itertools.islice(
        itertools.chain.from_iterable(mild_ones(name, chance, share) for name in names), count
    )


def mild_ones(name: str, chance: random.Random, share: int) -> Iterator[tuple[Candidate, Risk]]:
    """Return up to so many commands of a program whose labels are mild."""
    made = list(dict.fromkeys(commands_of(name, chance)))
    chance.shuffle(made)
    for argv in itertools.islice(made, share * 5):
        label = Candidate(argv).label()
        if label is not None:
            yield Candidate(argv), label
            share -= 1
        if not share:
            return


def from_files(files: Iterable[Path]) -> Iterator[tuple[Candidate, Risk]]:
    """Return the shell texts of JSON-lines files that have mild labels."""
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line) if line.strip() else {}
            if isinstance(row.get("op"), str) and row.get("kind", "shell") == "shell":
                candidate = Candidate(("/bin/bash", "-c", row["op"]), row["op"])
                label = candidate.label()
                if label is not None:
                    yield candidate, label


# -- labels against what happened --------------------------------------------------------------------------


def contradictions(label: Risk, candidate: Candidate, seen: Seen) -> Iterator[tuple[str, str]]:
    """Return what a label does not allow: (kind, what)."""
    for path, call in seen.changed.items():
        if path.startswith(OWN) or path == "/tmp" or is_its_own(path, call):
            continue
        effects = classify(FileChange(action=FileAction.WRITE, path=path), CONTEXT).effects
        if label is Risk.SAFE or not effects <= MILD:
            yield "changes", f"{call} {path}: {worst(effects)}"
    named = candidate.shown
    for argv in seen.starts[1:]:
        if is_the_same_program(argv, seen.starts) or (candidate.text and argv[0].endswith("/xargs")):
            continue  # what xargs is fed only the whole text tells; what it starts is looked at
        effects = classify(Exec(argv=argv, cwd=INSIDE, path=argv[0]), CONTEXT).effects - MILD
        if effects:  # what it changes is seen by itself
            yield "starts", f"{shlex.join(argv)[:150]}: {worst(effects)}"
    for path in seen.read:
        if path.startswith((INSIDE, "/home")) and is_secret(path) and os.path.basename(path) in named:
            yield "reads", path
    for address in seen.reached:
        if not address.endswith(":0") and re.search(r":\d+$", address):
            yield "reaches", address


def is_its_own(path: str, call: str) -> bool:
    """Whether it is what programs keep for themselves: state in hidden folders of the home, caches, git's note of times."""
    if path.startswith(INSIDE):
        return path in (f"{INSIDE}/.git/index.lock", f"{INSIDE}/.git/index")
    return (
        call.startswith("mkdir")
        or re.match(r"/home/dev/\.[^/]+/|/var/cache/|/.*/__pycache__/", path) is not None
    )


def is_the_same_program(argv: tuple[str, ...], starts: list[tuple[str, ...]]) -> bool:
    """Whether a program starts itself again, or its interpreter does (`env node` and `node` for `/usr/bin/npm`)."""
    names = {os.path.basename(start[0]) for start in starts[: starts.index(argv)]}
    return os.path.basename(argv[0]) in names or any(
        word.startswith("/usr/") and os.path.basename(word) in names for word in argv
    )


def traced_by(items: Iterable[tuple[Candidate, Risk]], jobs: int) -> Iterator[tuple[Candidate, Risk, Seen]]:
    """Run commands under strace, each in namespaces of its own."""
    with places(jobs) as free, ThreadPoolExecutor(jobs) as pool:

        def look(item: tuple[Candidate, Risk]) -> tuple[Candidate, Risk, Seen]:
            place = free.get()
            try:
                return *item, place.run(item[0])
            finally:
                free.put(place)

        waiting = iter(items)
        while batch := list(
            itertools.islice(waiting, 20 * jobs)
        ):  # map() would take all of them before the first
            yield from pool.map(look, batch)


AT_A_TIME = 200
"""How many commands share a sandbox: what one changed, the next one sees."""


def in_the_sandbox(items: Iterable[tuple[Candidate, Risk]]) -> Iterator[tuple[Candidate, Risk, Seen]]:
    """Run commands in the product's own sandbox."""
    from benchmarks.layered import sandbox_over

    waiting = list(items)
    with places(1) as free:
        place = free.get()
        for first in range(0, len(waiting), AT_A_TIME):
            with sandbox_over(f"{place.folder}/project", place.folder / "state", INSIDE) as sandbox:
                for candidate, label in waiting[first : first + AT_A_TIME]:
                    yield candidate, label, sandbox.run(candidate.argv)


def worst(effects: Iterable[Risk]) -> str:
    return max(effects).label


def main() -> int:
    """Run commands, print wrong labels, then the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument(
        "--count", type=int, help="how many commands of the generator (default: 5000; with files: none)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], help="these programs")
    parser.add_argument("--jobs", type=int, default=2, help="how many commands at a time (under strace)")
    parser.add_argument("--sandbox", action="store_true", help="run them in the product's sandbox instead")
    parser.add_argument("--all", action="store_true", help="print every finding, not one of each kind")
    args = parser.parse_args()
    count = args.count if args.count is not None else 0 if args.files else 5000
    figures: Counter[str] = Counter()
    shown: set[tuple[str, str]] = set()
    items = itertools.chain(from_files(args.files), generated(count, args.seed, args.only) if count else ())
    for candidate, label, seen in in_the_sandbox(items) if args.sandbox else traced_by(items, args.jobs):
        figures[f"commands labelled {label.label}"] += 1
        figures["program starts"] += len(seen.starts)
        figures["stopped after a time"] += seen.status is None
        found = list(contradictions(label, candidate, seen))
        figures["wrong labels"] += bool(found)
        for kind, what in found:
            key = (candidate.text or candidate.argv[0], kind)
            if args.all or key not in shown:
                print(f"{label.label}: {candidate.shown}\n    {kind} {what}", flush=True)
            shown.add(key)
    for name, number in figures.items():
        print(f"{number:8,} {name}")
    return 1 if figures["wrong labels"] else 0


if __name__ == "__main__":
    sys.exit(main())
