"""To an HTTP endpoint: each batch is a POST. 2xx means that it is there; what can be tried again is told from what cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import urllib3

from broker import __version__
from broker.decide.wording import shorten
from broker.record.export.message import Format, Message, Refused, Unreachable

TIMEOUT = urllib3.Timeout(connect=10.0, read=60.0)
# Too many requests, too early, a timeout; and servers that are busy, restarting, or behind somebody who is (RFC 9110, RFC 6585).
_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})


class HttpSink:
    """Posts batches to an address."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None, ca: str | None = None) -> None:
        """Connect with the first batch. `ca`: a file with the authorities to trust instead of the system's."""
        self._url = url
        self._headers = {"User-Agent": f"broker/{__version__}", **(headers or {})}
        self._pool = urllib3.PoolManager(timeout=TIMEOUT, retries=False, ca_certs=ca, maxsize=1)

    def deliver(self, format_: Format, messages: Sequence[Message]) -> None:
        """Post them."""
        for body in format_.bodies(messages):
            self._post(self._url.rstrip("/") + body.path if body.path else self._url, body.media, body.data)

    def _post(self, url: str, media: str, data: bytes) -> None:
        headers = {"Content-Type": media, **self._headers}
        try:
            # No redirects: events go where the operator said, and nowhere else.
            answer = self._pool.request("POST", url, body=data, headers=headers, redirect=False)
        except (urllib3.exceptions.SSLError, urllib3.exceptions.LocationValueError) as error:
            raise Refused(f"{self._shown(url)}: {error}") from error
        except urllib3.exceptions.HTTPError as error:
            raise Unreachable(f"{self._shown(url)} does not answer: {_reason(error)}") from error
        if 200 <= answer.status < 300:
            return
        said = shorten(answer.data[:400].decode("utf-8", "replace").strip(), 200)
        message = f"{self._shown(url)} answered {answer.status} {answer.reason or ''}{f': {said}' if said else ''}".rstrip()
        if answer.status in _AGAIN:
            raise Unreachable(message, _after(answer.headers.get("Retry-After")))
        remedy = "Look at its address (a redirect is not followed)" if 300 <= answer.status < 400 else _REMEDIES.get(answer.status, "")
        raise Refused(f"{message}. {remedy}".rstrip(". ") + ".")

    @staticmethod
    def _shown(url: str) -> str:
        parsed = urllib3.util.parse_url(url)
        return f"{parsed.scheme}://{parsed.netloc or ''}{parsed.path or ''}".replace(f"{parsed.auth}@" if parsed.auth else "\0", "")

    def close(self) -> None:
        """Close the connection."""
        self._pool.clear()


_REMEDIES = {
    401: "Say who you are with --header 'Authorization: …', from a file: --headers FILE",
    403: "It knows you, and does not let you: look at the token's rights",
    404: "Look at the address",
    413: "A batch is too large for it: raise its limit above 2 MB",
    415: "It takes another format: --format",
}


def _after(text: str | None) -> float | None:
    """Return how many seconds a Retry-After asks for; a date is not waited for, but tried in our own time."""
    return min(float(text), 300.0) if text and text.isdigit() else None


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    return shorten(str(reason).rpartition("): ")[2] or str(reason) or type(reason).__name__, 160)
