"""Questions and answers between nodes as bytes: msgpack."""

from typing import Any

import msgpack


def packed(value: Any) -> bytes:
    """Return a question or an answer as bytes; tuples become lists."""
    data: bytes = msgpack.packb(value)
    return data


def unpacked(data: bytes) -> Any:
    """Return what `packed` was given. ValueError if it was something else."""
    return msgpack.unpackb(data)
