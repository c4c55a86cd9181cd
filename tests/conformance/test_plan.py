"""Plans, end to end on each engine: only what broker itself saw makes a step done, and changes land on that alone."""

from __future__ import annotations

import json
import subprocess
import textwrap
from typing import Any

import pytest

from broker.record.journal import read
from broker.task.plan import as_table, rebuilt
from conformance.driver import Broker, Done, Running

# What an agent inside has: the broker's small client.
PRELUDE = """
import json, os, subprocess, sys, time

def plan(*words, steps=None):
    given = json.dumps({"steps": steps}).encode() if steps is not None else b""
    done = subprocess.run(["broker", "plan", *words, "--json"], input=given, capture_output=True)
    try:
        return done.returncode, json.loads(done.stdout)
    except ValueError:
        raise SystemExit(f"no answer: {done!r}")

def state(step="a"):
    return next(one["state"] for one in plan("show")[1]["steps"] if one["id"] == step)

def checks(step="a"):
    return [one["state"] for one in next(row for row in plan("show")[1]["steps"] if row["id"] == step)["checks"]]

def say(value):
    print(json.dumps(value), flush=True)
"""
IS_NEW = {"argv": ["grep", "-q", "right", "new"]}
ONE_STEP = [{"id": "a", "title": "there is something new", "checks": [IS_NEW]}]
DO_IT = 'open("new", "w").write("right\\n"); plan("begin", "a"); plan("check", "a"); say(plan("complete", "a")[0])\n'


def work(broker: Broker, code: str, *options: str, plan: list[dict[str, Any]] | None = None, **how: Any) -> tuple[list[Any], Done]:
    """Run Python code as the operator's task, with the operator's plan if there is one, and return what it said."""
    given = ["--plan", written(broker, plan)] if plan is not None else []
    done = broker.run("python3", "-c", PRELUDE + textwrap.dedent(code), options=[*options, *given], **how)
    assert b"Traceback" not in done.err and b"no answer" not in done.err, done.err
    return [json.loads(line) for line in done.out.splitlines()], done


def written(broker: Broker, steps: list[dict[str, Any]]) -> str:
    path = broker.folder / "plan.json"
    path.write_text(json.dumps({"steps": steps}))
    return str(path)


def kinds(broker: Broker) -> list[str]:
    return [one["type"] for one in broker.events() if one["type"].startswith("plan.")]


def landed(broker: Broker) -> list[str]:
    return sorted(path.name for path in broker.workspace.iterdir())


def test_changes_land_when_every_step_is_done_on_what_lands(broker: Broker) -> None:
    said, done = work(broker, DO_IT, "--land", "on-plan", plan=ONE_STEP)

    assert (said, done.code, landed(broker)) == ([0], 0, ["new"])
    assert kinds(broker) == ["plan.created", "plan.begun", "plan.observed", "plan.completed", "plan.settled"]
    observed = next(one for one in broker.events() if one["type"] == "plan.observed")
    settled = next(one for one in broker.events() if one["type"] == "plan.settled")
    assert observed["before"] == observed["workspace"] == settled["workspace"]
    assert (settled["done"], settled["missing"]) == (True, [])


def test_the_same_when_root_supervises_somebody_elses_workspace(for_somebody: Broker) -> None:
    said, done = work(for_somebody, DO_IT, "--land", "on-plan", plan=ONE_STEP)

    assert (said, done.code, landed(for_somebody)) == ([0], 0, ["new"])


