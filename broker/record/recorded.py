"""Step 5: what a decision hung on, as data in an event, and back as values.

In: profiles and wishes, on the way into an event; an event's fields, on the way out. A profile is recorded as far as verdicts
hang on it: classes, entries, denied beginnings, tools, what may land, whom it may delegate to. Secrets are left out of it as of
every event, by the same rules as out of the operations that are held against it, so that both still fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.classify.context import Context
from broker.classify.risk import Risk
from broker.decide.agent import Agent, Helper
from broker.decide.gateway import environment_for
from broker.decide.given import Given
from broker.decide.narrowing import Wish
from broker.decide.profile import AllowEntry, DelegationSettings, Environment, Profile, SandboxSettings
from broker.decide.trust import Trust
from broker.decide.verdict import Grant
from broker.record import event
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

_LIMITS = ("memory", "cpus", "pids", "time", "output")


class NotRecorded(ValueError):
    """An event does not hold what its decision hung on. `str` of it says what is missing."""


def profile_data(profile: Profile) -> dict[str, object]:
    """Return what verdicts hang on of a profile; what is as in every profile is left out."""
    data: dict[str, object] = {
        "name": profile.name, "max_risk": profile.max_risk.label, "effects": event.labels(profile.effects),
        "allowlist": [_entry_data(entry) for entry in profile.allowlist], "denylist": [list(words) for words in profile.denylist],
        "disabled_tools": sorted(profile.disabled_tools), "lands": sorted(profile.lands),
        "env": [list(pair) for pair in (*profile.env.set, *environment_for(profile.gateways, profile.hosts))], "agents": list(profile.delegate.agents),
        "hosts": list(profile.hosts),
    }  # fmt: skip
    data = {name: value for name, value in data.items() if value}
    data |= {"workspace": profile.sandbox.workspace, "depth": profile.delegate.depth}
    data |= {name: limit for name in _LIMITS if (limit := getattr(profile.sandbox, name)) is not None}
    if profile.delegate.profiles is not None:
        data["profiles"] = list(profile.delegate.profiles)
    if profile.agent is not None:
        data["agent"] = _agent_data(profile.agent)
    return data


def _agent_data(agent: Agent) -> dict[str, object]:
    return {
        "name": agent.name, "programs": list(agent.programs), "runtimes": list(agent.runtimes),
        "helpers": [[one.program, event.labels(one.effects)] for one in agent.helpers],
        "sets": [list(pair) for pair in agent.sets], "state": list(agent.state), "settings": list(agent.settings), "wrappers": [list(shape) for shape in agent.wrappers],
    }  # fmt: skip


def _entry_data(entry: AllowEntry) -> dict[str, object]:
    data: dict[str, object] = {"argv": list(entry.argv)}
    if entry.cwd is not None:
        data["cwd"] = entry.cwd
    if entry.sha256 is not None:
        data["sha256"] = entry.sha256
    return {**data, "effects": event.labels(entry.effects)} if entry.effects else data


def wish_data(wish: Wish) -> dict[str, object]:
    """Return what a request narrows its profile to."""
    data: dict[str, object] = {"trust": wish.trust.label}
    if wish.max_risk is not None:
        data["max_risk"] = wish.max_risk.label
    if wish.tools_disabled:
        data["tools_disabled"] = sorted(wish.tools_disabled)
    return data | {name: limit for name in _LIMITS if (limit := getattr(wish, name)) is not None}


# --- and back. What is no such data raises NotRecorded: anybody may hand us a file.


def profile_of(data: Mapping[str, Any]) -> Profile:
    """Return the profile that was recorded, as far as it was."""
    with reading("a profile"):
        profiles = data.get("profiles")
        limits: dict[str, Any] = {name: data.get(name) for name in _LIMITS}
        return Profile(
            name=data["name"], max_risk=Risk.parse(data["max_risk"]), effects=_risks(data.get("effects", ())),
            allowlist=tuple(_entry_of(entry) for entry in data.get("allowlist", ())),
            denylist=tuple(texts(words) for words in data.get("denylist", ())),
            disabled_tools=frozenset(texts(data.get("disabled_tools", ()))), lands=frozenset(texts(data.get("lands", ()))),
            env=Environment(set=_pairs(data.get("env", ()))), hosts=texts(data.get("hosts", ())),
            sandbox=SandboxSettings(workspace=data["workspace"], **limits),
            delegate=DelegationSettings(
                profiles=None if profiles is None else texts(profiles), agents=texts(data.get("agents", ())), depth=data["depth"]
            ),
            agent=_agent_of(data["agent"]) if "agent" in data else None,
        )  # fmt: skip


def _agent_of(data: Mapping[str, Any]) -> Agent:
    return Agent(
        name=text(data["name"]), programs=texts(data["programs"]), runtimes=texts(data["runtimes"]),
        helpers=tuple(Helper(program=text(program), effects=_risks(effects)) for program, effects in data["helpers"]),
        sets=_pairs(data["sets"]), state=texts(data["state"]), settings=texts(data["settings"]), wrappers=tuple(map(texts, data["wrappers"])),
    )  # fmt: skip


def _entry_of(data: Mapping[str, Any]) -> AllowEntry:
    return AllowEntry(
        argv=texts(data["argv"]), cwd=data.get("cwd"), sha256=data.get("sha256"), effects=_risks(data.get("effects", ()))
    )


def wish_of(data: Mapping[str, Any]) -> Wish:
    """Return the wish that was recorded."""
    with reading("a request"):
        return Wish(
            trust=Trust.parse(data["trust"]), max_risk=Risk.parse(data["max_risk"]) if "max_risk" in data else None,
            tools_disabled=frozenset(data.get("tools_disabled", ())), **{name: data.get(name) for name in _LIMITS},
        )  # fmt: skip


def context_of(data: Mapping[str, Any], cwd: str = "") -> Context:
    """Return the context that was recorded; `cwd`: of the operation at hand."""
    with reading("a context"):
        return Context(
            cwd=cwd or text(data["cwd"]), home=text(data["home"]), workspace=text(data["workspace"]),
            scratch=texts(data.get("scratch", ())), writable=texts(data.get("writable", ())),
            symlinks=_pairs(data.get("symlinks", ())), dialect=text(data.get("dialect", "bash")),
        )  # fmt: skip


def operation_of(data: Mapping[str, Any]) -> Operation:
    """Return the operation that was recorded; in the place of contents, which are not, empty ones."""
    with reading("an operation"):
        match data["kind"]:
            case "shell":
                return ShellText(text=text(data.get("text", "")), dialect=text(data.get("dialect", "bash")))
            case "exec":
                return Exec(
                    argv=texts(data.get("argv", ())), path=text(data.get("path", "")), program=text(data.get("program", "")),
                    cwd=text(data.get("cwd", "")), env=_pairs(data.get("env", ())),
                )  # fmt: skip
            case "file_change":
                return FileChange(
                    old=b"" if "old" in data else None, new=b"" if "new" in data else None,
                    action=FileAction(data["action"]), path=text(data.get("path", "")), other=text(data.get("other", "")),
                    mode=data.get("mode", 0), attribute=data.get("attribute", ""), whole=data.get("whole", False),
                    landing=data.get("landing", False),
                )  # fmt: skip
            case "file_read":
                return FileRead(path=text(data.get("path", "")))
            case "connection":
                port, protocol = data.get("port", 0), text(data.get("protocol", "tcp"))
                return Connection(address=text(data.get("address", "")), port=port if isinstance(port, int) else 0, protocol=protocol)
            case "delegation":
                who, trust = text(data.get("profile", "")), text(data.get("trust", ""))
                return Delegation(profile=who, trust=trust, argv=texts(data.get("argv", ())))
            case kind:
                raise NotRecorded(f"no verdict on operations of the kind {kind} can be reached again")


def given_of(data: Mapping[str, Any]) -> Given:
    """Return what else was known of a question."""
    with reading("what was known of a question"):
        return Given(
            gate=data.get("gate", False), scope=grant_of(data["scope"]) if "scope" in data else None,
            sha256=data.get("sha256", ""), layered=data.get("layered", False), real=data.get("real", False),
            interactive=data.get("interactive", False), cwd=text(data.get("cwd", "")),
            agent=data.get("agent", False),
        )  # fmt: skip


def grant_of(data: Mapping[str, Any]) -> Grant:
    """Return the grant that was recorded."""
    with reading("a grant"):
        return Grant(entry=text(data["entry"]), effects=_risks(data["effects"]), unrecognised=data.get("unrecognised", False))


def text(value: Any) -> str:
    """Return a text. Raises TypeError for anything else."""
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def texts(value: Any) -> tuple[str, ...]:
    """Return a list of texts. Raises TypeError for anything else, a text included."""
    if not isinstance(value, (list, tuple)):
        raise TypeError(value)
    return tuple(map(text, value))


def _pairs(value: Any) -> tuple[tuple[str, str], ...]:
    return tuple((text(one), text(other)) for one, other in value)


def _risks(labels: Any) -> frozenset[Risk]:
    return frozenset(map(Risk.parse, texts(labels)))


class reading:  # noqa: N801 - reads as a statement: with reading("a profile")
    """Turn what is no such data into NotRecorded."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        """Nothing yet."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (KeyError, TypeError, AttributeError, ValueError)) and not isinstance(error, NotRecorded):
            raise NotRecorded(f"{self._what} was not recorded as this version reads it") from error
