"""Which of etcd's members leads, asked of themselves."""

import http.client
import json
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

TIMEOUT_S: Final = 2.0
BODY_BYTES_MAX: Final = 1 << 16


def leader_of(urls: Mapping[str, str]) -> str | None:
    """By name, of members that run; None if no member says that it leads."""
    for name, url in urls.items():
        status = _status(url)
        leader = str(status.get("leader", "0"))
        header = status.get("header")
        if leader != "0" and isinstance(header, dict) and str(header.get("member_id")) == leader:
            return name
    return None


def _status(url: str) -> Mapping[str, object]:
    """Of a member; empty if it says nothing that makes sense in time."""
    parts = urlsplit(url)
    assert parts.hostname is not None, f"a URL of our own making has a host: {url}"
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_S)
    try:
        connection.request("POST", "/v3/maintenance/status", body=b"{}")
        found: object = json.loads(connection.getresponse().read(BODY_BYTES_MAX))
    except (OSError, http.client.HTTPException, ValueError):
        return {}
    finally:
        connection.close()
    return found if isinstance(found, dict) else {}