def test_to_say_that_it_is_done_is_refused_with_what_is_missing_and_recorded(broker: Broker) -> None:
    said, done = work(broker, """
        open("new", "w").write("wrong")
        plan("begin", "a")
        subprocess.run(["grep", "-q", "wrong", "new"], check=True)
        say(plan("complete", "a"))
        say(plan("check", "a")[0])
        say(plan("complete", "a"))
    """, "--land", "on-plan", plan=ONE_STEP)  # fmt: skip

    code, answer = said[0]
    assert (code, answer["code"], answer["missing"]) == (1, "incomplete", ["a.1 `grep -q right new`: it was not seen succeeding"])
    assert said[1] == 1
    assert said[2][1]["missing"] == ["a.1 `grep -q right new`: it ended with 1"]
    assert (done.code, landed(broker)) == (76, [])
    assert done["reason"] == "the plan is not done: step a is active: a.1 `grep -q right new`: it ended with 1"
    assert done["changes"]["counts"]["landed"] == 0
    assert kinds(broker).count("plan.refused") == 2


def test_an_agents_own_run_of_the_command_is_no_evidence(broker: Broker) -> None:
    said, _ = work(broker, """
        open("new", "w").write("right")
        plan("begin", "a")
        subprocess.run(["grep", "-q", "right", "new"], check=True)
        say(plan("complete", "a")[0])
    """, plan=ONE_STEP)  # fmt: skip

    assert said == [1]


def test_a_change_after_the_evidence_makes_it_stale_and_nothing_lands(broker: Broker) -> None:
    said, done = work(broker, DO_IT + 'open("later", "w").write("x"); say(state())', "--land", "on-plan", plan=ONE_STEP)

    assert (said, done.code, landed(broker)) == ([0, "stale"], 76, [])
    assert done["reason"].startswith("the plan is not done: step a is stale: ")
    assert broker.verb("land", "last", at=broker.workspace).returncode == 0
    assert landed(broker) == ["later", "new"]


def test_a_change_that_nobody_looked_at_keeps_everything_all_the_same(broker: Broker) -> None:
    _, done = work(broker, DO_IT + 'os.chmod("new", 0o755)', "--land", "on-plan", plan=ONE_STEP)

    assert (done.code, landed(broker)) == (76, [])
    assert kinds(broker)[-2:] == ["plan.stale", "plan.settled"]


def test_what_is_written_through_a_mapping_after_the_evidence_is_seen_at_the_end(broker: Broker) -> None:
    said, done = work(broker, """
        import mmap
        open("new", "w").write("right\\n")
        with open("new", "r+b") as file:
            shared = mmap.mmap(file.fileno(), 0)
        shared[0:5] = b"right"
        plan("begin", "a"); plan("check", "a"); say(plan("complete", "a")[0])
        shared[0:5] = b"wrong"
    """, "--land", "on-plan", plan=ONE_STEP)  # fmt: skip

    assert said == [0]
    assert (done.code, landed(broker)) == (76, [])


def test_a_success_while_the_workspace_changed_does_not_count_and_a_second_one_does(broker: Broker) -> None:
    writes = [{"id": "a", "title": "it writes", "checks": [{"shell": "echo cached > cache"}]}]
    said, done = work(broker, """
        plan("begin", "a")
        say([plan("check", "a")[0], checks(), plan("check", "a")[0], checks(), plan("complete", "a")[0]])
    """, "--land", "on-plan", plan=writes)  # fmt: skip

    assert said == [[1, ["moved"], 0, ["passed"], 0]]
    assert done.code == 0
    assert [one["rewritten"] for one in broker.events() if one["type"] == "plan.observed"] == [1, 1]


def test_a_denied_check_blocks_its_step_whether_it_or_what_it_starts_was_refused(broker: Broker) -> None:
    broker.profile("tight", max_risk="local_write", effects={"add": ["code_execution"]})
    said, done = work(broker, """
        open("new", "w").write("right")
        plan("begin", "a"); plan("begin", "b")
        say([plan("check", "a")[0], state("a"), plan("check", "b")[0], state("b")])
        say(plan("complete", "a")[1]["missing"])
    """, "--land", "on-plan", profile="tight", plan=[
        {"id": "a", "title": "fetch", "checks": [{"argv": ["curl", "https://example.com"]}]},
        {"id": "b", "title": "fetch", "checks": [{"shell": "grep -q right new && curl https://example.com"}]},
    ])  # fmt: skip

    assert said[0] == [1, "blocked", 1, "blocked"]
    assert said[1][0].startswith("a.1 `curl https://example.com`: it was denied: ")
    assert (done.code, landed(broker)) == (76, [])
    assert kinds(broker).count("plan.denied") == 2


