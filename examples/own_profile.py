"""A profile that is made in code, a question before the answer, and a function that says what lands.

    python examples/own_profile.py /tmp/wordcount
"""

from __future__ import annotations

import argparse

from broker import Broker, Changes, define_profile

# The keys are those of a profile file. `permits` and `denies` are tried at once: a profile that opens too much is an error.
EDITOR = define_profile(
    "editor",
    description="Edits text, runs nothing",
    max_risk="local_write",
    denylist=["rm"],
    permits=["sed -i s/a/b/ README.md"],
    denies=["python3 setup.py", "rm README.md"],
    requires=["network", "seccomp", "landlock", "exec_gate", "file_labels"],
)


def only_documents(changes: Changes) -> bool:
    """Say whether the changes land: all of them, or none."""
    for change in changes.landed:
        print(f"would land: {change.path} ({change.change})")
    return all(change.path.endswith(".md") for change in changes.landed)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workspace")
    parser.add_argument("--engine", choices=("auto", "docker", "bubblewrap"), default="auto")
    parser.add_argument("--image", default="")
    args = parser.parse_args()

    for name in ("README.md", "notes.txt"):
        with Broker(EDITOR, args.workspace, engine=args.engine, image=args.image, land=only_documents) as b:
            for text in (f"echo done >> {name}", f"rm {name}"):
                verdict = b.can_i(text)
                print(f"{text}: {verdict.verdict}{'' if verdict else f', {verdict.reason}'}")
                if verdict:
                    b.run(["bash", "-c", text])
        print("landed" if b.result.changes.landed else f"kept: broker diff {b.result.changes.kept}")


if __name__ == "__main__":
    main()
