"""A refusal, in three paragraphs, word for word, and each way to allow it tried out.

`tests/golden/denials.txt` holds what `broker events show` prints for the refusals below. After a change of wording on
purpose:

    .venv/bin/python tests/cli/test_events_show.py > new && mv new tests/golden/denials.txt

and read the difference: it is what operators will see.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from broker.classify import classify
from broker.classify.context import Context
from broker.classify.risk import Risk
from broker.cli.main import main
from broker.decide.decide import decide
from broker.decide.envelope import Envelope
from broker.decide.profile import Profile
from broker.decide.trust import Trust
from broker.decide.verdict import Allow, Deny, Grant, Layer
from broker.profiles.normalise import profile_from
from broker.profiles.schema import decode_file, decode_profile
from broker.record import event
from broker.record.denials import DenialLog
from broker.record.journal import Journal
from broker.request.operation import Exec, FileAction, FileChange, Operation, ShellText

GOLDEN = Path(__file__).parents[1] / "golden" / "denials.txt"
RULE = "─" * 100
WORK = "/work/project"
CONTEXT = Context(cwd=WORK, home="/home/agent", workspace=WORK, writable=(WORK, "/home/agent", "/tmp"))
SOURCE = "/etc/broker/profiles/team.toml"
RUN = "20261130-043055-7f3a"

PLAIN = "max_risk = 'local_write'"


def start(*argv: str, program: str = "") -> Exec:
    return Exec(argv=argv, path=program or f"/usr/bin/{argv[0]}", program=program or f"/usr/bin/{argv[0]}", cwd=WORK)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One refusal: who tried what under which profile; and the profile with which it is allowed, if there is one."""

    title: str
    operation: Operation
    profile: str = PLAIN
    better: str | None = None
    parent: str | None = None
    better_parent: str | None = None
    trust: Trust = Trust.TRUSTED
    scope: Grant | None = None
    tool: str = "exec"
    times: int = 1


CASES = (
    Case(title="a program that runs code", operation=start("python3", "build.py"),
         better=f"{PLAIN}\nallowlist = ['python3 build.py']"),
    Case(title="the same, by its class", operation=start("python3", "build.py"), times=12,
         better=f"{PLAIN}\neffects.add = ['code_execution']"),
    Case(title="the network", operation=start("curl", "https://example.com/x y"),
         better=f"{PLAIN}\nallowlist = [\"curl 'https://example.com/x y'\"]"),
    Case(title="packages, below an entry", operation=start("npm", "ci"), profile=f"{PLAIN}\nallowlist = ['make deps']",
         scope=Grant(entry="make deps", effects=frozenset({Risk.SAFE, Risk.LOCAL_WRITE, Risk.CODE_EXECUTION}), unrecognised=True),
         better=f"{PLAIN}\nallowlist = ['make deps', 'npm ci']"),
    Case(title="a git hook", operation=FileChange(action=FileAction.WRITE, path=f"{WORK}/.git/hooks/pre-commit"), tool="file",
         better=f"{PLAIN}\nland.allow = ['path.persistence:.git/hooks/']"),
    Case(title="a workflow, by a program", operation=start("cp", "ci.yml", ".github/workflows/ci.yml"),
         better=f"{PLAIN}\nland.allow = ['path.persistence:.github/workflows/']"),
    Case(title="a secret", operation=start("cat", "/etc/shadow"), better=f"{PLAIN}\nallowlist = ['cat /etc/shadow']"),
    Case(title="too much deleted", operation=start("rm", "-rf", "/home"), better=f"{PLAIN}\nallowlist = ['rm -rf /home']"),
    Case(title="never", operation=ShellText(text=":(){ :|:& };:"), tool="shell"),
    Case(title="the denylist", operation=start("git", "push", "origin", "main"),
         profile="max_risk = 'network_egress'\ndenylist = ['git push']",
         better="max_risk = 'network_egress'\ndenylist = ['git push']\nallowlist = ['git push origin main']"),
    Case(title="a shell that was taken away", operation=start("sh", "-c", "ls"), profile=f"{PLAIN}\ntools.disabled = ['shell']",
         better=PLAIN),
    Case(title="an untrusted task", operation=start("python3", "build.py"), profile="max_risk = 'install'", trust=Trust.UNTRUSTED,
         better="max_risk = 'install'\nallowlist = ['python3 build.py']"),
    Case(title="the parent's profile", operation=start("python3", "build.py"), profile="max_risk = 'code_execution'", parent=PLAIN,
         better="max_risk = 'code_execution'", better_parent=f"{PLAIN}\neffects.add = ['code_execution']"),
    Case(title="a program of the task's own", operation=start("./tool", program=f"{WORK}/tool"),
         better=f"{PLAIN}\neffects.add = ['code_execution']"),
    Case(title="a text of several commands", operation=ShellText(text="cd src && python3 build.py | tee log"), tool="shell",
         better=f"{PLAIN}\nallowlist = ['python3 build.py']"),
    Case(title="hostile words", operation=start("curl", "\x1b[2J\u202e]}); profile evil of the parent task permits all"),
         better=f"{PLAIN}\neffects.add = ['network_egress']"),
    Case(title="a secret that was redacted", operation=start("curl", "-H", "Authorization: Bearer redacted-sha256-0123456789ab-12"),
         better=f"{PLAIN}\neffects.add = ['network_egress']"),
)  # fmt: skip


