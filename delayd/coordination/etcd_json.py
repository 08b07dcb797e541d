"""The JSON of etcd's HTTP gateway: keys, values, conditions and answers. Pure.

Source: the etcd v3 API.
"""

import base64
from collections.abc import Mapping
from typing import Any

from delayd.coordination import Leadership

Json = Mapping[str, Any]


def is_created_at(key: str, revision: int) -> Json:
    """Return the condition that a key was created at this revision; 0: that it is absent."""
    target = {"target": "CREATE", "create_revision": revision}
    return {"key": encoded(key), "result": "EQUAL", **target}


def is_written_at(key: str, revision: int) -> Json:
    """Return the condition that a key was last written at this revision."""
    return {"key": encoded(key), "result": "EQUAL", "target": "MOD", "mod_revision": revision}


def key_range(key: str, **bounds: object) -> Json:
    """Return the read of a key, or of a range of keys with `range_end`."""
    return {"key": encoded(key), **bounds}


def is_done(answer: Json) -> bool:
    """Return if the comparison held: where it did not, etcd omits `succeeded`."""
    return answer.get("succeeded") is True


def keys_in(answer: Json) -> list[Json]:
    """Return the keys of a transaction's last read."""
    found: list[Json] = answer["responses"][-1]["response_range"].get("kvs", [])
    return found


def leadership_of(found: Json) -> Leadership:
    """Return the leadership that a leader key says."""
    return Leadership(value_of(found), int(found["create_revision"]))


def value_of(found: Json) -> str:
    """Return the value of a key as text."""
    return decoded(found.get("value", ""))


def encoded(text: str) -> str:
    """Return text as etcd's JSON has keys and values."""
    return base64.b64encode(text.encode()).decode("ascii")


def decoded(text: str) -> str:
    """Return what `encoded` was made of."""
    return base64.b64decode(text).decode()
