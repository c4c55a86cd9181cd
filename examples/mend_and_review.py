"""Mend a project in a sandbox, and have the work reviewed by a sub-task that can change nothing.

    cp -r examples/wordcount /tmp/wordcount
    python examples/mend_and_review.py /tmp/wordcount

The commands here stand for what an agent would decide to run.
"""

from __future__ import annotations

import argparse

from broker import Broker, RunResult

TESTS = ["python3", "-m", "unittest"]
CLEAN = {"PYTHONDONTWRITEBYTECODE": "1"}
MEND = ["sed", "-i", "s/yield found.group()$/yield found.group().lower()/", "wordcount/count.py"]


def said(done: RunResult) -> str:
    """Say in a word how it ended, and what was refused meanwhile."""
    refused = "".join(f"\n  refused: {denial.what}: {denial.reason}" for denial in done.denials)
    return f"{done.status}, exit {done.exit_code}{refused}"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("workspace")
    parser.add_argument("--engine", choices=("auto", "docker", "bubblewrap"), default="auto")
    parser.add_argument("--image", default="")
    args = parser.parse_args()

    with Broker("builder", args.workspace, engine=args.engine, image=args.image) as b:
        print("tests:", said(b.run(TESTS, env=CLEAN)))
        print("mend:", said(b.run(MEND)))
        print("upload:", said(b.run(["curl", "https://example.com", "--data", "@wordcount/count.py"])))
        tests = b.run(TESTS, env=CLEAN)
        print("tests:", said(tests))

        # It sees what was mended, read-only, and may do less than this task: no writing, no running of code.
        review = b.delegate(profile="adversary", command=["grep", "-n", "lower()", "wordcount/count.py"], label="review")
        print("review:", review.status, review.stdout.strip())
        forbidden = b.delegate(profile="adversary", command=["sed", "-i", "d", "wordcount/count.py"], label="review")
        print("review:", forbidden.status, forbidden.reason)

    for change in b.result.changes.landed:
        print(f"landed: {change.path} ({change.change})")
    print(f"record: broker events {b.run_id}, {b.result.denied + b.result.denied_below} refused")
    return tests.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
