"""What a run did is told to people, on a terminal, in a ticket and in a browser, and nothing an agent wrote acts there."""

from __future__ import annotations

import json
import re
import stat
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from broker.classify.risk import Assessment, Part, PartKind, Reason, Risk
from broker.cli.main import main
from broker.cli.report_markdown import code, plain
from broker.decide.verdict import Allow, Deny, Layer
from broker.record import event
from broker.record.denials import DenialLog
from broker.record.journal import Journal
from broker.record.summary import summarise
from broker.request.operation import Exec

Captured = pytest.CaptureFixture[str]
RUN = "20261130-043055-7f3a"
SCRIPT = "<script>document.title='taken'</script>"
HOSTILE = (
    SCRIPT, "<img src=x onerror=\"document.title='taken'\">", "\"'><svg onload=document.title='taken'>", "</code></style></title><b>",
    "\x1b[2J\x07", "\u202egnp.exe", "&lt;b&gt;", "a\\|b`c|d", "[x](http://example.com)", "![x](http://example.com/x.png)", "\udcff",
    "]]><!--", "{{7*7}}", "line\nfeed",
)  # fmt: skip


def assess(risk: Risk) -> Assessment:
    reason = Reason(rule="program.x", risk=risk, text="x")
    return Assessment(parts=(Part(kind=PartKind.COMMAND, effects=frozenset({risk}), reasons=(reason,)),), classifier="1", tables="ab")


def deny(what: str, risk: Risk = Risk.NETWORK_EGRESS, layer: Layer = Layer.PROFILE, rule: str = "program.curl") -> Deny:
    return Deny(what=what, effects=frozenset({risk}), layer=layer, rule=rule, reason=f"no: {what}", hint=f"not so: {what}")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BROKER_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("CLICOLOR_FORCE", raising=False)
    return tmp_path / "state"


@pytest.fixture
def run(state: Path) -> Path:
    """A tree of two tasks, refusals, changes, trouble, and hostile text wherever a process can put some."""
    with Journal.create(state, RUN) as journal:
        words = list(HOSTILE)
        journal.append(event.RUN_STARTED, profile=SCRIPT, command=words, workspace=HOSTILE[1], engine="docker", engine_why=HOSTILE[2])
        journal.append(event.TASK_CREATED, profile="builder", trust="trusted")
        journal.append(event.TASK_CREATED, task="root/1", profile=SCRIPT, trust="untrusted")
        journal.append(event.LAYERS_PROVEN, layers=[{"name": "network", "effective": True, "evidence": SCRIPT}])
        allow = Allow(layer=Layer.PROFILE, rule="profile.effects", effects=frozenset({Risk.SAFE}))
        for _ in range(3):
            journal.append(event.EXEC_DECIDED, **event.decided(Exec(argv=(SCRIPT,), program=f"/usr/bin/{SCRIPT}"), assess(Risk.SAFE), allow))
        logs = {"root": DenialLog(journal, "root"), "root/1": DenialLog(journal, "root/1")}
        for number, hostile in enumerate(HOSTILE):
            task = "root/1" if number % 2 else "root"
            denied = deny(f"curl {hostile}")
            for _ in range(number + 1):
                decided = event.decided(Exec(argv=("curl", hostile)), assess(Risk.NETWORK_EGRESS), denied)
                journal.append(event.EXEC_DECIDED, task=task, **decided)
                logs[task].add("exec", denied)
        # What a task below was refused is told to the one above as well, and is no second refusal.
        journal.append(event.TASK_DENIED, of="root/1", tool="exec", what="curl", rule="program.curl", **{"class": "network_egress"})
        journal.append(event.LANDING_INTENDED, batch=0, changes=[["created", f"/w/{hostile}"] for hostile in HOSTILE])
        journal.append(event.LANDING_FINISHED, landed=len(HOSTILE), conflicts=[[f"/w/{SCRIPT}", "it changed underneath"]])
        logs["root"].add("landing", deny(f"changed /w/{SCRIPT}", Risk.PERSISTENCE, Layer.LANDING, "contents.package-script"))
        for number, hostile in enumerate(HOSTILE):
            step = {"id": f"s{number}", "title": hostile, "checks": [{"argv": [hostile], "owner": "worker"}]}
            journal.append(event.PLAN_CREATED if number == 0 else event.PLAN_REVISED, by="worker", steps=[step], transitions=[[f"s{number}", "", "pending"]])
            finding = {"file": hostile, "line": 1, "severity": "high", "claim": hostile, "evidence": [], "shown": "reproduced"}
            journal.append(event.JUDGE_VERDICT, panel=hostile, judge=hostile, verdict="block", reason=hostile, findings=[finding])
        journal.append(event.PLAN_REFUSED, what="plan.completed", step="s0", by="worker", reason=SCRIPT, missing=[SCRIPT])
        journal.append(event.PLAN_WAIVED, step="s0", check=1, who="uid 0", because=SCRIPT, at=1.0, transitions=[["s0", "pending", "done"]])
        journal.append(event.PANEL_DECIDED, panel="review", verdict="pass", change="c", of=RUN, reason="")
        journal.append(event.LIMITS_EXCEEDED, limit=SCRIPT)
        for log in logs.values():
            log.finish()
        journal.append(event.USAGE_MEASURED, wall_seconds=211.5, cpu_seconds=3.25, peak_memory=1 << 30, peak_processes=7)
        journal.append(event.TASK_FINISHED, task="root/1", status="finished", exit_code=3)
        journal.append(event.TASK_FINISHED, status="finished", exit_code=0)
        journal.append(event.RUN_FINISHED, status="finished", exit_code=0, denials=106)
    return journal.path


