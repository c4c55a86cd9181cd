"""The profile, end to end: what is refused, how the program sees it, and where the caller reads of it."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from conformance.driver import Broker

# Starts a program as an agent's harness does, and says how that went, without a shell in between.
TRY = """
import subprocess, sys
for word in sys.argv[1:]:
    try:
        done = subprocess.run(word.split(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        print(word.split()[0], done.returncode)
    except OSError as error:
        print(word.split()[0], error.strerror)
"""


def attempt(broker: Broker, *commands: str, **how: Any) -> list[str]:
    """Try commands from within, and return how each of them went."""
    broker.file("try.py", TRY)
    done = broker.run("python3", "try.py", *commands, **how)
    assert done.code == 0, done.err
    return done.out.decode().splitlines()


def row_is_complete(row: dict[str, Any]) -> bool:
    """Whether a denial carries all that its reader needs."""
    return all(row[name] for name in ("tool", "what", "class", "effects", "reason", "rule", "layer", "hint", "count"))


def test_a_refused_program_is_permission_denied_inside_and_a_denial_outside(for_somebody: Broker) -> None:
    for_somebody.file("try.py", TRY)

    done = for_somebody.run("python3", "try.py", "curl https://example.com", profile="default")

    assert done.out == b"curl Permission denied\n"
    [row] = done["denials"]
    assert row_is_complete(row)
    assert (row["tool"], row["class"], row["layer"]) == ("exec", "network_egress", "profile")
    assert "curl https://example.com" in row["what"]
    assert done["denied"] == 1
    events = [event for event in for_somebody.events() if event["type"] == "task.denied"]
    assert [event["rule"] for event in events] == [row["rule"]]


def test_a_refusal_inside_a_shell_does_not_end_it(broker: Broker) -> None:
    done = broker.run("bash", "-c", "curl https://example.com; echo code $?; ls -d .", profile="default")

    assert done.out == b"code 126\n.\n"
    assert done.code == 0
    assert done.denied("curl")


@pytest.mark.parametrize(
    "command",
    ["sh -c 'curl x'", "env curl x", "timeout 5 curl x", "nice curl x", "xargs -n1 curl <<<x", "find . -maxdepth 0 -exec curl x \\;",
     "echo x | xargs curl", "$(echo cu)rl x", "cp $(command -v curl) mine; ./mine x", "cp $(command -v curl) /tmp/ls; /tmp/ls x",
     "exec -a ls curl x", "eval 'cu''rl x'", "ln -s $(command -v curl) git; ./git x"],
)  # fmt: skip
def test_no_wrapper_alias_or_copy_starts_what_the_profile_refuses(broker: Broker, command: str) -> None:
    done = broker.run("bash", "-c", f"{command}; exit 0", profile="default")

    assert done["denials"], done.err
    assert b"Could not resolve host" not in done.err
    assert b"curl: (" not in done.err


def test_the_agent_can_read_its_denials_and_nobody_inside_can_change_them(for_somebody: Broker) -> None:
    script = (
        'curl https://a.example 2>/dev/null; curl https://b.example 2>/dev/null; cat "$BROKER_DENIALS";'
        "echo forged 2>/dev/null >>/run/broker/denials.jsonl; rm -f /run/broker/denials.jsonl 2>/dev/null; grep -c . /run/broker/denials.jsonl"
    )

    done = for_somebody.run("bash", "-c", script, profile="default")

    lines = done.out.splitlines()
    rows = [json.loads(line) for line in lines[:2]]
    assert [row["what"].split("/")[-1] for row in rows] == ["a.example", "b.example"]
    assert all(row["class"] == "network_egress" and row["hint"] and row["rule"] for row in rows)
    assert int(lines[-1]) >= 2
    assert "forged" not in done.out.decode()


def test_the_same_denial_again_is_counted_not_repeated(broker: Broker) -> None:
    done = broker.run("bash", "-c", "for i in $(seq 25); do curl x; done 2>/dev/null; exit 0", profile="default")

    [row] = done.denied("curl")
    assert row["count"] == 25
    assert sum(event["type"] == "task.denied" for event in broker.events()) == 1


def listed(*entries: str, **more: Any) -> dict[str, Any]:
    """A profile that edits files and runs these entries."""
    return {"max_risk": "local_write", "effects": {}, "allowlist": list(entries), **more}


COMPILER_LIKE = """
import subprocess, sys
subprocess.run(['sh', '-c', 'python3 -c "print(1+1)"'], check=True)
open('built', 'w').write('built')
for argv in (['curl', 'https://example.com'],):
    try:
        subprocess.run(argv, check=False)
        print('ran', argv[0])
    except PermissionError:
        print('refused', argv[0])
"""


def test_an_allowlisted_entry_opens_a_grant_in_which_code_runs_but_curl_does_not(for_somebody: Broker) -> None:
    building = for_somebody.profile("building", **listed("python3 build.py"))
    for_somebody.file("build.py", COMPILER_LIKE)

    done = for_somebody.run("bash", "-c", "python3 build.py; python3 -c 'print(5)'; echo end", profile=building)

    assert done.out == b"2\nrefused curl\nend\n", done.err
    assert (for_somebody.workspace / "built").exists()
    [curl] = done.denied("curl")
    assert curl["class"] == "network_egress"
    assert "python3 build.py" in curl["hint"] + curl["reason"]
    [outside] = done.denied("print(5)")
    assert outside["class"] == "code_execution"


def test_an_entry_is_exact(broker: Broker) -> None:
    building = broker.profile("building", **listed("python3 build.py"))
    broker.file("build.py", "print('built')")
    script = "python3 build.py; python3 build.py --now; python3 ./build.py; X=1 python3 build.py; PYTHONPATH=/tmp python3 build.py; echo end"

    done = broker.run("bash", "-c", script, profile=building)

    # An ordinary variable in front changes nothing that runs: by the time the gate sees it, the argv is the entry's.
    assert done.out in (b"built\nend\n", b"built\nbuilt\nend\n")
    assert {row["what"] for row in done["denials"]} >= {"python3 build.py --now", "python3 ./build.py"}


def test_a_program_planted_in_the_workspace_does_not_pass_for_an_entrys(broker: Broker) -> None:
    building = broker.profile("building", **listed("mytool --all", "make"))
    broker.file("bin/make", "#!/bin/sh\necho planted\n", 0o755)

    done = broker.run("bash", "-c", 'PATH="$PWD/bin:$PATH"; make; bin/make; echo end', profile=building)

    assert done.out == b"end\n"
    assert len(done["denials"]) == 2


def test_research_is_read_only(for_somebody: Broker) -> None:
    for_somebody.file("notes", "words\n")
    commands = ["cat notes", "grep -n words notes", "touch new", "rm notes", "sh -c true", "cp notes other"]

    went = attempt(for_somebody, *commands, profile="research")

    assert went[:2] == ["cat 0", "grep 0"]
    assert all(line.endswith("Permission denied") for line in went[2:])
    assert sorted(os.listdir(for_somebody.workspace)) == ["notes", "try.py"]


def test_adversary_cannot_write_even_from_code_that_runs(for_somebody: Broker) -> None:
    for_somebody.file("notes", "words\n")
    script = (
        "import os\n"
        "for work in (lambda: open('new', 'w'), lambda: open('notes', 'a'), lambda: os.unlink('notes'), lambda: os.mkdir('d'),\n"
        "             lambda: os.rename('notes', 'x'), lambda: os.chmod('notes', 0o777), lambda: os.symlink('a', 'b'),\n"
        "             lambda: os.utime('notes'), lambda: os.setxattr('notes', 'user.x', b'y')):\n"
        "    try: work(); print('done')\n"
        "    except OSError as error: print(error.errno in (13, 30, 95, 1))\n"
    )

    done = for_somebody.run("python3", "-c", script, profile="adversary")

    assert done.out.split() == [b"True"] * 9, done.err
    assert os.listdir(for_somebody.workspace) == ["notes"]
    assert (for_somebody.workspace / "notes").read_text() == "words\n"


def test_exec_refuses_with_126_and_one_clear_line(broker: Broker) -> None:
    done = broker.run("curl", "https://example.com", verb="exec", profile="default", quiet=False)

    assert (done.code, done.out) == (126, b"")
    first = done.err.decode().splitlines()[0]
    assert "denied" in first and "network_egress" in first and "curl https://example.com" in first
    assert done["status"] == "denied"
    assert row_is_complete(done["denials"][0])
    assert broker.verified()


def test_exec_runs_what_is_permitted_and_judges_what_that_starts(broker: Broker) -> None:
    done = broker.run("bash", "-c", "ls -d . && git --version", verb="exec", profile="default")

    assert done.code == 0, done.err
    assert done.out.startswith(b".\ngit version")


def test_exec_refuses_the_shell_text_that_holds_a_refused_part(broker: Broker) -> None:
    done = broker.run("bash", "-c", "ls && curl https://example.com", verb="exec", profile="default")

    assert done.code == 126
    assert done.out == b""


@pytest.mark.parametrize("first_line", ["#!/usr/bin/env python3", "#!/usr/bin/python3", "#!/usr/bin/env -S python3 -u"])
def test_the_operators_script_starts_under_builder_whatever_its_first_line(
    for_somebody: Broker, first_line: str
) -> None:
    script = f"{first_line}\nimport sys\nprint('agent', sys.argv[1:])\nimport subprocess\n"
    script += "try: subprocess.run(['python3', '-c', '1'])\nexcept PermissionError: print('refused')\n"
    for_somebody.file("agent", script, 0o755)
    builder = for_somebody.profile("builder", max_risk="local_write", effects={}, allowlist=["make test"])

    done = for_somebody.run("./agent", "--fast", profile=builder)

    assert (done.code, done.out) == (0, b"agent ['--fast']\nrefused\n"), done.err
    assert [row["class"] for row in done["denials"]] == ["code_execution"]


def test_the_operators_choice_is_used_up_when_it_has_started(broker: Broker) -> None:
    script = "import os, sys\nif len(sys.argv) < 3: os.execvp('python3', ['python3', 'again.py', 'x', 'y'])\nprint('twice')"
    broker.file("again.py", script)

    done = broker.run("python3", "again.py", "x", profile="default")

    assert b"twice" not in done.out
    assert done["denials"]


def test_a_script_made_inside_is_judged_as_code(broker: Broker) -> None:
    script = "printf '#!/bin/sh\\necho ran\\n' >s; chmod +x s; ./s; sh s; . ./s; echo end"

    done = broker.run("bash", "-c", script, profile="default")

    assert b"end\n" in done.out
    assert {row["class"] for row in done["denials"]} <= {"code_execution", "unknown"}
    assert len(done["denials"]) >= 2
    # Sourcing starts no program: the floor of the container holds there, not the gate.
    assert done.out.count(b"ran") == 1


PROTECTED = [".git/hooks/pre-commit", ".git/config", ".bashrc", ".vscode/tasks.json", ".github/workflows/x.yml", ".envrc"]


# Of these the content decides, when it would land: a direct workspace has no such moment.
DECIDED_AT_LANDING = {b".git/config"}


@pytest.mark.parametrize("mode", ["direct", "overlay"])
@pytest.mark.parametrize("there", [True, False], ids=["existing", "new"])
def test_protected_paths_cannot_be_written_whether_they_exist_or_not(for_somebody: Broker, there: bool, mode: str) -> None:
    for_somebody.profile("any", sandbox={"workspace": mode})
    for name in PROTECTED:
        if there:
            for_somebody.file(name, "before\n")
        else:
            (for_somebody.workspace / name).parent.mkdir(parents=True, exist_ok=True)
    for folder in for_somebody.workspace.rglob("*"):
        os.chown(folder, for_somebody.owner or 0, for_somebody.owner or 0)
    script = f"for name in {' '.join(PROTECTED)}; do (echo planted >>$name) 2>/dev/null && echo wrote $name; done; exit 0"

    done = for_somebody.run("bash", "-c", script)

    written = {line.removeprefix(b"wrote ") for line in done.out.splitlines()}
    assert written == (set() if mode == "direct" else DECIDED_AT_LANDING), done.err
    if mode == "overlay":
        assert {row["path"].encode() for row in done["changes"]["withheld"]} == DECIDED_AT_LANDING
    for name in PROTECTED:
        path = for_somebody.workspace / name
        assert (path.read_text() if path.exists() else "") == ("before\n" if there else "")


def test_a_refused_write_is_a_denial_with_the_path(broker: Broker) -> None:
    broker.file(".git/hooks/README", "none yet\n")

    done = broker.run("bash", "-c", "(echo x >.git/hooks/pre-commit); exit 0")

    rows = [row for row in done["denials"] if row["tool"] == "file" and "hooks" in row["what"]]
    assert rows and all(row["class"] == "persistence" and row_is_complete(row) for row in rows)


def test_secrets_are_shown_empty_and_the_profile_can_show_them(broker: Broker) -> None:
    broker.file(".env", "KEY=hunter2\n")
    shown = broker.profile("shown", {"show": [".env"]})

    assert broker.run("cat", ".env").out == b""
    assert broker.run("cat", ".env", profile=shown).out == b"KEY=hunter2\n"
    assert (broker.workspace / ".env").read_text() == "KEY=hunter2\n"


def test_the_environment_is_the_profiles_and_nothing_of_the_operators(broker: Broker) -> None:
    broker.environment |= {"SECRET_TOKEN": "hunter2", "WANTED": "yes", "BASH_ENV": "/tmp/x"}
    chosen = broker.profile("chosen", env={"pass": ["WANTED", "MISSING"], "set": {"MODE": "a=b c"}})

    names = dict(line.split("=", 1) for line in broker.run("env", profile=chosen).out.decode().splitlines())

    assert names["WANTED"] == "yes" and names["MODE"] == "a=b c"
    assert not {"SECRET_TOKEN", "BASH_ENV", "BROKER_STATE_DIR", "PYTHONPATH", "MISSING"} & names.keys()
    assert names["HOME"] == "/home/agent"


def test_there_is_no_network_and_the_proof_is_in_the_record(broker: Broker) -> None:
    probe = (
        "import socket, os\nprint(sorted(os.listdir('/sys/class/net')) if os.path.isdir('/sys/class/net') else ['lo'])\n"
        "try: socket.create_connection(('192.0.2.1', 80), 2); print('connected')\nexcept OSError as e: print(e.errno)\n"
    )

    done = broker.run("python3", "-c", probe)

    assert done.out.splitlines()[-1] in (b"101", b"13", b"1")
    layer = next(layer for layer in done["layers"] if layer["name"] == "network")
    assert layer["effective"] and "links=['lo'] routes=[]" in layer["evidence"]


def test_a_profile_that_cannot_be_used_starts_nothing(broker: Broker) -> None:
    broker.profile("wrong", max_risk="everything")

    missing = broker.run("true", profile="nowhere")
    wrong = broker.run("true", profile="wrong")

    assert (missing.code, wrong.code) == (65, 65)
    assert broker.journals() == []


def test_untrusted_is_clamped(broker: Broker) -> None:
    done = broker.run("bash", "-c", "python3 -c 'print(1)'; echo x >file; cat file", options=["--trust", "untrusted"])

    assert done.out == b"x\n"
    assert done.denied("python3")


