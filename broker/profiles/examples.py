"""The examples in a profile, `permits` and `denies`: tests that stand in the file that they test.

In: a profile's table and the Profile it means. Out: nothing, or ProfileInvalid for the first example that is not so. They
are tried each time the profile is loaded, so that an edit that opens or closes too much is noticed before a task is. A
profile without examples pays nothing; one example costs about a tenth of a millisecond, and the first loads the tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.decide.profile import Profile
from broker.profiles.errors import ProfileInvalid
from broker.profiles.schema import ProfileTable, Source

if TYPE_CHECKING:
    from broker.profiles.judge import Judged


def check_examples(source: Source, table: ProfileTable, profile: Profile) -> None:
    """Raise ProfileInvalid if an example is not so. What is permitted is permitted without anybody being asked."""
    if not table.permits and not table.denies:
        return
    from broker.profiles.judge import judge

    for key, wanted in (("permits", True), ("denies", False)):
        texts: tuple[str, ...] = getattr(table, key)
        for at, text in enumerate(texts):
            if not text.strip():
                raise source.wrong(f"profile {profile.name!r}: {key}: an example is empty", profile.name, key, at)
            judged = judge(text, profile)
            if judged.allowed is not wanted:
                raise _not_so(source, profile, key, at, text, judged)


def _not_so(source: Source, profile: Profile, key: str, at: int, text: str, judged: Judged) -> ProfileInvalid:
    from broker.decide.verdict import Allow
    from broker.decide.wording import classes, shorten

    verdict = judged.verdict
    if isinstance(verdict, Allow):
        said = f"it is permitted ({verdict.rule}: {classes(judged.assessment.effects)})"
        remedy = "Narrow the profile, or correct the example"
    else:
        said = f"it is refused: {verdict.reason.rstrip('.')} [{verdict.rule}]"
        remedy = "Widen the profile, or correct the example"
    return source.wrong(
        f"profile {profile.name!r}: {key} says `{shorten(text)}`, and {said}. {remedy}", profile.name, key, at
    )
