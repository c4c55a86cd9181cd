"""The exec gate with the whole product around it: an agent that a profile holds back tries to start what it may not.

The guard's own tests attack the mechanism with a policy made for the purpose (tests/guard). Here the policy is a
profile's, the question goes through the classifier and the decision, and both engines are attacked.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.driver import Broker
from conformance.fixtures import ENGINES
from escape.hostile import PROBES, Attacked, probe

ENTRY = ["python3", "-c", "print(4242)"]
OTHER = ["python3", "-c", "print(4243)"]
PYTHON = "/usr/bin/python3"
LOADER = "/lib64/ld-linux-x86-64.so.2"

WISHES: list[dict[str, Any]] = [
    {"id": "the entry itself", "path": PYTHON, "argv": ENTRY},
    {"id": "another argument", "path": PYTHON, "argv": OTHER},
    {"id": "one empty argument more", "path": PYTHON, "argv": [*ENTRY, ""]},
    {"id": "fewer arguments", "path": PYTHON, "argv": ENTRY[:1]},
    {"id": "the entry's words, another program", "path": "/usr/bin/perl", "argv": ENTRY},
    {"id": "argv[0] of a harmless program", "path": PYTHON, "argv": ["cat", "-c", "print(4243)"]},
    {"id": "no argv[0]", "path": PYTHON, "argv": ["", "-c", "print(4243)"]},
    {"id": "planted under the entry's name", "path": "planted/python3", "argv": ENTRY},
    {"id": "planted, and found by PATH", "path": "planted/python3", "argv": ENTRY, "env": {"PATH": "planted"}},
    {"id": "a link under the entry's name", "path": "linked/python3", "argv": ENTRY,
     "before": "os.makedirs('linked'); os.symlink('../planted/python3', 'linked/python3')"},
    {"id": "by way of /proc/self/cwd", "path": "/proc/self/cwd/planted/python3", "argv": ENTRY},
    {"id": "by way of /proc/self/root", "path": "/proc/self/root/tmp/python3", "argv": ENTRY,
     "before": "import shutil; shutil.copy('planted/python3', '/tmp/python3')"},
    {"id": "with dots", "path": "/usr/bin/../../proc/self/cwd/planted/python3", "argv": ENTRY},
    {"id": "LD_PRELOAD", "path": PYTHON, "argv": ENTRY, "env": {"LD_PRELOAD": "/tmp/x.so"}},
    {"id": "LD_LIBRARY_PATH", "path": PYTHON, "argv": ENTRY, "env": {"LD_LIBRARY_PATH": "/tmp"}},
    {"id": "LD_AUDIT", "path": PYTHON, "argv": ENTRY, "env": {"LD_AUDIT": "/tmp/x.so"}},
    {"id": "GCONV_PATH", "path": PYTHON, "argv": ENTRY, "env": {"GCONV_PATH": "/tmp"}},
    {"id": "PYTHONPATH", "path": PYTHON, "argv": ENTRY, "env": {"PYTHONPATH": "/tmp"}},
    {"id": "PYTHONHOME", "path": PYTHON, "argv": ENTRY, "env": {"PYTHONHOME": "/tmp"}},
    {"id": "PATH with the workspace first", "path": PYTHON, "argv": ENTRY, "env": {"PATH": "planted:/usr/bin"}},
    {"id": "HOME elsewhere", "path": PYTHON, "argv": ENTRY, "env": {"HOME": "/tmp/home"}},
    {"id": "from a folder outside the workspace", "path": PYTHON, "argv": ENTRY, "cwd": "/tmp"},
    {"id": "the loader", "path": LOADER, "argv": [LOADER, PYTHON, *OTHER[1:]]},
    {"id": "the loader under a harmless name", "path": LOADER, "argv": ["cat", PYTHON, *OTHER[1:]]},
    {"id": "a copy under a harmless name", "path": "/tmp/cat", "argv": ["cat", "-c", "print(4243)"],
     "before": "import shutil; shutil.copy('/usr/bin/python3', '/tmp/cat')"},
    {"id": "a link under a harmless name", "path": "/tmp/ls", "argv": ["ls", "-c", "print(4243)"],
     "before": "os.symlink('/usr/bin/python3', '/tmp/ls')"},
    {"id": "a script of its own", "path": "planted/script", "argv": ["planted/script"]},
    {"id": "the guard", "path": "/run/broker/guard", "argv": ["guard", "--fd", "3"]},
    *(
        {"id": f"by {words[0]}: {' '.join(words[1:])[:30]}", "path": f"/usr/bin/{words[0]}", "argv": words}
        for words in (
            ["env", *OTHER], ["env", "-i", *OTHER], ["env", "-S", "python3 -c 'print(4243)'"], ["timeout", "9", *OTHER],
            ["nice", *OTHER], ["nohup", *OTHER], ["setsid", "-w", *OTHER], ["stdbuf", "-o0", *OTHER],
            ["xargs", "-a", "planted/words", "python3"],
            ["find", ".", "-maxdepth", "0", "-exec", *OTHER, ";"],
            ["sed", "-n", "1e python3 -c 'print(4243)'", "planted/words"],
            ["awk", "BEGIN { system(\"python3 -c 'print(4243)'\") }"],
            ["tar", "cf", "/dev/null", "planted", "--checkpoint=1", "--checkpoint-action=exec=python3 -c 'print(4243)'"],
            ["git", "-c", "alias.x=!python3 -c 'print(4243)'", "x"],
            ["git", "-c", "core.pager=python3 -c 'print(4243)'", "--paginate", "help"],
            ["sort", "--compress-program=planted/script", "planted/words", "-S", "1"],
            ["sh", "-c", "python3 -c 'print(4243)'"], ["bash", "-c", "exec -a cat python3 -c 'print(4243)'"],
            ["bash", "-c", "python3() { :; }; command python3 -c 'print(4243)'"],
            ["bash", "-c", "$(echo python3) -c 'print(4243)'"], ["sh", "-c", "eval \"python3 -c 'print(4243)'\""],
            ["sh", "-c", ". planted/sourced"], ["sh", "planted/sourced"],
            ["bash", "-c", "trap \"python3 -c 'print(4243)'\" EXIT"],
            ["bash", "-c", "x='a[$(python3 -c \"print(4243)\" >&2; echo 0)]'; echo $((x))"],
        )
    ),
]  # fmt: skip


@pytest.fixture(scope="module", params=ENGINES)
def started(request: pytest.FixtureRequest) -> Iterator[tuple[dict[str, str], Broker]]:
    """What became of each wish, under a profile that edits files and runs one exact command."""
    with Attacked(str(request.param)) as broker:
        broker.profile("edits", max_risk="local_write", effects={}, allowlist=["python3 -c 'print(4242)'"])
        broker.file("starter.py", (PROBES / "starter.py").read_text())
        broker.file("planted/python3", "#!/bin/sh\necho 4243 planted\n", 0o755)
        broker.file("planted/script", "#!/usr/bin/python3\nprint(4243)\n", 0o755)
        broker.file("planted/sourced", "python3 -c 'print(4243)'\n")
        broker.file("planted/words", "-c\nprint(4243)\n")
        broker.file("wishes.json", json.dumps(WISHES))
        done = broker.run(PYTHON, "starter.py", "wishes.json", profile="edits", stdin=b"", patience=100)
        assert done.out, done.err
        yield json.loads(done.out.splitlines()[-1]), broker


def test_the_exact_entry_starts(started: tuple[dict[str, str], Broker]) -> None:
    assert started[0]["the entry itself"] == "4242"


@pytest.mark.parametrize("wish", [wish["id"] for wish in WISHES[1:]])
def test_no_other_start_gets_code_to_run(started: tuple[dict[str, str], Broker], wish: str) -> None:
    assert "424" not in started[0][wish]


@pytest.mark.parametrize("how", ["thread", "memfd", "memfd-proc", "opath", "dirfd", "vfork", "clone-parent",
                                 "clone-nosignal", "untraced", "clone3", "undumpable"])  # fmt: skip
def test_no_unusual_way_to_exec_gets_past_the_profile(engine: str, how: str, unusual: dict[str, dict[str, str]]) -> None:
    assert "4243" not in unusual[engine][how]


@pytest.fixture(scope="module")
def unusual() -> dict[str, dict[str, str]]:
    """What each way of tests/guard/attacks/execs.c printed, on each engine."""
    ways = ["thread", "memfd", "memfd-proc", "opath", "dirfd", "vfork", "clone-parent", "clone-nosignal", "untraced",
            "clone3", "undumpable"]  # fmt: skip
    return _Lazily(lambda engine: _try_ways(engine, ways))


class _Lazily(dict):  # type: ignore[type-arg]
    def __init__(self, make: Callable[[str], dict[str, str]]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: str) -> dict[str, str]:
        self[key] = self._make(key)
        return self[key]  # type: ignore[no-any-return]


def _try_ways(engine: str, ways: list[str]) -> dict[str, str]:
    with Attacked(engine) as broker:
        broker.profile("edits", denylist=["python3"])
        broker.file("execs", probe("../../guard/attacks/execs").read_bytes(), 0o755)
        # The entries open grants in which code runs: so it is a program on the denylist that must not start.
        text = "; ".join(f"echo WAY {way}; ./execs {way} {PYTHON} -c 'print(4243)'" for way in ways)
        done = broker.run("sh", "-c", text + "; echo WAY end", profile="edits", patience=100)
        found: dict[str, str] = {}
        for piece in done.out.decode(errors="replace").split("WAY ")[1:]:
            name, _, rest = piece.partition("\n")
            found[name] = rest
        assert "end" in found, done.err
        return found


def test_words_flipped_while_they_are_judged_start_nothing_refused(for_somebody: Broker) -> None:
    """By a thread, by a process that shares the memory, through a shared mapping: a hundred tries each."""
    for_somebody.profile("any", denylist=["echo evil"])
    for_somebody.file("race", probe("../../guard/attacks/race").read_bytes(), 0o755)
    done = for_somebody.run("sh", "-c", "./race thread 100; ./race vm 100; ./race shared 100", patience=110)
    lines = Counter(done.out.decode().split())
    assert lines["evil"] == 0, lines
    assert lines["good"] + lines["killed"] + lines["refused"] > 200, lines
    assert lines["killed"] + lines["refused"] > 0, lines  # the attack was live
    if lines["killed"]:
        assert any(row["rule"] == "exec.race" for row in done["denials"])


# The operator's own command line


def test_the_operators_command_line_is_no_free_pass_for_the_agent(for_somebody: Broker) -> None:
    """Its words start what the operator named, once; the agent must not start a program of its own under them."""
    for_somebody.profile("edits", max_risk="local_write", effects={}, allowlist=["make"])
    for_somebody.file("starter.py", (PROBES / "starter.py").read_text())
    for_somebody.file("evil", f"#!{PYTHON}\nprint(4243)\n", 0o755)
    agent = [PYTHON, "starter.py", "wishes.json"]
    command = ["env", "A=1", "timeout", "30", *agent]
    wishes = [{"id": str(n), "path": "./evil", "argv": command[n:]} for n in (0, 2, 4)]
    for_somebody.file("wishes.json", json.dumps(wishes))
    done = for_somebody.run(*command, profile="edits", stdin=b"")
    assert json.loads(done.out) == {"0": "EACCES", "2": "EACCES", "4": "EACCES"}


def test_what_a_shell_in_front_of_the_agent_did_not_start_is_no_free_pass_either(for_somebody: Broker) -> None:
    """`agent || echo failed`: the agent must not start a program of its own as `echo failed`."""
    for_somebody.profile("edits", max_risk="local_write", effects={}, allowlist=["make"])
    for_somebody.file("evil", f"#!{PYTHON}\nprint(4243)\n", 0o755)
    # `exec -a`, because a shell is all that may run here.
    inner = "(exec -a echo ./evil failed)"
    done = for_somebody.run("bash", "-c", f"{inner}; false || /bin/true || echo failed", profile="edits", stdin=b"")
    assert b"4243" not in done.out


@pytest.mark.parametrize(
    "command",
    [["env", "A=1", "timeout", "20", "./agent", "one"], ["./agent", "one"], ["nice", "-n", "1", "./agent", "one"]],
    ids=["wrappers", "script", "nice"],
)
def test_the_operators_choice_reaches_through_wrappers_once(for_somebody: Broker, command: list[str]) -> None:
    # The entry is never started: with one, programs of the workspace may be executed at all.
    for_somebody.profile("edits", max_risk="local_write", effects={}, allowlist=["make"])
    # The agent is a script whose first line goes by env, and it tries to start itself again.
    agent = (
        "#!/usr/bin/env python3\nimport os, subprocess, sys\nprint('started')\n"
        "try: print(subprocess.run(['./agent', 'one'], capture_output=True).returncode)\n"
        "except PermissionError: print('refused')\n"
    )
    for_somebody.file("agent", agent, 0o755)
    done = for_somebody.run(*command, profile="edits", stdin=b"")
    assert done.out.split() == [b"started", b"refused"], done


def test_a_pinned_program_is_the_sandboxes_and_not_the_hosts(for_somebody: Broker) -> None:
    """The digest of an entry is compared with the file that will run: in Docker the image's."""
    import hashlib

    digest = hashlib.sha256(Path(PYTHON).read_bytes()).hexdigest()
    for_somebody.profile("pinned", max_risk="safe", effects={},
                         allowlist=[{"command": "python3 -c 'print(4242)'", "sha256": digest}])  # fmt: skip
    done = for_somebody.run(
        "python3", "-c", "import hashlib, subprocess\n"
        "print(hashlib.sha256(open('/usr/bin/python3', 'rb').read()).hexdigest(), flush=True)\n"
        "try: subprocess.run(['python3', '-c', 'print(4242)'])\nexcept OSError as e: print(e.errno)",
        profile="pinned", stdin=b"",
    )  # fmt: skip
    inside, *rest = done.out.decode().split()
    assert rest == (["4242"] if inside == digest else ["13"]), done
