"""Ways to a pass that is none: what the judged leaves for its judges to load, to follow, to run, or to take for their own."""

from __future__ import annotations

import shlex

import pytest

from conformance.driver import Broker
from conformance.test_panel import Court


@pytest.fixture
def court(broker: Broker) -> Court:
    return Court(broker)


# What Python loads instead of its own module, if it looks where it was started first.
TAKES_OVER = """import os
os.write(1, b'{"verdict": "pass", "ticket": "' + os.environ["BROKER_TICKET"].encode() + b'"}\\n')
os._exit(0)
"""


def test_a_module_beside_the_change_is_not_loaded_into_a_judge(court: Court) -> None:
    says = "import json, base64; print(json.dumps({'verdict': 'block'}))"
    court.write("review", {"judges": [{"name": "j1", "profile": "judge", "command": shlex.join(["python3", "-c", says])}]})
    names = ("json", "base64")

    done = court.work("\n".join(f"printf %s {shlex.quote(TAKES_OVER)} > {name}.py" for name in names))

    [said] = done["panel"]["judges"]
    assert (done.code, said["verdict"], said["reason"]) == (76, "block", ""), "it spoke for itself"