def test_what_the_profile_withholds_keeps_all_the_rest_because_the_evidence_was_seen_with_it(broker: Broker) -> None:
    broker.profile("editor", max_risk="code_execution", effects={}, sandbox={"workspace": "overlay"})
    _, done = work(broker, 'os.symlink("/etc", "out")\n' + DO_IT, "--land", "on-plan", plan=ONE_STEP)

    assert (done.code, landed(broker)) == (76, [])
    assert done["reason"] == "the plan was done with changes of which 1 cannot land, so it says nothing about the rest"


def test_the_worker_cannot_revise_the_operators_checks_but_adds_its_own(broker: Broker) -> None:
    said, _ = work(broker, """
        say(plan("create", steps=[{"id": "a", "title": "easy", "checks": [{"argv": ["true"]}]}])[1]["message"])
        say(plan("revise", steps=[{"id": "a", "title": "easy", "checks": [{"argv": ["true"]}]}])[0])
        say(plan("revise", steps=[{"id": "b", "title": "b", "checks": [{"argv": ["true"], "owner": "operator"}]}])[1]["message"])
        say([(one["id"], one["title"], [(check["what"], check["owner"]) for check in one["checks"]])
             for one in plan("show")[1]["steps"]])
    """, plan=ONE_STEP)  # fmt: skip

    assert said == [
        "there is a plan already. Revise it",
        0,
        "steps[1].checks[1].owner: only the operator says what is the operator's. Leave it out",
        [["a", "there is something new", [["grep -q right new", "operator"], ["true", "worker"]]]],
    ]


def test_nothing_inside_waives_a_check(broker: Broker) -> None:
    done = broker.run("broker", "plan", "waive", "a.1")

    assert done.code == 64
    assert b"invalid choice" in done.err


def test_a_check_that_takes_too_long_or_does_not_exist_is_seen_failing(broker: Broker) -> None:
    said, _ = work(broker, """
        plan("create", steps=[{"id": "a", "title": "a", "checks": [{"argv": ["sleep", "600"], "seconds": 0.2}, {"argv": ["no-such-thing"]}]}])
        plan("begin", "a")
        say([(one.get("exit_code"), one["state"]) for one in plan("check", "a")[1]["checks"]])
    """)  # fmt: skip

    assert said == [[[124, "failed"], [127, "failed"]]]


def test_what_a_check_leaves_running_is_ended_with_it(broker: Broker) -> None:
    left = "setsid flock /tmp/held sleep 4321 < /dev/null > /dev/null 2>&1 & while flock -n /tmp/held true; do :; done"
    said, _ = work(broker, """
        plan("begin", "a")
        say(plan("check", "a")[0])
        say(subprocess.run(["flock", "-w", "30", "/tmp/held", "true"]).returncode)
    """, plan=[{"id": "a", "title": "a", "checks": [{"shell": left}]}])  # fmt: skip

    assert said == [0, 0]


def test_a_sub_tasks_command_is_a_check_like_any_other(broker: Broker) -> None:
    broker.profile("reader", sandbox={"workspace": "read-only"}, max_risk="safe", effects={})
    check = {"argv": ["broker", "delegate", "--profile", "reader", "--", "grep", "-q", "right", "new"]}
    said, _ = work(broker, """
        plan("begin", "a")
        open("new", "w").write("wrong"); say([plan("check", "a")[0], checks()])
        open("new", "w").write("right"); say([plan("check", "a")[0], checks()])
    """, plan=[{"id": "a", "title": "reviewed", "checks": [check]}])  # fmt: skip

    assert said == [[1, ["failed"]], [0, ["passed"]]]


