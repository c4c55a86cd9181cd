"""What a profile may do, asked before it is tried. In: an envelope, and a command or nothing. Out: an answer with its why.

The sentences are `decide`'s own; what is added is what would change the answer, and what only the sandbox can tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from broker.classify.context import Context
from broker.classify.risk import Part, PartKind, Risk
from broker.decide.envelope import Envelope
from broker.decide.profile import AllowEntry, up_to
from broker.decide.trust import Trust
from broker.decide.verdict import Allow, Ask, Deny, Layer
from broker.decide.wording import command_line
from broker.profiles.judge import Judged, judge
from broker.request.operation import ShellText
from broker.values import dataclass

# Two or three commands of each class, tried by a test: what a class means is best said so.
EXAMPLES: dict[Risk, tuple[str, ...]] = {
    Risk.SAFE: ("git status", "grep -rn TODO .", "sed -n 1,20p README.md"),
    Risk.LOCAL_WRITE: ("touch notes.txt", "git add -A", "rm -r build"),
    Risk.CODE_EXECUTION: ("make", "npm test", "python3 tool.py"),
    Risk.INSTALL: ("npm ci", "pip install requests", "cargo install x"),
    Risk.NETWORK_EGRESS: ("curl https://example.com", "git push", "ssh example.com"),
    Risk.SYSTEM_WRITE: ("sudo ls", "touch /etc/motd", "cat ~/.ssh/id_ed25519"),
    Risk.PERSISTENCE: ("touch .git/hooks/post-merge", "crontab jobs", "tee -a ~/.bashrc"),
    Risk.DESTRUCTIVE: ("shutdown now", "git push --force", "mkfs.ext4 disk.img"),
    Risk.UNKNOWN: ('"$TOOL" --run', "some-program-nobody-knows"),
    Risk.BLOCKED: (":(){ :|:& };:", "dd if=/dev/zero of=/dev/sda"),
}


# No sentence of ours talks anybody into listing what reaches out, plants, destroys, or is not understood.
_LISTABLE = frozenset({Risk.LOCAL_WRITE, Risk.CODE_EXECUTION, Risk.INSTALL})


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """`verdict` is allow, ask or deny. `because` says why, `change` what would change it, `unless` what it hangs on."""

    verdict: str
    rule: str
    layer: str
    effects: frozenset[Risk]
    because: str
    change: str = ""
    unless: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "verdict": self.verdict,
            "rule": self.rule,
            "layer": self.layer,
            "effects": [risk.label for risk in sorted(self.effects)],
            "because": self.because,
            "change": self.change,
            "unless": list(self.unless),
        }


def may(command: Sequence[str], envelope: Envelope, context: Context, *, headless: bool = False) -> Answer:
    """Return whether the command may run. One word with spaces in it is a shell text, as somebody would type it."""
    asked = ShellText(text=command[0]) if len(command) == 1 and " " in command[0].strip() else tuple(command)
    judged = judge(asked, envelope, interactive=not headless, context=context)
    verdict = judged.verdict
    effects = judged.assessment.effects
    match verdict:
        case Allow():
            return Answer(
                verdict="allow", rule=verdict.rule, layer=verdict.layer.value, effects=effects,
                because=_why_allowed(judged, envelope), unless=tuple(_unless(judged, envelope)),
            )  # fmt: skip
        case Ask():
            # The same question without anybody to answer it has the hint.
            plain = judge(judged.operation, envelope, context=context).verdict
            hint = plain.hint if isinstance(plain, Deny) else ""
            return Answer(
                verdict="ask", rule=verdict.rule, layer=Layer.PROFILE.value, effects=effects, because=verdict.reason,
                change=f"An approval, where somebody can be asked; a task without a terminal is refused. {hint}".strip(),
            )  # fmt: skip
        case Deny():
            return Answer(
                verdict="deny", rule=verdict.rule, layer=verdict.layer.value, effects=effects, because=verdict.reason,
                change=_change(verdict, judged, envelope),
            )  # fmt: skip


def _why_allowed(judged: Judged, envelope: Envelope) -> str:
    name = envelope.profile.name
    verdict = judged.verdict
    if isinstance(verdict, Allow) and verdict.layer is Layer.ALLOWLIST:
        listed = [
            entry for part in judged.assessment.parts for entry in envelope.profile.allowlist if entry.argv == part.argv
        ]
        if listed:
            shown = " and ".join(dict.fromkeys(f"`{entry.text}`" for entry in listed))
            return f"The allowlist of profile {name} has exactly {shown}."
    effects = judged.assessment.effects
    labels = ", ".join(risk.label for risk in sorted(effects, reverse=True) if risk) or "safe"
    return f"It is {labels}, which profile {name} permits."


def _unless(judged: Judged, envelope: Envelope) -> Iterator[str]:
    """Say what an entry's match hangs on, and is known only at the gate."""
    said: dict[str, None] = {}
    for level in envelope.levels():
        alone = Envelope(profile=level.profile, trust=level.effective_trust)
        for part in judged.assessment.parts:
            entries = [entry for entry in level.profile.allowlist if entry.argv == part.argv]
            if not entries or _by_classes(part, alone):
                continue
            said |= dict.fromkeys(_conditions(entries, part))
    return iter(said)


def _by_classes(part: Part, envelope: Envelope) -> bool:
    return part.effects <= envelope.own_effects | {Risk.SAFE}


def _conditions(entries: Sequence[AllowEntry], part: Part) -> Iterator[str]:
    name = part.argv[0]
    if all(entry.cwd is not None for entry in entries):
        folders = " or ".join(dict.fromkeys(f"{entry.cwd}" for entry in entries))
        yield f"it must be started in {folders}"
    if all(entry.sha256 is not None for entry in entries):
        yield f"{name} must be the file with SHA-256 {entries[0].sha256}"
    yield f"{name} must be a program of the system, not one that the task could have written"


def _change(denial: Deny, judged: Judged, envelope: Envelope) -> str:
    profile = envelope.profile
    if envelope.effective_trust is Trust.UNTRUSTED and not denial.effects & {Risk.UNKNOWN, Risk.BLOCKED}:
        wider = denial.effects - up_to(Risk.LOCAL_WRITE)
        if wider and wider <= profile.effects:
            return "A trusted task may: --trust trusted."
    commands = [
        part.argv for part in judged.assessment.parts
        if part.kind is PartKind.COMMAND and part.static and part.effects & denial.effects
    ]  # fmt: skip
    if (
        denial.effects - _LISTABLE
        or denial.layer is Layer.DENYLIST
        or denial.rule.startswith("tool.")
        or not commands
        or denial.hint.startswith("Entries are exact")
    ):
        return denial.hint
    entry = command_line(commands[0])
    if f"`{entry}`" in denial.hint:
        return denial.hint
    return f"An exact entry: `{entry}` on the allowlist of profile {profile.name}. Else: {denial.hint}"
