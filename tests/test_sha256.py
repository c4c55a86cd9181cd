"""Our short way to SHA-256 is SHA-256."""

from __future__ import annotations

import hashlib

import pytest

from broker.sha256 import sha256


@pytest.mark.parametrize("length", [0, 1, 55, 56, 63, 64, 65, 1000, 100_000])
def test_it_says_what_hashlib_says(length: int) -> None:
    content = bytes(index * 7 % 251 for index in range(length))
    assert sha256(content).hexdigest() == hashlib.sha256(content).hexdigest()
    assert sha256(content).digest() == hashlib.sha256(content).digest()
