"""A task with a scripted model, for `inspect eval` (tests/integrations/test_inspect.py): what a model does in the sandbox."""

from __future__ import annotations

import os

from inspect_ai import Task, task
from inspect_ai.approval import ApprovalPolicy
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import Tool, bash, python, tool
from inspect_ai.util import SandboxEnvironmentSpec

from broker.integrations.inspect_ai import BrokerSandboxConfig, broker_approver


def says(*steps: tuple[str, dict[str, str]] | str) -> list[ModelOutput]:
    """What the model says, in turn: a tool's name and its arguments, or a text."""
    outputs = [
        ModelOutput.from_content("script", step) if isinstance(step, str) else ModelOutput.for_tool_call("script", *step)
        for step in steps
    ]
    for output in outputs:
        output.usage = ModelUsage()  # else it is counted, with a table that is downloaded
    return outputs


@tool
def strange() -> Tool:
    """A tool that no profile has heard of."""

    async def execute() -> str:
        """Do something."""
        return "it was done"

    return execute


@task
def sandboxed() -> Task:
    """Read what the sample brings, write, be refused, and go on. Under a profile that runs no code."""
    outputs = says(
        ("bash", {"command": "cat greeting.txt README.md; echo made > made.txt; ls"}),
        ("bash", {"command": "curl https://example.com; echo went on"}),
        ("curl", {"command": "x"}),
        ("python", {"code": "print(1)"}),
        "done",
    )
    sample = Sample(input="work", target="done", files={"greeting.txt": "hello from the sample\n"})
    config = BrokerSandboxConfig(profile="default", workspace=os.environ["WORKSPACE"], engine="bubblewrap")
    return Task(
        dataset=[sample], epochs=2, solver=[use_tools(bash(), python()), generate()], scorer=includes(),
        model=get_model("mockllm/model", custom_outputs=[*outputs, *outputs]), sandbox=SandboxEnvironmentSpec("broker", config),
    )  # fmt: skip


@task
def approved() -> Task:
    """A profile as an approver: it permits, would ask, refuses, and does not know. The sandbox would permit more."""
    outputs = says(
        ("bash", {"command": "echo fine"}),
        ("python", {"code": "print(1)"}),
        ("bash", {"command": ":(){ :|:& };:"}),
        ("strange", {}),
        "done",
    )
    return Task(
        dataset=[Sample(input="work", target="done")], solver=[use_tools(bash(), python(), strange()), generate()], scorer=includes(),
        model=get_model("mockllm/model", custom_outputs=outputs), sandbox=("broker", os.environ["PROFILE"]),
        approval=[ApprovalPolicy(broker_approver(profile="default"), "*")],
    )  # fmt: skip
