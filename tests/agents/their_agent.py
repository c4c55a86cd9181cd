#!/usr/bin/python3
"""A small agent that nobody has described, in OpenAI's chat dialect: it does what its model says, and has habits of its own."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import urllib.request

TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}}
SESSIONS = pathlib.Path.home() / ".their-agent" / "sessions"
SNAPSHOT = SESSIONS / "shell.sh"  # what each command begins with
INDEX = pathlib.Path(".their-agent.index")  # of the project; it cannot be told another place


def asked(messages):
    body = json.dumps({"model": "fake", "messages": messages, "tools": [TOOL]}).encode()
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]


def done(command):
    quoted = "'" + command.replace("'", "'\"'\"'") + "'"
    text = f"source {SNAPSHOT} && eval {quoted} < /dev/null && pwd -P >| /tmp/their-agent-{os.getpid()}"
    env = os.environ | {"NODE_OPTIONS": "--no-deprecation"}
    try:
        ran = subprocess.run(["/bin/bash", "-c", text], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    except OSError as error:
        return str(error)
    return ran.stdout


def main():
    SESSIONS.mkdir(parents=True, exist_ok=True)
    SNAPSHOT.write_text("shopt -u extglob\n")
    INDEX.mkdir(exist_ok=True)
    for words in (["git", "-c", "core.pager=less", "log", "-1"], [sys.argv[0], "--index"]):
        with contextlib.suppress(OSError):
            subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    messages = [{"role": "user", "content": sys.argv[-1]}]
    while True:
        message = asked(messages)
        messages.append(message)
        (SESSIONS / "last.json").write_text(json.dumps(messages))
        calls = message.get("tool_calls") or []
        for call in calls:
            said = done(json.loads(call["function"]["arguments"])["command"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": said})
        if not calls:
            return print(message["content"])


if sys.argv[1:] == ["--index"]:  # itself again, for a part of its work
    (INDEX / "names").write_text("code.txt\n")
else:
    main()
