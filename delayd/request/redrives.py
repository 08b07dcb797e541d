"""The request that sends a dead letter again. Pure.

The request is the record of the letter: key, value and the user's headers in their order, the
request headers with their corrections, and `delayd-redrive`. The parser reads it before it is
sent, so a request that would certainly be rejected is not sent.

`delayd-redrive` names the letter itself. But if the letter is a redrive that was rejected, it names
the letter that this redrive named. Otherwise both could be redriven, and the message would be
delivered twice.

Source: docs/reference/requests.md, "Redrives".
"""

import re
from typing import Final, NamedTuple

from delayd.bus import Headers, Record
from delayd.request.grammar import source_partition_of
from delayd.request.headers import (
    INTERNAL_HEADERS,
    LOCAL_TIME,
    PLANNED_TIME,
    SERIES_HEADERS,
    WRITTEN_HEADERS,
)
from delayd.request.letters import Letter
from delayd.request.parser import parse
from delayd.request.reasons import DIED, Reason, Reject
from delayd.request.request import Request, RequestLimits

_DUES: Final = frozenset({"delayd-due", "delayd-delay", "delayd-level", *SERIES_HEADERS})
_DROPPED: Final = frozenset(
    {*WRITTEN_HEADERS, PLANNED_TIME, LOCAL_TIME, *INTERNAL_HEADERS, "delayd-redrive"}
)
"""Headers that delayd wrote: they ask for nothing."""


class Correction(NamedTuple):
    """Changes to the request of a letter."""

    topic: str | None = None
    when: tuple[str, str] | None = None
    """Name and text of the header that gives the due time, in place of those of the letter."""
    without_id: bool = False
    """Send a message that cannot keep its id without it."""


AS_IT_WAS: Final = Correction()


class Redrive(NamedTuple):
    """A request that sends a dead letter again, for exactly this partition of the buffer."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    told: str
    """The `id` of its receipt: its id, or the source that it redrives."""
    source: str
    """Source of the letter that it redrives."""
    lost_id: str | None = None
    """The id that it is sent without."""


class NoRedrive(NamedTuple):
    """The reason why a dead letter cannot be sent again, with a remedy."""

    detail: str


def redriven_before(letter: str, redrive: str) -> str:
    """Return the detail of a refused redrive: `redrive` is the source of the one that counts."""
    return f"the dead letter {letter} was redriven before as {redrive}: nothing is sent twice"


def counting_redrive(detail: str) -> str | None:
    """Return the source that such a detail names; None where an older release wrote it."""
    found = re.search(r"was redriven before as ([0-9]+/[0-9]+):", detail)
    return None if found is None else found[1]


def redrive_of_letter(
    letter: Letter, limits: RequestLimits, now_ms: int, correction: Correction = AS_IT_WAS
) -> Redrive | NoRedrive:
    """Return the request that sends `letter` again under the cluster's `limits`. `now_ms` (Unix ms)
    stands for its append time."""
    impossible = _impossible(letter)
    if impossible is not None:
        return NoRedrive(impossible)
    redriven = _redriven(letter)
    partition = source_partition_of(redriven)
    assert partition is not None, "a letter has a source"
    headers = _headers(letter, redriven, correction)
    read = _read(partition, letter, headers, limits, now_ms)
    lost_id = None
    if isinstance(read, Reject) and read.reason in (Reason.BAD_ID, Reason.WRONG_PARTITION):
        if not correction.without_id:
            return NoRedrive(_id_lost(redriven, read))
        lost_id = letter.id
        headers = [header for header in headers if header[0] not in ("delayd-id", "delayd-group")]
        read = _read(partition, letter, headers, limits, now_ms)
    if isinstance(read, Reject):
        return NoRedrive(f"{read.reason.slug}: {read.detail}")
    told = redriven if read.id is None else read.id
    return Redrive(partition, letter.key, letter.value, headers, told, redriven, lost_id)


def _impossible(letter: Letter) -> str | None:
    if letter.truncated_bytes is not None:
        return (
            f"its value is not in the letter, because the record of {letter.truncated_bytes} bytes"
            f" was too large; it is in the buffer at {letter.source} until retention ends: send"
            " less, for instance a reference to it"
        )
    if letter.reason == Reason.UNREADABLE_BATCH.slug:
        return "it stands for a batch of which nothing was read: have its producer send it again"
    ops = [content for name, content in letter.headers if name == "delayd-op"]
    if b"cancel" in ops:
        return "it is a cancel, not a message: correct it and cancel again"
    if b"replace" in ops:
        return (
            "it is a replace, and a redrive would leave in place what it was to replace: correct it"
            " and replace again"
        )
    if b"debounce" in ops:
        return "it is one of several, the last of which counts: correct it and debounce again"
    return None


def _redriven(letter: Letter) -> str:
    named = [content for name, content in letter.headers if name == "delayd-redrive"]
    if len(named) == 1 and named[0] is not None:
        source = named[0].decode(errors="replace")
        if source_partition_of(source) is not None:
            return source
    return letter.source


def _headers(letter: Letter, redriven: str, correction: Correction) -> Headers:
    dropped = set(_DROPPED)
    added: Headers = []
    if correction.topic is not None:
        dropped.add("delayd-topic")
        added.append(("delayd-topic", correction.topic.encode()))
    if correction.when is not None:
        dropped |= _DUES
        added.append((correction.when[0], correction.when[1].encode()))
    elif letter.reason in DIED:
        dropped.add("delayd-late")  # it was due long ago, and who redrives it wants it all the same
    added.append(("delayd-redrive", redriven.encode()))
    return [header for header in letter.headers if header[0] not in dropped] + added


def _read(
    partition: int, letter: Letter, headers: Headers, limits: RequestLimits, now_ms: int
) -> Request | Reject:
    next_offset = 1 << 62  # behind all barriers: by the rules in force
    record = Record(partition, next_offset, -1, now_ms, letter.key, letter.value, headers)
    return parse(record, limits)


def _id_lost(redriven: str, refused: Reject) -> str:
    why = (
        f"a redrive lies in the partition of its source, {redriven}, and its id belongs in another"
        if refused.reason is Reason.WRONG_PARTITION
        else "it is not the record's key, or not of 1 to 256 bytes"
    )
    return f"it cannot keep its id: {why}. Without its id it can be sent, but not be cancelled"
