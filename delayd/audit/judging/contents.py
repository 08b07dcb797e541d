"""The contents of a record as numbers: hashes for the audit's comparisons, and the payload CRC.

A hash tells null from empty, and one list of headers from another whatever their bytes are.

Source: docs/design/audit.md, "Payload CRC".
"""

from pyspark.sql import Column
from pyspark.sql import functions as F

from delayd.audit.judging.columns import ColumnOrName, column


def bytes_hash(content: Column) -> Column:
    """Return the hash of one value; null of null."""
    return F.when(content.isNotNull(), F.xxhash64(content))


def headers_hash(headers: Column) -> Column:
    """Return the hash of headers in their order, with their repeats."""
    return F.xxhash64(_each(headers))


def headers_set_hash(headers: Column) -> Column:
    """Return the hash of headers in any order."""
    return F.xxhash64(F.array_sort(_each(headers)))


def together(*hashes: ColumnOrName) -> Column:
    """Return the hash of several columns, any of which may be null."""
    return F.xxhash64(*(part for each in map(column, hashes) for part in (each.isNull(), each)))


def record_hash(key: Column, value: Column, headers: Column) -> Column:
    """Return the hash of a whole record: what a dead letter keeps of it."""
    return together(bytes_hash(key), bytes_hash(value), headers_hash(headers))


def payload_crc(
    topic: Column, key: Column, value: Column, headers: Column, target_partition: Column
) -> Column:
    """Return the CRC-32 of what a message carries."""

    def add(parts: Column, header: Column) -> Column:
        return F.concat(parts, _part(header["name"].cast("binary")), _part(header["value"]))

    listed = F.aggregate(headers, F.unhex(F.lit("")), add)
    number = target_partition.cast("string").cast("binary")
    parts = (_part(topic.cast("binary")), _part(key), _part(value), listed, _part(number))
    return F.crc32(F.concat(*parts))


def _each(headers: Column) -> Column:
    return F.transform(
        headers,
        lambda header: F.xxhash64(header["name"], header["value"].isNull(), header["value"]),
    )


def _part(content: Column) -> Column:
    """Return bytes behind their length: four bytes, big endian, -1 for null."""
    length = F.unhex(F.lpad(F.hex(F.octet_length(content)), 8, "0"))
    return F.coalesce(F.concat(length, content), F.unhex(F.lit("FFFFFFFF")))
