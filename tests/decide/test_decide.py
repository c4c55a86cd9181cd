"""The order of a decision, and what each refusal tells its reader."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.classify.context import Context
from broker.classify.risk import Assessment, Part, PartKind, Reason, Risk
from broker.decide import AllowEntry, Envelope, Profile, Trust
from broker.decide.decide import decide
from broker.decide.profile import up_to
from broker.decide.verdict import Allow, Ask, Deny, Grant, Layer, Verdict
from broker.request.operation import (
    Connection,
    Delegation,
    Exec,
    FileAction,
    FileChange,
    FileRead,
    Operation,
    ShellText,
)

CONTEXT = Context(cwd="/work/project", home="/home/task", workspace="/work/project")
GO_TEST = ("go", "test", "./...")
BUILDER = Profile(
    name="builder",
    max_risk=Risk.LOCAL_WRITE,
    effects=up_to(Risk.LOCAL_WRITE),
    allowlist=(AllowEntry(argv=GO_TEST),),
)


def part(*argv: str, risk: Risk = Risk.SAFE, rule: str = "", within: int | None = None) -> Part:
    rules = (rule or f"test.{risk.label}",)
    return Part(
        kind=PartKind.COMMAND,
        argv=argv,
        static=True,
        effects=frozenset({risk}),
        reasons=tuple(Reason(rule=each, risk=risk, text=f"{argv[0]} is like that") for each in rules),
        within=within,
    )


def assessed(*parts: Part) -> Assessment:
    return Assessment(parts=parts, classifier="1", tables="0")


def whole(*effects: Risk) -> Assessment:
    reasons = tuple(Reason(rule=f"test.{risk.label}", risk=risk, text="it is") for risk in effects)
    return assessed(Part(kind=PartKind.WHOLE, effects=frozenset(effects), reasons=reasons))


def start(*argv: str, path: str = "", env: tuple[tuple[str, str], ...] = ()) -> Exec:
    found = path or f"/usr/bin/{argv[0]}"
    return Exec(argv=argv, path=found, program=found, cwd="/work/project", env=env)


def ruling(
    operation: Operation,
    assessment: Assessment,
    profile: Profile = BUILDER,
    *,
    scope: Grant | None = None,
    interactive: bool = False,
    trust: Trust = Trust.TRUSTED,
) -> Verdict:
    envelope = Envelope(profile=profile, trust=trust)
    return decide(operation, assessment, envelope, CONTEXT, scope=scope, interactive=interactive)


def denial(verdict: Verdict) -> Deny:
    assert isinstance(verdict, Deny), verdict
    return verdict


def test_blocked_is_denied_before_an_exact_entry_is_looked_at() -> None:
    bomb = Profile(name="x", effects=frozenset(Risk), allowlist=(AllowEntry(argv=("bomb",)),))
    verdict = denial(ruling(start("bomb"), assessed(part("bomb", risk=Risk.BLOCKED)), bomb, interactive=True))
    assert verdict.layer is Layer.CLASSIFIER
    assert not verdict.approvable


def test_a_disabled_shell_is_denied_before_an_exact_entry_is_looked_at() -> None:
    profile = replace(
        BUILDER, allowlist=(AllowEntry(argv=("bash", "ci.sh")),), disabled_tools=frozenset({"shell"})
    )
    verdict = denial(ruling(start("bash", "ci.sh"), assessed(part("bash", "ci.sh")), profile))
    assert (verdict.layer, verdict.rule) == (Layer.PROFILE, "tool.shell.disabled")


def test_an_exact_entry_is_allowed_before_the_denylist_is_looked_at() -> None:
    profile = replace(BUILDER, denylist=(("go",),))
    verdict = ruling(start(*GO_TEST), assessed(part(*GO_TEST, risk=Risk.CODE_EXECUTION)), profile)
    assert isinstance(verdict, Allow)
    assert verdict.layer is Layer.ALLOWLIST
    assert verdict.grant == Grant(
        entry="go test ./...", effects=up_to(Risk.CODE_EXECUTION), unrecognised=True
    )


def test_the_denylist_is_looked_at_before_the_classes() -> None:
    profile = replace(BUILDER, denylist=(("git", "push"),))
    verdict = denial(ruling(start("git", "push", "origin"), assessed(part("git", "push", "origin")), profile))
    assert verdict.layer is Layer.DENYLIST
    assert not verdict.approvable
    assert "`git push`" in verdict.reason


def test_what_lies_within_the_ceiling_is_allowed_without_a_grant() -> None:
    verdict = ruling(start("touch", "a"), assessed(part("touch", "a", risk=Risk.LOCAL_WRITE)))
    assert isinstance(verdict, Allow)
    assert (verdict.layer, verdict.grant) == (Layer.PROFILE, None)


def test_what_lies_beyond_the_ceiling_is_asked_about_where_somebody_can_answer() -> None:
    curl = assessed(part("curl", "x", risk=Risk.NETWORK_EGRESS))
    question = ruling(start("curl", "x"), curl, interactive=True)
    assert isinstance(question, Ask)
    assert question.effects == frozenset({Risk.NETWORK_EGRESS})
    verdict = denial(ruling(start("curl", "x"), curl))
    assert verdict.approvable


@pytest.mark.parametrize("risk", [Risk.UNKNOWN, Risk.BLOCKED])
def test_nobody_is_asked_about_what_nobody_understands(risk: Risk) -> None:
    verdict = denial(ruling(start("x"), assessed(part("x", risk=risk)), interactive=True))
    assert not verdict.approvable


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "zsh", "/bin/sh", "-bash", "fish"])
def test_a_disabled_shell_covers_every_shell(shell: str) -> None:
    profile = replace(BUILDER, disabled_tools=frozenset({"shell"}))
    named = shell.lstrip("-")
    path = named if named.startswith("/") else f"/bin/{named}"
    operation = start(shell, "-c", "ls", path=path)
    assert denial(ruling(operation, assessed(part(shell, "-c", "ls")), profile)).rule == "tool.shell.disabled"


def test_a_disabled_shell_covers_renamed_shells_wrapped_shells_and_busybox() -> None:
    profile = replace(BUILDER, disabled_tools=frozenset({"shell"}))
    for operation, parts in [
        (start("ls", path="/bin/bash"), [part("ls")]),
        (start("env", "sh", "-c", "ls"), [part("env"), part("sh", "-c", "ls", within=0)]),
        (start("busybox", "sh"), [part("busybox", "sh")]),
        (ShellText(text="ls"), [part("ls")]),
    ]:
        assert denial(ruling(operation, assessed(*parts), profile)).rule == "tool.shell.disabled"


def test_other_programs_start_where_the_shell_is_disabled() -> None:
    profile = replace(BUILDER, disabled_tools=frozenset({"shell"}))
    assert isinstance(ruling(start("grep", "-r", "sh"), assessed(part("grep", "-r", "sh")), profile), Allow)


def test_a_shell_text_is_allowed_if_each_part_is_by_ceiling_or_entry() -> None:
    text = ShellText(text="cd src && go test ./... > out.txt")
    redirect = Part(kind=PartKind.REDIRECT, effects=frozenset({Risk.LOCAL_WRITE}), reasons=())
    verdict = ruling(text, assessed(part("cd", "src"), part(*GO_TEST, risk=Risk.CODE_EXECUTION), redirect))
    assert isinstance(verdict, Allow)
    assert (verdict.layer, verdict.rule) == (Layer.ALLOWLIST, "allowlist.part")
    assert verdict.grant is None, "only the start of the entry itself opens a grant"


def test_an_entry_does_not_excuse_the_rest_of_a_shell_text() -> None:
    text = ShellText(text="go test ./... | tee ~/.bashrc")
    parts = [part(*GO_TEST, risk=Risk.CODE_EXECUTION), part("tee", "~/.bashrc", risk=Risk.PERSISTENCE)]
    verdict = denial(ruling(text, assessed(*parts)))
    assert verdict.effects == frozenset({Risk.PERSISTENCE})
    assert verdict.what.startswith("tee ")
    assert "in: go test ./..." in verdict.what


def test_an_entry_with_computed_words_or_assignments_does_not_match() -> None:
    dynamic = replace(part(*GO_TEST, risk=Risk.CODE_EXECUTION), static=False)
    assert denial(ruling(ShellText(text="X=1 go test ./..."), assessed(dynamic))).risk is Risk.CODE_EXECUTION


def test_an_entry_written_behind_a_wrapper_covers_what_it_wraps() -> None:
    argv = ("timeout", "60", "frob")
    profile = replace(BUILDER, allowlist=(AllowEntry(argv=argv),))
    parts = [part(*argv, risk=Risk.CODE_EXECUTION), part("frob", risk=Risk.UNKNOWN, within=0)]
    assert isinstance(ruling(ShellText(text="timeout 60 frob"), assessed(*parts), profile), Allow)
    assert isinstance(ruling(start(*argv), assessed(*parts), profile), Allow)


def test_a_wrapped_entry_is_allowed_and_opens_no_grant_itself() -> None:
    parts = [part("timeout", "9", *GO_TEST), part(*GO_TEST, risk=Risk.CODE_EXECUTION, within=0)]
    verdict = ruling(start("timeout", "9", *GO_TEST), assessed(*parts))
    assert isinstance(verdict, Allow)
    assert verdict.grant is None


def test_the_denylist_reaches_wrapped_commands_and_other_paths_to_the_program() -> None:
    profile = replace(BUILDER, denylist=(("git", "push"),))
    wrapped = [part("timeout", "9"), part("/usr/bin/git", "push", within=0)]
    assert denial(ruling(start("timeout", "9"), assessed(*wrapped), profile)).layer is Layer.DENYLIST
    renamed = start("harmless", "push", path="/usr/bin/git")
    assert denial(ruling(renamed, assessed(part("harmless", "push")), profile)).layer is Layer.DENYLIST
    compound = ShellText(text="ls; git push")
    parts = assessed(part("ls"), part("git", "push"))
    assert denial(ruling(compound, parts, profile)).layer is Layer.DENYLIST


def test_the_denylist_compares_whole_words() -> None:
    profile = replace(BUILDER, denylist=(("git", "push"),))
    for argv in [("git", "pushd"), ("git",), ("gitpush",), ("git", "status", "push")]:
        assert isinstance(ruling(start(*argv), assessed(part(*argv)), profile), Allow), argv


SCOPE = Grant(entry="go test ./...", effects=up_to(Risk.CODE_EXECUTION), unrecognised=True)


def test_processes_below_an_entry_may_run_code_that_the_ceiling_refuses() -> None:
    gcc = assessed(part("gcc", "a.c", risk=Risk.CODE_EXECUTION))
    verdict = ruling(start("gcc", "a.c"), gcc, scope=SCOPE)
    assert isinstance(verdict, Allow)
    assert (verdict.layer, verdict.grant) == (Layer.GRANT, None)
    assert isinstance(ruling(start("gcc", "a.c"), gcc), Deny)


def test_a_test_that_runs_curl_is_refused_and_told_where_it_is() -> None:
    curl = assessed(part("curl", "x", risk=Risk.NETWORK_EGRESS))
    verdict = denial(ruling(start("curl", "x"), curl, scope=SCOPE))
    assert verdict.layer is Layer.GRANT
    assert "the grant of `go test ./...`" in verdict.reason
    assert "profile builder" in verdict.reason
    assert 'effects = ["network_egress"]' in verdict.hint


def test_an_unrecognised_program_in_a_grant_is_no_more_than_code() -> None:
    unknown = part("asm", "-o", "x", risk=Risk.UNKNOWN, rule="program.unrecognised")
    assert isinstance(ruling(start("asm", "-o", "x"), assessed(unknown), scope=SCOPE), Allow)
    assert isinstance(ruling(start("asm", "-o", "x"), assessed(unknown)), Deny)
    narrow = replace(SCOPE, unrecognised=False)
    assert isinstance(ruling(start("asm", "-o", "x"), assessed(unknown), scope=narrow), Deny)


def test_any_other_doubt_in_a_grant_is_refused() -> None:
    doubtful = part("asm", risk=Risk.UNKNOWN, rule="program.unrecognised")
    other = Reason(rule="shell.dynamic", risk=Risk.UNKNOWN, text="a computed name")
    mixed = replace(doubtful, reasons=(*doubtful.reasons, other))
    assert isinstance(ruling(start("asm"), assessed(mixed), scope=SCOPE), Deny)
    silent = replace(doubtful, reasons=())
    assert isinstance(ruling(start("asm"), assessed(silent), scope=SCOPE), Deny)


def test_a_grant_never_covers_persistence_even_if_it_says_so() -> None:
    change = FileChange(action=FileAction.WRITE, path="/work/project/.git/hooks/pre-commit")
    scope = replace(SCOPE, effects=frozenset(Risk))
    assert isinstance(ruling(change, whole(Risk.PERSISTENCE), scope=scope), Deny)
    entry = AllowEntry(argv=GO_TEST, effects=frozenset({Risk.PERSISTENCE, Risk.INSTALL}))
    profile = replace(BUILDER, allowlist=(entry,))
    verdict = ruling(start(*GO_TEST), assessed(part(*GO_TEST)), profile)
    assert isinstance(verdict, Allow) and verdict.grant is not None
    assert verdict.grant.effects == up_to(Risk.INSTALL)


def test_an_entry_inside_a_grant_keeps_what_the_grant_gave() -> None:
    scope = replace(SCOPE, entry="make deploy", effects=SCOPE.effects | {Risk.NETWORK_EGRESS})
    verdict = ruling(start(*GO_TEST), assessed(part(*GO_TEST, risk=Risk.CODE_EXECUTION)), scope=scope)
    assert isinstance(verdict, Allow) and verdict.grant is not None
    assert verdict.grant.effects == scope.effects


@pytest.mark.parametrize(
    "operation",
    [
        FileChange(action=FileAction.WRITE, path="/x"),
        FileRead(path="/x"),
        Connection(address="10.0.0.1", port=80),
        Delegation(profile="builder", trust="trusted", argv=("x",)),
    ],
)
def test_files_connections_and_delegations_are_decided_by_their_classes(operation: Operation) -> None:
    assert isinstance(ruling(operation, whole(Risk.LOCAL_WRITE)), Allow)
    assert denial(ruling(operation, whole(Risk.SYSTEM_WRITE))).risk is Risk.SYSTEM_WRITE
    assert isinstance(ruling(operation, whole(Risk.CODE_EXECUTION), scope=SCOPE), Allow)


def test_an_assessment_that_says_nothing_is_no_permission() -> None:
    assert denial(ruling(start("x"), assessed())).risk is Risk.UNKNOWN
    assert denial(ruling(ShellText(text="x"), assessed())).risk is Risk.UNKNOWN
    assert isinstance(ruling(ShellText(text="  \n"), assessed()), Allow)


def test_an_untrusted_task_is_held_to_local_write_whatever_its_profile_says() -> None:
    wide = Profile(name="wide", max_risk=Risk.DESTRUCTIVE, effects=up_to(Risk.DESTRUCTIVE))
    pip = assessed(part("pip", "install", "x", risk=Risk.INSTALL))
    verdict = denial(ruling(start("pip"), pip, wide, trust=Trust.UNTRUSTED, interactive=True))
    assert "untrusted" in verdict.reason
    assert not verdict.approvable
    touch = assessed(part("touch", "a", risk=Risk.LOCAL_WRITE))
    assert isinstance(ruling(start("touch"), touch, wide, trust=Trust.UNTRUSTED), Allow)


def test_an_untrusted_task_may_run_an_entry_but_gets_none_of_its_extra_effects() -> None:
    entry = AllowEntry(argv=GO_TEST, effects=frozenset({Risk.NETWORK_EGRESS}))
    profile = replace(BUILDER, allowlist=(entry,))
    operation, assessment = start(*GO_TEST), assessed(part(*GO_TEST, risk=Risk.CODE_EXECUTION))
    verdict = ruling(operation, assessment, profile, trust=Trust.UNTRUSTED)
    assert isinstance(verdict, Allow) and verdict.grant is not None
    assert Risk.NETWORK_EGRESS not in verdict.grant.effects


def test_child_of_an_untrusted_parent_cannot_install_even_if_its_profile_allows() -> None:
    wide = Profile(name="wide", max_risk=Risk.INSTALL, effects=up_to(Risk.INSTALL))
    parent = Envelope(profile=wide, trust=Trust.UNTRUSTED)
    child = parent.narrow(wide, Trust.TRUSTED)
    pip = assessed(part("pip", "install", "x", risk=Risk.INSTALL))
    verdict = denial(decide(start("pip", "install", "x"), pip, child, CONTEXT))
    assert verdict.risk is Risk.INSTALL


def test_a_child_gets_a_grant_only_where_its_parent_permits_the_entry_too() -> None:
    child_entry = AllowEntry(argv=GO_TEST, effects=frozenset({Risk.INSTALL, Risk.NETWORK_EGRESS}))
    parent_entry = AllowEntry(argv=GO_TEST, effects=frozenset({Risk.INSTALL, Risk.SYSTEM_WRITE}))
    operation, assessment = start(*GO_TEST), assessed(part(*GO_TEST, risk=Risk.CODE_EXECUTION))
    child = replace(BUILDER, allowlist=(child_entry,))

    strict = Envelope(profile=replace(BUILDER, allowlist=()), trust=Trust.TRUSTED)
    verdict = denial(decide(operation, assessment, strict.narrow(child, Trust.TRUSTED), CONTEXT))
    assert "of the parent task" in verdict.reason

    listing = Envelope(profile=replace(BUILDER, allowlist=(parent_entry,)), trust=Trust.TRUSTED)
    allowed = decide(operation, assessment, listing.narrow(child, Trust.TRUSTED), CONTEXT)
    assert isinstance(allowed, Allow) and allowed.grant is not None
    assert allowed.grant.effects == up_to(Risk.INSTALL)
    assert allowed.grant.unrecognised


def test_a_parent_that_permits_an_entry_by_its_classes_passes_on_its_classes_and_no_more() -> None:
    running = Profile(name="r", max_risk=Risk.CODE_EXECUTION, effects=up_to(Risk.CODE_EXECUTION))
    child = Envelope(profile=running, trust=Trust.TRUSTED).narrow(BUILDER, Trust.TRUSTED)
    allowed = decide(start(*GO_TEST), assessed(part(*GO_TEST, risk=Risk.CODE_EXECUTION)), child, CONTEXT)
    assert isinstance(allowed, Allow) and allowed.grant is not None
    assert allowed.grant.effects == up_to(Risk.CODE_EXECUTION)
    assert not allowed.grant.unrecognised, "the parent itself could not start an unrecognised program"


def test_a_refusal_that_no_approval_can_change_wins_over_a_question() -> None:
    parent = Envelope(profile=replace(BUILDER, denylist=(("curl",),)), trust=Trust.TRUSTED)
    child = parent.narrow(BUILDER, Trust.TRUSTED)
    curl = assessed(part("curl", "x", risk=Risk.NETWORK_EGRESS))
    verdict = denial(decide(start("curl", "x"), curl, child, CONTEXT, interactive=True))
    assert verdict.layer is Layer.DENYLIST


def test_a_hint_names_the_entries_that_resemble_the_command() -> None:
    near = denial(ruling(start("go", "test"), assessed(part("go", "test", risk=Risk.CODE_EXECUTION))))
    assert "`go test ./...`" in near.hint
    far = denial(ruling(start("make"), assessed(part("make", risk=Risk.CODE_EXECUTION))))
    assert far.hint == "Ask the operator to add `make` to the allowlist of profile builder."


def test_a_denial_names_class_reason_and_profile_in_one_sentence() -> None:
    verdict = denial(ruling(start("curl", "x"), assessed(part("curl", "x", risk=Risk.NETWORK_EGRESS))))
    assert verdict.reason == (
        "curl is like that (network_egress); profile builder permits only safe and local_write."
    )
    assert verdict.rule == "test.network_egress"
    assert verdict.what == "curl x"


def test_a_parents_ceiling_cuts_what_a_childs_entry_gives_its_descendants() -> None:
    running = Profile(name="r", max_risk=Risk.CODE_EXECUTION, effects=up_to(Risk.CODE_EXECUTION))
    entry = AllowEntry(argv=GO_TEST, effects=frozenset({Risk.INSTALL}))
    child = Envelope(profile=running, trust=Trust.TRUSTED).narrow(
        replace(BUILDER, allowlist=(entry,)), Trust.TRUSTED
    )
    allowed = decide(start(*GO_TEST), assessed(part(*GO_TEST, risk=Risk.CODE_EXECUTION)), child, CONTEXT)
    assert isinstance(allowed, Allow) and allowed.grant is not None
    assert Risk.INSTALL not in allowed.grant.effects


@pytest.mark.parametrize("argv", [GO_TEST, ("anything", "test", "./...")])
def test_a_program_start_is_not_excused_by_a_part_that_reads_like_an_entry(argv: tuple[str, ...]) -> None:
    """What is about to start is judged by the program; no later question will correct a mistake here."""
    evil = replace(start(*argv), path="/tmp/go", program="/tmp/go")
    looks_listed = part(*GO_TEST, risk=Risk.CODE_EXECUTION)
    assert isinstance(ruling(evil, assessed(looks_listed)), Deny)
    later = assessed(part("x"), looks_listed)
    if argv == GO_TEST:
        assert isinstance(ruling(evil, later), Deny)


def test_an_unrecognised_program_can_be_listed_and_other_doubts_are_to_be_written_out() -> None:
    unknown = part("frob", "x", risk=Risk.UNKNOWN, rule="program.unrecognised")
    assert "add `frob x` to the allowlist" in denial(ruling(start("frob", "x"), assessed(unknown))).hint
    dynamic = part("frob", "x", risk=Risk.UNKNOWN, rule="shell.dynamic")
    assert "plainly" in denial(ruling(ShellText(text="frob x"), assessed(dynamic))).hint
