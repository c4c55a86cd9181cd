"""What a profile file may say, and what is said about one that may not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker.classify.risk import Risk
from broker.decide.profile import GIB, LAYERS, MIB, Profile, up_to
from broker.errors import ProfileError
from broker.profiles import BrokenProfile
from broker.profiles.load import load_file, rules_for

# The example that people will have read, to the letter.
ESSAY = """
{"profiles": {
  "research": {
    "description": "Read-only exploration",
    "max_risk": "safe",
    "tools": {"disabled": ["write_file", "patch", "batch_patch", "shell"]}
  },
  "builder": {
    "description": "Writes code and runs the tests",
    "max_risk": "local_write",
    "allowlist": ["go test ./...", "go build ./..."]
  }
}}
"""
ESSAY_TOML = """
[profiles.research]
description = "Read-only exploration"
max_risk = "safe"
tools.disabled = ["write_file", "patch", "batch_patch", "shell"]

[profiles.builder]
description = "Writes code and runs the tests"
max_risk = "local_write"
allowlist = ["go test ./...", "go build ./..."]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    return tmp_path


def put(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(0o644)
    return path


def results(folder: Path, content: str | bytes, name: str = "p.toml") -> dict[str, Profile | BrokenProfile]:
    return {each.name: each for each in load_file(put(folder, name, content), rules_for(None))}


def one(folder: Path, body: str) -> Profile:
    found = results(folder, f"[profiles.p]\n{body}\n")["p"]
    assert isinstance(found, Profile), str(getattr(found, "error", found))
    return found


def error(folder: Path, content: str | bytes, name: str = "p.toml") -> ProfileError:
    (found,) = results(folder, content, name).values()
    assert isinstance(found, BrokenProfile), found
    assert str(folder / name) in str(found.error)
    return found.error


def wrong(folder: Path, body: str) -> str:
    return str(error(folder, f"[profiles.p]\n{body}\n"))


@pytest.mark.parametrize(("name", "content"), [("p.json", ESSAY), ("p.toml", ESSAY_TOML)])
def test_the_published_example_loads_unchanged(folder: Path, name: str, content: str) -> None:
    found = results(folder, content, name)
    research, builder = found["research"], found["builder"]
    assert isinstance(research, Profile) and isinstance(builder, Profile)
    assert research.effects == {Risk.SAFE}
    assert research.disabled_tools == {"write_file", "patch", "batch_patch", "shell"}
    assert builder.effects == {Risk.SAFE, Risk.LOCAL_WRITE}
    assert [entry.argv for entry in builder.allowlist] == [("go", "test", "./..."), ("go", "build", "./...")]


def test_one_profile_has_one_digest_however_it_is_written(folder: Path) -> None:
    as_json, as_toml = results(folder, ESSAY, "p.json"), results(folder, ESSAY_TOML, "q.toml")
    for name in ("research", "builder"):
        first, second = as_json[name], as_toml[name]
        assert isinstance(first, Profile) and isinstance(second, Profile)
        assert first.digest == second.digest
        assert first.source != second.source
    assert one(folder, 'max_risk = "safe"').digest != one(folder, 'max_risk = "local_write"').digest


def test_every_field_arrives(folder: Path) -> None:
    profile = one(
        folder,
        """
        description = "all\\n of it"
        max_risk = "code_execution"
        allowlist = ["make", {command = "go 'vet'", cwd = "src/", sha256 = "%s", effects = ["install"]}]
        denylist = ["git push"]
        requires = ["landlock", "network"]
        effects = {add = ["network_egress"], remove = ["local_write"]}
        env = {pass = ["LANG", "TERM", "LANG"], set = {B = "2", A = "x y"}}
        [profiles.p.sandbox]
        engine = "docker"
        image = "broker/go:1.2"
        workspace = "read-only"
        read_only = ["/opt/tools/", "/srv/data"]
        show = [".env.test"]
        memory = "1.5G"
        cpus = 2
        pids = 64
        time = "1h30m"
        tmp_size = 1048576
        shm_size = "64M"
        output = "10MiB"
        """
        % ("AB" * 32),
    )
    assert profile.description == "all of it"
    assert profile.effects == (up_to(Risk.CODE_EXECUTION) | {Risk.NETWORK_EGRESS}) - {Risk.LOCAL_WRITE}
    make, vet = profile.allowlist
    assert (make.argv, make.cwd, make.sha256, make.effects) == (("make",), None, None, frozenset())
    assert (vet.argv, vet.cwd, vet.sha256) == (("go", "vet"), "src", "ab" * 32)
    assert vet.effects == {Risk.INSTALL}
    assert profile.denylist == (("git", "push"),)
    assert profile.requires == ("network", "landlock")
    assert profile.env.passed == ("LANG", "TERM")
    assert profile.env.set == (("A", "x y"), ("B", "2"))
    box = profile.sandbox
    assert (box.engine, box.image, box.workspace) == ("docker", "broker/go:1.2", "read-only")
    assert (box.read_only, box.show) == (("/opt/tools", "/srv/data"), (".env.test",))
    assert (box.memory, box.cpus, box.pids, box.time) == (3 * GIB // 2, 2.0, 64, 5400.0)
    assert (box.tmp_size, box.shm_size, box.output) == (MIB, 64 * MIB, 10 * MIB)


def test_what_is_not_said_is_the_narrowest(folder: Path) -> None:
    profile = one(folder, "")
    assert profile.effects == {Risk.SAFE}
    assert profile.allowlist == () and profile.disabled_tools == frozenset()
    assert profile.requires == LAYERS


def test_a_ceiling_never_includes_unknown_or_blocked(folder: Path) -> None:
    assert one(folder, 'max_risk = "destructive"').effects == up_to(Risk.DESTRUCTIVE)
    assert Risk.UNKNOWN in one(folder, 'effects.add = ["unknown"]').effects
    assert "add = ['unknown']" in wrong(folder, 'max_risk = "unknown"')
    assert "highest ceiling" in wrong(folder, 'max_risk = "blocked"')
    assert "never be permitted" in wrong(folder, 'effects.add = ["blocked"]')


@pytest.mark.parametrize(
    ("body", "key", "meant"),
    [
        ('max-risk = "safe"', "max-risk", "max_risk"),
        ("allow_list = []", "allow_list", "allowlist"),
        ("denyList = []", "denyList", "denylist"),
        ("tools.disable = []", "disable", "disabled"),
        ("effects.adds = []", "adds", "add"),
        ("env.sets = {}", "sets", "set"),
        ('sandbox.memmory = "1G"', "memmory", "memory"),
        ('allowlist = [{comand = "x"}]', "comand", "command"),
        ('memory = "1G"', "memory", "sandbox.memory"),
        ('timeout = "1m"', "timeout", "sandbox.time"),
    ],
)
def test_an_unknown_key_is_refused_and_the_right_one_suggested(
    folder: Path, body: str, key: str, meant: str
) -> None:
    said = wrong(folder, body)
    assert f"unknown key {key!r}" in said
    assert f"Did you mean {meant!r}?" in said
    assert "p.toml:2: " in said


def test_a_key_like_no_other_is_answered_with_the_list(folder: Path) -> None:
    said = wrong(folder, "zzzz = 1")
    assert "Known: description, max_risk" in said


def test_of_hundreds_of_known_words_some_are_named_and_where_the_rest_is(folder: Path) -> None:
    said = wrong(folder, 'land.allow = ["zzzz"]')
    assert "Known: contents." in said
    assert said.endswith("more (docs/classifier-reference.md)")
    assert len(said) < 1500


@pytest.mark.parametrize(
    ("body", "meant"),
    [
        ('max_risk = "localwrite"', "local_write"),
        ('tools.disabled = ["shel"]', "shell"),
        ('effects.add = ["instal"]', "install"),
        ('requires = ["land_lock"]', "landlock"),
        ('sandbox.engine = "dockr"', "docker"),
        ('sandbox.workspace = "readonly"', "read-only"),
        ('allowlist = [{command = "x", effects = ["network"]}]', "network_egress"),
    ],
)
def test_a_misspelt_value_is_refused_and_the_right_one_suggested(folder: Path, body: str, meant: str) -> None:
    assert f"Did you mean {meant!r}?" in wrong(folder, body)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("description = 3", "description: expected text, got a whole number"),
        ('allowlist = "go test"', "allowlist: expected a list, got text"),
        ("allowlist = [3]", "allowlist[0]: expected text or a table, got a whole number"),
        ("tools = []", "tools: expected a table, got a list"),
        ("tools.disabled = [1]", "tools.disabled[0]: expected text, got a whole number"),
        ("env.set = {A = 1}", "env.set.A: expected text, got a whole number"),
        ("sandbox.time = []", "sandbox.time: expected a whole number or a number or text, got a list"),
        ("sandbox.pids = true", "sandbox.pids: expected a whole number"),
        ("allowlist = [{cwd = 'x'}]", "missing required field command"),
    ],
)
def test_a_wrong_type_is_refused_with_its_place(folder: Path, body: str, said: str) -> None:
    assert said in wrong(folder, body)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('effects = {add = ["install"], remove = ["install"]}', "adds and removes 'install'"),
        ('effects.remove = ["safe"]', "always permitted"),
        ('allowlist = [{command = "x", effects = ["persistence"]}]', "would outlive the invocation"),
        ('allowlist = [{command = "x", effects = ["unknown"]}]', "unrecognised may start"),
        ('allowlist = [{command = "x", effects = ["blocked"]}]', "nothing permits it"),
        ('allowlist = [{command = "x", sha256 = "12"}]', "64 hexadecimal digits"),
        ('allowlist = [{command = "x", cwd = "../y"}]', "below the workspace"),
        ('allowlist = [{command = "x", cwd = ""}]', "below the workspace"),
        ('allowlist = ["./gradlew test"]', "the task can rewrite it"),
        ('env.pass = ["AWS_*"]', "not a variable's name"),
        ('env.set = {"A B" = "x"}', "not a variable's name"),
        ('env = {pass = ["A"], set = {A = "x"}}', "both passes and sets 'A'"),
        ('env.set = {A = "\\u0000"}', "NUL"),
        ('sandbox.workspace = "overlaid"', "Did you mean 'overlay'"),
        ('sandbox.memory = "lots"', "not a size"),
        ("sandbox.memory = 0", "above zero"),
        ('sandbox.memory = "-1G"', "not a size"),
        ("sandbox.memory = -1", "above zero"),
        ('sandbox.time = "soon"', "not a time"),
        ('sandbox.time = "30 m"', "not a time"),
        ("sandbox.time = 0", "above zero"),
        ("sandbox.time = nan", "above zero"),
        ("sandbox.time = inf", "above zero"),
        ("sandbox.cpus = 0", "how many processors"),
        ("sandbox.cpus = nan", "how many processors"),
        ("sandbox.pids = 0", "how many processes"),
        ('sandbox.image = "a b"', "not the name of an image"),
        ('sandbox.image = "--privileged"', "not the name of an image"),
        ('sandbox.read_only = ["relative"]', "absolute path"),
        ('sandbox.read_only = ["~/x"]', "absolute path"),
        ('sandbox.read_only = ["/opt/../etc"]', "absolute path"),
        ('sandbox.read_only = ["/"]', "show the host"),
        ('sandbox.read_only = ["//"]', "show the host"),
        ('sandbox.read_only = ["/proc/"]', "show the host"),
        ('sandbox.show = ["../.env"]', "within the workspace"),
    ],
)
def test_what_has_the_right_type_and_no_meaning_is_refused(folder: Path, body: str, said: str) -> None:
    assert said in wrong(folder, body)


