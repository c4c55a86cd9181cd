"""What an agent's own processes may do by themselves, and that a wrapped command is judged as if it stood alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_wrapper import claude, gemini, quoted

from broker.agents.adapter import load_adapter
from broker.classify.context import Context
from broker.classify.risk import Risk
from broker.cli.event_text import text_of
from broker.cli.terminal import Colours
from broker.decide.agent import Agent
from broker.decide.envelope import Envelope
from broker.decide.gate import consider, visible_command
from broker.decide.given import Given
from broker.decide.profile import AllowEntry, Profile, up_to
from broker.decide.trust import Trust
from broker.decide.verdict import Allow, Deny, Verdict
from broker.profiles.denials import judged
from broker.record.event import decided
from broker.record.export.wording import what_of
from broker.request.operation import Exec, FileAction, FileChange, Operation

CONTEXT = Context(cwd="/w", home="/home/agent", workspace="/w")
PACKAGE = "/opt/agents/node_modules"
AGENT = Given(gate=True, agent=True)
OTHERS = Given(gate=True)


def agent(name: str = "claude") -> Agent:
    found = load_adapter(name)
    return Agent(
        name=name, programs=(PACKAGE,), runtimes=("/usr/bin/node",), helpers=found.helpers, state=found.state,
        settings=found.settings, wrappers=found.wrappers, sets=found.sets,
    )  # fmt: skip


def envelope(name: str = "claude", ceiling: Risk = Risk.LOCAL_WRITE, **more: object) -> Envelope:
    profile = Profile(
        name="t", max_risk=ceiling, effects=up_to(ceiling), allowlist=(AllowEntry(argv=("make", "test")),), agent=agent(name)
    )
    return Envelope(profile=replace(profile, **more), trust=Trust.TRUSTED)  # type: ignore[arg-type]


def ask(operation: Operation, known: Given = AGENT, of: Envelope | None = None) -> Verdict:
    return consider(operation, of or envelope(), CONTEXT, known)[1]


def bash(*argv: str) -> Exec:
    return Exec(argv=argv, path="/bin/bash", program="/usr/bin/bash", cwd="/w")


COMMANDS = [
    "ls", "make test", "curl http://x", "echo hi > a.txt", "rm -rf /", "echo x > /etc/passwd", "cat ~/.ssh/id_rsa", ":(){ :|:& };:", "$(x)",
    "unknown-program", "make test; curl x", "echo '", "git status", "echo x > ~/.bashrc", "sudo id", ") ; curl x; (", "FOO=1 make test", "exec -a make sh",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("ceiling", [Risk.SAFE, Risk.LOCAL_WRITE, Risk.CODE_EXECUTION])
def test_a_wrapped_command_gets_the_verdict_that_it_gets_alone(command: str, ceiling: Risk) -> None:
    alone = ask(bash("/bin/bash", "-c", command), of=envelope(ceiling=ceiling))
    assert ask(bash(*claude(quoted(command))), of=envelope(ceiling=ceiling)) == named(alone, command)
    with_gemini = replace(bash(*gemini(command)), argv=("/bin/bash", *gemini(command)[1:]))
    assert ask(with_gemini, of=envelope("gemini", ceiling=ceiling)) == named(ask(bash("/bin/bash", "-c", command), of=envelope("gemini", ceiling=ceiling)), command)


def named(verdict: Verdict, command: str) -> Verdict:
    """Return a verdict whose refusal names the command, and no shell: so its user sees it."""
    return replace(verdict, what=command) if isinstance(verdict, Deny) else verdict


def test_a_command_is_shown_without_the_wrapper_that_its_agent_put_around_it() -> None:
    assert visible_command(bash(*claude(quoted("cat < .env"))), envelope(), CONTEXT) == "cat < .env"
    assert visible_command(bash("/bin/bash", "-c", "cat < .env"), envelope(), CONTEXT) == ""
    assert visible_command(bash(*gemini("ls")), envelope(), CONTEXT) == ""  # another agent's wrapper is a text like any other


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=80))
def test_unwrapping_never_permits_a_start_whose_command_would_be_refused(text: str) -> None:
    if isinstance(ask(bash(*claude(quoted(text)))), Allow):
        assert isinstance(ask(bash("/bin/bash", "-c", text)), Allow)


def test_the_wrapper_of_an_entry_opens_no_grant() -> None:
    listed = envelope(allowlist=(AllowEntry(argv=("/bin/bash", "-c", "curl x")),))
    assert ask(bash("/bin/bash", "-c", "curl x"), of=listed).grant is not None  # type: ignore[union-attr]
    wrapped = ask(bash(*claude(quoted("curl x"))), of=listed)
    assert isinstance(wrapped, Allow)
    assert wrapped.grant is None


def test_a_wrapper_that_somebody_else_starts_is_judged_as_it_stands() -> None:
    low = envelope(ceiling=Risk.SAFE)
    assert isinstance(ask(bash(*claude("ls")), of=low), Allow)
    assert isinstance(ask(bash(*claude("ls")), OTHERS, low), Deny)


def git(*words: str, **more: object) -> Exec:
    return replace(Exec(argv=("git", *words), path="/usr/bin/git", program="/usr/bin/git", cwd="/w"), **more)  # type: ignore[arg-type]


ODD_GIT = ("-c", "core.alternateRefsCommand=f() { git for-each-ref; }; f", "log")


def test_the_agent_may_start_its_helpers_and_what_it_started_may_not() -> None:
    assert isinstance(ask(git(*ODD_GIT)), Allow)
    assert isinstance(ask(git(*ODD_GIT), OTHERS), Deny)


@pytest.mark.parametrize("place", ["/w/git", "/tmp/git", "/home/agent/bin/git", "/proc/self/exe", "/usr/bin/../../w/git", "git", ""])
def test_a_helper_that_the_task_could_have_written_is_none(place: str) -> None:
    assert isinstance(ask(git(*ODD_GIT, path=place, program=place)), Deny)


def test_a_helper_may_not_do_what_its_classes_do_not_name() -> None:
    assert isinstance(ask(git("push", "origin", "main")), Deny)
    assert isinstance(ask(git("clone", "https://x/y")), Deny)


def test_the_agents_own_programs_are_the_agent_whatever_their_arguments() -> None:
    own = Exec(argv=("/proc/self/exe", "--x"), path="/proc/self/exe", program=f"{PACKAGE}/codex/bin/codex", cwd="/w")
    verdict = ask(own)
    assert isinstance(verdict, Allow)
    assert verdict.rule == "agent.program"
    assert isinstance(ask(own, OTHERS), Deny)


@pytest.mark.parametrize("program", ["/w/node_modules/codex", "/tmp/codex", f"{PACKAGE}/../../../w/x", f"{PACKAGE}x/codex", "/usr/bin/curl"])
def test_other_programs_are_not_the_agent(program: str) -> None:
    assert ask(Exec(argv=("codex",), path=program, program=program, cwd="/w")).rule != "agent.program"


def node(*words: str, **more: object) -> Exec:
    return replace(Exec(argv=("node", *words), path="/usr/bin/node", program="/usr/bin/node", cwd="/w"), **more)  # type: ignore[arg-type]


def test_a_runtime_with_the_agents_script_is_the_agent() -> None:
    assert ask(node("--max-old-space-size=4096", f"{PACKAGE}/gemini.js", "-p", "x")).rule == "agent.program"


@pytest.mark.parametrize(
    "words",
    [
        ("/w/evil.js",), (f"{PACKAGE}/../../../w/evil.js",), ("--require=/w/evil.js", f"{PACKAGE}/gemini.js"), ("-e", "1"), (),
        ("-r", "/w/evil.js", f"{PACKAGE}/gemini.js"), ("gemini.js",), ("--import", f"{PACKAGE}/gemini.js"), ("-",),
    ],
)  # fmt: skip
def test_a_runtime_with_anything_else_is_not_the_agent(words: tuple[str, ...]) -> None:
    assert ask(node(*words)).rule != "agent.program"


def change(path: str, action: FileAction = FileAction.WRITE, **more: object) -> FileChange:
    return replace(FileChange(action=action, path=path), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", [".claude/projects/-w/s.jsonl", ".claude.json", ".claude/todos/x.json", ".claude/history.jsonl"])
def test_the_agent_may_keep_its_state_and_its_commands_may_not_write_it(path: str) -> None:
    assert isinstance(ask(change(f"/home/agent/{path}")), Allow)
    assert isinstance(ask(change(f"/home/agent/{path}"), OTHERS), Deny)


SETTINGS = [
    ".claude/settings.json", ".claude/settings.local.json", ".claude/CLAUDE.md", ".claude/hooks/x.sh", ".claude/commands/x.md",
    ".claude/agents/x.md", ".claude/skills/x/SKILL.md", ".claude/plugins/x/y", ".claude/projects/../settings.json", ".bashrc",
]  # fmt: skip


@pytest.mark.parametrize("path", SETTINGS)
def test_the_agent_may_not_write_its_own_settings(path: str) -> None:
    assert isinstance(ask(change(f"/home/agent/{path}")), Deny)


@pytest.mark.parametrize("path", ["/w/.claude/projects/x", "/home/other/.claude/projects/x", "/w/.git/hooks/pre-commit"])
def test_state_is_below_the_agents_home_alone(path: str) -> None:
    assert isinstance(ask(change(path)), Deny)


def test_state_cannot_be_moved_over_settings() -> None:
    moved = change("/home/agent/.claude/todos/x", FileAction.RENAME, other="/home/agent/.claude/settings.json")
    assert isinstance(ask(moved), Deny)


def test_an_untrusted_task_has_no_agent() -> None:
    untrusted = Envelope(profile=envelope().profile, trust=Trust.UNTRUSTED)
    assert isinstance(ask(git(*ODD_GIT), of=untrusted), Deny)
    assert isinstance(ask(change("/home/agent/.claude.json"), of=untrusted), Deny)
    assert ask(Exec(argv=("x",), path=f"{PACKAGE}/x", program=f"{PACKAGE}/x", cwd="/w"), of=untrusted).rule != "agent.program"


def test_a_parent_that_knows_no_agent_lets_its_child_have_none() -> None:
    parent = Envelope(profile=replace(envelope().profile, agent=None), trust=Trust.TRUSTED)
    child = parent.narrow(envelope().profile, Trust.TRUSTED)
    for operation in (git(*ODD_GIT), change("/home/agent/.claude.json")):
        assert isinstance(ask(operation, of=child), Deny)
    assert ask(Exec(argv=("x",), path=f"{PACKAGE}/x", program=f"{PACKAGE}/x", cwd="/w"), of=child).rule != "agent.program"


def test_variables_that_the_agent_sets_for_each_command_change_nothing() -> None:
    own = load_adapter("gemini").sets
    make = Exec(argv=("make", "test"), path="/usr/bin/make", program="/usr/bin/make", cwd="/w", env=own)
    assert ask(make, OTHERS, envelope("gemini")).rule == "allowlist.exact"
    assert isinstance(ask(make, OTHERS, envelope("claude")), Deny)


@pytest.mark.parametrize(
    ("name", "value"), [("GIT_CONFIG_VALUE_3", "sh -c id"), ("GIT_CONFIG_KEY_0", "core.pager"), ("GIT_CONFIG_VALUE_8", "x"), ("PATH", "/tmp"), ("LD_PRELOAD", "/w/x.so")]
)
def test_another_value_of_such_a_variable_still_counts(name: str, value: str) -> None:
    env = tuple((dict(load_adapter("gemini").sets) | {name: value}).items())
    make = Exec(argv=("make", "test"), path="/usr/bin/make", program="/usr/bin/make", cwd="/w", env=env)
    assert isinstance(ask(make, OTHERS, envelope("gemini")), Deny)


def test_everybody_is_shown_the_command_and_the_record_keeps_the_whole_of_it() -> None:
    operation = bash(*claude(quoted("cat < .env")))
    assessment, verdict = consider(operation, envelope(), CONTEXT, AGENT)
    one = decided(operation, assessment, verdict, AGENT, visible=visible_command(operation, envelope(), CONTEXT))
    assert isinstance(verdict, Deny)
    assert (verdict.what, what_of(one), one["visible"]) == ("cat < .env",) * 3
    assert "deny  cat < .env [" in text_of(one, Colours(None))
    assert judged(one) == {**one["operation"], "argv": [operation.argv[0], "-c", "cat < .env"]}  # type: ignore[dict-item]
    assert one["operation"]["argv"] == list(operation.argv)  # type: ignore[index]
