"""inspect_ai, the real one: its checks of a provider, and evaluations with a scripted model."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from conformance.fixtures import ENGINES
from integrations.documented import DOCUMENTATION, INSIDE, Run, block_with

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("inspect")]


def evaluated(run: Run, folder: Path, task: str | Path, *options: str) -> list[dict[str, Any]]:
    """Evaluate a task with `inspect eval`, and return its samples."""
    logs = folder / "logs"
    run("inspect", "-m", "inspect_ai", "eval", task, "--display=none", f"--log-dir={logs}", "--log-format=json", *options)
    (log,) = (json.loads(path.read_text()) for path in logs.iterdir())
    assert log["status"] == "success", log.get("error")
    return log["samples"]  # type: ignore[no-any-return]


def told(sample: dict[str, Any]) -> list[str]:
    """What the model was told by its tools: output, or the error."""
    return [
        message["error"]["message"] if message.get("error") else message["content"]
        for message in sample["messages"] if message["role"] == "tool"
    ]  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
def test_its_portable_checks_pass_unmodified_but_for_two_that_are_documented(run: Run, engine: str) -> None:
    said = run("inspect", "-m", "pytest", "-c", INSIDE / "pytest.ini", INSIDE / "inspect_self_check.py", "-q", ENGINE=engine)
    assert re.search(r"^42 passed, 2 xfailed in ", said, re.MULTILINE), said
    xfailed = re.findall(r"^XFAIL \S+::(\w+)", said, re.MULTILINE)
    assert [name for name in xfailed if f"| `{name}` |" in DOCUMENTATION] == ["test_exec_as_user", "test_exec_large_command"]


@pytest.mark.needs_bubblewrap
def test_a_sample_works_in_the_sandbox_and_the_model_reads_why_it_was_refused(run: Run, folder: Path, workspace: Path) -> None:
    samples = evaluated(run, folder, f"{INSIDE / 'inspect_eval.py'}@sandboxed", "--max-samples=1")
    assert [sample["scores"]["includes"]["value"] for sample in samples] == ["C", "C"]
    for sample in samples:
        first, second, _, code = told(sample)
        assert first == "hello from the sample\nread me\nREADME.md\ngreeting.txt\nmade.txt\n"
        assert "broker: denied curl https://example.com: curl reaches out to the network (network_egress)" in second
        assert second.endswith("went on\n")
        assert "broker: denied python3 -" in code
    assert sorted(path.name for path in workspace.iterdir()) == [".git", "README.md"]  # each epoch began with the same
    assert not list(folder.glob("broker-*"))


@pytest.mark.needs_bubblewrap
def test_the_approver_says_what_the_profile_says(run: Run, folder: Path) -> None:
    (sample,) = evaluated(run, folder, f"{INSIDE / 'inspect_eval.py'}@approved")
    ran, *refused = told(sample)
    assert ran == "fine\n"
    assert len(refused) == 3
    assert refused[0] == "No approval granted for tool python"  # nobody is left to whom it could be escalated
    assert refused[1].startswith("This is blocked (The function : multiplies itself without end)")
    assert refused[2] == "No approval granted for tool strange"
    ours = [event for event in sample["events"] if event["event"] == "approval" and event["approver"] == "broker/approver"]
    assert [event["decision"] for event in ours] == ["approve", "escalate", "reject", "escalate"]
    assert "code_execution" in ours[1]["explanation"]


@pytest.mark.needs_bubblewrap
def test_the_documentations_task_runs_and_its_approvers_are_read(run: Run, folder: Path, workspace: Path) -> None:
    greeting, config, approvers = map(block_with, ("def greeting", "config = ", "approvers:"))
    (workspace / "repository").mkdir()
    (workspace / "greeting.py").write_text(greeting + config)
    (workspace / "approvers.yaml").write_text(approvers)
    script = workspace / "script.py"
    script.write_text(
        "from greeting import greeting, sandbox\n"
        "from inspect_ai import eval\n"
        "from inspect_ai.model import ModelOutput, ModelUsage, get_model\n"
        "outputs = [ModelOutput.for_tool_call('m', 'bash', {'command': 'echo hi > hello.txt; cat hello.txt'}), ModelOutput.from_content('m', 'done')]\n"
        "for output in outputs: output.usage = ModelUsage()\n"
        "for where in (None, sandbox):\n"
        "    model = get_model('mockllm/model', custom_outputs=outputs, memoize=False)\n"
        "    (log,) = eval(greeting(), model=model, sandbox=where, approval='approvers.yaml', display='none', log_dir='../logs')\n"
        "    print(log.status, log.eval.sandbox.config, *(m.text.strip() for m in log.samples[0].messages if m.role == 'tool'))\n"
    )
    said = [line for line in run("inspect", script).splitlines() if line.startswith("success")]
    assert len(said) == 2
    assert all(line.endswith(" hi") for line in said), said
    assert "workspace='repository'" in said[1]
    assert not list((workspace / "repository").iterdir())


@pytest.mark.needs_bubblewrap
@pytest.mark.parametrize(("end", "lands"), [("finished", True), ("interrupted", False)])
def test_a_cancelled_call_ends_its_program_and_an_interrupted_sample_lands_nothing(
    run: Run, workspace: Path, end: str, lands: bool
) -> None:  # fmt: skip
    said = run("inspect", INSIDE / "inspect_cancelled.py", end).splitlines()
    assert [line.partition(":")[0] for line in said] == ["ended", "root", "connection", "unavailable"]
    assert (workspace / "landed.txt").exists() is lands
