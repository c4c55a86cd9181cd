"""The tree of a run's tasks: who may begin below whom, how a part of it ends, and who is told."""

from __future__ import annotations

import threading

import pytest

from broker.classify.risk import Risk
from broker.decide.envelope import Envelope
from broker.decide.profile import DelegationSettings, Profile, SandboxSettings, up_to
from broker.decide.trust import Trust
from broker.decide.verdict import Deny, Layer
from broker.task.tree import SHOWN, Node, Tree

DENIAL = Deny(
    what="curl x", effects=frozenset({Risk.NETWORK_EGRESS}), layer=Layer.PROFILE, rule="program.curl", reason="no", hint="do not"
)


def envelope(parent: Envelope | None = None, *, memory: int | None = None, **delegate: object) -> Envelope:
    profile = Profile(
        name="lead", max_risk=Risk.CODE_EXECUTION, effects=up_to(Risk.CODE_EXECUTION), sandbox=SandboxSettings(memory=memory),
        delegate=DelegationSettings(**delegate),  # type: ignore[arg-type]
    )  # fmt: skip
    return Envelope(profile=profile, trust=Trust.TRUSTED, parent=parent)


class Grown:
    """A tree with a running root, and what it said."""

    def __init__(self, **delegate: object) -> None:
        self.said: list[tuple[str, str]] = []
        self.stopped: list[tuple[str, str]] = []
        self.tree = Tree(lambda what, node: self.said.append((what, node.path)))
        self.root = Node(path="root", envelope=envelope(**delegate))
        self.tree.plant(self.root)
        self.runs(self.root)

    def runs(self, node: Node) -> Node:
        self.tree.running(node, lambda reason: self.stopped.append((node.path, reason)))
        return node

    def asks(self, parent: Node) -> Node | Deny:
        def make(path: str, above: Node) -> Node:
            return Node(path=path, envelope=envelope(above.envelope), parent=above)

        return self.tree.branch(parent, "lead", "delegate", make)

    def child(self, parent: Node | None = None, *, runs: bool = True) -> Node:
        made = self.asks(parent or self.root)
        assert isinstance(made, Node)
        return self.runs(made) if runs else made

    def end(self, node: Node, status: str = "finished") -> None:
        self.tree.ending(node)
        self.tree.landing(node)
        self.tree.ended(node, status)


def test_a_child_has_the_path_of_its_parent_and_a_number_that_is_never_used_again() -> None:
    grown = Grown()
    first = grown.child()
    grown.end(first)

    assert [first.path, grown.child().path, grown.child(grown.child()).path] == ["root/1", "root/2", "root/3/1"]


@pytest.mark.parametrize("step", ["stopped", "ending", "landing", "ended"])
def test_none_begins_below_a_task_that_comes_to_its_end(step: str) -> None:
    grown = Grown()
    task = grown.child()
    match step:
        case "stopped":
            grown.tree.stop(task.path, "killed")
        case "ending":
            grown.tree.ending(task)
        case "landing":
            grown.tree.landing(task)
        case "ended":
            grown.end(task)

    answer = grown.asks(task)

    assert isinstance(answer, Deny)
    assert answer.rule == "delegate.parent"
    assert task.children == []


def test_a_stop_reaches_all_below_and_nobody_else() -> None:
    grown = Grown()
    one, other = grown.child(), grown.child()
    below = grown.child(grown.child(one))

    assert grown.tree.stop(one.path, "killed") == ["root/1", "root/1/1", "root/1/1/1"]

    assert grown.stopped == [("root/1", "killed"), ("root/1/1", "killed"), ("root/1/1/1", "killed")]
    assert (below.stopped, other.stopped, grown.root.stopped) == ("killed", "", "")


def test_a_task_that_is_stopped_before_it_runs_is_told_when_it_does() -> None:
    grown = Grown()
    task = grown.child(runs=False)

    assert grown.tree.stop(task.path, "killed") == ["root/1"]
    assert grown.stopped == []
    grown.runs(task)

    assert grown.stopped == [("root/1", "killed")]


def test_a_task_is_stopped_once_and_the_first_reason_stays() -> None:
    grown = Grown()
    task = grown.child()
    grown.tree.stop(task.path, "budget")
    grown.tree.stop(task.path, "killed")

    assert grown.stopped == [("root/1", "budget")]
    assert task.stopped == "budget"


@pytest.mark.parametrize("step", ["ending", "landing", "ended"])
def test_what_comes_to_its_end_by_itself_is_past_being_stopped(step: str) -> None:
    grown = Grown()
    task = grown.child()
    grown.tree.ending(task)
    if step != "ending":
        grown.tree.landing(task)
    if step == "ended":
        grown.tree.ended(task, "finished")

    assert grown.tree.stop(task.path, "killed") == []
    assert task.stopped == ""
    assert grown.stopped == []


@pytest.mark.parametrize("path", ["", "root/9", "root/1/1", "root/", "/root", "roo", "root/1 ", "../root"])
def test_an_unknown_task_is_none(path: str) -> None:
    grown = Grown()
    grown.child()

    assert grown.tree.stop(path, "killed") == []
    assert grown.stopped == []