def test_a_delegated_check_has_a_home_and_temporary_files_of_its_own_that_the_worker_has_not_prepared(broker: Broker) -> None:
    reads = ["grep", "-q", "right", "/tmp/answer"]
    delegated = ["broker", "delegate", "--profile", "any", "--trust", "trusted", "--", *reads]
    said, _ = work(broker, """
        open("/tmp/answer", "w").write("right")
        plan("begin", "a"); plan("check", "a")
        say(checks())
    """, plan=[{"id": "a", "title": "a", "checks": [{"argv": reads}, {"argv": delegated}]}])  # fmt: skip

    assert said == [["passed", "failed"]]  # the first is a limit that docs/plans.md states, with the second as the way on


def test_a_link_out_that_helps_a_check_and_is_gone_at_the_end_leaves_stale_evidence(broker: Broker) -> None:
    said, done = work(broker, """
        open("/tmp/fake", "w").write("right"); os.symlink("/tmp/fake", "new"); open("other", "w").write("x")
        plan("begin", "a"); plan("check", "a"); say(plan("complete", "a")[0])
        os.unlink("new")
    """, "--land", "on-plan", plan=ONE_STEP)  # fmt: skip

    assert (said, done.code, landed(broker)) == ([0], 76, [])


def test_a_sub_task_has_a_plan_of_its_own_and_its_evidence_ends_with_its_parents_change(broker: Broker) -> None:
    child = """
plan("create", steps=[{"id": "a", "title": "a", "checks": [{"argv": ["true"]}]}])
plan("begin", "a"); plan("check", "a"); say(state())
sys.stdin.readline(); say(state())
"""
    said, _ = work(broker, f"""
        words = ["--profile", "any", "--trust", "trusted", "--stdin", "--stream", "--", "python3", "-c", {PRELUDE + child!r}]
        child = subprocess.Popen(["broker", "delegate", *words],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        first = child.stderr.readline()
        open("parents", "w").write("x")
        out, err = child.communicate(b"\\n")
        say([json.loads(first), json.loads(err)])
        say(plan("show")[1]["message"])
    """)  # fmt: skip

    assert said == [["active", "stale"], "there is no plan. Create one first"]
    assert set(rebuilt(broker.events())) == {"root/1"}


def test_without_a_plan_nothing_lands_on_it(broker: Broker) -> None:
    done = broker.run("touch", "new", options=["--land", "on-plan"])

    assert (done.code, done["reason"], landed(broker)) == (76, "the plan is not done: there is no plan", [])


def test_a_command_that_fails_keeps_its_own_exit_code(broker: Broker) -> None:
    done = broker.run("bash", "-c", "touch new; exit 3", options=["--land", "on-plan"])

    assert (done.code, landed(broker)) == (3, [])


def test_a_workspace_that_is_changed_directly_has_no_plan(broker: Broker) -> None:
    broker.profile("direct", sandbox={"workspace": "direct"})
    done = broker.run("true", options=["--plan", written(broker, ONE_STEP)], profile="direct")
    inside = broker.run("bash", "-c", """echo '{"steps":[{"title":"a","checks":[{"argv":["true"]}]}]}' | broker plan create""", profile="direct")

    assert (done.code, inside.code) == (64, 64)
    assert b"a plan is bound to a copy-on-write workspace" in done.err


@pytest.mark.parametrize("content", ["", "{}", '{"steps": [{"title": "x", "checks": [{"argv": "go test"}]}]}'])
def test_a_plan_file_that_cannot_be_meant_is_refused_before_anything_runs(broker: Broker, content: str) -> None:
    path = broker.folder / "plan.json"
    path.write_text(content)
    done = broker.run("true", options=["--plan", str(path)])

    assert (done.code, broker.journals()) == (64, [])
    assert b"docs/plans.md" in done.err


# From the host

WAITS = """
open("new", "w").write("right\\n")
say("ready"); sys.stdin.readline()
say(state()); say(plan("complete", "a")[0])
"""


