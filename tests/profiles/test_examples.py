"""`permits` and `denies`: a profile's own tests, tried when it is loaded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.decide.profile import Profile
from broker.profiles.errors import ProfileInvalid

Made = Callable[..., Profile]

BODY = 'max_risk = "local_write"\nallowlist = ["npm test"]\n'


def test_examples_that_are_so_change_nothing_about_the_profile(made: Made) -> None:
    told = made(BODY + 'permits = ["npm test", "cd src && npm test > out.txt"]\ndenies = ["npm ci", "make"]')
    assert told.digest == made(BODY).digest


@pytest.mark.parametrize(
    ("example", "said", "place"),
    [
        ('permits = ["ls",\n  "make"]', "permits says `make`, and it is refused: ", (5, 3)),
        ('denies = ["npm test"]', "denies says `npm test`, and it is permitted (allowlist.part", (4, 11)),
        ('denies = ["touch x"]', "it is permitted (profile.effects: local_write)", (4, 11)),
        ('permits = ["ls | tee ~/.bashrc"]', "[path.persistence:~/.bashrc]", (4, 12)),
        ('permits = [" "]', "permits: an example is empty", (4, 12)),
    ],
)
def test_an_example_that_is_not_so_is_an_error_with_its_place_and_the_verdict(
    made: Made, example: str, said: str, place: tuple[int, int]
) -> None:
    with pytest.raises(ProfileInvalid) as error:
        made(BODY + example)
    assert said in str(error.value)
    assert (error.value.line, error.value.column) == place


def test_what_would_have_to_be_approved_is_not_permitted(made: Made) -> None:
    made(BODY + 'denies = ["curl https://example.com"]')
    with pytest.raises(ProfileInvalid, match="network_egress"):
        made(BODY + 'permits = ["curl https://example.com"]')


def test_an_example_of_one_command_is_a_program_start_even_where_shells_are_taken_away(made: Made) -> None:
    made('tools.disabled = ["shell"]\npermits = ["git log"]\ndenies = ["git log | head", "sh -c ls"]')
