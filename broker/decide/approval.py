"""Step 3: approvals. In: what was answered so far, a question, the time. Out: how the question may be answered.

Somebody who is asked often learns to say yes with his fingers. So three approvals of one class within a minute, or five of
any, make the next one a deliberate act; what was denied is not asked about again at once, and at last not at all, and in other words not for ever; and
only what could be undone may be agreed to beforehand. Pure: time is an argument, in seconds of any clock that does not go back.
"""

from __future__ import annotations

from dataclasses import field, replace

from broker.classify.risk import Risk
from broker.decide.profile import Profile
from broker.decide.trust import Trust
from broker.values import dataclass

WINDOW = 60.0  # seconds in which approvals are counted
MOST_OF_A_CLASS = 3
MOST_OF_ALL = 5
WORD = "approve"
PAUSE = 1.5  # seconds that the question must have been there before the word counts
BACK_OFF = (10.0, 60.0)  # seconds without the same question, after the first time it was denied, the second …; then for good
MOST_DENIED = 5  # of one class within WINDOW, in whatever words; then nobody is asked about that class until the first is older
MOST_WITHDRAWN = 16  # questions whose process was gone before there was an answer, within WINDOW; then nobody is asked for as long
SESSION_SECONDS = 3600.0  # after which what was approved for the session is asked about again
MOST_REMEMBERED = 1000  # operations that were denied; beyond it a new one is refused, as one that nobody can keep track of

