"""Other tools' permissions: what is carried over, what is not, and that nothing is widened."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.classify.risk import Risk
from broker.decide.profile import Profile
from broker.errors import UsageError
from broker.profiles.importers import Draft, import_file
from broker.profiles.importers import claude as claude_reader
from broker.profiles.importers import codex as codex_reader
from broker.profiles.importers import gemini as gemini_reader
from broker.profiles.importers import odek as odek_reader
from broker.profiles.importers import opencode as opencode_reader
from broker.profiles.importers.draft import PREFIX, Fate
from broker.profiles.importers.plain import jsonc
from broker.profiles.judge import judge
from broker.profiles.load import profile_of
from broker.profiles.schema import decode_file


def profile_from(draft: Draft) -> Profile:
    source, tables = decode_file(Path("p.toml"), draft.as_toml("x").encode())
    return profile_of(source, draft.name, tables[draft.name])


def fates(draft: Draft) -> dict[str, tuple[str, str]]:
    return {row.what: (row.fate.value, row.why) for row in draft.rows}


def read(tmp_path: Path, origin: str, name: str, text: str) -> Draft:
    path = tmp_path / name
    path.write_text(text)
    (draft,) = import_file(origin, path)
    return draft


CLAUDE = """{ // settings
  "permissions": {
    "allow": ["Bash(npm run test)", "Bash(git *)", "Bash(npm run lint:*)", "Bash(make && x)", "Bash(npm run evil)", "Edit", "Read", "WebFetch(domain:x)", "mcp__a__b"],
    "ask": ["Bash(git push:*)"],
    "deny": ["Bash(curl:*)", "Bash(npm run e*)", "Read(./.env)", "Read(./docs/**)"],
    "defaultMode": "acceptEdits",
  },
  "sandbox": {"excludedCommands": ["docker"], "network": {"allowedDomains": ["x.example"]}},
}"""


def test_claude(tmp_path: Path) -> None:
    draft = read(tmp_path, "claude", "settings.json", CLAUDE)
    said = fates(draft)
    assert said["Bash(npm run test)"] == ("imported", "an exact entry")
    assert said["Bash(git *)"] == ("dropped", PREFIX)
    assert said["Bash(npm run lint:*)"] == ("dropped", PREFIX)
    assert said["Bash(npm run evil)"] == ("dropped", "another rule makes it deny")
    assert said["Bash(make && x)"][0] == "dropped"
    assert said["Bash(curl:*) (deny)"] == ("imported", "denylist `curl`")
    assert said["Bash(npm run e*) (deny)"][0] == "narrowed"
    assert said["Read(./.env) (deny)"][0] == "imported"
    assert said["Read(./docs/**) (deny)"][0] == "dropped"
    assert said["sandbox.excludedCommands docker"] == ("dropped", "refused: nothing runs outside the sandbox")
    profile = profile_from(draft)
    assert profile.effects == {Risk.SAFE}
    assert [entry.text for entry in profile.allowlist] == ["npm run test"]
    assert profile.denylist == (("git", "push"), ("curl",), ("npm", "run"))


@pytest.mark.parametrize(
    ("settings", "risk"),
    [
        ({"permissions": {"allow": ["Bash"]}}, Risk.LOCAL_WRITE),
        ({"permissions": {"defaultMode": "bypassPermissions"}}, Risk.LOCAL_WRITE),
        ({"sandbox": {"enabled": True, "autoAllowBashIfSandboxed": True}}, Risk.LOCAL_WRITE),
        ({"permissions": {"allow": ["Bash"], "deny": ["Edit(x)"]}}, Risk.SAFE),
        ({"permissions": {"allow": ["Bash"], "deny": ["Bash(*x*)"]}}, Risk.SAFE),
        ({"permissions": {"allow": ["Bash"], "ask": ["Bash"]}}, Risk.SAFE),
        ({"permissions": {"allow": ["Bash"], "deny": ["Bash(rm:*)"]}}, Risk.LOCAL_WRITE),
    ],
)
def test_claude_permitting_every_command_is_a_ceiling_unless_something_cannot_be_said(tmp_path: Path, settings: dict[str, Any], risk: Risk) -> None:
    assert profile_from(read(tmp_path, "claude", "s.json", json.dumps(settings))).max_risk is risk


def test_codex(tmp_path: Path) -> None:
    draft = read(tmp_path, "codex", "config.toml", 'sandbox_mode = "workspace-write"\n[sandbox_workspace_write]\nnetwork_access = true\nwritable_roots = ["/x"]\n')
    assert profile_from(draft).max_risk is Risk.CODE_EXECUTION
    assert fates(draft)["sandbox_workspace_write.network_access"][0] == "dropped"
    for mode, approval in (("danger-full-access", "never"), ("workspace-write", "untrusted"), ("read-only", "never")):
        narrow = read(tmp_path, "codex", "config.toml", f'sandbox_mode = "{mode}"\napproval_policy = "{approval}"\n')
        assert profile_from(narrow).max_risk is Risk.SAFE


def test_codex_rules_are_parsed_and_never_run(tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    draft = read(
        tmp_path, "codex", "x.rules",
        'prefix_rule(pattern=["git", ["push", "fetch"]], decision="forbidden", match=["git push origin"])\n'
        'prefix_rule(pattern=["make"], decision="prompt")\nprefix_rule(pattern=["ls"])\n'
        f'open({str(witness)!r}, "w")\nprefix_rule(pattern=[open({str(witness)!r}, "w")])\n',
    )  # fmt: skip
    assert not witness.exists()
    profile = profile_from(draft)
    assert set(profile.denylist) == {("git", "push"), ("git", "fetch"), ("make",)}
    assert draft.as_table()["denies"] == ["git push origin"]
    assert fates(draft)["prefix_rule ['ls'] (allow)"] == ("dropped", PREFIX)
    assert fates(draft)["line 4"][0] == "dropped"


def test_gemini(tmp_path: Path) -> None:
    rules = [
        {"commandPrefix": "git status", "decision": "allow", "priority": 100},
        {"commandRegex": "^npm test$", "decision": "allow", "priority": 100},
        {"commandRegex": "^make .*", "decision": "allow", "priority": 100},
        {"commandRegex": "^npm run x$", "decision": "allow", "priority": 1},
        {"commandPrefix": "npm run", "decision": "ask_user", "priority": 2},
        {"commandRegex": "^cargo test$", "decision": "allow", "modes": ["yolo"]},
    ]
    text = "".join('[[rule]]\ntoolName = "run_shell_command"\n' + "".join(f"{k} = {json.dumps(v)}\n" for k, v in rule.items()) for rule in rules)
    profile = profile_from(read(tmp_path, "gemini", "p.toml", text))
    assert [entry.text for entry in profile.allowlist] == ["npm test"]
    assert profile.denylist == (("npm", "run"),)


def test_opencode_the_last_pattern_that_matches_wins(tmp_path: Path) -> None:
    bash = {"npm test": "allow", "*": "ask", "git *": "allow", "make": "allow", "m*": "deny", "cargo test": "allow"}
    draft = read(tmp_path, "opencode", "o.json", json.dumps({"permission": {"bash": bash, "edit": "ask"}}))
    profile = profile_from(draft)
    assert [entry.text for entry in profile.allowlist] == ["cargo test"]
    assert fates(draft)["bash make"] == ("dropped", "another rule makes it deny")
    second = read(tmp_path, "opencode", "o.json", json.dumps({"permissions": [{"action": "bash", "resource": "npm test", "effect": "allow"}]}))
    assert [entry.text for entry in profile_from(second).allowlist] == ["npm test"]


def test_odek_profiles_load_with_what_is_dangerous_taken_away(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({
        "profiles": {
            "research": {"description": "r", "max_risk": "safe", "tools": {"disabled": ["shell", "nosuch"]}},
            "builder": {"max_risk": "network_egress", "allowlist": ["go test ./...", "npm *", "git push"]},
        },
        "dangerous": {"classes": {"install": "deny", "code_execution": "prompt", "network_egress": "allow"}, "denylist": ["git push"], "allowlist": ["ls"], "non_interactive": "deny"},
    }))  # fmt: skip
    research, builder = import_file("odek", path)
    assert profile_from(research).disabled_tools == {"shell"}
    made = profile_from(builder)
    assert made.effects == {Risk.SAFE, Risk.LOCAL_WRITE, Risk.NETWORK_EGRESS}
    assert [entry.text for entry in made.allowlist] == ["go test ./..."]
    assert made.denylist == (("git", "push"),)
    with pytest.raises(UsageError, match="--name cannot name them"):
        import_file("odek", path, "x")


def test_devcontainer_keeps_its_walls(tmp_path: Path) -> None:
    draft = read(tmp_path, "devcontainer", "d.json", """{
      "image": "node:22", "privileged": true, "capAdd": ["SYS_PTRACE"],
      "runArgs": ["--memory=2g", "--cpus", "1.5", "--network", "host", "-v", "/:/host"],
      "mounts": ["source=/var/run/docker.sock,target=/var/run/docker.sock,type=bind", "source=/opt/sdk,target=/opt/sdk,type=bind,readonly", "source=/etc,target=/etc,type=bind"],
      "containerEnv": {"CI": "1", "API_TOKEN": "x", "LANG": "${localEnv:LANG}"}, "postCreateCommand": "npm ci", // run
    }""")  # fmt: skip
    profile = profile_from(draft)
    assert (profile.sandbox.image, profile.sandbox.memory, profile.sandbox.cpus) == ("node:22", 2 << 30, 1.5)
    assert profile.sandbox.read_only == ("/opt/sdk",)
    assert (profile.env.set, profile.env.passed) == ((("CI", "1"),), ("LANG",))
    refused = {row.what for row in draft.rows if row.fate is Fate.DROPPED}
    assert {"privileged", "capAdd", "runArgs --network host", "runArgs -v /:/host", "mount /var/run/docker.sock at /var/run/docker.sock", "mount /etc at /etc"} <= refused


@pytest.mark.parametrize(
    ("origin", "name", "text"),
    [("claude", "a.json", "{"), ("claude", "a.json", "[]"), ("codex", "a.toml", "="), ("codex", "a.rules", "def"), ("gemini", "a.toml", "["), ("odek", "a.json", "{}"), ("claude", "a.json", "[" * 100_000)],
)  # fmt: skip
def test_what_is_no_such_file_is_a_sentence(tmp_path: Path, origin: str, name: str, text: str) -> None:
    with pytest.raises(UsageError, match=r"cannot be read as a file of|is no"):
        read(tmp_path, origin, name, text)


def test_json_with_comments_keeps_what_only_looks_like_one() -> None:
    assert jsonc('\ufeff{"a": "// no, /* no */ ,}", /* yes */ "b": [1, 2, // yes\n ], }') == {"a": "// no, /* no */ ,}", "b": [1, 2]}


# Never widens. For each tool a model of what it permits, written anew, and random rules; whatever the imported profile
# permits beyond what is safe, the tool permitted. What is safe, each profile permits.

COMMANDS = ("npm test", "npm run x", "npm ci", "git push", "git push origin", "git add a", "rm -r build", "touch x", "make", "curl x", "mv a b", "npm", "touch")
patterns = st.one_of(
    st.sampled_from(COMMANDS), st.sampled_from(["npm *", "npm:*", "git push:*", "git *", "rm *", "t*", "*", "* x", "npm run *", "git push*", "?v a b"])
)
decisions = st.sampled_from(["allow", "ask", "deny"])


def assert_not_wider(profile: Profile, permitted: Callable[[str], bool]) -> None:
    for command in COMMANDS:
        judged = judge(shlex.split(command), profile)
        if judged.allowed and judged.assessment.effects != {Risk.SAFE}:
            assert permitted(command), command


def globbed(pattern: str, command: str) -> bool:
    for ending in (":*", " *"):
        if pattern.endswith(ending):
            stem = re.escape(pattern.removesuffix(ending)).replace(r"\*", ".*").replace(r"\?", ".")
            return re.fullmatch(f"{stem}( .*)?", command) is not None
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), command) is not None


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(decisions, patterns), max_size=6), st.sampled_from([None, "bypassPermissions", "acceptEdits"]))
def test_claude_is_never_widened(rules: list[tuple[str, str]], mode: str | None) -> None:
    permissions: dict[str, Any] = {"defaultMode": mode} if mode else {}
    for decision, pattern in rules:
        permissions.setdefault(decision, []).append(f"Bash({pattern})")

    def permitted(command: str) -> bool:
        found = {decision for decision, pattern in rules if globbed(pattern, command)}
        return not found & {"deny", "ask"} and ("allow" in found or mode == "bypassPermissions")

    (draft,) = claude_reader.read(json.dumps({"permissions": permissions}), ".json", None)
    assert_not_wider(profile_from(draft), permitted)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(decisions, patterns), max_size=6))
def test_opencode_is_never_widened(rules: list[tuple[str, str]]) -> None:
    table = dict((pattern, decision) for decision, pattern in rules)  # noqa: C402 - a later one takes the first's place, as in a file

    def permitted(command: str) -> bool:
        found = [decision for pattern, decision in table.items() if globbed(pattern, command)]
        return bool(found) and found[-1] == "allow"

    (draft,) = opencode_reader.read(json.dumps({"permission": {"bash": table}}), ".json", None)
    assert_not_wider(profile_from(draft), permitted)


regexes = st.sampled_from([("commandPrefix", "npm"), ("commandPrefix", "git push"), ("commandPrefix", "rm"), ("commandRegex", "^npm test$"), ("commandRegex", "^make$"), ("commandRegex", "x"), ("", "")])  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["allow", "ask_user", "deny"]), regexes, st.integers(0, 3)), max_size=5))
def test_gemini_is_never_widened(rules: list[tuple[str, tuple[str, str], int]]) -> None:
    text = "".join(
        f'[[rule]]\ntoolName = "run_shell_command"\ndecision = "{decision}"\npriority = {priority}\n' + (f"{key} = {json.dumps(value)}\n" if key else "")
        for decision, (key, value), priority in rules
    )

    def permitted(command: str) -> bool:
        def matches(key: str, value: str) -> bool:
            if key == "commandPrefix":
                return command == value or command.startswith(value + " ")
            return not key or re.search(value, command) is not None

        found = [(priority, decision) for decision, said, priority in rules if matches(*said)]
        best = {decision for priority, decision in found if priority == max(found)[0]}
        return best == {"allow"}

    (draft,) = gemini_reader.read(text, ".toml", None)
    assert_not_wider(profile_from(draft), permitted)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["allow", "prompt", "forbidden"]), st.sampled_from([["npm"], ["git", ["push", "add"]], ["rm", "-r"], ["make"]])), max_size=4))  # fmt: skip
def test_codex_rules_permit_no_command_that_is_not_safe(rules: list[tuple[str, list[Any]]]) -> None:
    (draft,) = codex_reader.read("".join(f"prefix_rule(pattern={pattern!r}, decision={decision!r})\n" for decision, pattern in rules), ".rules", None)
    assert_not_wider(profile_from(draft), lambda _: False)


labels = st.sampled_from([risk.label for risk in Risk])


@settings(max_examples=200, deadline=None)
@given(labels, st.dictionaries(labels, st.sampled_from(["allow", "prompt", "deny", "?"]), max_size=5), st.lists(st.sampled_from(COMMANDS), max_size=4), st.lists(st.sampled_from(["git", "npm", "rm -r", "npm *"]), max_size=2))  # fmt: skip
def test_odek_is_never_widened(ceiling: str, classes: dict[str, str], listed: list[str], denied: list[str]) -> None:
    config = {"profiles": {"p": {"max_risk": ceiling, "allowlist": listed}}, "dangerous": {"classes": classes, "denylist": denied}}

    def permitted(command: str) -> bool:
        if any(command == prefix or command.startswith(prefix.rstrip("*").rstrip() + " ") for prefix in denied):
            return False
        effects = judge(shlex.split(command), Profile(name="x")).assessment.effects
        within = all(risk <= Risk.parse(ceiling) and classes.get(risk.label, "allow") == "allow" for risk in effects - {Risk.SAFE})
        return command in listed or within

    (draft,) = odek_reader.read(json.dumps(config), ".json", None)
    assert_not_wider(profile_from(draft), permitted)
