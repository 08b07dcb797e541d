"""Batches that are expanded within limits (`delayd.bus.kafka_python.expansion`)."""

import gzip
import tracemalloc
from collections.abc import Callable, Mapping
from typing import Final

import lz4.frame
import pytest
import zstandard
from kafka.codec import snappy_encode
from snappy import compress

from delayd.bus.kafka_python.expansion import NAMES, expanded
from delayd.bus.unreadable import DAMAGED, TOO_LARGE, UNKNOWN_CODEC, UnreadableError

MIB = 1 << 20


def streamed(data: bytes) -> bytes:
    """As Java writes it: a frame that does not say how large it is."""
    one = zstandard.ZstdCompressor().compressobj()
    return one.compress(data) + one.flush()


COMPRESS: Final[Mapping[str, tuple[int, Callable[[bytes], bytes]]]] = {
    "none": (0, bytes),
    "gzip": (1, gzip.compress),
    "snappy": (2, compress),
    "snappy-blocks": (2, snappy_encode),
    "lz4": (3, lz4.frame.compress),
    "zstd": (4, streamed),
    "zstd-sized": (4, zstandard.ZstdCompressor().compress),
}
TEXT = b"".join(b"%d " % n for n in range(500_000))
every_codec = pytest.mark.parametrize("name", COMPRESS)


@every_codec
@pytest.mark.parametrize("data", [b"x", TEXT, bytes(3 * MIB)], ids=["x", "text", "zeros"])
def test_a_batch_is_expanded_up_to_its_limit(name: str, data: bytes) -> None:
    """Rules: batch-unreadable"""
    codec, compressed = COMPRESS[name]
    written = compressed(data)
    assert expanded(codec, written, len(data)) == data
    with pytest.raises(UnreadableError, match="expanded") as raised:
        expanded(codec, written, len(data) - 1)
    assert str(raised.value) == TOO_LARGE


@every_codec
def test_what_is_too_large_takes_no_more_memory_than_its_limit(name: str) -> None:
    codec, compressed = COMPRESS[name]
    written = compressed(bytes(64 * MIB))
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableError):
            expanded(codec, written, 4 * MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10 * MIB


@pytest.mark.parametrize("name", ["gzip", "lz4", "zstd"])
def test_a_batch_of_several_frames_is_read_to_its_end(name: str) -> None:
    codec, compressed = COMPRESS[name]
    written = compressed(b"one") + compressed(b"two")
    assert expanded(codec, written, 6) == b"onetwo"
    with pytest.raises(UnreadableError):
        expanded(codec, written, 5)


@pytest.mark.parametrize("name", ["gzip", "snappy", "snappy-blocks", "lz4"])
def test_a_batch_that_is_cut_off_is_damaged(name: str) -> None:
    codec, compressed = COMPRESS[name]
    for written in (compressed(TEXT)[:-1_000], b"nothing of the kind"):
        with pytest.raises(UnreadableError) as raised:
            expanded(codec, written, len(TEXT))
        assert str(raised.value) in (DAMAGED, TOO_LARGE)


def test_a_snappy_block_may_lie_about_its_size() -> None:
    with pytest.raises(UnreadableError, match="expanded"):
        expanded(2, b"\xff\xff\xff\xff\x0f" + bytes(20), 4 * MIB)


def test_a_codec_that_nobody_knows_is_not_read() -> None:
    assert set(NAMES) == {0, 1, 2, 3, 4}
    with pytest.raises(UnreadableError) as raised:
        expanded(5, b"", MIB)
    assert str(raised.value) == UNKNOWN_CODEC


def test_too_many_records_are_too_large_before_they_are_expanded() -> None:
    with pytest.raises(UnreadableError, match="expanded"):
        expanded(1, b"not even read", -1)