def test_a_program_of_the_workspace_may_be_listed_where_the_workspace_is_read_only(folder: Path) -> None:
    profile = one(folder, 'allowlist = ["./check.sh"]\nsandbox.workspace = "read-only"')
    assert profile.allowlist[0].argv == ("./check.sh",)


def test_an_error_names_the_line_where_it_can(folder: Path) -> None:
    content = """\
# max_risc = "a comment is not it"
[profiles.a]
max_risk = "safe"

[profiles.b]
description = "b"
max_risc = "safe"
"""
    found = results(folder, content)
    assert isinstance(found["a"], Profile), "one profile's fault is not another's"
    broken = found["b"]
    assert isinstance(broken, BrokenProfile)
    assert "p.toml:7: unknown key 'max_risc' in profile 'b'. Did you mean 'max_risk'?" in str(broken.error)


def test_an_error_in_json_names_the_line_too(folder: Path) -> None:
    content = '{"profiles": {"p": {\n "description": "x",\n "allowlist": [\n  "go test",\n  "git *"\n]}}}'
    assert "p.json:5: " in str(error(folder, content, "p.json"))


def nested(depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for _ in range(depth):
        made = {"a": made}
    return made


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("p.toml", "", "it is empty"),
        ("p.json", "  \n", "it is empty"),
        ("p.toml", "# nothing\n", "must hold a table 'profiles'"),
        ("p.toml", "profiles = 3", "must hold a table 'profiles'"),
        ("p.toml", "[profiles]", "defines no profile"),
        ("p.json", "[]", "an object with the key 'profiles'"),
        ("p.json", "{", "not JSON"),
        ("p.json", '{"profiles": {}} x', "not JSON"),
        ("p.json", "\ufeff{}", "not JSON"),
        ("p.toml", "x = ", "not TOML"),
        ("p.toml", b"\xff\xfe[\0", "not UTF-8"),
        ("p.toml", "[profile.x]\n", "Did you mean 'profiles'?"),
        ("p.toml", 'max_risk = "safe"', "profiles.NAME.max_risk"),
        ("p.toml", "[profiles.X]", "cannot be a profile's name"),
        ("p.toml", '[profiles."../x"]', "cannot be a profile's name"),
        ("p.toml", "profiles.x = 1", "must be a table"),
        ("p.toml", "[profiles.x]\n[profiles.x]\n", "not TOML"),
        ("p.json", '{"profiles": {"x": {}, "x": {}}}', "stands twice"),
        ("p.json", '{"profiles": {"x": {"max_risk": "safe", "max_risk": "install"}}}', "stands twice"),
        ("p.json", '{"profiles": {"x": {"sandbox": {"cpus": NaN}}}}', "NaN"),
        ("p.json", '{"profiles": {"x": {"sandbox": {"pids": ' + "9" * 5000 + "}}}}", "cannot be read"),
        ("p.json", "[" * 200_000, "nested too deeply"),
        ("p.toml", "a = " + "[" * 200_000, "nested too deeply"),
        ("p.json", json.dumps({"profiles": {"x": {"tools": nested(50)}}}), "unknown key 'a'"),
        ("p.yaml", "profiles:\n", "must end in .toml or .json"),
        ("p.toml", "#" * (2 << 20), "larger than"),
    ],
    ids=lambda value: str(value)[:24] if isinstance(value, str) else "bytes",
)
def test_a_file_that_is_no_profile_file_is_refused_in_a_sentence(
    folder: Path, name: str, content: str | bytes, said: str
) -> None:
    assert said in str(error(folder, content, name))
