"""A test that fails, so that there is a failure's output to compare."""

from counting.words import count


def test_that_fails() -> None:
    assert count("one two") == 3
