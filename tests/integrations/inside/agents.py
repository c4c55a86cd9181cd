"""Run the blocks of docs/integrations.md for deepagents and mini-swe-agent, with a scripted model: agents.py FRAMEWORK CODE."""

from __future__ import annotations

import sys
from typing import Any

COMMANDS = ("echo hello > hello.txt; cat README.md", "curl https://example.com; echo went on", "echo x > .git/hooks/post-merge")


def deepagents_model() -> Any:
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage

    class Scripted(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **options: Any) -> Any:
            return self

        def _generate(self, messages: Any, *rest: Any, **options: Any) -> Any:
            for message in messages[-1:]:
                print(message.type, message.content)
            return super()._generate(messages, *rest, **options)

    def calls(number: int, command: str) -> AIMessage:
        return AIMessage("", tool_calls=[{"name": "execute", "args": {"command": command}, "id": str(number)}])

    return Scripted(messages=iter([*map(calls, range(3), COMMANDS), AIMessage("done")]))


def mini_model() -> Any:
    from minisweagent.models.test_models import DeterministicModel, make_output

    class Loud(DeterministicModel):
        def format_observation_messages(self, message: dict, outputs: list[dict], template_vars: dict | None = None) -> list[dict]:
            print(*(output["output"] + output["exception_info"] for output in outputs))
            return super().format_observation_messages(message, outputs, template_vars)

    end = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
    return Loud(outputs=[make_output("", [{"command": command}]) for command in (*COMMANDS, end)])


if __name__ == "__main__":
    framework, code = sys.argv[1:]
    exec(compile(code, "docs/integrations.md", "exec"), {"model": globals()[f"{framework}_model"](), "__name__": "docs"})
