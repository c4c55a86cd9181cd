"""The broker outside, as a target: floods, monstrous input, its record and the terminal of its operator."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable

import pytest

from conformance.driver import Broker
from escape.hostile import probe

MIB = 1 << 20
CONTROL = b"\x1b\x9b\x07\x08\x0e\x0f\x7f"


def flooding(broker: Broker) -> None:
    """Put the flood into the workspace, and refuse what it starts."""
    broker.profile("any", denylist=["python3"])
    broker.file("flood", probe("flood").read_bytes(), 0o755)


def test_a_flood_of_different_refusals_fills_neither_disk_nor_memory(for_somebody: Broker) -> None:
    flooding(for_somebody)
    done = for_somebody.run("./flood", "different", "1000", "100000", patience=110)
    assert done.code == 0, done
    assert done["denied"] >= 1000
    journal = for_somebody.journals()[-1]
    assert journal.stat().st_size < 70 * MIB
    assert len(done["denials"]) <= 1001
    assert len(json.dumps(done.result)) < 4 * MIB
    assert for_somebody.verified()


def test_a_flood_of_one_refusal_is_counted(for_somebody: Broker) -> None:
    flooding(for_somebody)
    done = for_somebody.run("./flood", "same", "2000", "10", patience=110)
    assert done.code == 0, done
    rows = done.denied("python3")
    assert [row["count"] for row in rows] == [2000]
    assert len(for_somebody.events()) < 100


def test_a_flood_of_notes_is_bounded(for_somebody: Broker) -> None:
    """Starts that are too large are refused by the guard itself, which says so each time."""
    flooding(for_somebody)
    done = for_somebody.run("./flood", "same", "1500", "126000", patience=110)
    assert done.code == 0, done
    assert len(for_somebody.events()) < 1_200


def test_what_an_agent_calls_things_never_reaches_the_terminal_raw(for_somebody: Broker) -> None:
    """Titles, colours, cursor moves and 8-bit controls, in a program's words and in a path."""
    evil = "\x1b]0;owned\x07\x1b[2J\x1b[1A\x9b31mbroker: all layers effective\r\x08"
    script = (
        "import subprocess, sys\nevil = sys.argv[1]\n"
        "try: subprocess.run(['curl', 'http://x/' + evil], stderr=subprocess.DEVNULL)\nexcept OSError: pass\n"
        "try: open('.envrc' + '/' + evil, 'w')\nexcept OSError: pass\n"
        "try: import os; os.makedirs('.vscode/' + evil.replace('/', ''))\nexcept OSError: pass\n"
    )
    done = for_somebody.run("python3", "-c", script, evil, quiet=False)
    assert done["denied"] >= 1
    assert not set(done.err) & set(CONTROL), done.err
    shown = for_somebody.verb("events", for_somebody.journals()[-1].stem)
    assert shown.returncode == 0
    assert not set(shown.stdout.encode()) & set(CONTROL)


@pytest.mark.parametrize(
    "text",
    ["(" * 20_000, "$(" * 5_000, "{" * 20_000, "a" * 60_000, "'" * 9_999, "`" * 9_999, "x=" * 20_000, "!" * 50_000, "<<a\n" * 5_000,
     "if " * 9_000, "[[ " * 9_000, "$((" * 9_000, "\udcff" * 100],
    ids=range(13),
)  # fmt: skip
@pytest.mark.needs_bubblewrap
def test_monstrous_shell_text_is_an_answer_and_not_the_end(make_broker: Callable[..., Broker], text: str) -> None:
    """The question and the broker are the same whatever the engine: asked once."""
    broker = make_broker("bubblewrap", owner=1000)
    script = "import subprocess, sys; sys.exit(subprocess.run(['bash', '-c', sys.argv[1]], stderr=-3).returncode % 3)"
    done = broker.run("python3", "-c", script, os.fsencode(text), patience=50)
    assert done.result.get("status") == "finished", done


def test_paths_of_every_length_are_an_answer_and_not_the_end(for_somebody: Broker) -> None:
    script = (
        "import os\nfor n in (254, 255, 256, 4090, 4095, 4096, 4097, 9000, 70000):\n"
        " for p in ('a' * n, 'a/' * (n // 2), '/' * n + 'tmp/x', './' * (n // 2) + 'y', '../' * (n // 3) + 'tmp/z'):\n"
        "  for f in (lambda: os.open(p, os.O_WRONLY | os.O_CREAT), lambda: os.mkdir(p), lambda: os.rename(p, '.envrc'),\n"
        "            lambda: os.symlink(p, '.envrc'), lambda: os.link(p, p), lambda: os.execv(p, [p])):\n"
        "   try: f()\n   except OSError: pass\nprint('end')\n"
    )
    done = for_somebody.run("python3", "-c", script)
    assert done.out == b"end\n" and done.code == 0, done
    assert not (for_somebody.workspace / ".envrc").is_symlink()


def test_a_daemon_does_not_outlive_its_task(for_somebody: Broker) -> None:
    script = (
        "import os, signal, time\nfor n in range(20):\n if os.fork() == 0:\n  os.setsid()\n"
        "  for s in range(1, 32):\n   try: signal.signal(s, signal.SIG_IGN)\n   except (OSError, ValueError): pass\n"
        "  if os.fork(): os._exit(0)\n  time.sleep(600)\n"
    )
    done = for_somebody.run("python3", "-c", script)
    assert done.code == 0
    assert for_somebody.nothing_survives()


def test_the_runtime_folder_on_the_host_is_not_its_users_to_change(for_somebody: Broker) -> None:
    """Root writes into it while the task runs: whoever owned it could lead root's pen elsewhere with a link."""
    if os.geteuid():
        pytest.skip("root runs the broker here only")
    with for_somebody.started("sh", "-c", "echo ready; sleep 30") as running:
        running.read_until(b"ready")
        [folder] = for_somebody.task_folders()
        tried = subprocess.run(
            ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "sh", "-c",
             f"cd {folder} && {{ ln -s /etc/x new; mv denials.jsonl d; chmod 777 .; echo x >> denials.jsonl; ls; }}"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert "denials.jsonl" in tried.stdout.split(), tried
        assert not (folder / "new").is_symlink() and folder.stat().st_mode & 0o7777 == 0o750
        assert (folder / "denials.jsonl").read_text() == ""


@pytest.mark.parametrize("how", ["file", "folder"])
def test_the_result_is_not_written_through_a_link_that_the_task_made(
    for_somebody: Broker, how: str, make_broker: Callable[..., Broker]
) -> None:
    """`--result out/result.json` in the workspace: by the end of the task the name may lead anywhere."""
    victim = for_somebody.folder / "victim"
    victim.mkdir()
    (victim / "result.json").write_text("as it was\n")
    for_somebody.file("out/keep", "")
    subprocess.run(["chown", "-R", "1000:1000", str(for_somebody.workspace)], check=True)
    result = for_somebody.workspace / "out" / "result.json"
    swap = f"ln -s {victim}/result.json out/result.json" if how == "file" else f"mv out old && ln -s {victim} out"
    words = for_somebody.run_words(["sh", "-c", swap], result=result)
    subprocess.run(words, env=for_somebody.settings(), check=False, capture_output=True, stdin=subprocess.DEVNULL, timeout=60)
    assert (victim / "result.json").read_text() == "as it was\n"