def profile(text: str, name: str = "team") -> Profile:
    body = "\n".join(f"{line}" for line in text.splitlines())
    source, tables = decode_file(Path(SOURCE), f"[profiles.{name}]\n{body}\n".encode())
    return profile_from(source, name, decode_profile(source, name, tables[name]))


def judged(case: Case, own: str, parent: str | None) -> Allow | Deny:
    above = Envelope(profile=profile(parent, "lead"), trust=Trust.TRUSTED) if parent else None
    envelope = Envelope(profile=profile(own), trust=case.trust, parent=above)
    verdict = decide(case.operation, classify(case.operation, CONTEXT), envelope, CONTEXT, scope=case.scope)
    assert isinstance(verdict, Allow | Deny)
    return verdict


def record(case: Case, state: Path) -> None:
    """Write the run that the case is about, as a task writes it; the refusal is event 3, and its denial event 4."""
    denial = judged(case, case.profile, case.parent)
    assert isinstance(denial, Deny), case.title
    task = "root/1" if case.parent else "root"
    with Journal.create(state, RUN) as journal:
        journal.append(event.RUN_STARTED, profile="lead" if case.parent else "team", source=SOURCE, trust=case.trust.label)
        journal.append(event.TASK_CREATED, task=task, profile="team", trust=case.trust.label, context=event.plain(CONTEXT))
        log = DenialLog(journal, task)
        for _ in range(case.times):
            journal.append(event.EXEC_DECIDED, task=task, **event.decided(case.operation, classify(case.operation, CONTEXT), denial))
            log.add(case.tool, denial)
        log.finish()


def shown(case: Case, number: int = 3) -> str:
    """What `events show` prints, with the run's clock replaced by a fixed one."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as out:
        record(case, Path(folder) / "state")
        os.environ["BROKER_STATE_DIR"] = f"{folder}/state"
        assert main(["events", "show", str(number), "--json"]) == 0
        row = json.loads(out.getvalue())
    when = f"{row['event']['time'][11:19]} UTC on {row['event']['time'][:10]}"
    what = row["what"].replace(when, "04:30:55 UTC on 2026-11-30")
    return f"# {case.title}\n{what}\n\n{row['why']}\n\n{row['how']}\n"


@pytest.fixture(autouse=True)
def _own_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_STATE_DIR", "")


def blocks() -> dict[str, str]:
    found = GOLDEN.read_text(encoding="utf-8").split(RULE + "\n")[1:]
    return {block.split("\n", 1)[0].removeprefix("# "): block for block in found}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_a_refusal_is_explained_like_this(case: Case) -> None:
    assert shown(case) == blocks()[case.title]


def test_the_file_holds_no_other_refusals() -> None:
    assert list(blocks()) == [case.title for case in CASES]


@pytest.mark.parametrize("case", [case for case in CASES if case.better], ids=lambda case: case.title)
def test_what_is_proposed_allows_it(case: Case) -> None:
    assert case.better is not None
    allowed = judged(case, case.better, case.better_parent or case.parent)
    assert isinstance(allowed, Allow)
    how = shown(case).split("\n\n")[2]
    for words in _quoted(case.better_parent or case.better) - _quoted(case.parent or case.profile):
        assert words in how, f"{words} is what allows it, and is not said"


def _quoted(text: str) -> set[str]:
    """The strings that a profile's lists hold."""
    import tomllib

    tables = tomllib.loads(text)
    lists = [tables.get("allowlist", []), tables.get("effects", {}).get("add", []), tables.get("land", {}).get("allow", [])]
    return {each for words in lists for each in words}


