"""The whole story, on each engine with a real Go tool chain and the shipped profiles: plan, work, review, mend, review, land.

The operator gives a plan with one step, and lets the changes land only on that plan and on a panel. A builder adds a step of its
own, and says that it is green without evidence, which is refused; it breaks the program, and the check is seen failing; it mends
that, and has evidence, which its next change makes stale. It hands a review to an adversary, who can write nothing. Judges of the
adversary's profile look at the change, and one finds a fault that the tests do not show. Its finding is a step of the builder's
plan in the second round, which the builder can neither replace nor waive. It mends the fault, the panel passes, all of it lands.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from conformance.driver import Broker
from conformance.test_builder_and_adversary import shipped

WITH_GO = [
    pytest.param("bubblewrap", marks=pytest.mark.needs_bubblewrap),
    pytest.param("docker", marks=pytest.mark.needs_docker(image="go")),
]
PLAN = {"steps": [{"id": "green", "title": "the tests pass", "checks": [{"argv": ["go", "test", "./..."]}]}]}

# The operator's agents: what a model would do is written down here, so that it is the same each time.
BUILDER = """#!/bin/sh
say() { echo "$1: $2" >> /tmp/said; }
state() { broker plan show --json | tr '{' '\\n' | sed -n "s/.*\\"id\\": \\"$1\\".*\\"state\\": \\"\\([a-z]*\\)\\".*/\\1/p"; }
done_with() { broker plan check $1 > /dev/null; say "$1 checked" $?; broker plan complete $1 > /dev/null; say "$1 complete" $?; }

if grep -q '"round": 1' $BROKER_TASK; then
    echo '{"steps": [{"id": "own", "title": "it builds", "checks": [{"argv": ["go", "build", "./..."]}]}]}' | broker plan revise > /dev/null
    say "own step" $?
    broker plan begin green > /dev/null; broker plan begin own > /dev/null
    broker plan complete green > /tmp/refused 2>&1; say "claimed" $?
    printf 'package sum\\n\\nfunc Sum(a, b int) int {\\n\\treturn a - b\\n}\\n' > sum/sum.go
    go test ./... > /dev/null || true; echo "ok  example.com/sum  0.001s"
    broker plan complete green > /dev/null 2>&1; say "claimed again" $?
    broker plan check green > /dev/null; say "broken" $?
    say "state" $(state green)
    printf 'package sum\\n\\nfunc Sum(a, b int) int {\\n\\ta = a\\n\\treturn a + b\\n}\\n' > sum/sum.go
    done_with green
    printf '\\nfunc Twice(a int) int { return Sum(a, a) }\\n' >> sum/sum.go
    say "state" $(state green)
    broker delegate --profile adversary --trust trusted -- AGENTS/reviewer > /tmp/review; say "review" $?
    done_with green; done_with own
else
    broker plan waive finding-1.1 --because "it is fine" > /dev/null 2>&1; say "waive" $?
    echo '{"steps": [{"id": "finding-1", "title": "nothing", "checks": [{"argv": ["true"]}]}]}' | broker plan revise > /dev/null
    broker plan begin finding-1 > /dev/null; broker plan begin green > /dev/null
    broker plan check finding-1 > /dev/null; say "not mended" $?
    broker plan complete finding-1 > /dev/null 2>&1; say "not mended" $?
    sed -i '/a = a$/d' sum/sum.go
    done_with finding-1; done_with green
fi
cat /tmp/said; test ! -e /tmp/refused || cat /tmp/refused
"""
REVIEWER = """#!/bin/sh
echo broken > sum/sum.go
git diff --stat
broker delegate --profile builder -- true
test "$(cat sum/sum.go)" != broken
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


