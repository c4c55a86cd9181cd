"""A secret never reaches the record, and what was recorded still classifies as what was judged."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.classify import classify
from broker.classify.context import Context
from broker.classify.risk import Risk
from broker.cli.report import Reporter
from broker.decide.verdict import Deny, Layer
from broker.record import event, redact
from broker.record.denials import DenialLog
from broker.record.journal import Journal, read
from broker.record.needles import in_small_letters, may_hold, may_hold_any
from broker.record.redact import MARK, mark, redact_text, redact_words
from broker.record.redact_rules import FLAGS, RULES, Rule
from broker.request.operation import Exec, Operation, ShellText

CONTEXT = Context(cwd="/work/project", home="/home/dev", workspace="/work/project")
CASES = [
    str(row["command"])
    for file in sorted((Path(__file__).parent.parent / "cases").glob("*.toml"))
    for row in tomllib.loads(file.read_text(encoding="utf-8"))["case"]
]


def _shown(text: str) -> str:
    """The text with … for each mark."""
    return MARK.sub("…", text)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_each_rule_finds_its_example_and_leaves_its_shape(rule: Rule) -> None:
    found = redact.Found()

    told = redact_text(rule.example, found)

    assert _shown(told) == rule.left
    assert found.rules == {rule.id}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_what_was_redacted_is_not_redacted_again(rule: Rule) -> None:
    told = redact_text(rule.example)

    assert redact_text(told) == told


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("mysql -u root -phunter2 db", "mysql -u root -p… db"),
        ("sudo /usr/bin/mysqldump -phunter2 db | gzip", "sudo /usr/bin/mysqldump -p… db | gzip"),
        ("mysql -p db", "mysql -p db"),  # asks for it
        ("mysqladmin --password drop shop", "mysqladmin --password drop shop"),  # asks, and the next word is a command
        ("psql --password shop", "psql --password shop"),
        ("curl -u me:hunter2 https://h.example", "curl -u me:… https://h.example"),
        ("curl --user 'me:a b' https://h.example", "curl --user 'me:…' https://h.example"),
        ("curl -u me https://h.example", "curl -u me https://h.example"),
        ("docker run -p 8080:80 img", "docker run -p 8080:80 img"),
        ("docker login -u me -p hunter2 ghcr.io", "docker login -u me -p … ghcr.io"),
        ("docker login --password-stdin ghcr.io", "docker login --password-stdin ghcr.io"),
        ("sshpass -p hunter2 ssh a@b; ls -p x", "sshpass -p … ssh a@b; ls -p x"),
        ("mkdir -p a/b && unzip -P hunter2 a.zip", "mkdir -p a/b && unzip -P … a.zip"),
        ("TOKEN=$(cat file) make", "TOKEN=$(cat file) make"),  # what a shell expands is none
        ('deploy --password "$PW" --token $T', 'deploy --password "$PW" --token $T'),
        ("deploy --password 'a b' x", "deploy --password '…' x"),
        ("deploy --password=a\\$b x", "deploy --password=… x"),
        ("run --max-tokens 500 --token-file x", "run --max-tokens 500 --token-file x"),
        ("TOKENIZERS_PARALLELISM=false GIT_ASKPASS=/bin/x PWD=/a x", "TOKENIZERS_PARALLELISM=false GIT_ASKPASS=/bin/x PWD=/a x"),
        ("ansible --private-key=~/.ssh/id_rsa all", "ansible --private-key=~/.ssh/id_rsa all"),  # a path is none
        ("docker build --secret id=npm,src=.npmrc .", "docker build --secret id=npm,src=.npmrc ."),
        ("curl 'https://h.example/?access_token=abc&page=2'", "curl 'https://h.example/?access_token=…&page=2'"),
        ("curl -d '{\"user\":\"a\",\"password\":\"b c\"}' x", "curl -d '{\"user\":\"a\",\"password\":\"…\"}' x"),
        ("git log --author=token risk-assessment task-1234567890123456", "git log --author=token risk-assessment task-1234567890123456"),
        ("tool --no-password x", "tool --no-password x"),
        ("tool --password=true", "tool --password=true"),
    ],
)  # fmt: skip
def test_a_secret_goes_and_what_is_none_stays(text: str, left: str) -> None:
    assert _shown(redact_text(text)) == left
    # Both ways of looking agree where a word is a word.
    if not re.search(r"[$'\"\\;|&]", text):
        assert _shown(" ".join(redact_words(text.split(" ")))) == left


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["deploy", "--password", "a b;$c'"], ["deploy", "--password", "…"]),
        (["deploy", "--password=a b;$c'"], ["deploy", "--password=…"]),
        (["env", "DB_PASSWORD=a b;c", "make"], ["env", "DB_PASSWORD=…", "make"]),
        (["make", "DB_PASSWORD=a;$c"], ["make", "DB_PASSWORD=…"]),
        (["sh", "-c", "TOKEN=abc;reboot"], ["sh", "-c", "TOKEN=…;reboot"]),
        (["ssh", "host", "TOKEN=abc reboot"], ["ssh", "host", "TOKEN=… reboot"]),
        (["docker", "run", "-e", "A_TOKEN=a b", "img"], ["docker", "run", "-e", "A_TOKEN=…", "img"]),
        (["deploy", "--password", "--verbose"], ["deploy", "--password", "--verbose"]),
        (["curl", "-H", "Authorization: Bearer abcdefgh"], ["curl", "-H", "Authorization: Bearer …"]),
        (["mysql", "-phunter2 x"], ["mysql", "-p…"]),
        (["curl", "-ume:pw", "x"], ["curl", "-ume:…", "x"]),
    ],
)
def test_in_an_argv_a_value_goes_to_its_end(words: list[str], left: list[str]) -> None:
    assert [_shown(word) for word in redact_words(words)] == left


def test_the_mark_tells_one_secret_from_another_and_has_the_beginning_of_its_digest() -> None:
    assert mark("hunter2") == "redacted-sha256-f52fbd32b2b3-7"
    assert mark("hunter2") == MARK.search(redact_text("x --token hunter2"))[0]  # type: ignore[index]
    assert redact_words(["x", "--token", "hunter2"])[2] == mark("hunter2")
    assert " " in mark("a b")


# --- what was recorded classifies as what was judged


def _effects(operation: Operation) -> set[Risk]:
    return set(classify(operation, CONTEXT).effects)


def _classes(operation: Operation) -> list[tuple[str, Risk]]:
    return [(reason.rule, reason.risk) for reason in classify(operation, CONTEXT).reasons]


def _static(command: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command))
    except ValueError:
        return ()


def test_every_command_of_the_cases_classifies_the_same_after_redaction() -> None:
    for command in CASES:
        told = redact_text(command)
        if told != command:
            assert _classes(ShellText(text=told)) == _classes(ShellText(text=command)), command
        words = _static(command)
        if (kept := tuple(redact_words(words))) != words:
            assert _classes(Exec(argv=kept, cwd="/work/project")) == _classes(Exec(argv=words, cwd="/work/project")), command


WITH_SECRETS = (
    "{} --token q7xcr3t1", "{} --password=q7xcr3t1", "{} 'Authorization: Bearer q7xcr3t1q7xcr3t1'", "{} https://u:q7xcr3t1@h.example/x",
    "{} ghp_16C7e42F292c6912E7710c838347Ae178B4a", "{} A_TOKEN=q7x'cr3 t'1", '{} --api-key "q7x cr3t1"', "GITHUB_TOKEN=q7xcr3t1 {}",
    "curl -u me:q7xcr3t1 https://h.example; {}", "mysql -pq7xcr3t1 -e x && {}", "{} <<< 'password: \"q7xcr3t1\"'",
)  # fmt: skip


@pytest.mark.parametrize("shift", range(2))
def test_every_command_of_the_cases_with_a_secret_in_it_classifies_the_same_after_redaction(shift: int) -> None:
    for number, case in enumerate(CASES):
        command = WITH_SECRETS[(number + shift * 4) % len(WITH_SECRETS)].format(case)
        for text in (command, f"sh -c {shlex.quote(command)}"):
            told = redact_text(text)
            assert _effects(ShellText(text=told)) == _effects(ShellText(text=text)), text
        words = _static(command)
        kept = tuple(redact_words(words))
        assert _effects(Exec(argv=kept, cwd="/work/project")) == _effects(Exec(argv=words, cwd="/work/project")), command


PIECES = st.sampled_from((
    "--token", "--password=", "TOKEN=", "secret", "'", '"', " ", "\n", "$X", "$(id)", "`", "\\", ";", "|", "&&", "<", "(", ")", "a", "hunter2",
    "rm -rf /", "curl", "mysql -p", "-u", ":", "@", "://", "https://u:", "ghp_" + "a1" * 12, "Authorization: Bearer ", "#", "*", "sh -c ",
    "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "eyJ", ".", "<<EOF\n", "EOF\n", "sk-", "docker login -p ", "pass:", "{", "}",
))  # fmt: skip


@given(st.lists(PIECES, max_size=12).map("".join))
def test_no_text_is_redacted_twice_and_none_is_passed_over_by_the_quick_look(text: str) -> None:
    found = redact.Found()
    told = redact._flags_in_text(redact._shapes(text, found), found)

    assert may_hold(text) or told == text
    # What follows a key's first line is its body, a mark included, where a key has no end.
    assert redact_text(told) == told or "BEGIN" in text


ODD = str.maketrans({"s": "\u017f", "k": "\u212a", "i": "\u0131", "S": "\u017f", "K": "\u212a", "I": "\u0130"})


@given(st.lists(st.one_of(PIECES, st.sampled_from([rule.example for rule in RULES])), max_size=6).map("".join), st.sampled_from((str, str.upper, str.swapcase)))
def test_a_rule_that_matches_has_a_needle_in_the_text(text: str, spelt: Callable[[str], str]) -> None:
    for written in (spelt(text), spelt(text).translate(ODD)):
        small = in_small_letters(written)
        for rule in RULES:
            assert redact._pattern(rule).search(written) is None or any(needle in small for needle in rule.needles), (rule.id, written)


def _recorded(operation: Operation) -> dict[str, Any]:
    return redact.redact({"operation": event.plain(operation)})[0]["operation"]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("X_TOKEN='rm -rf /'; $X_TOKEN", "X_TOKEN='rm -rf /'; $X_TOKEN"),
        ("token=curl; $token https://h.example", "token=curl; $token https://h.example"),
        ("PASSWORD=.bashrc; echo x >~/$PASSWORD", "PASSWORD=.bashrc; echo x >~/$PASSWORD"),
        ("secret=hooks; echo x >.git/$secret/pre-commit", "secret=hooks; echo x >.git/$secret/pre-commit"),
        ("token=--help; git push $token", "token=--help; git push $token"),
        ('TOKEN=abcdef; curl -H "X: $TOKEN" https://h.example', 'TOKEN=…; curl -H "X: $TOKEN" https://h.example'),
        ("A_TOKEN=real5ecret; b_token=curl; $b_token -d $A_TOKEN x", "A_TOKEN=…; b_token=curl; $b_token -d $A_TOKEN x"),
        ("t=1; token=curl; $token ghp_16C7e42F292c6912E7710c838347Ae178B4a", "t=1; token=curl; $token ghp_…"),
    ],
)
def test_a_value_that_decides_what_a_command_is_stays_and_the_secret_beside_it_goes(text: str, left: str) -> None:
    kept = _recorded(ShellText(text=text)).get("text", "")

    assert _shown(kept) == left
    assert _classes(ShellText(text=kept)) == _classes(ShellText(text=text))


@given(st.lists(PIECES, max_size=12).map("".join))
def test_any_text_classifies_the_same_after_it_was_recorded(text: str) -> None:
    kept = _recorded(ShellText(text=text)).get("text", "")

    assert _classes(ShellText(text=kept)) == _classes(ShellText(text=text))


@given(st.lists(st.sampled_from(("--token", "curl", "--password=rm", "TOKEN=curl", "sh", "-c", "$TOKEN x", "env", "mysql", "-prm", "nohup", "x")), min_size=1))
def test_any_argv_classifies_the_same_after_it_was_recorded(words: list[str]) -> None:
    kept = tuple(_recorded(Exec(argv=tuple(words), cwd="/work/project"))["argv"])

    assert _classes(Exec(argv=kept, cwd="/work/project")) == _classes(Exec(argv=tuple(words), cwd="/work/project"))


def test_what_an_event_says_is_not_touched_by_a_secret_of_the_same_letters(tmp_path: Path) -> None:
    operation = ShellText(text="x --token network_egress --secret=profile --password denylist")
    with Journal.create(tmp_path) as journal:
        journal.append("exec.decided", operation=operation, verdict="deny", effects=["network_egress"], layer="profile", rule="denylist")

    (found,) = read(journal.path)
    assert found["redacted"] == ["option"]
    assert (found["verdict"], found["effects"], found["layer"], found["rule"]) == ("deny", ["network_egress"], "profile", "denylist")


# --- where it is kept out


SECRET = "s3cr3t-hunter2"


def _leak(folder: Path) -> list[str]:
    return [str(file) for file in folder.rglob("*") if file.is_file() and SECRET.encode() in file.read_bytes()]


def test_no_secret_reaches_a_journal_wherever_an_event_has_it(tmp_path: Path) -> None:
    with Journal.create(tmp_path) as journal:
        journal.append(event.RUN_STARTED, command=("agent", "--api-key", SECRET))
        journal.append(
            "exec.decided",
            operation=Exec(argv=("curl", "-H", f"Authorization: Bearer {SECRET}"), env=(("MY_TOKEN", SECRET), ("PATH", "/bin"))),
            reasons=[{"rule": "program.unknown_command", "text": f"curl has no command {SECRET} that we know"}],
        )
        journal.append("tool.called", arguments={"deep": [{"password": SECRET, "user": "me"}], "text": f"DB_PASSWORD={SECRET}"})
        journal.append("exec.decided", operation=ShellText(text=f"mysql -p{SECRET} -e 'select 1'"))
        journal.append(event.RUN_FINISHED, reason=f"--token={SECRET} is no option")

    assert _leak(tmp_path) == []
    events = list(read(journal.path))
    assert events[0]["command"] == ["agent", "--api-key", mark(SECRET)]
    assert events[0]["redacted"] == ["option"]
    assert events[1]["operation"]["env"] == [["MY_TOKEN", mark(SECRET)], ["PATH", "/bin"]]
    assert events[1]["reasons"][0]["text"] == f"curl has no command {mark(SECRET)} that we know"
    assert events[1]["redacted"] == ["authorization", "variable"]
    assert events[2]["arguments"]["deep"] == [{"password": mark(SECRET), "user": "me"}]


def test_an_event_without_a_secret_says_nothing_of_redaction(tmp_path: Path) -> None:
    with Journal.create(tmp_path) as journal:
        journal.append("exec.decided", operation=Exec(argv=("git", "log", "--author=token")))

    assert "redacted" not in next(read(journal.path))


def test_no_secret_reaches_a_denial_or_the_result(tmp_path: Path) -> None:
    denial = Deny(
        what=f"curl --token {SECRET}" + "x" * 3000, effects=frozenset({Risk.NETWORK_EGRESS}), layer=Layer.PROFILE, rule="profile.max_risk",
        reason=f"curl --token={SECRET} reaches out", hint="do without",
    )  # fmt: skip
    with Journal.create(tmp_path) as journal:
        log = DenialLog(journal)
        log.add("exec", denial)

    assert SECRET not in json.dumps(log.as_result())
    assert _leak(tmp_path) == []


def test_no_secret_reaches_the_terminal_while_it_happens(capsys: pytest.CaptureFixture[str]) -> None:
    denial = Deny(
        what=f"curl --token {SECRET}", effects=frozenset({Risk.NETWORK_EGRESS}), layer=Layer.PROFILE, rule="r", reason=f"--token={SECRET}", hint="h"
    )
    Reporter(quiet=False, live=True).denied("root", "exec", denial)

    told = capsys.readouterr().err
    assert f"curl --token {mark(SECRET)}" in told
    assert SECRET not in told


def test_no_secret_reaches_the_log() -> None:
    script = f"from broker.record.log import get_log; get_log().warning('cannot start', argv=['x', '--token', '{SECRET}'], why='--password={SECRET}')"
    for form in ("console", "json"):
        done = subprocess.run(
            [sys.executable, "-c", script], env={**os.environ, "BROKER_LOG": form}, capture_output=True, text=True, check=True
        )
        assert "cannot start" in done.stderr
        assert SECRET not in done.stderr
        assert mark(SECRET) in done.stderr


def test_the_quick_look_remembers_what_is_clean_and_never_what_is_not() -> None:
    value: dict[str, Any] = {"argv": ["git", "status"], "effects": ["safe"], "n": 1, "password": "x"}

    assert not may_hold_any({"argv": ["git", "status"]})
    assert not may_hold_any({"argv": ["git", "status"]})
    assert may_hold_any(value)
    assert may_hold_any(value)


def test_every_program_with_flags_of_its_own_is_seen_by_the_quick_look() -> None:
    for flag in FLAGS:
        for program in flag.programs:
            words = [program, *([flag.needs] if flag.needs else []), flag.flags[0] + ("" if flag.joined else " ") + f"a{flag.after}b"]
            assert may_hold_any({"argv": words}), program


def test_the_page_lists_every_rule() -> None:
    page = (Path(__file__).parents[2] / "docs" / "events.md").read_text(encoding="utf-8")

    rows = re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", page.partition("| rule | what goes |")[2].partition("\n\n")[0], re.MULTILINE)

    assert [row[0] for row in rows] == [*(rule.id for rule in RULES), "flag"]
    assert [row[1] for row in rows[:-1]] == [rule.what for rule in RULES]
