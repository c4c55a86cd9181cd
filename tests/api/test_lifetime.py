"""Threads, forks, forgotten Brokers and the end of the interpreter: nothing of a task outlives who opened it."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from api.made_in_code import a_profile
from broker import Broker, RunResult, UsageError
from conformance.driver import until

Make = Callable[..., Broker]
Inside = Callable[[], list[int]]
PRELUDE = """
import os, sys, threading
from api.made_in_code import a_profile
from broker import Broker
b = Broker(a_profile(), sys.argv[1], engine=sys.argv[2])
"""


def program(text: str, workspace: Path, engine: str) -> subprocess.Popen[str]:
    """Start a Python program that uses a Broker."""
    return subprocess.Popen(
        [sys.executable, "-W", "error::ResourceWarning", "-c", PRELUDE + text, str(workspace), engine],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )  # fmt: skip


def test_several_threads_use_one_broker_at_once(make: Make) -> None:
    with make() as opened, ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda number: opened.run(["bash", "-c", f"echo {number}; exit {number}"]), range(40)))
    assert [(one.exit_code, one.stdout) for one in done] == [(number, f"{number}\n") for number in range(40)]


def test_several_brokers_live_side_by_side_and_see_nothing_of_each_other(make: Make) -> None:
    with make(land="never") as one, make(land="never") as other:
        one.run(["touch", "mine"])
        other.run(["touch", "its"])
        assert (one.run(["ls"]).stdout, other.run(["ls"]).stdout) == ("mine\n", "its\n")
        assert one.run_id != other.run_id
    assert one.result.changes.kept != other.result.changes.kept


def test_closing_ends_what_other_threads_run_and_they_get_results(make: Make) -> None:
    opened = make().open()
    done: list[RunResult] = []
    begun = threading.Event()
    thread = threading.Thread(
        target=lambda: done.append(opened.run(["bash", "-c", "echo; sleep 1000"], on_output=lambda *_told: begun.set()))
    )
    thread.start()
    assert begun.wait(30)
    result = opened.close()
    thread.join()
    assert (done[0].status, done[0].exit_code) == ("killed", 137)
    assert result.status == "finished"
    events = [json.loads(line)["type"] for line in opened.journal.read_text().splitlines()]
    assert events[-1] == "run.finished"


def test_a_killed_root_ends_all_and_later_programs_say_so(make: Make) -> None:
    with make() as opened:
        opened.kill("root")
        assert opened.run(["true"]).status == "killed"
    assert opened.result.status == "killed"


def test_a_time_limit_of_the_profile_ends_the_open_task(make: Make) -> None:
    with make(a_profile(sandbox={"time": 0.5})) as opened:
        done = opened.run(["sleep", "1000"])
        assert (done.status, done.exit_code) == ("timeout", 124)
    assert opened.result.status == "timeout"


def test_a_forgotten_broker_ends_its_sandbox_warns_and_lands_nothing(make: Make, workspace: Path, inside: Inside) -> None:
    opened = make().open()
    opened.run(["touch", "new"])
    journal = opened.journal
    assert inside()
    with pytest.warns(ResourceWarning, match="was never closed"):  # noqa: PT031 - what is deleted must be forgotten in there
        del opened
        gc.collect()
    until(lambda: not inside(), "the end of the sandbox", 10.0)
    until(lambda: '"run.finished"' in journal.read_text(), "the end of the record", 10.0)
    assert not (workspace / "new").exists()
    assert '"layer.kept"' in journal.read_text()


def test_a_broker_that_was_closed_is_no_reason_to_warn(make: Make, recwarn: pytest.WarningsRecorder) -> None:
    with make() as opened:
        opened.run(["true"])
    del opened
    gc.collect()
    assert list(recwarn) == []


def test_the_end_of_the_interpreter_leaves_nothing_running(workspace: Path, state: Path, engine: str, inside: Inside) -> None:
    text = """
