"""The story that delegation is for, on Docker with a real Go tool chain and the shipped profiles.

A builder changes a program, and delegates its review to an adversary. That one reads the diff, runs exactly
`go vet ./...`, finds the fault, and can neither write, patch, run anything else nor delegate. What it tried is in its
result, and in the events of every task above it.
"""

from __future__ import annotations

import json
import subprocess
import tomllib
from typing import Any

import pytest

from conformance.driver import PROJECT, Broker

pytestmark = pytest.mark.needs_docker(image="go")

# The operator's agents: what a model would do is written down here, so that it is the same each time.
BUILDER = """#!/bin/sh
sed -i 's/return a + b/return a + b + 0/' sum/sum.go
cat > sum/show.go <<'END'
package sum

import "fmt"

func Show(a int) { fmt.Printf("%s", a) }
END
git diff > changes.diff
go build ./... || exit 1
broker profiles --json > profiles.json
broker delegate --profile adversary --trust trusted --label review --goal "find faults in changes.diff" -- \\
    AGENTS/adversary > verdict.json
echo $? > code
"""
ADVERSARY = """#!/bin/sh
cat changes.diff
echo "task: $(cat $BROKER_TASK)"
go vet ./... 2>&1
echo "vet: $?"
go test ./...
echo "test: $?"
go vet -vettool=/tmp/mine ./...
echo "vettool: $?"
echo broken > sum/sum.go
echo "write: $?"
git apply -R changes.diff
echo "patch: $?"
rm -f sum/sum.go
echo "delete: $?"
broker delegate --profile builder -- true
echo "delegate: $?"
broker can-i -- go vet ./... > /dev/null; echo "can vet: $?"
broker can-i -- go test ./... > /dev/null; echo "can test: $?"
"""


def shipped(name: str, **changed: Any) -> dict[str, Any]:
    """A shipped profile, for the image with Go, and with what an operator adds for the agents."""
    profile = dict(tomllib.loads((PROJECT / "profiles" / f"{name}.toml").read_text())["profiles"][name])
    sandbox = {**profile.get("sandbox", {}), **changed.pop("sandbox")}
    return {**profile, **changed, "sandbox": sandbox}


@pytest.fixture
def story(make_broker: Any) -> Broker:
    """A Go project under git, the shipped profiles, and two agents where no task can write."""
    broker: Broker = make_broker("docker")
    agents = broker.folder / "agents"
    agents.mkdir()
    agents.chmod(0o755)
    for name, text in (("builder", BUILDER), ("adversary", ADVERSARY)):
        (agents / name).write_text(text.replace("AGENTS", str(agents)))
        (agents / name).chmod(0o755)
    where = {"image": "go", "read_only": [str(agents)]}
    # `effects` is said so that nothing of the suite's own profile is left in these.
    broker.profile("builder", **shipped("builder", sandbox=where, effects={}, delegate={"agents": [str(agents / "adversary")]}))
    broker.profile("adversary", **shipped("adversary", sandbox=where, effects={}))
    broker.file("go.mod", "module example.com/sum\n\ngo 1.19\n")
    broker.file("sum/sum.go", "package sum\n\nfunc Sum(a, b int) int {\n\treturn a + b\n}\n")
    broker.file("sum/sum_test.go", 'package sum\n\nimport "testing"\n\nfunc TestSum(t *testing.T) {\n\tif Sum(1, 2) != 3 {\n\t\tt.Fail()\n\t}\n}\n')
    for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=A", "-c", "user.email=a@b", "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(broker.workspace), *words], check=True)
    return broker


def test_an_adversary_reads_the_diff_vets_it_and_can_do_nothing_else(story: Broker) -> None:
    done = story.run(str(story.folder / "agents" / "builder"), profile="builder")

    assert done.code == 0, done.err
    verdict = json.loads((story.workspace / "verdict.json").read_text())
    said = verdict["stdout"]
    assert (story.workspace / "code").read_text() == "0\n"
    assert (verdict["status"], verdict["profile"], verdict["label"]) == ("finished", "adversary", "review")
    assert "+\treturn a + b + 0" in said, "it reads the diff"
    assert "find faults in changes.diff" in said, "it knows its task"
    assert "Printf format %s has arg a of wrong type int" in said, "exactly the listed analyser runs, and finds the fault"
    codes = dict(line.split(": ", 1) for line in said.splitlines() if line.split(": ")[0] in CODES)
    assert codes["vet"] in ("1", "2")
    for refused in ("test", "vettool", "write", "patch", "delete"):
        assert codes[refused] != "0", (refused, said, verdict["stderr"])
    assert codes["delegate"] == "77"
    assert (codes["can vet"], codes["can test"]) == ("0", "1")

    tried = {(row["tool"], row["rule"]) for row in verdict["denials"]}
    assert ("delegate", "tool.delegate.disabled") in tried
    whats = [row["what"] for row in verdict["denials"]]
    assert any("go test ./..." in what for what in whats)
    assert any("-vettool" in what for what in whats)
    assert all(row["reason"] and row["hint"] for row in verdict["denials"])

    above = [event for event in story.events() if event["type"] == "task.denied" and event["task"] == "root"]
    own = [event for event in story.events() if event["type"] == "task.denied" and event["task"] == "root/1"]
    assert sorted(event["what"] for event in above if event.get("of") == "root/1") == sorted(event["what"] for event in own)
    assert len(own) == len(verdict["denials"])
    assert done["denied_below"] == verdict["denied"]
    assert (story.workspace / "sum" / "sum.go").read_text().count("a + b + 0") == 1, "the builder's work is as it left it"


CODES = ("vet", "test", "vettool", "write", "patch", "delete", "delegate", "can vet", "can test")
