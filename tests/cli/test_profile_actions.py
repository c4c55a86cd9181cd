"""`broker profile` beyond list and show, and `broker can-i`, as people run them."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def home(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    return tmp_path


def environment(home: Path) -> dict[str, str]:
    return {
        **os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home / "config"), "BROKER_STATE_DIR": str(home / "state"), "NO_COLOR": "1",
    }  # fmt: skip


def broker(*words: str | Path, home: Path, cwd: Path | None = None, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "broker", *words], env=environment(home), cwd=cwd or home, capture_output=True, text=True,
        check=False, timeout=60, input=stdin,
    )  # fmt: skip


def put(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(0o644)
    return path


# --- check


def test_check_names_line_column_severity_rule_and_remedy(home: Path) -> None:
    put(home / "p.toml", '[profiles.p]\ndescription = "d"\nsandbox.memory = "1G"\nallowlist = ["make", "sh"]\n')
    result = broker("profile", "check", "--programs=no", "p.toml", home=home)
    assert "p.toml:4:22: warning: allowlist entry `sh` is a shell that runs whatever it reads" in result.stdout
    assert result.stdout.rstrip().endswith("[entry.open-door]")
    assert result.returncode == 0
    assert broker("profile", "check", "--programs=no", "--strict", "p.toml", home=home).returncode == 1
    (report,) = json.loads(broker("profile", "check", "--programs=no", "--json", "p.toml", home=home).stdout)
    (finding,) = report["findings"]
    assert (finding["rule"], finding["severity"], finding["line"], finding["column"]) == ("entry.open-door", "warning", 4, 22)
    assert finding["remedy"]


def test_check_takes_the_name_of_a_profile_and_a_file_before_it(home: Path) -> None:
    folder = home / "config" / "broker" / "profiles"
    put(folder / "both.toml", '[profiles.one]\nallowlist = ["sh"]\n[profiles.two]\n')
    said = broker("profile", "check", "--programs=no", "one", home=home).stdout
    assert "allowlist entry `sh`" in said
    assert "two" not in said
    put(home / "one", "[profiles.of-the-file]\n")
    assert "there is no such" in broker("profile", "check", "--programs=no", "nobody", home=home).stdout
    assert "allowlist entry" not in broker("profile", "check", "--programs=no", "one", home=home).stdout


def test_check_looks_for_programs_on_this_host(home: Path) -> None:
    put(home / "p.toml", '[profiles.p]\nallowlist = ["no-such-program x", "env FOO=1 ls"]\n')
    said = broker("profile", "check", "--programs=host", "p.toml", home=home).stdout
    assert "there is no program no-such-program on this host: `no-such-program x` never matches there" in said
    assert "no program env" not in said


@pytest.mark.needs_docker
def test_check_looks_for_programs_in_the_image(home: Path) -> None:
    put(home / "p.toml", '[profiles.p]\nallowlist = ["no-such-program", "make", "/usr/bin/make x", "/usr/bin/no-such x"]\n')
    said = broker("profile", "check", "--programs=image", "p.toml", home=home).stdout
    assert "there is no program no-such-program in the image base" in said
    assert "there is no program /usr/bin/no-such in the image base" in said
    assert said.count("there is no program") == 2


# --- diff, score, show --effective, schema


def test_diff_ends_with_0_for_the_same_1_for_narrower_and_2_for_wider(home: Path) -> None:
    put(home / "wide.toml", '[profiles.wide]\nmax_risk = "local_write"\nallowlist = ["npm ci"]\n')
    same = broker("profile", "diff", "builder", "builder", home=home)
    assert (same.returncode, same.stdout) == (0, "builder permits what builder permits.\n")
    narrower = broker("profile", "diff", "builder", "default", home=home)
    assert (narrower.returncode, "  - may no longer run `npm test`\n" in narrower.stdout) == (1, True)
    wider = broker("profile", "diff", "default", "wide.toml", home=home)
    assert (wider.returncode, "  + may now run `npm ci` (install) without asking\n" in wider.stdout) == (2, True)
    data = json.loads(broker("profile", "diff", "--json", "default", "wide.toml", home=home).stdout)
    assert data["is"] == "wider"
    assert {"direction": "wider", "key": "allowlist", "text": "may now run `npm ci` (install) without asking"} in data["changes"]


def test_score_has_a_table_a_mark_and_a_word(home: Path) -> None:
    shown = broker("profile", "score", "research", home=home).stdout
    assert shown.startswith("WEIGHT  DOOR")
    assert shown.rstrip().endswith("of 10, tight")
    data = json.loads(broker("profile", "score", "--json", "builder", home=home).stdout)
    assert 0 < data["score"] < 10
    assert {"id", "weight", "text", "remedy"} == data["exposures"][0].keys()


def test_show_effective_says_what_is_lost_to_whom(home: Path) -> None:
    shown = broker("profile", "show", "builder", "--parent", "research", home=home).stdout
    assert "local_write" in shown.partition("\nlost\n")[2]
    assert "to profile research of the parent task" in shown
    data = json.loads(broker("profile", "show", "builder", "--effective", "--trust", "untrusted", "--json", home=home).stdout)
    assert (data["trust"], data["effects"], data["parents"]) == ("untrusted", ["safe", "local_write"], [])


def test_schema_is_printed(home: Path) -> None:
    assert json.loads(broker("profile", "schema", home=home).stdout)["$schema"].endswith("2020-12/schema")


# --- new


def test_new_without_a_terminal_takes_what_it_finds_and_never_overwrites(home: Path) -> None:
    put(home / "proj" / "package.json", '{"scripts": {"test": "x", "ship": "y"}}')
    result = broker("profile", "new", "--allow", "make x", "--json", home=home, cwd=home / "proj")
    assert result.returncode == 0, result.stderr
    data = json.loads(result.stdout)
    path = home / "config" / "broker" / "profiles" / "proj.toml"
    assert (data["path"], data["entries"]) == (str(path), ["npm test", "npm run test", "make x"])
    text = path.read_text()
    assert text.startswith("#:schema .profile.schema.json\n")
    assert (path.parent / ".profile.schema.json").is_file()
    assert "npm run ship" in text.partition("and not listed:")[2]
    assert broker("profile", "list", home=home).stdout.count("cannot be used") == 0
    again = broker("profile", "new", "--yes", home=home, cwd=home / "proj")
    assert (again.returncode, "is not overwritten" in again.stderr) == (64, True)
    assert path.read_text() == text


def test_new_says_where_a_task_could_change_what_it_wrote(home: Path) -> None:
    put(home / "proj" / "Makefile", "test:\n")
    inside = broker("profile", "new", "a", "--yes", "-o", "a.toml", home=home, cwd=home / "proj")
    assert "It lies in the project, where a task could change it" in inside.stdout
    outside = broker("profile", "new", "a", "--yes", "-o", "../a.toml", home=home, cwd=home / "proj")
    assert f"Try: broker can-i --profile {home / 'a.toml'} --list" in outside.stdout
    assert broker("can-i", "--profile", home / "a.toml", "--", "make", "test", home=home).returncode == 0


def test_new_refuses_an_entry_that_is_not_exact_and_a_name_that_is_none(home: Path) -> None:
    wrong = broker("profile", "new", "x", "--yes", "--allow", "npm *", home=home)
    assert (wrong.returncode, "entries are exact" in wrong.stderr) == (64, True)
    assert broker("profile", "new", "No Name", "--yes", home=home).returncode == 64
    assert not (home / "config").exists()


def test_new_asks_on_a_terminal(home: Path) -> None:
    put(home / "proj" / "Makefile", "test:\n\ttrue\nlint:\n\ttrue\n")
    main, other = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "broker", "profile", "new"], stdin=other, stdout=other, stderr=other, cwd=home / "proj",
        env=environment(home) | {"TERM": "dumb"}, close_fds=True,
    )  # fmt: skip
    os.close(other)
    said = "".join(talk(main, {"Name [proj]: ": "mine", "[Y/n]: ": "n", "none (-): ": "2-3"}))
    os.close(main)
    assert process.wait(timeout=30) == 0, said
    text = (home / "config" / "broker" / "profiles" / "mine.toml").read_text()
    assert 'max_risk = "safe"' in text
    listed = text.partition("allowlist = [")[2].partition("]")[0]
    assert [line.strip() for line in listed.splitlines() if '"' in line] == ['"make test",', '"make lint",']


def talk(terminal: int, answers: dict[str, str]) -> Iterator[str]:
    """Answer each question when it is asked, and yield what is said until the other side is gone."""
    waiting = ""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if not select.select([terminal], [], [], 60)[0]:
            break
        try:
            said = os.read(terminal, 4096).decode()
        except OSError:  # the other side is closed (pty(7))
            return
        if not said:
            return
        yield said
        waiting += said
        for question, answer in list(answers.items()):
            if question in waiting:
                os.write(terminal, answer.encode() + b"\n")
                del answers[question]
                waiting = ""
    raise AssertionError("it waits for something")


# --- suggest


JOURNAL = [
    {"type": "run.started", "workspace": "/w"},
    {"type": "exec.decided", "verdict": "deny", "rule": "x", "operation": {"kind": "exec", "argv": ["npm", "test"]}},
    {"type": "task.denied", "what": "npm test", "rule": "x", "tool": "exec"},
    {"type": "exec.decided", "verdict": "deny", "rule": "x", "operation": {"kind": "exec", "argv": ["npm", "ci"]}},
    {"type": "exec.decided", "verdict": "deny", "rule": "x", "operation": {"kind": "exec", "argv": ["rm", "-rf", "/\x1b[2J"]}},
]
TEAM = '# mine\n[profiles.team]\nmax_risk = "local_write"\nallowlist = [\n    "make",  # the default\n]\n'


@pytest.fixture
def run(home: Path) -> Path:
    lines = [json.dumps({"task": "root", "run": "r", **one}) for one in JOURNAL]
    put(home / "team.toml", TEAM)
    return put(home / "run.jsonl", "\n".join(lines) + "\n")


def test_suggest_writes_nothing_unless_it_is_told_to(home: Path, run: Path) -> None:
    shown = broker("profile", "suggest", run, "--profile", "./team.toml", home=home)
    assert shown.returncode == 0, shown.stderr
    assert (home / "team.toml").read_text() == TEAM
    assert "  1. npm test  1× by root" in shown.stdout
    assert "  2. npm ci  1× by root" in shown.stdout
    assert "\x1b" not in shown.stdout
    assert '+    "npm test",' in shown.stdout
    assert 'npm ci"' not in shown.stdout
    written = broker("profile", "suggest", run, "--profile", "./team.toml", "--write", home=home)
    assert written.returncode == 0, written.stderr
    assert (home / "team.toml").read_text() == TEAM.replace("\n]\n", '\n    "npm test",\n]\n')


def test_suggest_patch_is_what_git_apply_takes_and_pick_picks(home: Path, run: Path) -> None:
    subprocess.run(["git", "init", "-q", "."], cwd=home, check=True)
    patch = broker("profile", "suggest", run, "--profile", "./team.toml", "--pick", "2", "--patch", home=home).stdout
    subprocess.run(["git", "apply"], cwd=home, input=patch, text=True, check=True)
    assert (home / "team.toml").read_text() == TEAM.replace("\n]\n", '\n    "npm ci",\n]\n')
    wrong = broker("profile", "suggest", run, "--profile", "./team.toml", "--pick", "9", home=home)
    assert (wrong.returncode, "is no number from 1 to" in wrong.stderr) == (64, True)


def test_suggest_as_json_has_everything(home: Path, run: Path) -> None:
    data = json.loads(broker("profile", "suggest", run, "--profile", "./team.toml", "--json", home=home).stdout)
    assert [each["commands"] for each in data["proposals"]] == [[["npm", "test"]]]
    assert [each["why"] for each in data["questions"]] == ["it is install"]
    assert [each["kind"] for each in data["never"]] == ["never"]
    assert data["patch"].startswith("--- a/team.toml\n+++ b/team.toml\n")


def test_suggest_does_not_change_a_shipped_profile(home: Path, run: Path) -> None:
    result = broker("profile", "suggest", run, "--profile", "default", "--write", home=home)
    assert result.returncode == 64
    assert "comes with the broker" in result.stderr
    assert "cp " in result.stderr


# --- import


def test_import_prints_the_account_and_writes_only_where_it_is_told(home: Path) -> None:
    put(home / "s.json", '{"permissions": {"allow": ["Bash(npm test)", "Bash(git *)"]}}')
    shown = broker("profile", "import", "--from", "claude", "s.json", home=home)
    assert shown.stdout.startswith("claude: 1 imported, 0 narrowed, 1 dropped.")
    assert sorted(path.name for path in home.iterdir()) == ["s.json"]
    out = broker("profile", "import", "--from", "claude", "s.json", "-o", "-", home=home)
    assert '"npm test",' in out.stdout
    assert "dropped   Bash(git *)" in out.stderr
    assert broker("profile", "import", "--from", "claude", "s.json", "-o", "c.toml", home=home).returncode == 0
    assert broker("profile", "check", "--programs=no", "c.toml", home=home).stdout.startswith("ok  claude")
    again = broker("profile", "import", "--from", "claude", "s.json", "-o", "c.toml", home=home)
    assert (again.returncode, "is not overwritten" in again.stderr) == (64, True)
    missing = broker("profile", "import", "--from", "claude", "none.json", home=home)
    assert (missing.returncode, "cannot be read" in missing.stderr) == (64, True)


# --- can-i


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--profile", "builder", "--", "npm", "test"), 0, "yes  The allowlist of profile builder has exactly `npm test`."),
        (("--profile", "builder", "--", "npm", "ci"), 2, "ask  "),
        (("--profile", "builder", "--headless", "--", "npm", "ci"), 1, "no  "),
        (("--profile", "builder", "--", "nobody-knows"), 1, "no  "),
        (("--profile", "builder", "--parent", "research", "--headless", "--", "npm", "test"), 1, "profile research of the parent task"),
        (("--profile", "builder", "cd a && npm test"), 0, "yes  "),
        (("--profile", "builder", "--trust", "untrusted", "--", "npm", "test"), 0, "yes  "),
    ],
)
def test_can_i_answers_with_its_exit_code(home: Path, words: tuple[str, ...], code: int, said: str) -> None:
    result = broker("can-i", *words, home=home)
    assert (result.returncode, said in result.stdout) == (code, True), result
    data = json.loads(broker("can-i", "--json", *words, home=home).stdout)
    assert data["verdict"] == {0: "allow", 1: "deny", 2: "ask"}[code]
    assert not (home / "state").exists(), "nothing is recorded"


def test_can_i_list_names_everything(home: Path) -> None:
    shown = broker("can-i", "--profile", "builder", "--list", home=home).stdout
    for title in ("may do, without being listed", "may run exactly", "may not do, unless it is listed", "may never do, listed or not"):
        assert title in shown
    data = json.loads(broker("can-i", "--profile", "research", "-l", "--json", home=home).stdout)
    assert data["disabled_tools"] == ["batch_patch", "patch", "shell", "write_file"]
    assert set(data["refused"]) | set(data["examples"]) >= {"safe", "install", "blocked"}


def test_can_i_wants_a_command_or_list(home: Path) -> None:
    for words in ((), ("--list", "--", "ls")):
        result = broker("can-i", *words, home=home)
        assert (result.returncode, result.stdout) == (64, "")


@pytest.mark.parametrize("action", ["list", "show", "check", "diff", "score", "new", "schema", "suggest", "import"])
def test_each_action_has_help_with_examples(home: Path, action: str) -> None:
    result = broker("profile", action, "--help", home=home)
    assert (result.returncode, f"examples:\n  broker profile {action}" in result.stdout) == (0, True)
