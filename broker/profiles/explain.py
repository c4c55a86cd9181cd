"""Say in words what a profile permits. In: a Profile. Out: labelled lines, for people."""

from __future__ import annotations

from broker.classify.risk import Risk
from broker.decide.envelope import GRANTED
from broker.decide.profile import LAYERS, AllowEntry, ApprovalSettings, Profile
from broker.decide.wording import classes, command_line, escape, listed
from broker.profiles.quantity import show_size, show_time
from broker.profiles.ways_out_told import ways_out_lines

# A section's title, and its lines: (left column, right column).
Section = tuple[str, tuple[tuple[str, str], ...]]

MEANINGS = {
    Risk.SAFE: "reads, inspects, computes; changes nothing",
    Risk.LOCAL_WRITE: "creates, changes or deletes files in the workspace and in temporary space",
    Risk.CODE_EXECUTION: "runs code that the command's text does not show",
    Risk.INSTALL: "brings in packages or tool chains",
    Risk.NETWORK_EGRESS: "tries to open a connection out (there is no network all the same)",
    Risk.SYSTEM_WRITE: "touches what belongs to the system or to other projects, or reads secrets",
    Risk.PERSISTENCE: "plants something that runs later, where somebody trusts it",
    Risk.DESTRUCTIVE: "loses data beyond the task's own files",
    Risk.UNKNOWN: "cannot be understood with certainty",
    Risk.BLOCKED: "is never permitted by anything",
}

_NOT_ASKABLE = frozenset({Risk.UNKNOWN, Risk.BLOCKED})
_ASKABLE = frozenset(Risk) - _NOT_ASKABLE


def sections(profile: Profile) -> tuple[Section, ...]:
    """Return what the profile permits, lists, denies and requires, in the order people ask for it."""
    required = profile.requires
    found = [
        ("permits", _permits(profile)),
        ("runs exactly", tuple(_entry(entry) for entry in profile.allowlist)),
        ("denies, wherever it stands", tuple((f"{command_line(each)} …", "") for each in profile.denylist)),
        ("refuses (or asks, where somebody can be asked)", _refuses(profile, _ASKABLE)),
        ("always refuses", _refuses(profile, _NOT_ASKABLE)),
        ("may land although it runs later", tuple((rule, "") for rule in sorted(profile.lands))),
        ("tools taken away", tuple((tool, "") for tool in sorted(profile.disabled_tools))),
        ("environment", _environment(profile)),
        ("sandbox", _sandbox(profile)),
        ("ways out", ways_out_lines(profile)),
        ("approvals", _approvals(profile)),
        ("requires, or the task does not start", tuple((layer, "") for layer in profile.requires)),
        (
            "does without, where the host cannot",
            tuple((layer, "") for layer in LAYERS if layer not in required),
        ),
    ]
    return tuple((title, lines) for title, lines in found if lines)


def _permits(profile: Profile) -> tuple[tuple[str, str], ...]:
    return tuple((risk.label, MEANINGS[risk]) for risk in sorted(profile.effects))


def _entry(entry: AllowEntry) -> tuple[str, str]:
    conditions = []
    if entry.cwd is not None:
        conditions.append(f"in {escape(entry.cwd)}")
    if entry.sha256 is not None:
        conditions.append(f"program with SHA-256 {entry.sha256[:12]}…")
    if entry.effects - GRANTED:
        conditions.append(f"what it starts may also be {classes(entry.effects - GRANTED)}")
    return command_line(entry.argv), "; ".join(conditions)


def _refuses(profile: Profile, among: frozenset[Risk]) -> tuple[tuple[str, str], ...]:
    return tuple((risk.label, MEANINGS[risk]) for risk in sorted(among - profile.effects))


def _environment(profile: Profile) -> tuple[tuple[str, str], ...]:
    passed = [(name, "passed in") for name in profile.env.passed]
    return (*passed, *((name, f"set to {escape(value)!r}") for name, value in profile.env.set))


def _approvals(profile: Profile) -> tuple[tuple[str, str], ...]:
    said, plain = profile.approvals, ApprovalSettings()
    if said == plain:
        return ()
    asked = "on a terminal, or with --ask" if said.ask else "only with --ask"
    client = "the client of the tools over MCP, in your place"
    return (("asks", asked), ("approved by", client if said.approver == "client" else "you"), ("waits", show_time(said.timeout)))


_WORKSPACES = {
    "overlay": "copy-on-write: what the profile permits lands at the end (overlay)",
    "direct": "the real files (direct)",
    "read-only": "read-only",
}


def _sandbox(profile: Profile) -> tuple[tuple[str, str], ...]:
    sandbox = profile.sandbox
    limited = "not limited"
    lines = [
        ("engine", "docker if it answers and has the image, else bubblewrap")
        if sandbox.engine == "auto"
        else ("engine", sandbox.engine),
        ("image", sandbox.image or "the engine's default"),
        ("workspace", _WORKSPACES[sandbox.workspace]),
        ("network", "none, but for the ways out below" if profile.gateways or profile.hosts else "none"),
        ("memory", show_size(sandbox.memory) if sandbox.memory else limited),
        ("processors", f"{sandbox.cpus:g}" if sandbox.cpus else limited),
        ("processes", str(sandbox.pids) if sandbox.pids else limited),
        ("time", show_time(sandbox.time) if sandbox.time else limited),
        ("output", show_size(sandbox.output) if sandbox.output else limited),
        ("/tmp", show_size(sandbox.tmp_size)),
        ("/dev/shm", show_size(sandbox.shm_size)),
    ]
    if sandbox.workspace == "overlay":
        lines.append(("changes", f"at most {show_size(sandbox.layer_size)}"))
    lines += [("also shown", f"{escape(path)} (read-only)") for path in sandbox.read_only]
    if sandbox.show:
        lines.append(("not masked", listed(escape(name) for name in sandbox.show)))
    return tuple(lines)
