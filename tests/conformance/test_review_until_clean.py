"""The whole story, on Docker with a real Go tool chain and the shipped profiles: plan, work, review, mend, review, land.

A builder plans its work and claims to be done without evidence, which is refused; with evidence it is done. Judges of an
adversary's profile look at the change, and one finds a fault that the tests do not show. The builder is told, plans its mending
by what showed the fault, and mends it. The second round is clean, and the change lands.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from conformance.driver import Broker
from conformance.test_builder_and_adversary import shipped

pytestmark = pytest.mark.needs_docker(image="go")

# The operator's agents: what a model would do is written down here, so that it is the same each time.
BUILDER = """#!/bin/sh
proposed=$(sed -n 's/.*"plan": \\({"steps": \\[{.*\\)}$/\\1/p' $BROKER_TASK)
if [ -z "$proposed" ]; then
    echo '{"steps": [{"id": "green", "title": "the tests pass", "checks": [{"argv": ["go", "test", "./..."]}]}]}' | broker plan create > /dev/null
    cat > sum/sum.go <<'END'
package sum

func Sum(a, b int) int {
	a = a
	return a + b
}

func Twice(a int) int { return Sum(a, a) }
END
    broker plan begin green > /dev/null
    broker plan complete green; echo "claimed: $?" >> /tmp/said
    step=green
else
    echo "$proposed" | broker plan create > /dev/null || exit 3
    sed -i '/a = a$/d' sum/sum.go
    broker plan begin finding-1 > /dev/null
    step=finding-1
fi
broker plan check $step > /dev/null; echo "checked: $?" >> /tmp/said
broker plan complete $step > /dev/null; echo "done: $?" >> /tmp/said
cat /tmp/said
"""
VET = """#!/bin/sh
grep -q '^+func Twice' /run/broker/change.diff || { echo '{"verdict": "block"}'; exit; }
if said=$(go vet ./... 2>&1); then
    echo '{"verdict": "pass", "ticket": "'$BROKER_TICKET'"}'
else
    line=$(echo "$said" | sed -n 's/^sum.sum.go:\\([0-9]*\\):.*/\\1/p' | head -n 1)
    echo '{"verdict": "block", "findings": [{"file": "sum/sum.go", "line": '$line', "severity": "high",
        "claim": "an assignment does nothing", "evidence": ["go", "vet", "./..."]}]}' | tr -d '\\n'
fi
"""
TESTS = """#!/bin/sh
if grep -q '^-.*t.Fail' /run/broker/change.diff; then
    echo '{"verdict": "block", "findings": [{"file": "sum/sum_test.go", "severity": "critical", "claim": "an assertion is gone"}]}'
else
    echo '{"verdict": "pass", "ticket": "'$BROKER_TICKET'"}'
fi
"""


@pytest.fixture
def story(make_broker: Any) -> Broker:
    """A Go project under git, the shipped profiles, a builder, and a panel of two, where no task can write."""
    broker: Broker = make_broker("docker")
    agents, panels = broker.folder / "agents", broker.folder / "panels"
    for folder in (agents, panels):
        folder.mkdir()
        folder.chmod(0o755)
    for name, text in (("builder", BUILDER), ("vet", VET), ("tests", TESTS)):
        (agents / name).write_text(text)
        (agents / name).chmod(0o755)
    where = {"image": "go", "read_only": [str(agents)]}
    broker.profile("builder", **shipped("builder", sandbox=where, effects={}))
    broker.profile("adversary", **shipped("adversary", sandbox=where, effects={}))
    judges = [{"name": name, "profile": "adversary", "command": str(agents / name)} for name in ("vet", "tests")]
    (panels / "review.json").write_text(json.dumps({"panels": {"review": {"quorum": "all", "judges": judges}}}))
    (panels / "review.json").chmod(0o644)
    broker.file("go.mod", "module example.com/sum\n\ngo 1.19\n")
    broker.file("sum/sum.go", "package sum\n\nfunc Sum(a, b int) int {\n\treturn a + b\n}\n")
    broker.file("sum/sum_test.go", 'package sum\n\nimport "testing"\n\nfunc TestSum(t *testing.T) {\n\tif Sum(1, 2) != 3 {\n\t\tt.Fail()\n\t}\n}\n')
    for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=A", "-c", "user.email=a@b", "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(broker.workspace), *words], check=True)
    return broker


def test_work_is_planned_reviewed_mended_reviewed_again_and_lands(story: Broker) -> None:
    options = ["--land", "on-panel", "review", "--rounds", "3", "--goal", "add Twice"]

    done = story.run(str(story.folder / "agents" / "builder"), options=options, profile="builder", patience=110)

    assert done.code == 0, (done.err, done.result.get("panel"))
    first, second = done.out.decode().split("done: 0\n")[:2]
    assert "claimed: 0" not in first and "checked: 0" in first, "to say that it is green is no evidence; to be seen green is"
    assert "checked: 0" in second
    landed = (story.workspace / "sum" / "sum.go").read_text()
    assert "a = a\n" not in landed and "func Twice" in landed

    rounds = [[json.loads(line) for line in journal.read_text().splitlines()] for journal in story.journals()]
    assert len(rounds) == 2
    assert [one["verdict"] for events in rounds for one in of("panel.decided", events)] == ["block", "pass"]
    blocked = next(one for one in of("judge.verdict", rounds[0]) if one["verdict"] == "block")
    assert (blocked["judge"], blocked["reason"]) == ("vet", "")
    assert [(row["file"], row["line"], row["shown"]) for row in blocked["findings"]] == [("sum/sum.go", 4, "reproduced")]
    assert of("plan.refused", rounds[0])[0]["missing"]
    assert of("plan.completed", rounds[1])[0]["step"] == "finding-1"
    assert of("landing.finished", rounds[0]) == [] and of("landing.finished", rounds[1])[0]["landed"] >= 1
    assert story.kept() == []
    assert story.verified()


def of(kind: str, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["type"] == kind]
