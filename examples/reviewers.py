"""Several reviewers at once, each in a sandbox of its own below one task, with a time limit, and refusals as they happen.

    python examples/reviewers.py /tmp/wordcount
"""

from __future__ import annotations

import argparse
import asyncio

from broker import AsyncBroker, Denial, Outcome

QUESTIONS = {
    "where is the code": ["grep", "-rn", "^def ", "wordcount"],
    "is there a secret": ["grep", "-rniE", "password|secret|token", "."],
    "does it phone home": ["curl", "https://example.com"],
    "does it ever end": ["sleep", "1000"],
}


def refused(denial: Denial) -> None:
    print(f"{denial.task}: refused {denial.what}: {denial.hint}")


async def ask(b: AsyncBroker, label: str, command: list[str], seconds: float) -> Outcome | None:
    """Have one question answered. Who takes too long is cancelled, and that ends the sub-task."""
    try:
        async with asyncio.timeout(seconds):
            return await b.delegate(profile="adversary", command=command, label=label)
    except TimeoutError:
        return None


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workspace")
    parser.add_argument("--engine", choices=("auto", "docker", "bubblewrap"), default="auto")
    parser.add_argument("--image", default="")
    parser.add_argument("--seconds", type=float, default=5.0)
    args = parser.parse_args()

    async with AsyncBroker("research", args.workspace, engine=args.engine, image=args.image) as b:
        b.on_denied(refused)
        answers = await asyncio.gather(*(ask(b, label, command, args.seconds) for label, command in QUESTIONS.items()))
        for label, answer in zip(QUESTIONS, answers, strict=True):
            print(f"{label}? {'too slow' if answer is None else f'{answer.status}, {len(answer.stdout.splitlines())} lines'}")
        for task in await b.tasks():
            print(f"{task.task:8} {task.profile:10} {task.status or task.state:9} {task.label}")


if __name__ == "__main__":
    asyncio.run(main())
