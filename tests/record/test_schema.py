"""The schema that is shipped describes what is written, and the page that people read says the same."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from broker.classify.risk import Assessment, Part, PartKind, Reason, Risk
from broker.cli.main import main
from broker.decide.verdict import Allow, Ask, Deny, Grant, Layer
from broker.record import event
from broker.record.denials import DenialLog
from broker.record.journal import Journal, read
from broker.record.schema import schema_text
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
from conformance.fits_schema import undescribed, unfit, validator

PAGE = (Path(__file__).parents[2] / "docs" / "events.md").read_text(encoding="utf-8")
SCHEMA: dict[str, Any] = json.loads(schema_text())
TYPES = {name: kind for name, kind in SCHEMA["$defs"].items() if "." in name}
REASON = Reason(rule="program.x", risk=Risk.NETWORK_EGRESS, text="x reaches out")
ASSESSMENT = Assessment(
    parts=(Part(kind=PartKind.COMMAND, effects=frozenset({Risk.NETWORK_EGRESS}), reasons=(REASON,)),), classifier="2", tables="ab" * 32
)
DENY = Deny(what="x", effects=frozenset({Risk.NETWORK_EGRESS}), layer=Layer.PROFILE, rule="profile.max_risk", reason="r", hint="h")
VERDICTS = (
    DENY,
    Ask(effects=frozenset({Risk.INSTALL}), reason="r", rule="profile.ask"),
    Allow(
        layer=Layer.ALLOWLIST, rule="allowlist", effects=frozenset({Risk.SAFE}),
        grant=Grant(entry="go test", effects=frozenset({Risk.SAFE})),
    ),
)  # fmt: skip
OPERATIONS: tuple[Operation, ...] = (
    ShellText(text="ls"), Exec(argv=("ls", "\udcff"), path="/bin/ls", program="/bin/ls", cwd="/w", env=(("PATH", "/bin"),)),
    FileChange(action=FileAction.RENAME, path="/a", other="/b", new=b"x", old=b"y", mode=0o644, landing=True), FileRead(path="/a"),
    Connection(address="1.1.1.1", port=53), Delegation(profile="p", trust="untrusted", argv=("a",)),
)  # fmt: skip


def test_every_operation_and_verdict_fits(tmp_path: Path) -> None:
    with Journal.create(tmp_path) as journal:
        journal.append(event.RUN_STARTED, command=["agent", "--token", "s3cr3t1"], trust="trusted")
        for operation in OPERATIONS:
            for verdict in VERDICTS:
                kind = event.FILE_DECIDED if isinstance(operation, FileChange) else event.EXEC_DECIDED
                journal.append(kind, task="root/1/2", scope=1, pid=7, **event.decided(operation, ASSESSMENT, verdict))
        log = DenialLog(journal)
        for _ in range(10):
            log.add("exec", DENY, of="root/1/2")
        journal.append(event.RUN_FINISHED, status="finished", exit_code=0)
    events = list(read(journal.path))

    assert events[0]["redacted"] == ["option"]
    assert (unfit(events), undescribed(events)) == ([], set())


def test_a_new_type_and_a_new_field_fit_and_a_wrong_one_does_not(tmp_path: Path) -> None:
    with Journal.create(tmp_path) as journal:
        journal.append(event.RUN_STARTED, command=["agent"])
        journal.append("moon.landed", far=True)
        journal.append(event.SPAWN_STARTED, argv=["a"], shiny=True)
    started, moon, spawn = read(journal.path)

    assert unfit([started, moon, spawn]) == []
    assert undescribed([moon, spawn]) == {"moon.landed", "spawn.started: shiny"}
    for broken in (
        {name: value for name, value in moon.items() if name != "prev"},
        spawn | {"argv": "a"},
        spawn | {"task": "root/x"},
        spawn | {"time": "yesterday"},
        {name: value for name, value in started.items() if name != "schema"},
        started | {"schema": 2},
        {name: value for name, value in started.items() if name != "command"},
    ):
        assert unfit([broken]) != []


def test_every_type_that_the_code_names_is_described() -> None:
    named = {
        value for name, value in vars(event).items()
        if name.isupper() and isinstance(value, str) and re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", value)
    }  # fmt: skip

    assert named <= set(TYPES)


def test_every_class_and_layer_is_described() -> None:
    assert SCHEMA["$defs"]["class"]["enum"] == [risk.label for risk in Risk]
    assert SCHEMA["$defs"]["layer"]["enum"] == [layer.value for layer in Layer]


def test_the_page_lists_every_type_with_what_the_schema_says_of_it() -> None:
    rows = dict(re.findall(r"^\| `([a-z_.]+\.[a-z_.]+)` \| (.*) \|$", PAGE, re.MULTILINE))

    assert rows.keys() == TYPES.keys()
    for name, kind in TYPES.items():
        when, _, fields = rows[name].rpartition(" | ")
        assert when == kind["description"]
        own = [field for field in kind["properties"] if field not in event.ENVELOPE]
        assert (re.findall(r"`(\w+)`", fields) or own) == own, name


def test_the_page_lists_every_field_that_all_events_may_have() -> None:
    listed = re.findall(r"^\| `(\w+)` \| ", PAGE, re.MULTILINE)

    assert set(SCHEMA["properties"]) <= set(listed)


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["events", "schema"]) == 0

    assert json.loads(capsys.readouterr().out) == SCHEMA
    assert validator().schema == SCHEMA
