"""Trust has an order, and names."""

import pytest

from broker.decide import Trust


def test_of_two_the_lesser_counts() -> None:
    assert min(Trust.TRUSTED, Trust.UNTRUSTED) is Trust.UNTRUSTED


def test_a_label_is_read_back_and_nothing_else_is() -> None:
    assert [Trust.parse(trust.label) for trust in Trust] == list(Trust)
    for other in ("TRUSTED", "root", ""):
        with pytest.raises(KeyError):
            Trust.parse(other)
