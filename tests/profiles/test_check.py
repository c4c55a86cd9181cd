"""What is noticed about a profile that can be used: each rule has a profile that it speaks of, and one that it does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from broker.decide.profile import Profile
from broker.profiles.check import check_file, findings
from broker.profiles.check_entries import Installed
from broker.profiles.doors import open_door
from broker.profiles.finding import Severity
from broker.profiles.load import rules_for

Made = Callable[..., Profile]

GOOD = """description = "d"
max_risk = "local_write"
allowlist = ["npm test", { command = "make x", cwd = "a" }, { command = "make x", cwd = "b" }]
denylist = ["git"]
sandbox.memory = "1G"
land.allow = ["contents.package-script"]
"""


def rules(profile: Profile) -> set[str]:
    return {finding.rule for finding in findings(profile)}


def test_a_careful_profile_is_not_remarked_upon(made: Made) -> None:
    assert findings(made(GOOD)) == ()


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ('effects.add = ["unknown"]', "reach.unknown"),
        ('effects.add = ["persistence"]', "reach.persistence"),
        ('max_risk = "code_execution"\nallowlist = ["make"]', "reach.no-list"),
        ('max_risk = "code_execution"\nallowlist = ["make", "npm ci"]', "entry.covered"),
        ('max_risk = "install"\neffects.remove = ["install"]', "reach.ceiling"),
        ('allowlist = ["make", "make"]', "entry.duplicate"),
        ('allowlist = ["make", { command = "make", cwd = "a" }]', "entry.duplicate"),
        ('allowlist = ["dd if=/dev/zero of=/dev/sda"]', "entry.blocked"),
        ('allowlist = ["bash x.sh"]\ntools.disabled = ["shell"]', "entry.shell-disabled"),
        ('allowlist = ["/tmp/x"]', "entry.writable-program"),
        ("allowlist = [\"make '&&' x\"]", "entry.shell-syntax"),
        ("allowlist = [\"make '$X'\"]", "entry.expansion"),
        ("allowlist = [\"pytest 'tests/*.py'\"]", "entry.wildcard"),
        (
            'max_risk = "network_egress"\neffects.remove = ["install"]\nallowlist = [{ command = "dpkg -i x", effects = ["install"] }]',
            "entry.removed-class",
        ),
        ('allowlist = [{ command = "make", effects = ["safe"] }]', "entry.idle-effects"),
        ('allowlist = ["ls -l"]', "entry.within-ceiling"),
        ('allowlist = ["git push"]\ndenylist = ["git push"]', "entry.denied"),
        ('allowlist = ["python3"]', "entry.open-door"),
        ('allowlist = [{ command = "make", cwd = "/w" }]', "entry.absolute-cwd"),
        ('denylist = ["git push", "git push origin"]', "denial.covered"),
        ('denylist = ["git", "/usr/bin/git"]', "denial.covered"),
        ('denylist = ["git push"]', "denial.words"),
        ('land.allow = ["contents.package-script"]\nsandbox.workspace = "direct"', "land.no-overlay"),
        ('land.allow = ["contents.package-script"]', "land.no-write"),
        ('max_risk = "persistence"\nland.allow = ["contents.package-script"]', "land.covered"),
        ('env.pass = ["API_TOKEN"]', "env.secret"),
        ('env.set = { DB_PASSWORD = "x" }', "env.secret"),
        ('env.pass = ["PYTHONPATH"]\nallowlist = ["make"]', "env.changes-what-runs"),
        ('max_risk = "local_write"\nsandbox.workspace = "read-only"', "workspace.read-only"),
        ('sandbox = { image = "x", engine = "bubblewrap" }', "sandbox.no-image"),
        ('sandbox.read_only = ["/no/such/path"]', "sandbox.missing-path"),
        ("", "profile.no-description"),
        ("requires = []", "requires.missing"),
        ('requires = ["network"]', "sandbox.memory"),
        ('approvals.approver = "client"', "approvals.client"),
        ('tools.disabled = ["delegate"]\ndelegate.profiles = ["x"]', "delegate.disabled"),
    ],
)
def test_each_rule_speaks_where_it_should_and_not_of_a_careful_profile(made: Made, body: str, rule: str) -> None:
    assert rule in rules(made(body))
    assert rule not in rules(made(GOOD))


def test_entries_that_differ_in_a_condition_are_not_duplicates(made: Made) -> None:
    digest = "a" * 64
    kept = made(f'allowlist = [{{ command = "make", sha256 = "{digest}" }}, {{ command = "make", cwd = "a" }}, "make"]')
    assert "entry.duplicate" not in rules(kept)


@pytest.mark.parametrize(
    "line",
    [
        "sh", "bash -s", "busybox sh", "python3 -", "python3.11", "node", "env bash", "timeout 5 sh", "xargs rm", "sudo make",
        "env", "ssh host make", "docker run x", "bash -c 'eval \"$1\"' x", "vim", "nice -n 5 python3",
    ],
)  # fmt: skip
def test_what_runs_whatever_it_is_given_is_a_wide_open_door(line: str) -> None:
    import shlex

    assert open_door(tuple(shlex.split(line))) is not None


@pytest.mark.parametrize(
    "line", ["bash build.sh", "bash -c 'make x'", "python3 -m pytest", "python3 x.py", "env FOO=1 make", "timeout 5 make", "psql x", "make"]
)
def test_what_runs_something_that_is_named_is_no_door(line: str) -> None:
    import shlex

    assert open_door(tuple(shlex.split(line))) is None


def test_missing_programs_are_one_finding_each(made: Made) -> None:
    listed = made('allowlist = ["go test", "go vet", "make", "cargo test"]')
    found = findings(listed, Installed("in the image x", lambda program: program == "make"))
    said = [each.text for each in found if each.rule == "entry.program-missing"]
    assert said == [
        "there is no program go in the image x: 2 entries never match there",
        "there is no program cargo in the image x: `cargo test` never matches there",
    ]


def test_a_file_is_checked_with_places_and_one_broken_profile_does_not_hide_another(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    path = tmp_path / "p.toml"
    path.write_text(
        '[profiles.a]\ndescription = "a"\nmax_risk = "local_write"\n'
        'effects = { add = ["safe"], remove = ["install"] }\nallowlist = [\n  "make",\n  "sh",\n]\n'
        "[profiles.b]\nmax_risc = 1\n"
    )
    path.chmod(0o644)
    a, b = check_file(path, rules_for(None))
    places = {(each.rule, each.line, each.column) for each in a.findings}
    assert {("effects.idle", 4, 20), ("effects.idle", 4, 39), ("entry.open-door", 7, 3)} <= places
    assert a.worst is Severity.WARNING
    assert [(each.severity, each.line, each.column) for each in b.findings] == [(Severity.ERROR, 10, 1)]
    assert b.worst is Severity.ERROR
