"""A run that has an event of each kind that an export has words for, and a sink that keeps what it is given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from broker.record import event
from broker.record.export.message import Format, Message
from broker.record.export.pump import Pump, recorded
from broker.record.journal import Journal
from broker.record.lines import START

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECRET = "ghp_" + "a1B2" * 9
HOSTILE = "\x1b]0;x\x07\u202e|=\\ \udcff\n%s"


def write_run(state: Path, *, more: int = 0, trace: bool = False) -> Path:
    """Write a run, with `more` harmless program starts in it, and return its journal."""
    with Journal.create(state) as journal:
        extra = {"traceparent": TRACEPARENT, "tracestate": "vendor=1"} if trace else {}
        journal.append(event.RUN_STARTED, command=["agent", "--go"], profile="team", trust="trusted", workspace="/w", user=1000, **extra)
        _created(journal, "root", "team")
        _exec(journal, "root", ["ls", "-l"], "allow", ["safe"])
        for number in range(more):
            _exec(journal, "root", ["cat", f"file-{number}"], "allow", ["safe"])
        _exec(journal, "root", ["curl", "-H", f"Authorization: Bearer {SECRET}", "https://x"], "deny", ["network_egress"])
        _denied(journal, "root", "curl https://x", "network_egress", "program.curl")
        _exec(journal, "root", [HOSTILE, "\udc80"], "deny", ["unknown"])
        journal.append(event.EXEC_DECIDED, task="root", operation={"kind": "shell", "text": "ls | wc", "dialect": "bash"}, effects=["safe"],
                       verdict="allow", rule="profile.effects", layer="profile")  # fmt: skip
        for action, path, other in (("write", "/w/a", ""), ("rename", "/w/a", "/w/b"), ("mkdir", "/w/d", ""), ("owner", "/w/d", ""),
                                    ("xattr", "/w/d", ""), ("mknod", "/w/n", "")):  # fmt: skip
            operation = {"kind": "file_change", "action": action, "path": path} | ({"other": other} if other else {})
            journal.append(event.FILE_DECIDED, task="root", operation=operation, effects=["local_write"], verdict="allow",
                           rule="profile.effects", layer="profile")  # fmt: skip
        journal.append(event.FILE_DECIDED, task="root", operation={"kind": "file_read", "path": "/"}, effects=["system_write"],
                       verdict="deny", rule="path.secret", layer="profile", reason="It is a secret.", refused=["system_write"])  # fmt: skip
        journal.append(
            event.DELEGATION_DECIDED, task="root", operation={"kind": "delegation", "profile": "adversary", "trust": "untrusted", "argv": ["go", "vet"]},
            verdict="allow", layer="profile", rule="delegate.child", child="root/1", effects=["safe"],
        )  # fmt: skip
        _created(journal, "root/1", "adversary")
        _denied(journal, "root/1", "touch .git/hooks/x", "persistence", "path.persistence:.git/hooks/")
        journal.append(event.TASK_DENIED_REPEATED, task="root/1", tool="exec", what="touch .git/hooks/x", rule="r", count=10)
        journal.append(event.TASK_FINISHED, task="root/1", status="denied", exit_code=126, reason="No.", denials=1, usage={})
        for address, verdict in (("example.com", "deny"), ("::1", "deny"), ("192.0.2.1", "allow")):
            journal.append("connection.decided", task="root", operation={"kind": "connection", "address": address, "port": 443, "protocol": "tcp"},
                           effects=["network_egress"], verdict=verdict, rule="gateway.x", layer="profile", reason="")  # fmt: skip
        journal.append(event.EXEC_RACE, task="root", pid=7, text="ls", note="exec_race")
        journal.append(event.GUARD_LOST, task="root", reason="It died.")
        journal.append(event.SPAWN_STARTED, task="root", argv=["agent", "--go"], terminal=False)
        journal.append(event.SPAWN_EXITED, task="root", wait_status=256, pid=3, user_us=1, system_us=1, max_rss_kib=1)
        journal.append(event.LANDING_INTENDED, task="root", batch=0, changes=[["created", "/w/a"], ["deleted", "/w/b"], ["changed", "/w/c"]])
        journal.append(event.TASK_FINISHED, task="root", status="finished", exit_code=1, reason="", denials=2, usage={"cpu_seconds": 0.5})
        journal.append(event.RUN_FINISHED, status="finished", exit_code=1, denials=2)
    return journal.path


def _created(journal: Journal, task: str, profile: str) -> None:
    journal.append(event.TASK_CREATED, task=task, profile=profile, digest="0" * 64, trust="trusted", max_risk="local_write", effects=["safe"],
                   context={"cwd": "/w"})  # fmt: skip


def _exec(journal: Journal, task: str, argv: list[str], verdict: str, effects: list[str]) -> None:
    refused = {"reason": "It is not permitted.", "refused": effects, "approvable": True} if verdict == "deny" else {}
    operation = {"kind": "exec", "argv": argv, "path": "/usr/bin/x", "program": "/usr/bin/x", "cwd": "/w"}
    journal.append(
        event.EXEC_DECIDED, task=task, operation=operation, effects=effects, verdict=verdict, rule="r", layer="profile",
        reasons=[{"rule": "r", "class": effects[0], "text": "Because."}], **refused,
    )  # fmt: skip


def _denied(journal: Journal, task: str, what: str, risk: str, rule: str) -> None:
    journal.append(event.TASK_DENIED, task=task, tool="exec", what=what, effects=[risk], reason="It is not permitted.", rule=rule, layer="profile",
                   hint="Do not.", approvable=True, **{"class": risk})  # fmt: skip


class Kept:
    """A sink that keeps lines, and bodies."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.lines: list[bytes] = []
        self.bodies: list[Any] = []

    def deliver(self, format_: Format, messages: Sequence[Message]) -> None:
        self.messages += messages
        self.lines += format_.lines(messages)
        self.bodies += format_.bodies(messages)

    def close(self) -> None:
        """Nothing."""


def exported(format_: Format, *paths: Path) -> Kept:
    """Return what a format makes of runs."""
    kept = Kept()
    Pump(format_, kept).carry(recorded(list(paths), lambda _run: START))
    return kept
