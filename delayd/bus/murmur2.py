"""Java's partitioner: which partition of a topic a key belongs to.

Not here: keyless records, whose partition is anyone's choice.

Invariant: equal to `toPositive(murmur2(key)) % partitions` of the Java client's `Utils`, which
kafka-python and librdkafka's `murmur2_random` share.
"""

from typing import Final

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_R: Final = 24
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the unsigned 32-bit hash of org.apache.kafka.common.utils.Utils.murmur2."""
    length = len(data)
    h = _SEED ^ length
    whole = length & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * _M & _MASK
        k = (k ^ k >> _R) * _M & _MASK
        h = h * _M & _MASK ^ k
    if length > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def partition_of(key: bytes, partition_count: int) -> int:
    """Return the partition that Java's default partitioner gives this key."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
