"""Turn a decoded table into a Profile: names into classes, command lines into argv, "2G" into bytes.

In: a table of the right shape. Out: a Profile, or ProfileInvalid for what has the right type and no meaning.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import Any, TypeVar

from broker.classify.risk import Risk
from broker.decide.agent import Agent
from broker.decide.envelope import NEVER_GRANTED
from broker.decide.profile import (
    LAYERS,
    TOOLS,
    AllowEntry,
    ApprovalSettings,
    DelegationSettings,
    Environment,
    Profile,
    SandboxSettings,
    up_to,
)
from broker.profiles.command_line import CommandLineError, parse_command_line
from broker.profiles.errors import ProfileInvalid
from broker.profiles.examples import check_examples
from broker.profiles.quantity import parse_size, parse_time
from broker.profiles.schema import (
    NAME,
    ApprovalsTable,
    DelegateTable,
    EntryTable,
    EnvTable,
    ProfileTable,
    SandboxTable,
    Source,
)
from broker.profiles.suggest import did_you_mean
from broker.profiles.ways_out import gateways_from, host_from
from broker.sha256 import sha256

T = TypeVar("T")

_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
_DIGEST = r"[0-9a-fA-F]{64}"
_IMAGE = r"[A-Za-z0-9][A-Za-z0-9._/:@-]*"
_ENGINES = ("auto", "docker", "bubblewrap")
_WORKSPACES = ("overlay", "direct", "read-only")
_CLASSES = tuple(risk.label for risk in Risk)
_APPROVERS = ("operator", "client")
_NEVER_SHOWN = ("/", "/proc", "/sys", "/dev", "/run")

_NOT_FOR_AN_ENTRY = {
    Risk.PERSISTENCE: "what it plants would outlive the invocation",
    Risk.UNKNOWN: "programs that are merely unrecognised may start below an entry anyway",
    Risk.BLOCKED: "nothing permits it",
}


def profile_from(source: Source, name: str, table: ProfileTable, *, examples: bool = True) -> Profile:
    """Return the profile that the table means. Raises ProfileInvalid, with the line where it can be told.

    `examples`: try them as well.
    """
    profile = _Reader(source, name).profile(table)
    if examples:
        check_examples(source, table, profile)
    return profile


def canonical(profile: Profile) -> dict[str, Any]:
    """Return the profile as plain data, sorted wherever order means nothing."""
    data: dict[str, Any] = asdict(profile)
    data["max_risk"] = profile.max_risk.label
    data["effects"] = [risk.label for risk in sorted(profile.effects)]
    data["disabled_tools"] = sorted(profile.disabled_tools)
    data["lands"] = sorted(profile.lands)
    for entry, shown in zip(profile.allowlist, data["allowlist"], strict=True):
        shown["effects"] = [risk.label for risk in sorted(entry.effects)]
    data["env"]["set"] = dict(profile.env.set)
    del data["agent"]
    if profile.approvals == ApprovalSettings():
        del data["approvals"]  # as if it were not there: what is not written makes no other digest
    if profile.agent is not None:
        data["agent"] = profile.agent.name  # what is known of it is no part of the profile's file
    return data


def digest_of(profile: Profile) -> str:
    """Return the SHA-256 of what the profile says, whatever file it came from and however it was written."""
    content = {key: value for key, value in canonical(profile).items() if key not in {"source", "digest"}}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.encode()).hexdigest()


class _Reader:
    def __init__(self, source: Source, name: str) -> None:
        self.source, self.name = source, name

    def wrong(self, problem: str, *keys: str) -> ProfileInvalid:
        return self.source.wrong(f"profile {self.name!r}: {problem}", self.name, *keys)

    def profile(self, table: ProfileTable) -> Profile:
        ceiling = self.ceiling(table.max_risk)
        profile = Profile(
            name=self.name,
            description=" ".join(table.description.split()),
            max_risk=ceiling,
            effects=self.effects(ceiling, table),
            allowlist=tuple(self.entry(entry, table) for entry in table.allowlist),
            denylist=tuple(self.command(text, "denylist") for text in table.denylist),
            disabled_tools=frozenset(
                self.one_of(tool, TOOLS, "tools", "disabled") for tool in table.tools.disabled
            ),
            lands=self.lands(table.land.allow),
            env=self.environment(table.env),
            sandbox=self.sandbox(table.sandbox),
            delegate=self.delegate(table.delegate),
            approvals=self.approvals(table.approvals),
            gateways=gateways_from(self.wrong, table.gateways),
            hosts=tuple(host_from(self.wrong, host) for host in _once(table.network.hosts)),
            agent=self.led_by(table.agent),
            requires=self.requires(table.requires),
            source=str(self.source.path),
        )
        return replace(profile, digest=digest_of(profile))

    def one_of(self, word: str, known: tuple[str, ...], *keys: str) -> str:
        if word not in known:
            raise self.wrong(
                f"{'.'.join(keys)}: unknown value {word!r}.{did_you_mean(word, known)}", *keys, word
            )
        return word

    def led_by(self, name: str) -> Agent | None:
        """Return an agent of which only the name is known: what it may do by itself is in its adapter (broker/agents)."""
        if name and not NAME.fullmatch(name):
            raise self.wrong(f"agent: {name!r} is no name of an agent. docs/agents.md lists them", "agent")
        return Agent(name=name) if name else None

    def risk(self, label: str, *keys: str) -> Risk:
        return Risk.parse(self.one_of(label, _CLASSES, *keys))

    def ceiling(self, label: str) -> Risk:
        risk = self.risk(label, "max_risk")
        if risk in {Risk.UNKNOWN, Risk.BLOCKED}:
            raise self.wrong(
                f"max_risk cannot be {label!r}: the highest ceiling is 'destructive'"
                + (
                    ". To permit what nobody understands, write effects = {add = ['unknown']}"
                    if risk is Risk.UNKNOWN
                    else ""
                ),
                "max_risk",
            )
        return risk

    def effects(self, ceiling: Risk, table: ProfileTable) -> frozenset[Risk]:
        added = {self.risk(label, "effects", "add") for label in table.effects.add}
        removed = {self.risk(label, "effects", "remove") for label in table.effects.remove}
        if Risk.BLOCKED in added:
            raise self.wrong("effects.add: 'blocked' can never be permitted. Leave it out", "effects", "add")
        if Risk.SAFE in removed:
            raise self.wrong("effects.remove: 'safe' is always permitted", "effects", "remove")
        for both in sorted(added & removed):
            raise self.wrong(f"effects adds and removes {both.label!r}; remove one of the two", "effects")
        return (up_to(ceiling) | added) - removed

    def command(self, text: str, *keys: str) -> tuple[str, ...]:
        try:
            return parse_command_line(text)
        except CommandLineError as error:
            shown = text if text.isprintable() else ascii(text)[1:-1]
            raise self.wrong(f"{keys[0]} entry `{shown}`: {error}", keys[0], text) from None

    def entry(self, entry: str | EntryTable, table: ProfileTable) -> AllowEntry:
        if isinstance(entry, str):
            entry = EntryTable(command=entry)
        argv = self.command(entry.command, "allowlist")
        relative = "/" in argv[0] and not argv[0].startswith("/")
        if relative and table.sandbox.workspace != "read-only":
            raise self.wrong(
                f"allowlist entry `{entry.command}`: {argv[0]} lies in the workspace, where the task can "
                "rewrite it, so the entry never matches. List a program of the system, "
                "or make the workspace read-only",
                "allowlist",
                entry.command,
            )
        return AllowEntry(
            argv=argv,
            cwd=self.entry_cwd(entry),
            sha256=self.entry_digest(entry),
            effects=self.entry_effects(entry),
        )

    def entry_cwd(self, entry: EntryTable) -> str | None:
        if entry.cwd is None:
            return None
        folder = posixpath.normpath(entry.cwd) if entry.cwd else ""
        if not folder or "\0" in folder or folder.split("/")[0] in {"..", "~"}:
            raise self.wrong(
                f"allowlist entry `{entry.command}`: cwd {entry.cwd!r} must be a folder below the "
                "workspace, or absolute",
                "allowlist",
                entry.command,
            )
        return folder

    def entry_digest(self, entry: EntryTable) -> str | None:
        if entry.sha256 is None:
            return None
        if not re.fullmatch(_DIGEST, entry.sha256):
            raise self.wrong(
                f"allowlist entry `{entry.command}`: sha256 must be 64 hexadecimal digits, "
                "as sha256sum prints",
                "allowlist",
                entry.command,
            )
        return entry.sha256.lower()

    def entry_effects(self, entry: EntryTable) -> frozenset[Risk]:
        effects = frozenset(self.risk(label, "allowlist", "effects") for label in entry.effects)
        for risk in sorted(effects & NEVER_GRANTED):
            raise self.wrong(
                f"allowlist entry `{entry.command}`: its effects cannot include {risk.label!r}: "
                f"{_NOT_FOR_AN_ENTRY[risk]}. Leave it out",
                "allowlist",
                entry.command,
            )
        return effects

    def lands(self, rules: tuple[str, ...]) -> frozenset[str]:
        """Take the ids of rules, as denials name them. A misspelt one would permit nothing, and never say so."""
        if not rules:
            return frozenset()
        from broker.classify.contents import landing_rules

        known = landing_rules()
        return frozenset(self.one_of(rule, known, "land", "allow") for rule in rules)

    def environment(self, table: EnvTable) -> Environment:
        for name in (*table.passed, *table.set):
            if not re.fullmatch(_VARIABLE, name):
                key = "pass" if name in table.passed else "set"
                raise self.wrong(
                    f"env.{key}: {name!r} is not a variable's name. Write each by its name, without a value or a pattern", "env", key
                )
        for name in table.passed:
            if name in table.set:
                raise self.wrong(f"env both passes and sets {name!r}; remove one of the two", "env", name)
        for name, value in table.set.items():
            if "\0" in value:
                raise self.wrong(f"env.set: the value of {name!r} holds a NUL", "env", "set", name)
        return Environment(passed=_once(table.passed), set=tuple(sorted(table.set.items())))

    def sandbox(self, table: SandboxTable) -> SandboxSettings:
        fallback = SandboxSettings()
        return SandboxSettings(
            engine=self.one_of(table.engine, _ENGINES, "sandbox", "engine"),
            image=self.image(table.image),
            workspace=self.workspace(table.workspace),
            read_only=_once(self.host_path(path) for path in table.read_only),
            show=_once(self.shown_name(name) for name in table.show),
            memory=self.quantity(parse_size, table.memory, fallback.memory, "memory"),
            cpus=self.cpus(table.cpus),
            pids=self.quantity(_count, table.pids, fallback.pids, "pids"),
            time=self.quantity(parse_time, table.time, fallback.time, "time"),
            tmp_size=self.quantity(parse_size, table.tmp_size, fallback.tmp_size, "tmp_size"),
            shm_size=self.quantity(parse_size, table.shm_size, fallback.shm_size, "shm_size"),
            layer_size=self.quantity(parse_size, table.layer_size, fallback.layer_size, "layer_size"),
            output=self.quantity(parse_size, table.output, fallback.output, "output"),
        )

    def delegate(self, table: DelegateTable) -> DelegationSettings:
        fallback = DelegationSettings()

        def how_many(value: int | None, otherwise: int, key: str) -> int:
            return self.quantity(_few, value, otherwise, key, section="delegate")

        for name in table.profiles or ():
            if not NAME.fullmatch(name):
                raise self.wrong(f"delegate.profiles: {name!r} is not a profile's name", "delegate", "profiles")
        return DelegationSettings(
            profiles=None if table.profiles is None else _once(table.profiles),
            agents=_once(self.agent(path) for path in table.agents),
            depth=how_many(table.depth, fallback.depth, "depth"),
            breadth=how_many(table.breadth, fallback.breadth, "breadth"),
            tasks=how_many(table.tasks, fallback.tasks, "tasks"),
            cpu_time=self.quantity(parse_time, table.cpu_time, fallback.cpu_time, "cpu_time", section="delegate"),
            time=self.quantity(parse_time, table.time, fallback.time, "time", section="delegate"),
            memory=self.quantity(parse_size, table.memory, fallback.memory, "memory", section="delegate"),
        )

    def approvals(self, table: ApprovalsTable) -> ApprovalSettings:
        fallback = ApprovalSettings()
        return ApprovalSettings(
            ask=table.ask, timeout=self.quantity(parse_time, table.timeout, fallback.timeout, "timeout", section="approvals"),
            approver=self.one_of(table.approver, _APPROVERS, "approvals", "approver"),
        )  # fmt: skip

    def agent(self, path: str) -> str:
        """Take a program that may lead sub-tasks. Whether a task can write there is known when it is started."""
        if path != posixpath.normpath(path) or not path.startswith("/") or "\0" in path:
            raise self.wrong(f"delegate.agents: {path!r} must be the absolute path of a program", "delegate", "agents")
        return path

    def quantity(
        self, parse: Callable[[Any], Any], value: object, fallback: T, key: str, *, section: str = "sandbox"
    ) -> T:
        if value is None:
            return fallback
        try:
            parsed: T = parse(value)
        except (ValueError, OverflowError) as error:
            raise self.wrong(f"{section}.{key}: {error}", section, key) from None
        return parsed

    def cpus(self, value: float | None) -> float | None:
        if value is not None and not 0.01 <= value <= 4096:
            raise self.wrong("sandbox.cpus: write how many processors, as 2 or 0.5", "sandbox", "cpus")
        return None if value is None else float(value)

    def image(self, image: str) -> str:
        if image and not re.fullmatch(_IMAGE, image):
            raise self.wrong(f"sandbox.image: {image!r} is not the name of an image", "sandbox", "image")
        return image

    def workspace(self, mode: str) -> str:
        return self.one_of(mode, _WORKSPACES, "sandbox", "workspace")

    def host_path(self, path: str) -> str:
        plain = posixpath.normpath(path) if path.startswith("/") else ""
        plain = "/" + plain.lstrip("/") if plain else plain
        if not plain or "\0" in plain or ".." in path.split("/"):
            raise self.wrong(
                f"sandbox.read_only: {path!r} must be an absolute path without '..' or '~'",
                "sandbox",
                "read_only",
            )
        if plain in _NEVER_SHOWN:
            raise self.wrong(
                f"sandbox.read_only: {plain} as a whole would show the host to the task. Name what it needs",
                "sandbox",
                "read_only",
            )
        return plain

    def shown_name(self, name: str) -> str:
        if not name or "\0" in name or name.startswith(("/", "~")) or ".." in name.split("/"):
            raise self.wrong(
                f"sandbox.show: {name!r} must be a name or path within the workspace, as '.env.test'",
                "sandbox",
                "show",
            )
        return name

    def requires(self, layers: tuple[str, ...] | None) -> tuple[str, ...]:
        if layers is None:
            return LAYERS
        named = {self.one_of(layer, LAYERS, "requires") for layer in layers}
        return tuple(layer for layer in LAYERS if layer in named)


def _count(value: int) -> int:
    if not 1 <= value <= 1 << 22:  # PID_MAX_LIMIT, proc(5)
        raise ValueError("write how many processes there may be at once, 1 to 4194304")
    return value


def _few(value: int) -> int:
    if not 0 <= value <= 10_000:
        raise ValueError("write how many, 0 to 10000 (0: none)")
    return value


def _once(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))
