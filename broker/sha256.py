"""SHA-256 without loading OpenSSL, which takes 3 ms of every start: for short texts only.

CPython has an implementation of its own, for builds without OpenSSL. What reads whole files takes hashlib's:
it is several times as fast.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hashlib import sha256
else:
    try:
        from _sha2 import sha256  # Python 3.12 and later
    except ImportError:
        try:
            from _sha256 import sha256  # Python 3.11
        except ImportError:
            from hashlib import sha256

__all__ = ["sha256"]
