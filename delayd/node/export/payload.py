"""The payload CRC: what a message carries, as one number.

The hot path of an export: the pieces that repeat (topics, names of headers, lengths) are made once.
Source: docs/design/audit.md, "Payload CRC".
"""

from collections.abc import Sequence
from typing import Any
from zlib import crc32

TEXTS_MAX = 10_000
"""Topics and header names remembered with their length in front."""
_LENGTHS = tuple(n.to_bytes(4, "big") for n in range(4096))
_NULL = b"\xff\xff\xff\xff"


class _Texts(dict[str, bytes]):
    """By text: its length and its UTF-8."""

    def __missing__(self, text: str) -> bytes:
        if len(self) >= TEXTS_MAX:
            self.clear()
        data = text.encode()
        made = self[text] = len(data).to_bytes(4, "big") + data
        return made


_texts = _Texts()


def payload_crc(
    topic: str,
    key: bytes | None,
    value: bytes | None,
    pairs: Sequence[tuple[str, bytes | None]] | Sequence[Any],
    partition: int | None,
) -> int:
    """Return the payload CRC of a message's parts; `pairs` are the user's headers in their
    order."""
    parts = [_texts[topic]]
    add = parts.append
    for content in (key, value):
        if content is None:
            add(_NULL)
        else:
            size = len(content)
            add(_LENGTHS[size] if size < 4096 else size.to_bytes(4, "big"))
            add(content)
    for name, content in pairs:
        add(_texts[name])
        if content is None:
            add(_NULL)
        else:
            size = len(content)
            add(_LENGTHS[size] if size < 4096 else size.to_bytes(4, "big"))
            add(content)
    add(_NULL if partition is None else _texts[str(partition)])
    return crc32(b"".join(parts))
