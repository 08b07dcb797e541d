"""A pending message as a request to the new cluster. Pure.

The request asks for what the user asked for: target, key, value, headers, partition, id, and the
due time as an absolute one. What the old cluster had added stays behind: attempts, origin and turn
of a message that was requeued.
"""

from struct import Struct
from typing import Any, NamedTuple
from zlib import crc32

from delayd.bus import Headers, Record
from delayd.bus.murmur2 import partition_of
from delayd.commands.move.source import Message
from delayd.request import Reject, RequestLimits, id_of, parse, source_of
from delayd.request.bodies import ASKED_DUE_MS, series_again
from delayd.request.reasons import RefusedError
from delayd.request.times import due_ms_of

_LENGTH = Struct(">i").pack
NEXT_OFFSET = 1 << 62
"""Behind all barriers: by the rules in force."""


class Asked(NamedTuple):
    """A record for the new cluster's buffer."""

    partition: int | None
    """That of its id; None: the record's key decides, or nothing does."""
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def bytes(self) -> int:
        """Return roughly how large it is."""
        contents = (content for _, content in self.headers)
        return sum(len(each) for each in (self.key, self.value, *contents) if each)


class Named(NamedTuple):
    """A message by which a person finds it again."""

    source: str
    """In the old cluster."""
    id: str | None
    topic: str
    due_ms: int
    problem: str = ""


def named(message: Message, problem: str = "") -> Named:
    """Return the name of a message."""
    rank, body = message.rank, message.body
    source = source_of(rank.partition, rank.offset)
    return Named(source, id_of(body), body[0], body[ASKED_DUE_MS], problem)


def asked_of(message: Message, partitions: int) -> Asked:
    """Return the request for a message, for a buffer of so many partitions."""
    body: list[Any] = list(message.body)
    try:
        due_ms_of(str(body[ASKED_DUE_MS]))
    except RefusedError:
        # Older rules took seconds for ms: it was ranked by its append time.
        body[ASKED_DUE_MS] = message.rank.due_ms
    key, value, headers = series_again(body)
    partition = None
    if id_of(body) is not None:
        assert key is not None, "a request with an id has it as its key"
        partition = partition_of(key, partitions)
    return Asked(partition, key, value, headers)


def problem_of(asked: Asked, limits: RequestLimits, now_ms: int) -> str | None:
    """Return why the new cluster would reject the request; None if it would take it."""
    record = Record(
        asked.partition or 0, NEXT_OFFSET, -1, now_ms, asked.key, asked.value, asked.headers
    )
    read = parse(record, limits)
    return f"{read.reason.slug}: {read.detail}" if isinstance(read, Reject) else None


def content_of(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return the content of a record as one number, to add up."""
    crc = _crc(value, _crc(key, 0))
    for name, content in headers:
        crc = _crc(content, _crc(name.encode(), crc))
    return crc


def _crc(content: bytes | None, crc: int) -> int:
    """Go on with a content behind its length; -1 for null."""
    if content is None:
        return crc32(_LENGTH(-1), crc)
    return crc32(content, crc32(_LENGTH(len(content)), crc))
