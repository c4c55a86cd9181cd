"""Who comes in to the page. In: a request's head. Out: nothing, or why it is refused. Pure, but for the secrets that it makes.

Every user of the machine can connect to its loopback, and every site that the operator visits can have his browser do so. The
first lack the secrets; the second are told by Host (another name that was made to mean 127.0.0.1), Origin and Sec-Fetch-Site.

A browser sends a host's cookies to each of its ports, so that a server of somebody else on 127.0.0.1 would be told ours: the
cookie is bound to a path as well, which nobody there can guess.

INVARIANT: nothing of a run is sent, and nothing is answered, without the cookie (tests/serve/test_page_door.py).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import field

from broker.values import dataclass

COOKIE = "broker-page"
TOKEN_BYTES = 24  # 192 bits
PATH_BYTES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Nothing is done. `status` is HTTP's, `reason` one sentence for whoever reads it."""

    status: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """The secrets of one server, and the names that it goes by (HOST:PORT, as a browser writes them)."""

    hosts: tuple[str, ...]
    path: str = field(default_factory=lambda: f"/{secrets.token_urlsafe(PATH_BYTES)}/")
    token: str = field(default_factory=lambda: secrets.token_urlsafe(TOKEN_BYTES), repr=False)
    cookie: str = field(default_factory=lambda: secrets.token_urlsafe(TOKEN_BYTES), repr=False)

    @property
    def url(self) -> str:
        """The link. What is behind the # is never sent as a part of an address: the page's script hands it in."""
        return f"http://{self.hosts[0]}{self.path}#{self.token}"

    def inside(self, target: str) -> str | None:
        """Return which thing below our path is wanted, '' for the page itself; None: it is not below our path."""
        start, rest = target[: len(self.path)], target[len(self.path) :]
        return rest if _same(start, self.path) else None

    def foreign(self, method: str, headers: Mapping[str, str], *, is_page: bool) -> Refused | None:
        """Refuse what another site has a browser ask for. `headers` by their names in lower case."""
        host, origin, site = headers.get("host", ""), headers.get("origin"), headers.get("sec-fetch-site")
        if host not in self.hosts:
            return Refused(status=421, reason=f"this is {self.hosts[0]}, and goes by no other name")
        if (origin is None and method == "POST") or (origin is not None and origin != f"http://{host}"):
            return Refused(status=403, reason="another site has no business here")
        if site in (None, "same-origin") or (is_page and _opened(site, headers)):
            return None
        return Refused(status=403, reason="another site has no business here")

    def admits(self, headers: Mapping[str, str]) -> bool:
        """Whether a request has our cookie."""
        pairs = [part.strip().partition("=") for part in headers.get("cookie", "").split(";")]
        return any(name == COOKIE and _same(value, self.cookie) for name, _, value in pairs)

    def takes(self, token: str) -> bool:
        """Whether this is the token of the link."""
        return _same(token, self.token)

    def set_cookie(self) -> str:
        """Return the header that gives a browser the cookie, until it is closed."""
        return f"{COOKIE}={self.cookie}; Path={self.path}; HttpOnly; SameSite=Strict"


def _opened(site: str, headers: Mapping[str, str]) -> bool:
    """Whether somebody opens the page as a page of its own: typed, or by a link, from a file for example."""
    shown = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == ("navigate", "document")
    return site == "none" or shown


def _same(one: str, other: str) -> bool:
    return secrets.compare_digest(one.encode("utf-8", "surrogatepass"), other.encode("utf-8", "surrogatepass"))