DENIED = sum(range(1, len(HOSTILE) + 1)) + 1  # and the change that did not land


def report(capsys: Captured, *options: str) -> str:
    assert main(["report", "last", *options]) == 0
    return capsys.readouterr().out


# --- the facts


def test_a_run_is_summed_up_once_whatever_it_repeats(run: Path) -> None:
    found = summarise(run)

    assert (found.allowed, found.denied, found.landed_count, len(found.withheld), len(found.conflicts)) == (3, DENIED, len(HOSTILE), 1, 1)
    assert {path: (task.profile, task.exit_code) for path, task in found.tasks.items()} == {"root": ("builder", 0), "root/1": (SCRIPT, 3)}
    assert found.tasks["root"].refused + found.tasks["root/1"].refused == DENIED
    assert found.counted("risk") == [("network_egress", DENIED - 1), ("persistence", 1)]
    assert sum(allowed for allowed, _ in found.slices) == 3
    assert sum(refused for _, refused in found.slices) == DENIED - 1
    assert [kind for _, _, kind, _ in found.trouble] == ["limits.exceeded"]


def test_plans_and_reviews_are_told_and_no_judges_verdict_is_a_decision_about_an_operation(run: Path) -> None:
    found = summarise(run)

    first = found.steps[0]
    assert (first.step, first.title, first.state, first.refused) == ("s0", SCRIPT, "done", 1)
    assert first.waived == f"check 1, by uid 0: {SCRIPT}"
    assert [step.state for step in found.steps[1:]] == ["pending"] * (len(HOSTILE) - 1)
    assert (found.reviews[-1].judge, found.reviews[-1].verdict) == ("", "pass")
    assert found.reviews[0].findings == (f"high {SCRIPT}:1 {SCRIPT} (reproduced)",)
    assert sum(refused for _, refused in found.slices) == sum(range(1, len(HOSTILE) + 1)), "the refused starts, and nothing else"


def test_what_is_beyond_the_limits_is_counted(state: Path) -> None:
    with Journal.create(state) as journal:
        journal.append(event.RUN_STARTED)
        log = DenialLog(journal)
        for number in range(1_200):
            log.add("exec", deny(f"curl {number}"))
        log.finish()
    found = summarise(journal.path)
    assert (found.denied, len(found.denials)) == (1_200, 1_000)


def test_a_run_that_is_not_over_says_so(state: Path, capsys: Captured) -> None:
    with Journal.create(state) as journal:
        journal.append(event.RUN_STARTED, command=["agent"])
    for how in ("terminal", "markdown", "html", "json"):
        assert main(["report", "last", "--format", how]) == 0
    assert "no end recorded" in capsys.readouterr().out


def test_an_altered_record_is_shouted_in_every_form(run: Path, capsys: Captured) -> None:
    run.write_bytes(run.read_bytes().replace(b'"allow"', b'"deny"', 1))
    for how in ("terminal", "markdown", "html", "json"):
        assert "ALTERED" in report(capsys, "--format", how)


# --- where it is written


def test_a_file_is_private_whole_and_of_the_kind_that_its_name_says(run: Path, tmp_path: Path, capsys: Captured) -> None:
    for name, start in (("r.html", "<!doctype html>"), ("r.md", "# Run"), ("r.json", "{"), ("r.txt", RUN)):
        assert report(capsys, "-o", str(tmp_path / name)) == ""
        assert (tmp_path / name).read_text().startswith(start)
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    assert main(["report", "last", "-o", str(tmp_path / "no" / "r.html")]) == 73
    assert "cannot write" in capsys.readouterr().err
    assert not list(tmp_path.glob(".r.*"))


