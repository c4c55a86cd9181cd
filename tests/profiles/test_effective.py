"""What is left of a profile below its parents."""

from __future__ import annotations

from collections.abc import Callable

from broker.classify.risk import Risk
from broker.decide.profile import Profile
from broker.decide.trust import Trust
from broker.profiles.effective import chain, effective

Made = Callable[..., Profile]


def test_alone_a_profile_loses_nothing(made: Made) -> None:
    own = made('max_risk = "local_write"\nallowlist = ["make", { command = "npm test", cwd = "web", sha256 = "%s" }]' % ("a" * 64))
    left = effective(chain(own, []), own)
    assert left.effects == own.effects
    assert [entry for entry, _ in left.entries] == list(own.allowlist)
    assert left.lost == ()


def test_what_a_parent_does_not_permit_is_lost_to_it_by_name(made: Made) -> None:
    own = made('max_risk = "install"\nallowlist = ["make", "go test ./..."]\nland.allow = ["contents.package-script"]')
    near = made('max_risk = "local_write"\nallowlist = ["make"]\nsandbox.memory = "1G"', "near")
    far = made('max_risk = "safe"\ndenylist = ["git push"]\ntools.disabled = ["delegate"]\nsandbox.workspace = "read-only"', "far")
    left = effective(chain(own, [near, far]), own)
    lost = {each.what: each.to for each in left.lost}
    assert lost["install"] == "profile near of the parent task"
    assert lost["local_write"] == "profile far of the task above"
    assert lost["`go test ./...`"] == "profile near of the parent task"
    assert lost["`make`"] == "profile far of the task above"
    assert lost["landing contents.package-script"] == "profile far of the task above"
    assert left.effects == {Risk.SAFE}
    assert left.entries == ()
    assert left.denied == (("git", "push"),)
    assert left.disabled_tools == {"delegate"}
    assert left.workspace == "read-only"
    assert ("memory", "near") in {(limit.name, limit.whose) for limit in left.limits}


def test_an_entry_that_both_have_counts_and_its_grant_is_the_lesser(made: Made) -> None:
    own = made('allowlist = [{ command = "make", effects = ["network_egress", "install"] }]')
    parent = made('allowlist = [{ command = "make", effects = ["install"] }]', "parent")
    left = effective(chain(own, [parent]), own)
    ((entry, grant),) = left.entries
    assert entry.text == "make"
    assert grant == {Risk.SAFE, Risk.LOCAL_WRITE, Risk.CODE_EXECUTION, Risk.INSTALL}
    assert [each.what for each in left.lost] == ["what `make` starts may not be network_egress"]


def test_an_untrusted_task_loses_to_trust(made: Made) -> None:
    own = made('max_risk = "install"\nallowlist = ["make"]\nland.allow = ["contents.package-script"]')
    left = effective(chain(own, [], Trust.UNTRUSTED), own)
    assert {each.what for each in left.lost if each.to == "trust"} == {
        "code_execution", "install", "landing contents.package-script",
    }  # fmt: skip
    assert [entry.text for entry, _ in left.entries] == ["make"]


def test_the_container_and_the_environment_are_the_lesser_of_the_two(made: Made) -> None:
    own = made('env = { pass = ["LANG", "TERM"], set = { CI = "1" } }\nsandbox = { read_only = ["/opt/a", "/srv"], show = [".env"], workspace = "direct" }')
    near = made('env = { pass = ["LANG", "TERM"], set = { CI = "2" } }\nsandbox.read_only = ["/opt", "/srv"]', "near")
    far = made('env = { pass = ["LANG"], set = { CI = "3" } }\nsandbox.read_only = ["/opt"]', "far")
    left = effective(chain(own, [near, far]), own)
    assert (left.environment, left.read_only, left.shown, left.workspace) == (("LANG", "CI"), ("/opt/a",), (), "overlay")
    assert {each.what: each.to for each in left.lost} == {
        "a workspace that is direct": "profile far of the task above",
        "the variable TERM": "profile far of the task above",
        "reading /srv": "profile far of the task above",
        "seeing .env": "profile far of the task above",
    }


def test_the_tightest_limit_counts(made: Made) -> None:
    own = made('sandbox = { memory = "4G", time = "1m", pids = 10 }')
    parent = made('sandbox = { memory = "2G", time = "1h", pids = 100 }', "parent")
    limits = {limit.name: (limit.shown, limit.whose) for limit in effective(chain(own, [parent]), own).limits}
    assert limits == {"memory": ("2G", "parent"), "time": ("1m", "p"), "pids": ("10", "p")}
