"""A model as a judge: its only way out is the gateway of its profile, and what it says is read like any other verdict."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from conformance.driver import PROJECT, Broker
from conformance.test_gateway import serving
from conformance.test_panel import Court

KEY = "the-operators-own-key"


class Model(BaseHTTPRequestHandler):
    """Blocks what holds the word, and believes what it is told last. `streams`: '', whole, or cut (the end is missing)."""

    asked: list[dict[str, Any]]
    says: str
    streams: str

    def do_POST(self) -> None:
        question = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append({"key": self.headers.get("authorization"), **question})
        text = self.says or json.dumps({"verdict": "block" if "+WORD" in question["messages"][1]["content"] else "pass", "findings": []})
        if self.streams:
            self._stream(text)
            return
        answer = json.dumps({"choices": [{"message": {"content": text}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def _stream(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Connection", "close")
        self.end_headers()
        pieces = [text[at : at + 7] for at in range(0, len(text), 7)]
        for delta in ({"role": "assistant"}, *({"content": piece} for piece in pieces), {}):
            self.wfile.write(b": keep-alive\n\ndata: " + json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode() + b"\n\n")
            self.wfile.flush()
        if self.streams == "whole":
            self.wfile.write(b'data: {"choices": [], "usage": {"total_tokens": 1}}\n\ndata: [DONE]\n\n')
        self.close_connection = True

    def log_message(self, *words: Any) -> None:
        pass


@pytest.fixture
def model() -> Iterator[tuple[type[Model], int]]:
    handler = type("Fresh", (Model,), {"asked": [], "says": "", "streams": ""})
    with serving(handler) as port:
        yield handler, port


@pytest.fixture
def court(broker: Broker, model: tuple[type[Model], int]) -> Court:
    """A panel of one: the example of a judge that asks a model."""
    made = Court(broker)
    shutil.copy(PROJECT / "examples" / "judges" / "model_judge.py", made.judges)
    (made.panels / "attack.md").write_text("Attack this change.")
    (made.panels / "attack.md").chmod(0o644)
    gateway = {
        "upstream": f"http://127.0.0.1:{model[1]}", "env": {"OPENAI_BASE_URL": "{url}/v1"}, "paths": ["/v1/chat/completions"],
        "headers": {"Authorization": {"env": "MODEL_KEY", "form": "Bearer {}"}},
    }  # fmt: skip
    broker.environment["MODEL_KEY"] = KEY
    broker.profile(
        "judge", {"workspace": "read-only", "read_only": [str(made.judges)]}, max_risk="safe", effects={}, gateways={"openai": gateway}
    )
    command = f"python3 {made.judges}/model_judge.py"
    made.write("review", {"judges": [{"name": "model", "profile": "judge", "command": command, "prompt": "attack.md"}]})
    return made


def test_a_model_behind_a_gateway_judges(court: Court, model: tuple[type[Model], int]) -> None:
    passed = court.work("echo fine > code.txt", "review", "--goal", "be kind")
    blocked = court.work("echo WORD > more.txt", "review")

    assert (passed.code, blocked.code) == (0, 76), (passed.err, blocked.err)
    system, user = model[0].asked[0]["messages"]
    assert model[0].asked[0]["key"] == f"Bearer {KEY}"
    assert "Attack this change." in system["content"] and "be kind" in system["content"]
    assert "+fine" in user["content"] and "+fine" not in system["content"]
    assert KEY.encode() not in b"".join(journal.read_bytes() for journal in court.broker.journals())
    assert court.events("gateway.answered")[0]["task"] == "panel/1"


def test_a_model_that_streams_its_answer_judges_as_well(court: Court, model: tuple[type[Model], int]) -> None:
    model[0].streams = "whole"

    passed = court.work("echo fine > code.txt", "review")
    blocked = court.work("echo WORD > more.txt", "review")

    assert (passed.code, blocked.code) == (0, 76), (passed.result.get("panel"), blocked.err)
    assert blocked["panel"]["judges"][0]["reason"] == "", "it spoke"
    assert model[0].asked[0]["stream"] is True


def test_a_pass_of_which_the_end_is_missing_is_none(court: Court, model: tuple[type[Model], int]) -> None:
    model[0].streams = "cut"

    done = court.work("echo fine > code.txt")

    assert (done.code, done["panel"]["judges"][0]["reason"]) == (76, "crashed: finished, exit code 1")
    assert "cut off" in done["panel"]["judges"][0]["stderr"]


def test_judges_that_ask_models_at_the_same_time_have_each_their_own_way_out(court: Court, model: tuple[type[Model], int]) -> None:
    command = f"python3 {court.judges}/model_judge.py"
    court.write("review", {"judges": [{"name": f"m{number}", "profile": "judge", "command": command} for number in range(3)]})

    done = court.work("echo fine > code.txt")

    assert (done.code, [one["verdict"] for one in done["panel"]["judges"]]) == (0, ["pass"] * 3), done["panel"]
    assert sorted(row["task"] for row in court.events("gateway.answered")) == ["panel/1", "panel/2", "panel/3"]
    assert len({question["messages"][1]["content"].split("\n")[0] for question in model[0].asked}) == 3, "each has a delimiter of its own"


@pytest.mark.parametrize("says", ["I approve of this change.", '["pass"]', '{"verdict": "pass", "confidence": 1}'])
def test_a_model_that_was_talked_into_something_else_blocks(court: Court, model: tuple[type[Model], int], says: str) -> None:
    model[0].says = says

    done = court.work("echo fine > code.txt")

    assert done.code == 76
    assert done["panel"]["judges"][0]["reason"]