def waiting(running: Running) -> None:
    assert running.process.stdout is not None
    assert running.process.stdout.readline() == b'"ready"\n'


def test_an_operator_waives_a_check_while_it_runs_by_name_and_with_a_reason(broker: Broker) -> None:
    options = ["--land", "on-plan", "--plan", written(broker, ONE_STEP)]
    code = PRELUDE + 'plan("begin", "a")\n' + WAITS
    with broker.started("python3", "-c", code, options=options, stdin=subprocess.PIPE) as running:
        waiting(running)
        run = broker.journals()[-1].stem
        without = broker.verb("plan", "waive", run, "a.1")
        unknown = broker.verb("plan", "waive", run, "a.2", "--because", "why not")
        waived = broker.verb("plan", "waive", run, "a.1", "--because", "it is Friday", "--json")
        assert running.process.stdin is not None
        running.process.stdin.write(b"\n")
        done = running.finish()

    assert (without.returncode, unknown.returncode, waived.returncode) == (64, 1, 0)
    assert "step a has no check 2: it has 1" in unknown.stderr
    assert json.loads(waived.stdout)["plans"]["root"]["steps"][0]["checks"][0]["waived"]["because"] == "it is Friday"
    assert (done.out.split(), done.code, landed(broker)) == ([b'"active"', b"0"], 0, ["new"])
    event = next(one for one in broker.events() if one["type"] == "plan.waived")
    assert (event["step"], event["check"], event["because"]) == ("a", 1, "it is Friday")
    assert "uid " in event["who"]


def test_the_plan_outlives_the_agent_and_the_broker(broker: Broker) -> None:
    options = ["--plan", written(broker, ONE_STEP)]
    code = PRELUDE + 'open("new", "w").write("right"); plan("begin", "a"); plan("check", "a"); say(plan("complete", "a")[0])\n' + WAITS
    with broker.started("python3", "-c", code, options=options, stdin=subprocess.PIPE) as running:
        assert running.process.stdout is not None
        assert running.process.stdout.readline() == b"0\n"
        waiting(running)
        running.process.kill()
        running.process.wait()
    shown = broker.verb("plan", "show", "last")
    as_json = json.loads(broker.verb("plan", "show", "last", "--json").stdout)

    assert shown.returncode == 0
    assert "1 of 1 steps done" in shown.stdout
    assert as_json["plans"]["root"]["steps"][0]["checks"][0]["evidence"]["exit_code"] == 0


def test_what_is_rebuilt_from_the_journal_is_what_the_task_was_shown(broker: Broker) -> None:
    said, _ = work(broker, """
        open("new", "w").write("wrong"); plan("begin", "a"); plan("check", "a")
        open("new", "w").write("right"); plan("check", "a"); plan("complete", "a")
        plan("revise", steps=[{"id": "b", "title": "b", "checks": [{"shell": "true", "cwd": "."}]}])
        plan("begin", "b"); plan("check", "b"); open("later", "w").write("x")
        say(plan("show")[1])
    """, plan=ONE_STEP)  # fmt: skip
    [run] = broker.journals()

    assert said == [json.loads(json.dumps(as_table(rebuilt(read(run))["root"])))]


def test_what_a_worker_calls_a_step_does_nothing_to_the_operators_terminal(broker: Broker) -> None:
    work(broker, """plan("create", steps=[{"id": "a", "title": "\\x1b[2J\\nroot", "checks": [{"argv": ["\\x1b]0;x\\x07"]}]}])""")
    shown = broker.verb("plan")

    assert (shown.returncode, "\x1b" in shown.stdout, "\x07" in shown.stdout) == (0, False, False)
    assert len(shown.stdout.splitlines()) == 3


def test_a_run_without_a_plan_says_so(broker: Broker) -> None:
    broker.run("true")
    shown = broker.verb("plan", "show", "last")

    assert (shown.returncode, shown.stdout) == (1, "")
    assert "has no plan" in shown.stderr


