"""Fetched batches, as kafka-python's fetcher hands them on: what is damaged is never a record."""

import struct

import pytest
from crc32c import crc32c

from delayd.bus.kafka_python.library import DefaultRecordBatchBuilder, TopicPartition, errors
from delayd.bus.kafka_python.records import _Unpacked
from delayd.bus.unreadable import UnreadableBatch

HEADER_BYTES = 61
LENGTH_AT, EPOCH_AT, MAGIC_AT, CRC_AT, ATTRIBUTES_AT, LAST_DELTA_AT = 8, 12, 16, 17, 21, 23
CONTROL, GZIP = 0x20, 0x01


def batch_of(*values: bytes, header: bytes | None = None) -> bytearray:
    """A batch of one record for each value, as a broker keeps it."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1_000_000)
    for n, value in enumerate(values):
        assert builder.append(n, 1_000 + n, b"k", value, [("h", header)])
    return bytearray(builder.build())


def sealed(
    batch: bytearray,
    *,
    base: int = 0,
    epoch: int = 0,
    attributes: int = 0,
    last_delta: int | None = None,
) -> bytes:
    """The batch with these fields, its length and its CRC made right again."""
    struct.pack_into(">q", batch, 0, base)
    struct.pack_into(">i", batch, LENGTH_AT, len(batch) - EPOCH_AT)
    struct.pack_into(">i", batch, EPOCH_AT, epoch)
    struct.pack_into(">h", batch, ATTRIBUTES_AT, attributes)
    if last_delta is not None:
        struct.pack_into(">i", batch, LAST_DELTA_AT, last_delta)
    struct.pack_into(">I", batch, CRC_AT, crc32c(bytes(batch[ATTRIBUTES_AT:])))
    return bytes(batch)


def unpacked(*batches: bytes) -> _Unpacked:
    from kafka.record import MemoryRecords

    return _Unpacked(0, TopicPartition("t", 0), MemoryRecords(b"".join(batches)))


def test_records_of_several_batches_come_in_order_with_their_places() -> None:
    part = unpacked(sealed(batch_of(b"a", b"b"), epoch=3), sealed(batch_of(b"c"), base=7, epoch=4))
    records = part.take(10)
    assert [(r.offset, r.leader_epoch, r.append_ms, r.value) for r in records] == [
        (0, 3, 1_000, b"a"),
        (1, 3, 1_001, b"b"),
        (7, 4, 1_000, b"c"),
    ]
    assert all(r.headers == [("h", None)] for r in records)


def test_a_flipped_bit_is_a_corrupt_batch() -> None:
    damaged = bytearray(sealed(batch_of(b"value")))
    damaged[-3] ^= 1
    with pytest.raises(errors.CorruptRecordError, match="CRC"):
        unpacked(bytes(damaged)).take(10)


def test_what_stands_before_a_damaged_batch_is_handed_out_and_nothing_behind_it() -> None:
    damaged = bytearray(sealed(batch_of(b"bad"), base=1))
    damaged[-3] ^= 1
    part = unpacked(sealed(batch_of(b"good")), bytes(damaged), sealed(batch_of(b"no"), base=2))
    assert [r.value for r in part.take(10)] == [b"good"]
    with pytest.raises(errors.CorruptRecordError):
        part.take(10)


def test_a_format_older_than_kafka_0_11_is_told_by_name() -> None:
    old = bytearray(sealed(batch_of(b"v")))
    old[MAGIC_AT] = 1
    with pytest.raises(errors.CorruptRecordError, match=r"older than Kafka 0\.11"):
        unpacked(bytes(old)).take(10)


@pytest.mark.parametrize(
    ("at", "to"),
    [(HEADER_BYTES, 0x7E), (HEADER_BYTES, 0x10), (HEADER_BYTES, 0x01), (-1, 0x7E), (-4, 0x04)],
    ids=["longer", "shorter", "negative", "header value", "header count"],
)
def test_a_batch_whose_lengths_contradict_each_other_is_not_read(at: int, to: int) -> None:
    """The CRC is right: it was written like that, and every replica has it so.

    Rules: batch-unreadable
    """
    batch = batch_of(b"good", b"value")
    assert batch[at] != to
    batch[at] = to
    [stands_for_all] = unpacked(sealed(batch, base=5)).take(10)
    assert isinstance(stands_for_all, UnreadableBatch)
    assert (stands_for_all.offset, stands_for_all.append_ms) == (6, 1_001)
    assert stands_for_all.value == (
        b"the batch at offsets 5 to 6 of partition 0 (2 records, codec none) cannot be read: its "
        b"data is damaged"
    )


def test_a_batch_that_ends_within_its_last_record_is_not_read() -> None:
    """All of its lengths agree with each other."""
    [only] = unpacked(sealed(batch_of(b"value", header=b"12345")[:-3])).take(10)
    assert isinstance(only, UnreadableBatch)


def test_a_batch_that_cannot_be_uncompressed_is_not_read() -> None:
    part = unpacked(sealed(batch_of(b"value"), attributes=GZIP), sealed(batch_of(b"v"), base=1))
    batch, behind = part.take(10)
    assert isinstance(batch, UnreadableBatch) and behind.value == b"v"
    assert batch.value is not None and b"codec gzip" in batch.value


def test_a_marker_of_a_newer_epoch_moves_the_epoch_with_the_position() -> None:
    """Else the broker would call the position truncated: the old epoch ended before it."""
    part = unpacked(
        sealed(batch_of(b"a"), epoch=3),
        sealed(batch_of(b"marker"), base=1, epoch=5, attributes=CONTROL),
    )
    assert [r.value for r in part.take(10)] == [b"a"]
    assert (part.next_fetch_offset, part.leader_epoch) == (2, 5)


def test_a_position_passes_what_compaction_took_from_the_end_of_a_batch() -> None:
    part = unpacked(sealed(batch_of(b"a", b"b"), last_delta=9))
    assert len(part.take(10)) == 2
    assert part.next_fetch_offset == 10