# What nobody may agree to beforehand: it cannot be undone, outlives the task, or nobody can say what it is.
NEVER_FOR_A_SESSION = frozenset({Risk.DESTRUCTIVE, Risk.PERSISTENCE, Risk.UNKNOWN, Risk.BLOCKED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked. `operation` names the exact operation, `content` the digest of the program that it starts ('': not known).

    `effects` are all that the operation does, not only what was refused of it.
    """

    operation: str
    effects: frozenset[Risk]
    content: str = ""

    @property
    def risk(self) -> Risk:
        """The worst class."""
        return max(self.effects, default=Risk.UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleKey:
    """One key, or one command, answers it. `session`: it may be approved for the session."""

    session: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedWord:
    """To approve it, the word has to be typed, so many seconds after it was asked for; what was typed before is thrown away."""

    session: bool
    word: str = WORD
    pause: float = PAUSE


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Nobody is asked. `until` is when it may be asked again; None: never."""

    reason: str
    until: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Approved:
    """It was approved for the session already. `at` is when."""

    at: float


Prompt = SingleKey | TypedWord | Refuse | Approved


@dataclass(frozen=True, slots=True, kw_only=True)
class _Approval:
    at: float
    effects: frozenset[Risk]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Denials:
    count: int
    at: float  # of the last


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalHistory:
    """What one run's operator has answered, over every channel. A value; `after_…` return the next one."""

    approvals: tuple[_Approval, ...] = ()  # of the last WINDOW
    denied: dict[str, _Denials] = field(default_factory=dict)
    session: dict[tuple[str, str], float] = field(default_factory=dict)  # until when
    denials: tuple[tuple[float, Risk], ...] = ()  # of the last WINDOW: when, and the worst class of what was denied
    withdrawn: tuple[float, ...] = ()  # of the last WINDOW: when

    def after_approval(self, request: Request, now: float, *, session: bool = False) -> ApprovalHistory:
        """It was approved. Raises ValueError for a session that `may_remember` excludes."""
        if session and not may_remember(request):
            raise ValueError("this cannot be approved for a session")
        recent = tuple(one for one in self.approvals if now - one.at < WINDOW)
        kept = dict(self.session)
        if session:
            kept[_exactly(request)] = now + SESSION_SECONDS
        denied = {operation: known for operation, known in self.denied.items() if operation != request.operation}
        return replace(self, approvals=(*recent, _Approval(at=now, effects=request.effects)), session=kept, denied=denied)

    def after_denial(self, request: Request, now: float) -> ApprovalHistory:
        """It was denied, or nobody answered in time. What was approved for the session is not any more."""
        known = self.denied.get(request.operation)
        denied = {**self.denied, request.operation: _Denials(count=known.count + 1 if known else 1, at=now)}
        session = {exact: until for exact, until in self.session.items() if exact[0] != request.operation}
        recent = tuple((at, risk) for at, risk in self.denials if now - at < WINDOW)
        return replace(self, denied=denied, session=session, denials=(*recent, (now, request.risk)))

    def after_withdrawal(self, now: float) -> ApprovalHistory:
        """It was shown, and taken back before there was an answer."""
        return replace(self, withdrawn=(*(at for at in self.withdrawn if now - at < WINDOW), now))


def patience_of(
    profile: Profile, trust: Trust, *, wanted: bool | None, terminal: bool, seconds: float | None = None
) -> float | None:
    """Return how many seconds a question of a run's own task waits for the operator; None: nobody is asked.

    `wanted` is what the operator said: True (--ask), False (--no-ask), None. Where he said nothing, a run on a `terminal` asks if
    its profile says so and the task is trusted. `seconds` is his own limit; else the profile's.
    """
    asks = wanted if wanted is not None else terminal and profile.approvals.ask and trust is Trust.TRUSTED
    return (seconds or profile.approvals.timeout) if asks else None


def may_remember(request: Request) -> bool:
    """Whether this exact operation may be approved for the session: what it starts must be known, and could be undone."""
    return bool(request.effects and request.content) and not request.effects & NEVER_FOR_A_SESSION


def next_prompt(history: ApprovalHistory, request: Request, now: float) -> Prompt:
    """Say how a request may be answered now. Ask again when the answer comes: others may have been answered meanwhile."""
    if Risk.BLOCKED in request.effects:
        return Refuse(reason="It is blocked, and nothing permits that.")
    if (refused := _backs_off(history, request, now)) is not None:
        return refused
    until = history.session.get(_exactly(request))
    if until is not None and now < until and may_remember(request):
        return Approved(at=until - SESSION_SECONDS)
    session = may_remember(request)
    recent = [one for one in history.approvals if now - one.at < WINDOW]
    of_a_class = max((sum(risk in one.effects for one in recent) for risk in request.effects), default=0)
    if of_a_class >= MOST_OF_A_CLASS or len(recent) >= MOST_OF_ALL:
        return TypedWord(session=session)
    return SingleKey(session=session)


def wearies(history: ApprovalHistory, request: Request, now: float) -> Refuse | None:
    """Refuse a new question where so many of its class were denied just now that asking on would be asking until somebody says yes.

    So it is where many came and went: a key that is meant for one of them must not find the next.

    What is asked already can still be answered either way.
    """
    denied = [at for at, risk in history.denials if risk is request.risk and now - at < WINDOW]
    withdrawn = [at for at in history.withdrawn if now - at < WINDOW]
    if len(withdrawn) >= MOST_WITHDRAWN:
        reason = f"{len(withdrawn)} questions were taken back within a minute before anybody could answer, so nobody is asked for a while."
        return Refuse(reason=reason, until=withdrawn[-MOST_WITHDRAWN] + WINDOW)
    if len(denied) < MOST_DENIED:
        return None
    reason = f"{len(denied)} questions about {request.risk.label} were denied within a minute, so nobody is asked about that for a while."
    return Refuse(reason=reason, until=denied[-MOST_DENIED] + WINDOW)


def _backs_off(history: ApprovalHistory, request: Request, now: float) -> Refuse | None:
    known = history.denied.get(request.operation)
    if known is None:
        if len(history.denied) >= MOST_REMEMBERED:
            return Refuse(reason=f"{MOST_REMEMBERED} different operations were denied in this run, so nobody is asked any more.")
        return None
    if known.count > len(BACK_OFF):
        return Refuse(reason=f"It was asked {known.count} times, and denied each time.")
    until = known.at + BACK_OFF[known.count - 1]
    if now < until:
        return Refuse(reason=f"It was denied a moment ago, and is not asked about again for {BACK_OFF[known.count - 1]:.0f} s.", until=until)
    return None


def _exactly(request: Request) -> tuple[str, str]:
    return request.operation, request.content