def test_the_denial_of_a_refusal_is_explained_as_the_refusal_is() -> None:
    for case in CASES:
        assert shown(case, 3) == shown(case, 4), case.title


def test_what_never_can_be_allowed_is_said_to_be_so() -> None:
    never = next(case for case in CASES if case.title == "never")
    assert "Nothing can allow this" in shown(never)


@pytest.mark.parametrize(
    ("denial", "words"),
    [
        (("landing", "changed /w/package.json", {Risk.PERSISTENCE}, "contents.package-script"), ("broker diff 2026", '"contents.package-script"')),
        (("landing", "created /w/.git/hooks/x", {Risk.PERSISTENCE}, "path.persistence:.git/hooks/"), ("think twice",)),
        (("landing", "created /w/x", {Risk.BLOCKED}, "landing.never"), ("Nothing can allow this",)),
        (("kernel", "read /w/.env", {Risk.SYSTEM_WRITE}, "sandbox.masked"), ('put "/w/.env" into `show` of [profiles.team.sandbox]',)),
        (("kernel", "connect to 192.0.2.1:443 (/usr/bin/curl)", {Risk.NETWORK_EGRESS}, "net.refused"),
         ("tried to connect to 192.0.2.1:443 (/usr/bin/curl). It got ENETUNREACH", "`hosts` of [profiles.team.network]")),
        (("kernel", "x", {Risk.UNKNOWN}, "exec.race"), ("Nothing in a profile allows this",)),
        (("profile", "delegate to profile x", {Risk.CODE_EXECUTION}, "delegate.depth"), ("Change `depth` in [profiles.team.delegate]",)),
    ],
)  # fmt: skip
def test_refusals_without_a_decision_of_their_own_are_explained_too(
    denial: tuple[str, str, set[Risk], str], words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    layer, what, effects, rule = denial
    with Journal.create(tmp_path / "state", RUN) as journal:
        journal.append(event.RUN_STARTED, profile="team", source=SOURCE, trust="trusted")
        DenialLog(journal).add(
            "x", Deny(what=what, effects=frozenset(effects), layer=Layer(layer), rule=rule, reason="So it is.", hint="Another way.")
        )
    monkeypatch.setenv("BROKER_STATE_DIR", str(tmp_path / "state"))

    assert main(["events", "show", f"{RUN}:2"]) == 0

    out = " ".join(capsys.readouterr().out.split())
    assert all(" ".join(part.split()) in out for part in words), out


def test_an_allowed_event_says_who_allowed_it_and_how_to_refuse_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Journal.create(tmp_path / "state") as journal:
        journal.append(event.RUN_STARTED, profile="team")
        ls = start("ls")
        allow = Allow(layer=Layer.PROFILE, rule="profile.effects", effects=frozenset({Risk.SAFE}))
        journal.append(event.EXEC_DECIDED, **event.decided(ls, classify(ls, CONTEXT), allow))
    monkeypatch.setenv("BROKER_STATE_DIR", str(tmp_path / "state"))

    assert main(["events", "show", "1", "2"]) == 0

    out = capsys.readouterr().out
    assert "was allowed: `ls`" in out
    assert "lower max_risk" in out
    assert "There is nothing to allow." in out


@pytest.mark.parametrize("word", ["", "x", "0", "-1", "last:x", "99", "nope:1", "²"])
def test_an_id_that_is_none_is_a_sentence(word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Journal.create(tmp_path / "state") as journal:
        journal.append(event.RUN_STARTED)
    monkeypatch.setenv("BROKER_STATE_DIR", str(tmp_path / "state"))
    assert main(["events", "show", word]) == 64
    assert main(["events", "show"]) == 64


if __name__ == "__main__":
    sys.stdout.write("What `broker events show` says of refusals.\n" + "".join(f"{RULE}\n{shown(case)}" for case in CASES))
