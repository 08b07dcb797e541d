"""Java's murmur2 of many keys at once.

Invariant: equal to `delayd.bus.murmur2` masked to 31 bits, which is what partitioners use.
"""

from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from delayd.bus.murmur2 import murmur2

Bytes: TypeAlias = NDArray[np.uint8]
Longs: TypeAlias = NDArray[np.int64]

_SEED: Final = np.uint32(0x9747B28C)
_M: Final = np.uint32(0x5BD1E995)
_POSITIVE: Final = 0x7FFFFFFF

GROUP_MIN: Final = 8
"""Fewer keys of one length are hashed one by one."""

MATRIX_BYTES_MAX: Final = 1024 * 1024
"""Of keys that are hashed together."""


def murmur2_of(data: Bytes, starts: Longs, lengths: Longs) -> NDArray[np.int32]:
    """Return 31 bits of murmur2 for each key: `lengths[i]` bytes of `data` from `starts[i]`."""
    hashes = np.zeros(len(starts), np.int32)
    order = np.argsort(lengths, kind="stable")
    sorted_lengths = lengths[order]
    changes = np.flatnonzero(np.diff(sorted_lengths)) + 1
    for rows in np.split(order, changes) if len(order) else ():
        length = int(lengths[rows[0]])
        at_once = MATRIX_BYTES_MAX // max(1, length)
        if len(rows) < GROUP_MIN or at_once < GROUP_MIN:
            for row in rows:
                start = int(starts[row])
                hashes[row] = murmur2(data[start : start + length].tobytes()) & _POSITIVE
            continue
        for first in range(0, len(rows), at_once):
            some = rows[first : first + at_once]
            hashes[some] = _same_length(data, starts[some], length)
    return hashes


def _same_length(data: Bytes, starts: Longs, length: int) -> Any:
    keys = data[starts[:, None] + np.arange(length)]
    words = length // 4
    whole = np.ascontiguousarray(keys[:, : words * 4]).view("<u4")
    h = np.full(len(starts), _SEED ^ np.uint32(length), np.uint32)
    for word in range(words):
        k = whole[:, word] * _M
        k ^= k >> np.uint32(24)
        k *= _M
        h *= _M
        h ^= k
    if rest := length % 4:
        for at in range(rest):
            h ^= keys[:, words * 4 + at].astype(np.uint32) << np.uint32(8 * at)
        h *= _M
    h ^= h >> np.uint32(13)
    h *= _M
    h ^= h >> np.uint32(15)
    return (h & np.uint32(_POSITIVE)).astype(np.int32)