def test_stopping_what_is_below_waits_for_it_and_names_what_does_not_end() -> None:
    grown = Grown()
    one, other = grown.child(), grown.child()
    ender = threading.Thread(target=grown.end, args=(one,))
    ender.start()

    assert grown.tree.stop_below(grown.root, "parent", seconds=0.2) == [other.path]
    ender.join()
    grown.end(other)
    assert grown.tree.stop_below(grown.root, "parent", seconds=0.0) == []


def test_breadth_and_number_hold_whoever_asks_at_the_same_time() -> None:
    grown = Grown(breadth=8, tasks=20)
    made: list[Node] = []

    def flood() -> None:
        for _ in range(50):
            answer = grown.asks(grown.root)
            if isinstance(answer, Node):
                made.append(answer)
                grown.end(answer)

    threads = [threading.Thread(target=flood) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(node.path for node in made) == sorted(f"root/{number}" for number in range(1, 21))


def test_who_listens_hears_of_each_step_in_order() -> None:
    grown = Grown()
    task = grown.child()
    grown.tree.denied(task, "exec", DENIAL)
    grown.tree.measured(task, 0.5, 5 << 20, 2)
    grown.tree.stop(task.path, "killed")
    grown.end(task, "killed")

    steps = ["begun", "running", "denied", "usage", "stopped", "ending", "landing", "ended"]
    assert [what for what, path in grown.said if path == task.path] == steps


def test_usage_is_told_only_when_people_could_see_a_difference() -> None:
    grown = Grown()
    for cpu, memory in ((0.101, 7 << 20), (0.1011, (7 << 20) + 4096), (0.1012, 8 << 20), (0.12, 8 << 20)):
        grown.tree.measured(grown.root, cpu, memory, 1)

    assert [what for what, _ in grown.said].count("usage") == 3


def test_a_task_that_ended_uses_nothing_more_but_what_it_used_stays() -> None:
    grown = Grown()
    task = grown.child()
    grown.tree.measured(task, 1.5, 9 << 20, 3)
    grown.end(task)

    row = task.as_dict()
    assert (row["cpu_seconds"], row["memory"], row["processes"]) == (1.5, 0, 0)


@pytest.mark.parametrize(
    ("delegate", "used", "over"),
    [
        ({"cpu_time": 1.0}, (0.6, 0), "root cpu_time"),
        ({"memory": 10 << 20}, (0.0, 6 << 20), "root memory"),
        ({"memory": 20 << 20}, (0.0, 6 << 20), ""),
        ({}, (1e6, 1 << 50), ""),
    ],
)
def test_a_budget_that_two_exceed_together_ends_both(delegate: dict[str, object], used: tuple[float, int], over: str) -> None:
    grown = Grown(**delegate)
    one, other = grown.child(), grown.child()
    assert grown.tree.measured(one, *used, 1) == ""

    assert grown.tree.measured(other, *used, 1) == over
    assert (one.stopped, other.stopped, grown.root.stopped) == (("budget", "budget", "") if over else ("", "", ""))


def test_the_picture_has_parents_first_and_what_each_may_do() -> None:
    grown = Grown()
    task = grown.child()
    grown.child(task)
    grown.child()
    grown.tree.denied(task, "exec", DENIAL)

    rows = grown.tree.picture()

    assert [row["task"] for row in rows] == ["root", "root/1", "root/1/1", "root/2"]
    assert rows[1]["parent"] == "root"
    assert (rows[1]["ceiling"], rows[1]["trust"], rows[1]["denied"]) == ("code_execution", "trusted", 1)
    assert rows[1]["last_denial"]["what"] == "curl x"
    assert rows[0]["last_denial"] is None


def test_a_picture_stays_small_and_shows_no_secret() -> None:
    long = Node(path="root", envelope=envelope(), argv=("agent", *(["word" * 100] * 300)))
    secret = Node(path="root", envelope=envelope(), argv=("curl", "-H", "Authorization: Bearer sk-ant-api03-0123456789abcdefghijklmnop"))

    assert sum(map(len, long.as_dict()["argv"])) <= SHOWN
    assert long.as_dict()["argv"][-1] == "…"
    assert "0123456789" not in str(secret.as_dict()["argv"])


def test_judges_are_ended_together_those_to_come_too_and_nobody_else() -> None:
    grown = Grown()
    child = grown.child()

    def judge() -> Node:
        return grown.tree.beside(lambda path: Node(path=path, envelope=envelope()))

    runs, waits = grown.runs(judge()), judge()
    grown.tree.stop_beside("interrupted")
    later = judge()

    assert [node.stopped for node in (runs, waits, later, child, grown.root)] == ["interrupted"] * 3 + ["", ""]
    assert grown.stopped == [("panel/1", "interrupted")]
    assert grown.tree.beside_stopped == "interrupted"


def test_who_ends_the_run_while_it_is_judged_ends_the_judges_to_come_too() -> None:
    grown = Grown()
    grown.tree.landing(grown.root)
    grown.runs(grown.tree.beside(lambda path: Node(path=path, envelope=envelope())))

    grown.tree.stop("root", "killed")

    assert grown.tree.beside(lambda path: Node(path=path, envelope=envelope())).stopped == "killed"
    assert grown.root.stopped == "", "a landing is never cut short"