@pytest.fixture(params=WITH_GO)
def story(request: pytest.FixtureRequest, make_broker: Any) -> Broker:
    """A Go project under git, the shipped profiles, a builder, and a panel of two, where no task can write."""
    broker: Broker = make_broker(request.param)
    agents, panels = broker.folder / "agents", broker.folder / "panels"
    for folder in (agents, panels):
        folder.mkdir()
        folder.chmod(0o755)
    for name, text in (("builder", BUILDER), ("reviewer", REVIEWER), ("vet", VET), ("tests", TESTS)):
        (agents / name).write_text(text.replace("AGENTS", str(agents)))
        (agents / name).chmod(0o755)
    where = {"image": "go", "read_only": [str(agents)]}
    broker.profile("builder", **shipped("builder", sandbox=where, effects={}, delegate={"agents": [str(agents / "reviewer")]}))
    broker.profile("adversary", **shipped("adversary", sandbox=where, effects={}))
    judges = [{"name": name, "profile": "adversary", "command": str(agents / name)} for name in ("vet", "tests")]
    (panels / "review.json").write_text(json.dumps({"panels": {"review": {"quorum": "all", "judges": judges}}}))
    (panels / "review.json").chmod(0o644)
    (broker.folder / "plan.json").write_text(json.dumps(PLAN))
    broker.file("go.mod", "module example.com/sum\n\ngo 1.19\n")
    broker.file("sum/sum.go", "package sum\n\nfunc Sum(a, b int) int {\n\treturn a + b\n}\n")
    broker.file("sum/sum_test.go", 'package sum\n\nimport "testing"\n\nfunc TestSum(t *testing.T) {\n\tif Sum(1, 2) != 3 {\n\t\tt.Fail()\n\t}\n}\n')
    for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=A", "-c", "user.email=a@b", "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(broker.workspace), *words], check=True)
    return broker


def test_work_is_planned_reviewed_mended_reviewed_again_and_lands(story: Broker) -> None:
    options = ["--plan", str(story.folder / "plan.json"), "--land", "on-plan", "--land", "on-panel", "review", "--rounds", "3", "--goal", "add Twice"]

    done = story.run(str(story.folder / "agents" / "builder"), options=options, profile="builder", patience=200)

    assert done.code == 0, (done.err, done.out, done.result.get("panel"))
    lines = [line for line in done.out.decode().splitlines() if ": " in line]
    assert lines == [
        "own step: 0", "claimed: 1", "claimed again: 1", "broken: 1", "state: active", "green checked: 0", "green complete: 0",
        "state: stale", "review: 0", "green checked: 0", "green complete: 0", "own checked: 0", "own complete: 0",
        "broker: step green is not done: to say so is no evidence",
        "  green.1 `go test ./...`: it was not seen succeeding",
        "waive: 64", "not mended: 1", "not mended: 1",
        "finding-1 checked: 0", "finding-1 complete: 0", "green checked: 0", "green complete: 0",
    ]  # fmt: skip
    assert (story.workspace / "sum" / "sum.go").read_text() == (
        "package sum\n\nfunc Sum(a, b int) int {\n\treturn a + b\n}\n\nfunc Twice(a int) int { return Sum(a, a) }\n"
    )
    changed = subprocess.run(["git", "-C", str(story.workspace), "status", "--porcelain"], capture_output=True, text=True, check=True)
    assert changed.stdout == " M sum/sum.go\n", "exactly that landed"

    first, second = ([json.loads(line) for line in journal.read_text().splitlines()] for journal in story.journals())
    assert [one["verdict"] for events in (first, second) for one in of("panel.decided", events)] == ["block", "pass"]
    [blocked] = [one for one in of("judge.verdict", first) if one["verdict"] == "block"]
    assert (blocked["judge"], blocked["reason"]) == ("vet", "")
    assert [(row["file"], row["line"], row["shown"]) for row in blocked["findings"]] == [("sum/sum.go", 4, "reproduced")]
    assert of("plan.settled", first)[0]["done"] and of("plan.settled", second)[0]["done"]
    given = {step["id"]: step["checks"] for step in of("plan.created", second)[0]["steps"]}
    assert [(one["argv"], one["owner"]) for one in given["finding-1"]] == [(["go", "vet", "./..."], "judge")]
    assert of("panel.decided", second)[0]["change"] == of("plan.settled", second)[0]["workspace"], "what was judged is what is done"
    tried = [one for one in of("task.denied", first) if one["task"] == "root/1"]
    assert any(one["rule"] == "tool.delegate.disabled" for one in tried)
    assert of("landing.finished", first) == [] and of("landing.finished", second)[0]["landed"] == 1
    assert story.kept() == []
    assert story.verified()

    shown = story.verb("plan", "show", "last")
    assert (shown.returncode, "2 of 2 steps done" in shown.stdout, "(judge's)" in shown.stdout) == (0, True, True)
    told = story.verb("report", "last", "--json")
    reported = json.loads(told.stdout)
    assert [(row["step"], row["state"]) for row in reported["steps"]] == [("green", "done"), ("finding-1", "done")]
    assert sorted((row["judge"], row["verdict"]) for row in reported["reviews"]) == [("", "pass"), ("tests", "pass"), ("vet", "pass")]
    earlier = story.verb("report", story.journals()[0].stem)
    assert "said to be done and refused: 2 times" in earlier.stdout
    assert "high sum/sum.go:4 an assignment does nothing (reproduced)" in earlier.stdout


def of(kind: str, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["type"] == kind]
