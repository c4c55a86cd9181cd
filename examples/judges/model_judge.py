"""A judge that asks a model: put it where no task can write, and name it in a panel (docs/judges.md).

Its profile needs a gateway that sets OPENAI_BASE_URL to a server that speaks OpenAI's chat completions, and MODEL:

    [profiles.model-judge.gateways.openai]
    upstream = "https://api.openai.com"
    env = { OPENAI_BASE_URL = "{url}/v1" }
    headers = { Authorization = { env = "OPENAI_API_KEY", form = "Bearer {}" } }
    paths = ["/v1/chat/completions"]

The model says what it thinks; that it answered at all, and for this change, is said here. Whatever it says that is no verdict
goes out as it is, and blocks.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request


def main() -> int:
    with open(os.environ["BROKER_TASK"], encoding="ascii") as file:
        task = json.load(file)
    untrusted = task["untrusted"]
    trusted = "\n\n".join(filter(None, (task["prompt"], f"What the operator wants: {task['goal']}" if task["goal"] else "", task["answer"])))
    question = {
        "model": os.environ.get("MODEL", "gpt-5.2"),
        "messages": [
            {"role": "system", "content": f"You judge a change. {trusted}\nLeave the ticket out. Answer with the JSON object alone.\n{untrusted['note']}"},
            {"role": "user", "content": f"{untrusted['files']}\n{untrusted['diff']}"},
        ],
    }  # fmt: skip
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions", data=json.dumps(question).encode(),
        headers={"Content-Type": "application/json"},
    )  # fmt: skip
    with urllib.request.urlopen(request, timeout=300) as response:
        said = json.load(response)["choices"][0]["message"]["content"]
    try:
        verdict = json.loads(said)
    except ValueError:
        print("it answered with no JSON object:", ascii(said[:500]), file=sys.stderr)
        return 1
    print(json.dumps({**verdict, "ticket": task["ticket"]} if isinstance(verdict, dict) else verdict))
    return 0


if __name__ == "__main__":
    sys.exit(main())
