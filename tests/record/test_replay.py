"""Replay: what this version recorded it judges the same, and what another profile would decide is told apart by kind."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.classify import classify
from broker.classify.context import Context
from broker.classify.risk import Risk
from broker.decide.envelope import Envelope
from broker.decide.gate import decide_given
from broker.decide.given import Given
from broker.decide.narrowing import Wish, child_of
from broker.decide.profile import AllowEntry, DelegationSettings, Environment, Profile, SandboxSettings, up_to
from broker.decide.trust import Trust
from broker.enforce import wire
from broker.profiles.load import list_profiles
from broker.record import event
from broker.record.journal import SEGMENT, Journal, read
from broker.record.recorded import profile_data, profile_of, wish_data, wish_of
from broker.record.replay import Judged, Policy, Replay, as_recorded
from broker.request.operation import Exec, FileAction, FileChange, FileRead, Operation, ShellText
from broker.task.task import Task

CASES = Path(__file__).parents[1] / "cases"
CONTEXT = Context(cwd="/w", home="/home/agent", workspace="/w", writable=("/w", "/home/agent", "/tmp"))


def profile(name: str = "team", ceiling: Risk = Risk.LOCAL_WRITE, *entries: str, **more: Any) -> Profile:
    listed = tuple(AllowEntry(argv=tuple(entry.split())) for entry in entries)
    return Profile(name=name, max_risk=ceiling, effects=up_to(ceiling), allowlist=listed, **more)


class Recording:
    """A journal that real tasks write, without a sandbox below them."""

    def __init__(self, place: Path, segment: int = SEGMENT) -> None:
        self._place = place
        self.journal = Journal.create(place / "state", segment=segment)
        self.journal.append(event.RUN_STARTED, command=["agent"])

    def task(self, envelope: Envelope, path: str = "root", lands: tuple[str, ...] = (), context: Context = CONTEXT) -> Task:
        own = envelope.profile
        self.journal.append(
            event.TASK_CREATED, task=path, profile=own.name, digest="0" * 64, trust=envelope.effective_trust.label,
            max_risk=own.max_risk, effects=envelope.effects, context=context, envelope=profile_data(own),
        )  # fmt: skip
        task = Task(path=path, envelope=envelope, context=context, journal=self.journal, run_dir=str(self._place))
        task.lands = lands
        return task

    def delegate(self, parent: Envelope, selected: Profile, wish: Wish, path: str) -> Envelope:
        child = child_of(parent, selected, wish)
        self.journal.append(
            event.DELEGATION_DECIDED, task=path.rpartition("/")[0], verdict="allow", layer="profile", rule="delegate.child",
            operation={"kind": "delegation", "profile": selected.name, "trust": wish.trust.label, "argv": ["x"]}, child=path,
            effects=event.labels(child.effects), selected=profile_data(selected), wish=wish_data(wish),
        )  # fmt: skip
        return child

    def replayed(self, policy: Policy | None = None) -> list[Judged]:
        replay = Replay(policy)
        found = list(replay.events(read(self.journal.path)))
        assert not replay.unjudged
        return found

    def differing(self, policy: Policy | None = None) -> list[tuple[str, str]]:
        return [(one.kind, one.what) for one in self.replayed(policy) if one.kind]


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[Recording]:
    made = Recording(tmp_path)
    yield made
    made.journal.close()


def start(argv: tuple[str, ...], **more: Any) -> Exec:
    path = f"/usr/bin/{argv[0]}" if "/" not in argv[0] else argv[0]
    return Exec(argv=argv, path=path, program=path, cwd="/w", **more)


def asked(task: Task, *argv: str, scope: int = 0, path: str = "") -> wire.Answer:
    """What the guard is answered to a program start."""
    where = path or f"/usr/bin/{argv[0]}"
    return task.exec_asked(
        wire.ExecAsked(request=1, pid=7, scope=scope, argv=argv, path=where, program=where, cwd="/w", env=(), shebang="", spawn=0, dev=0, ino=0)
    )


def texts() -> list[str]:
    return [case["command"] for file in sorted(CASES.glob("*.toml")) for case in tomllib.loads(file.read_text())["case"] if "command" in case]


def test_every_command_of_our_cases_is_judged_the_same_under_every_shipped_profile(recording: Recording) -> None:
    shipped = [one for one in list_profiles() if isinstance(one, Profile)]
    profiles = [*shipped, profile("reach", Risk.NETWORK_EGRESS, "make test", denylist=(("git", "push"),), disabled_tools=frozenset({"shell"}))]
    for number, text in enumerate(texts()):
        if "\0" in text:
            continue
        own = profiles[number % len(profiles)]
        task = recording.task(Envelope(profile=own, trust=Trust(number % 2)), f"root/{number}")
        if number % 3:
            task.judge(start(("bash", "-c", text)), at_gate=True)
        else:
            task.judge(ShellText(text=text))

    found = recording.replayed()

    assert len(found) > 1_500
    assert [one for one in found if one.kind] == []


names = st.sampled_from(["curl x", "make test", "touch a", "npm ci", "rm -rf /", "git push", "cat a", "nosuchprogram", "sh -c 'curl x; ls'",
                         "find . -exec rm {} +", "python3 -c 1", "git config core.pager x"])  # fmt: skip
classes = st.sampled_from([risk for risk in Risk if risk not in (Risk.UNKNOWN, Risk.BLOCKED)])
entries = st.builds(
    AllowEntry, argv=st.sampled_from([("make", "test"), ("npm", "ci"), ("nosuchprogram",)]), cwd=st.sampled_from([None, "sub"]),
    sha256=st.sampled_from([None, "ab" * 32]), effects=st.frozensets(classes, max_size=2),
)  # fmt: skip
profiles = st.builds(
    lambda ceiling, listed, denied, tools, lands, mode, depth: Profile(
        name="p", max_risk=ceiling, effects=up_to(ceiling), allowlist=tuple(listed), denylist=tuple(denied), disabled_tools=tools,
        lands=lands, sandbox=SandboxSettings(workspace=mode), env=Environment(set=(("PATH", "/opt/bin"),)),
        delegate=DelegationSettings(depth=depth, agents=("/opt/agent",)),
    ),
    classes, st.lists(entries, max_size=3), st.lists(st.sampled_from([("git", "push"), ("rm",)]), max_size=2),
    st.frozensets(st.sampled_from(["shell", "delegate"]), max_size=2), st.frozensets(st.just("path.persistence:.git/hooks/")),
    st.sampled_from(["overlay", "direct", "read-only"]), st.integers(0, 3),
)  # fmt: skip
changes = st.builds(
    FileChange, action=st.sampled_from(list(FileAction)), path=st.sampled_from(["/w/a", "/w/package.json", "/w/.git/hooks/x", "/etc/x", "/w"]),
    other=st.sampled_from(["", "/w/b", "/w/.git/config"]),
)  # fmt: skip
operations = st.one_of(
    changes, st.builds(FileRead, path=st.sampled_from(["/w/a", "/home/agent/.ssh/id_rsa"])), st.builds(lambda text: ShellText(text=text), names),
    st.builds(lambda text: start(tuple(text.split()), env=(("PATH", "/opt/bin"),)), names),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    levels=st.lists(st.tuples(profiles, st.sampled_from(list(Trust))), min_size=1, max_size=3),
    asked=st.lists(st.tuples(operations, st.integers(0, 3), st.booleans()), max_size=12),
)
def test_whatever_was_decided_in_any_tree_and_grant_is_judged_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    levels: list[tuple[Profile, Trust]], asked: list[tuple[Operation, int, bool]],
) -> None:  # fmt: skip
    recording = Recording(tmp_path_factory.mktemp("replay"))
    own, trust = levels[0]
    envelope, path = Envelope(profile=own, trust=trust), "root"
    tasks = [recording.task(envelope, lands=("/w",))]
    for selected, wanted in levels[1:]:
        path += "/1"
        envelope = recording.delegate(envelope, replace(selected, delegate=replace(selected.delegate, depth=3)), Wish(trust=wanted), path)
        tasks.append(recording.task(envelope, path, lands=("/w",)))
    for task in tasks:
        for operation, scope, at_gate in asked:
            _, verdict = task.judge(operation, scope=task._known(scope), at_gate=at_gate)
            if (grant := getattr(verdict, "grant", None)) is not None:
                task._scope_of(grant)
    recording.journal.close()

    # A delegation that the profiles refuse is none that was made: this test makes it all the same.
    differing = [one for one in recording.replayed() if one.kind and one.kind != "moot" and "delegate" not in one.what]
    assert differing == []


@given(profiles)
def test_a_recorded_profile_reads_back_as_it_was_written(own: Profile) -> None:
    data = json.loads(json.dumps(event.plain(profile_data(own))))
    assert profile_data(profile_of(data)) == profile_data(own)
    assert as_recorded(own).allowlist == own.allowlist


@given(st.builds(Wish, trust=st.sampled_from(list(Trust)), max_risk=st.none() | classes, memory=st.none() | st.integers(1, 99)))
def test_a_recorded_wish_reads_back_as_it_was_written(wish: Wish) -> None:
    assert wish_of(json.loads(json.dumps(wish_data(wish)))) == wish


def test_another_profile_is_wider_narrower_or_gives_another_reason(recording: Recording) -> None:
    task = recording.task(Envelope(profile=profile("team", Risk.LOCAL_WRITE, "make test"), trust=Trust.TRUSTED))
    for text in ("touch a", "curl x", "python3 x.py", "cat a"):
        asked(task, *text.split())

    assert recording.differing(Policy(profile=profile(ceiling=Risk.SAFE))) == [("narrower", "touch a")]
    assert recording.differing(Policy(profile=profile("team", Risk.LOCAL_WRITE, "curl x"))) == [("wider", "curl x")]
    assert recording.differing(Policy(profile=profile(denylist=(("curl",),)))) == [("relabelled", "curl x")]
    assert [one.cause for one in recording.replayed(Policy(profile=profile(ceiling=Risk.SAFE))) if one.kind] == ["profile"]


def test_what_lived_in_a_grant_lives_in_the_one_that_would_be_opened(recording: Recording) -> None:
    task = recording.task(Envelope(profile=profile("team", Risk.LOCAL_WRITE, "make test"), trust=Trust.TRUSTED))
    scope = asked(task, "make", "test").scope
    asked(task, "python3", "t.py", scope=scope)
    asked(task, "curl", "x", scope=scope)

    reaching = AllowEntry(argv=("make", "test"), effects=frozenset({Risk.NETWORK_EGRESS}))
    wider = replace(profile(), allowlist=(reaching,))
    assert recording.differing(Policy(profile=wider)) == [("wider", "make test"), ("wider", "curl x")]
    # Without the entry the command would not have started, nor anything below it.
    assert recording.differing(Policy(profile=profile())) == [("narrower", "make test"), ("moot", "python3 t.py"), ("moot", "curl x")]


def test_an_entry_for_what_is_permitted_anyway_opens_a_grant_and_is_wider(recording: Recording) -> None:
    task = recording.task(Envelope(profile=profile(), trust=Trust.TRUSTED))
    asked(task, "touch", "a")

    assert recording.differing(Policy(profile=profile("team", Risk.LOCAL_WRITE, "touch a"))) == [("wider", "touch a")]


def test_a_sub_task_is_judged_below_what_its_ancestors_would_be(recording: Recording) -> None:
    lead = Envelope(profile=profile("lead", Risk.CODE_EXECUTION), trust=Trust.TRUSTED)
    recording.task(lead)
    child = recording.delegate(lead, profile("worker", Risk.CODE_EXECUTION), Wish(trust=Trust.TRUSTED), "root/1")
    asked(recording.task(child, "root/1"), "python3", "x.py")

    assert recording.differing() == []
    narrower = recording.differing(Policy(profile=profile("other", Risk.SAFE)))
    assert narrower == [("narrower", "delegate to profile worker: x"), ("narrower", "python3 x.py")]
    assert recording.differing(Policy(profile=profile("w", Risk.SAFE), name="worker"))[-1] == ("narrower", "python3 x.py")
    alone = profile("lead", Risk.CODE_EXECUTION, delegate=DelegationSettings(depth=0))
    assert recording.differing(Policy(profile=alone)) == [("narrower", "delegate to profile worker: x"), ("moot", "python3 x.py")]


def test_parents_above_a_run_take_away_and_never_give(recording: Recording) -> None:
    task = recording.task(Envelope(profile=profile(), trust=Trust.TRUSTED))
    asked(task, "touch", "a")
    asked(task, "curl", "x")

    assert recording.differing(Policy(parents=(profile("up", Risk.DESTRUCTIVE),))) == []
    assert [kind for kind, _ in recording.differing(Policy(parents=(profile("up", Risk.SAFE),)))] == ["narrower"]


def test_an_entry_with_a_secret_is_held_against_the_record_without_it(recording: Recording) -> None:
    argv = ("curl", "-H", "Authorization: Bearer abcdefghijklmnopqrstuvwxyz012345", "https://example.com")
    own = replace(profile(), allowlist=(AllowEntry(argv=argv),))
    task = recording.task(Envelope(profile=own, trust=Trust.TRUSTED))
    assert asked(task, *argv).allow

    assert b"abcdefghijklmnopqrstuvwxyz012345" not in recording.journal.path.read_bytes()
    assert recording.differing() == []
    assert recording.differing(Policy(profile=own)) == []


def test_a_connection_is_judged_by_the_hosts_and_by_who_may_reach_out(recording: Recording) -> None:
    hosts = ("example.com:443",)
    own = profile("net", Risk.LOCAL_WRITE, hosts=hosts)
    own = replace(own, allowlist=(AllowEntry(argv=("make", "get"), effects=frozenset({Risk.NETWORK_EGRESS})),))
    task = recording.task(Envelope(profile=own, trust=Trust.TRUSTED))

    def connected(host: str, verdict: str, rule: str) -> None:
        refused = {"refused": ["network_egress"], "approvable": False, "reason": "No."} if verdict == "deny" else {}
        recording.journal.append(
            event.CONNECTION_DECIDED, task="root", operation={"kind": "connection", "address": host, "port": 443, "protocol": "tcp"},
            effects=["network_egress"], verdict=verdict, rule=rule, layer="profile", **refused,
        )  # fmt: skip

    connected("example.com", "deny", "network.ceiling")
    asked(task, "make", "get")
    connected("example.com", "allow", "network.hosts")
    connected("other.example", "deny", "network.hosts")

    assert recording.differing() == []
    assert [kind for kind, _ in recording.differing(Policy(profile=replace(own, hosts=("other.example:443",))))] == ["relabelled", "narrower", "wider"]


def test_a_deletion_is_judged_by_what_was_there_then(recording: Recording, tmp_path: Path) -> None:
    there = tmp_path / "w"
    there.mkdir()
    hook = there / "gone"
    hook.write_text("x")
    context = replace(CONTEXT, cwd=str(there), workspace=str(there), writable=(str(there),))
    task = recording.task(Envelope(profile=profile(ceiling=Risk.SAFE), trust=Trust.TRUSTED), lands=(str(there),), context=context)
    task.judge(FileChange(action=FileAction.DELETE, path=str(hook)), at_gate=True)
    task.judge(FileChange(action=FileAction.DELETE, path=str(there / "mine")), at_gate=True)
    hook.unlink()

    found = recording.replayed()
    assert [one.was.verdict for one in found] == ["deny", "allow"]
    assert [one.kind for one in found] == ["", ""]


def test_the_client_inside_is_judged_by_the_file_that_it_touches(recording: Recording) -> None:
    task = recording.task(Envelope(profile=profile(), trust=Trust.TRUSTED))
    asked(task, "broker", "file", "write", "a", path="/run/broker/bin/broker")

    assert recording.differing() == []
    assert [kind for kind, _ in recording.differing(Policy(profile=profile(ceiling=Risk.SAFE)))] == ["narrower"]


def test_what_was_asked_of_somebody_is_asked_again(recording: Recording) -> None:
    task = recording.task(Envelope(profile=profile(), trust=Trust.TRUSTED))
    given_ = Given(interactive=True, cwd="/w/sub")
    for operation in (ShellText(text="curl x"), ShellText(text="touch ../a"), FileChange(action=FileAction.WRITE, path="/w/a", new=b"x")):
        context = replace(CONTEXT, cwd="/w/sub")
        assessment = classify(operation, context)
        verdict = decide_given(operation, assessment, task.envelope, context, given_)
        kind = event.FILE_DECIDED if isinstance(operation, FileChange) else event.EXEC_DECIDED
        recording.journal.append(kind, task="root", **event.decided(operation, assessment, verdict, given_))

    assert [one.was.verdict for one in recording.replayed()] == ["ask", "allow", "allow"]
    assert recording.differing() == []
    assert recording.differing(Policy(profile=profile(ceiling=Risk.NETWORK_EGRESS))) == [("wider", "curl x")]
    assert recording.differing(Policy(profile=profile(denylist=(("curl",),)))) == [("narrower", "curl x")]


def test_a_verdict_that_hung_on_a_content_is_counted_and_not_guessed_at(recording: Recording) -> None:
    task = recording.task(Envelope(profile=profile(), trust=Trust.TRUSTED))
    task.judge(FileChange(action=FileAction.WRITE, path="/w/package.json", new=b"{}"))

    replay = Replay()
    assert list(replay.events(read(recording.journal.path))) == []
    assert dict(replay.unjudged) == {"contents of files are not recorded": 1}


def test_another_classifier_than_then_is_named_as_the_cause(recording: Recording) -> None:
    task = recording.task(Envelope(profile=profile(), trust=Trust.TRUSTED))
    asked(task, "curl", "x")
    events = [dict(one) for one in read(recording.journal.path)]
    for one in events:
        if one["type"] == event.EXEC_DECIDED:  # as if an older classifier had taken curl for harmless
            one |= {"verdict": "allow", "effects": ["safe"], "rule": "profile.effects", "layer": "profile"}
            one.pop("refused")

    [judged] = Replay(Policy(profile=profile())).events(events)
    assert (judged.kind, judged.cause) == ("narrower", "classifier")


@pytest.mark.parametrize("missing", ["envelope", "context"])
def test_an_old_record_is_counted_and_not_guessed_at(recording: Recording, missing: str) -> None:
    task = recording.task(Envelope(profile=profile(), trust=Trust.TRUSTED))
    asked(task, "curl", "x")
    events = [{name: value for name, value in one.items() if name != missing} for one in read(recording.journal.path)]

    replay = Replay()
    assert list(replay.events(events)) == []
    assert sum(replay.unjudged.values()) >= 1


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
    st.sampled_from(["kind", "argv", "effects", "name", "scope", "entry", "cwd", "workspace"]), inner, max_size=4), max_leaves=8))  # fmt: skip
def test_any_json_in_an_events_place_is_no_reason_to_raise(junk: Any) -> None:
    events = [
        {"seq": 1, "task": "root", "type": "task.created", "envelope": junk, "context": junk, "trust": junk},
        {"seq": 2, "task": "root", "type": "task.created", "trust": "trusted", "envelope": profile_data(profile()),
         "context": event.plain(CONTEXT)},
        {"seq": 3, "task": "root", "type": "exec.decided", "operation": junk, "given": junk},
        {"seq": 6, "task": "root", "type": "connection.decided", "operation": junk, "verdict": junk},
        {"seq": 4, "task": "root", "type": "delegation.decided", "operation": junk, "selected": junk, "child": junk},
        {"seq": 5, "task": "root", "type": "exec.decided", "operation": {"kind": "exec", "argv": ["ls"]}, "grant": junk,
         "verdict": junk, "effects": junk, "refused": junk},
    ]  # fmt: skip
    list(Replay().events(events))
