"""GET on loopback, never through a proxy, always bounded: for health and status questions."""

import http.client
import urllib.parse
from dataclasses import dataclass

GET_TIMEOUT_S = 2.0  # a frozen process must not hold up the question who is alive
BODY_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said."""

    status: int
    body: bytes


def get(url: str) -> Answer | None:
    """The answer, or None if nobody gave one in time."""
    parts = urllib.parse.urlsplit(url)
    assert parts.hostname is not None, f"a URL of our own making has a host: {url}"
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=GET_TIMEOUT_S)
    try:
        connection.request("GET", parts.path)
        response = connection.getresponse()
        return Answer(response.status, response.read(BODY_BYTES_MAX))
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