b.open()
waiting = threading.Thread(target=lambda: b.run(["sleep", "1000"]), daemon=True)
waiting.start()
b.run(["touch", "new"])
print(b.journal)
"""
    with program(text, workspace, engine) as process:
        out, err = process.communicate(timeout=60)
    assert not inside()  # at once: the interpreter has waited
    assert "was never closed" in err
    assert '"run.finished"' in Path(out.strip()).read_text()
    assert list(workspace.iterdir()) == []


def test_an_interpreter_that_is_killed_leaves_nothing_running(
    workspace: Path, state: Path, engine: str, inside: Inside
) -> None:
    with program("b.open(); print('open', flush=True); b.run(['sleep', '1000'])", workspace, engine) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        process.kill()
        process.communicate(timeout=60)
    until(lambda: not inside(), "the end of the sandbox", 10.0)


def test_ctrl_c_ends_the_program_and_raises_keyboard_interrupt(
    workspace: Path, state: Path, engine: str, inside: Inside
) -> None:
    text = """
once = lambda **how: b.run_once(["bash", "-c", "echo; sleep 1000"], a_profile(), sys.argv[1], engine=sys.argv[2], run=how)
def interrupt(*_told): os.kill(os.getpid(), 2)
with b:
    for call in (b.run, lambda words, **how: b.delegate(profile="adversary", command=words, **how), lambda _words, **how: once(**how)):
        try:
            call(["bash", "-c", "echo; sleep 1000"], on_output=interrupt)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    print(b.run(["true"]).ok)
"""
    with program(text, workspace, engine) as process:
        out, err = process.communicate(timeout=90)
    assert (out, err, process.returncode) == ("interrupted\n" * 3 + "True\n", "", 0)


def test_a_fork_is_refused_with_a_sentence_and_harms_nothing(make: Make, workspace: Path) -> None:
    with make() as opened:
        reader, writer = os.pipe()
        if (child := os.fork()) == 0:
            try:
                opened.run(["true"])
            except UsageError as error:
                os.write(writer, str(error).encode())
            opened._task.forget()
            os._exit(0)
        os.close(writer)
        with open(reader) as said:
            text = said.read()
        os.waitpid(child, 0)
        assert f"was opened by process {os.getpid()}, and this is {child}, forked off later" in text
        assert opened.run(["touch", "new"]).ok
    assert (workspace / "new").exists()


def test_a_worker_that_was_forked_off_does_not_keep_the_sandbox_alive(
    workspace: Path, state: Path, engine: str, inside: Inside
) -> None:
    text = """
b.open()
b.run(["true"])
if (child := os.fork()) == 0:
    sys.stdin.read()
    os._exit(0)
print(child, flush=True)
sys.stdin.read()
"""
    keep, theirs = os.pipe()
    words = [sys.executable, "-c", PRELUDE + text, str(workspace), engine]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(words, stdin=keep, stdout=subprocess.PIPE, text=True, env=env) as process:
        os.close(keep)
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            process.kill()
            process.wait()
            until(lambda: not inside(), "the end of the sandbox", 10.0)
            os.kill(child, 0)  # the worker still lives
        finally:
            os.close(theirs)
            os.kill(child, signal.SIGKILL)


def test_the_command_line_loads_nothing_of_the_python_interface() -> None:
    text = (
        "import sys, broker.cli.main; broker.cli.main.main(['--version']); "
        "print([name for name in sys.modules if name.startswith('broker.api') or name == 'typing'])"
    )
    done = subprocess.run([sys.executable, "-S", "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_asyncio_is_loaded_for_async_broker_only() -> None:
    text = "import sys; from broker import {0}; print('asyncio' in sys.modules)"
    for name, loaded in (("Broker", "False"), ("AsyncBroker", "True")):
        done = subprocess.run([sys.executable, "-c", text.format(name)], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == loaded


def test_each_public_name_is_there_and_no_other() -> None:
    import broker
    import broker.api

    assert sorted({*broker.api.__all__, "AsyncBroker", "__version__"}) == sorted(broker.__all__) == sorted(dir(broker))
    for name in broker.__all__:
        assert getattr(broker, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Brocker'"):
        _ = broker.Brocker  # type: ignore[attr-defined]
