"""An entry matches exactly what the operator meant, or nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.classify.context import Context
from broker.decide import AllowEntry, Envelope, Environment, Profile, Trust, needs_digest
from broker.decide.allowlist import denied_prefix, entry_for_exec, is_under
from broker.request.operation import Exec, ShellText

CONTEXT = Context(cwd="/work/project", home="/home/task", workspace="/work/project")
ENTRY = AllowEntry(argv=("go", "test", "./..."))
START = Exec(
    argv=("go", "test", "./..."),
    path="/usr/bin/go",
    program="/usr/lib/go-1.19/bin/go",
    cwd="/work/project/src",
)


def matches(operation: Exec, entry: AllowEntry = ENTRY, *, digest: str | None = None) -> bool:
    return entry_for_exec(Profile(name="p", allowlist=(entry,)), operation, CONTEXT, digest) is entry


def test_the_same_argv_and_a_program_of_the_system_match() -> None:
    assert matches(START)


@pytest.mark.parametrize(
    "argv",
    [
        ("go", "test"),
        ("go", "test", "./...", "-exec", "x"),
        ("go", "test", "./... "),
        ("GO", "test", "./..."),
        ("go", "test ./..."),
        (),
    ],
)
def test_any_other_argv_does_not_match(argv: tuple[str, ...]) -> None:
    assert not matches(replace(START, argv=argv))


def test_a_program_that_only_calls_itself_like_the_entry_does_not_match() -> None:
    assert not matches(replace(START, path="/usr/bin/curl", program="/usr/bin/curl"))


@pytest.mark.parametrize(
    "place",
    [
        "/work/project/bin",
        "/work/project",
        "/home/task",
        "/tmp",
        "/tmp/../tmp",
        "/usr/../tmp",
        "/dev/shm",
        "/var/tmp/x",
        "/proc/self/cwd",
        "/dev/fd",
    ],
)
def test_a_program_where_the_task_can_write_does_not_match(place: str) -> None:
    assert not matches(replace(START, path=f"{place}/go")), "named there"
    assert not matches(replace(START, program=f"{place}/go")), "found there"


def test_a_program_behind_a_link_into_the_workspace_does_not_match() -> None:
    linked = replace(CONTEXT, workspace="/srv/link", symlinks=(("/srv/link", "/data/project"),))
    operation = replace(START, program="/data/project/go", cwd="/srv/link")
    assert entry_for_exec(Profile(name="p", allowlist=(ENTRY,)), operation, linked, None) is None


def test_a_program_whose_place_is_not_known_does_not_match() -> None:
    assert not matches(replace(START, path=""))
    assert not matches(replace(START, program=""))
    assert not matches(replace(START, path="bin/go"))


@pytest.mark.parametrize("variable", ["LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "GOFLAGS", "BASH_ENV"])
def test_an_environment_that_changes_what_runs_does_not_match(variable: str) -> None:
    assert not matches(replace(START, env=((variable, "/tmp/x.so"),)))


def test_what_the_profile_itself_sets_in_the_environment_is_the_operators() -> None:
    setting = Environment(set=(("GOFLAGS", "-mod=vendor"),))
    profile = Profile(name="p", allowlist=(ENTRY,), env=setting)
    as_set = replace(START, env=(("GOFLAGS", "-mod=vendor"),))
    changed = replace(START, env=(("GOFLAGS", "-toolexec=/tmp/x"),))
    assert entry_for_exec(profile, as_set, CONTEXT, None) is ENTRY
    assert entry_for_exec(profile, changed, CONTEXT, None) is None


def test_an_entry_with_an_absolute_program_wants_that_path() -> None:
    entry = AllowEntry(argv=("/usr/bin/go", "test"))
    operation = replace(START, argv=("/usr/bin/go", "test"))
    assert matches(operation, entry)
    assert not matches(replace(operation, path="/usr/local/bin/go"), entry)


def test_without_a_cwd_an_entry_matches_anywhere_in_the_workspace_and_nowhere_else() -> None:
    assert matches(replace(START, cwd="/work/project"))
    assert matches(replace(START, cwd=""))
    for elsewhere in ["/work", "/work/project2", "/work/project/..", "/tmp", "src"]:
        assert not matches(replace(START, cwd=elsewhere)), elsewhere


@pytest.mark.parametrize(
    ("cwd", "fits"), [("src", True), ("/work/project/src", True), (".", False), ("src/a", False)]
)
def test_a_cwd_is_that_folder_and_none_below_it(cwd: str, fits: bool) -> None:
    assert matches(START, replace(ENTRY, cwd=cwd)) is fits


def test_a_pinned_program_needs_its_digest() -> None:
    pinned = replace(ENTRY, sha256="a" * 64)
    assert matches(START, pinned, digest="a" * 64)
    assert not matches(START, pinned, digest="b" * 64)
    assert not matches(START, pinned)


def test_the_digest_is_asked_for_only_where_an_entry_pins_it() -> None:
    pinned = Profile(name="p", allowlist=(replace(ENTRY, sha256="a" * 64),))
    envelope = Envelope(profile=pinned, trust=Trust.TRUSTED)
    plain = Envelope(profile=Profile(name="q", allowlist=(ENTRY,)), trust=Trust.TRUSTED)
    assert needs_digest(START, envelope)
    assert needs_digest(START, envelope.narrow(plain.profile, Trust.TRUSTED))
    assert not needs_digest(replace(START, argv=("go",)), envelope)
    assert not needs_digest(START, plain)
    assert not needs_digest(ShellText(text="go test ./..."), envelope)


def test_the_second_of_two_entries_can_match_where_the_first_does_not() -> None:
    elsewhere = replace(ENTRY, cwd="docs")
    here = replace(ENTRY, cwd="src")
    profile = Profile(name="p", allowlist=(elsewhere, here))
    assert entry_for_exec(profile, START, CONTEXT, None) is here


@pytest.mark.parametrize(
    ("path", "root", "under"),
    [
        ("/tmp", "/tmp", True),
        ("/tmp/a", "/tmp/", True),
        ("/tmpx", "/tmp", False),
        ("/a", "/", True),
        ("/", "/", True),
        ("/", "/tmp", False),
    ],
)
def test_lying_under_a_root_is_told_by_whole_components(path: str, root: str, under: bool) -> None:
    assert is_under(path, root) is under


def test_a_denied_prefix_is_found_by_any_name_of_the_program() -> None:
    prefixes = (("git", "push"), ("/sbin/reboot",))
    assert denied_prefix(prefixes, ("/opt/git", "push", "x")) == ("git", "push")
    assert denied_prefix(prefixes, ("x", "push"), ("/usr/bin/git",)) == ("git", "push")
    assert denied_prefix(prefixes, ("reboot", "now")) == ("/sbin/reboot",)
    assert denied_prefix(prefixes, (), ("/sbin/reboot",)) == ("/sbin/reboot",)
    assert denied_prefix(prefixes, ("git", "pull")) is None
    assert denied_prefix(prefixes, ()) is None
