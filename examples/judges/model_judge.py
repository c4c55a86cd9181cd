"""A judge that asks a model: put it where no task can write, and name it in a panel (docs/judges.md).

Its profile needs a gateway that sets OPENAI_BASE_URL to a server that speaks OpenAI's chat completions, and MODEL:

    [profiles.model-judge.gateways.openai]
    upstream = "https://api.openai.com"
    env = { OPENAI_BASE_URL = "{url}/v1" }
    headers = { Authorization = { env = "OPENAI_API_KEY", form = "Bearer {}" } }
    paths = ["/v1/chat/completions"]

It asks for a stream, so that no proxy takes a model that thinks for long for one that is gone, and takes a whole answer as well.
The model says what it thinks; that it answered at all, and for this change, is said here. Whatever it says that is no verdict
goes out as it is, and blocks.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from http.client import HTTPResponse


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
        "stream": True,
    }  # fmt: skip
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions", data=json.dumps(question).encode(),
        headers={"Content-Type": "application/json"},
    )  # fmt: skip
    with urllib.request.urlopen(request, timeout=300) as response:
        said = answer(response)
    try:
        verdict = json.loads(said)
    except ValueError:
        print("it answered with no JSON object:", ascii(said[:500]), file=sys.stderr)
        return 1
    print(json.dumps({**verdict, "ticket": task["ticket"]} if isinstance(verdict, dict) else verdict))
    return 0


def answer(response: HTTPResponse) -> str:
    """Return what the model said. Raises ValueError for a stream that was cut off: its beginning could be a verdict of its own."""
    if response.headers.get_content_type() != "text/event-stream":
        return str(json.load(response)["choices"][0]["message"]["content"])
    said = ""
    for line in response:
        if line.strip() == b"data: [DONE]":
            return said
        if line.startswith(b"data:"):
            for choice in json.loads(line[5:])["choices"]:
                said += choice["delta"].get("content") or ""
    raise ValueError("the answer was cut off")


if __name__ == "__main__":
    sys.exit(main())