def test_json_is_for_programs(run: Path, capsys: Captured) -> None:
    row = json.loads(report(capsys, "--json"))
    assert (row["run"], row["intact"], row["landed_count"]) == (RUN, True, len(HOSTILE))


# --- nothing acts


def test_a_terminal_is_shown_nothing_that_it_would_obey(run: Path, capsys: Captured) -> None:
    out = report(capsys)
    assert all(char == "\n" or char.isprintable() for char in out)
    assert r"\u202egnp.exe" in out
    assert "\x1b" not in out


def test_markdown_holds_no_link_no_picture_and_no_html_of_an_agents_making(run: Path, capsys: Captured) -> None:
    out = report(capsys, "--format", "markdown")
    unescaped = re.sub(r"`[^`\n]*`", "", re.sub(r"\\.", "", out))  # without what is escaped, and what is in code spans
    assert set(re.findall(r"<[^>]*>", unescaped)) <= {"<code>", "</code>"}
    assert "](" not in unescaped
    assert "http:" not in unescaped
    rows = [line for line in unescaped.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {3, 4, 5, 7, 8}, "hostile text ends a cell"


@pytest.mark.parametrize("text", HOSTILE)
def test_code_in_markdown_stays_in_its_cell(text: str) -> None:
    from broker.cli.terminal import escape

    written = code(escape(text))
    assert "|" not in re.sub(r"\\.", "", written)
    assert re.sub(r"\\.", "", written).count("`") in (0, 2)
    assert plain(text).isprintable()


class Page(HTMLParser):
    """Reads a page as a browser does: elements, attributes, and the text outside of the style."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: list[tuple[str, str, str | None]] = []
        self.text = ""
        self._style = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        self._style = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self._style = False

    def handle_data(self, data: str) -> None:
        if not self._style:
            self.text += data


ELEMENTS = set(
    "html head meta title style body header main footer section h1 h2 h3 p ul li dl dt dd div span b code table thead tbody tr th td "
    "details summary svg rect".split()
)


def check(page: Page) -> None:
    """Nothing in it acts or loads, and what the agent wrote is there to read."""
    assert page.names <= ELEMENTS
    assert not [each for each in page.attributes if each[1].startswith("on") or each[1] in ("style", "href", "src", "srcset", "action")]
    for words in (SCRIPT, "<img src=x onerror=", r"\u202egnp.exe", r"\x1b[2J\x07", "&lt;b&gt;", "]]><!--", "</code></style></title><b>", r"\xff"):
        assert words in page.text, words
    assert all(char == "\n" or char.isprintable() for char in page.text)


def test_the_page_is_made_of_our_elements_only(run: Path, capsys: Captured) -> None:
    page = report(capsys, "--format", "html")
    check(Page(page))
    assert "default-src 'none'" in page


def browse(page: Path, tmp_path: Path) -> tuple[str, str]:
    """Return what a browser made of a page, and what it complained about."""
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/chromium"]
    command += ["--enable-logging=stderr", "--dump-dom", page.as_uri()]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    return ran.stdout, "\n".join(line for line in ran.stderr.splitlines() if "CONSOLE" in line)


@pytest.mark.needs_chromium
def test_a_browser_shows_hostile_words_as_words(run: Path, tmp_path: Path, capsys: Captured) -> None:
    report(capsys, "-o", str(tmp_path / "r.html"))

    dom, complaints = browse(tmp_path / "r.html", tmp_path)

    check(Page(dom))
    assert f"<title>Run {RUN}</title>" in dom
    assert complaints == ""  # its own style sheet is the one that the policy allows


@pytest.mark.needs_chromium
def test_the_policy_would_stop_what_escaping_let_through(run: Path, tmp_path: Path, capsys: Captured) -> None:
    page = report(capsys, "--format", "html")
    (tmp_path / "bad.html").write_text(page.replace("<main>", f"<main>{SCRIPT}<p style='color: red'><img src='file:///etc/hostname'>"))

    dom, complaints = browse(tmp_path / "bad.html", tmp_path)

    assert f"<title>Run {RUN}</title>" in dom
    for kind in ("script", "style", "image"):
        assert re.search(rf"(?i)violates.*{kind}|{kind}.*violates", complaints.replace("\n", " ")), kind
