"""Settlements in the buffer: by them the master writes down what cancels and replaces came to.

    key      null
    value    JSON: [[id, marker_offset, killed, done, is_replace, at_ms]...], of one partition;
             killed and done are [[due_ms, offset, lane, origin]...]
    headers  delayd-settles   how many there are
             delayd-proof     last: as of any internal record (`internal.py`)

They are written by the step that passes the markers, and read like any other record: so every node
that replays the buffer knows what each id came to, whatever frontiers it has seen.

Since rules version 4. Source: docs/design/frontier.md, "Settlements".
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from delayd.bus import Headers, Record
from delayd.request.headers import SETTLES
from delayd.request.internal import BufferRecord, check_proof, signed
from delayd.request.reasons import Reason, RefusedError
from delayd.request.request import Op, Request, RequestLimits
from replication.ids import KilledMessage, Settlement

RECORD_BYTES: Final = 4 * 1024
"""A record is full from here on. The settlement that fills it has up to 128 messages and an id of
256 bytes, so all fits what an internal record may be larger than a user's."""

Messages = list[tuple[int, int, int, int]]
Settled = tuple[str, Settlement]
"""An id and its settlement."""


def settlement_records(
    partition: int, settled: Iterable[Settled], limits: RequestLimits
) -> Iterator[BufferRecord]:
    """Yield the records for these settlements of a partition, in their order."""
    texts: list[str] = []
    size = 0
    for id, settlement in settled:
        text = json.dumps([id, *settlement], separators=(",", ":"))
        texts.append(text)
        size += len(text)
        if size >= RECORD_BYTES:
            yield _record(partition, texts, limits)
            texts, size = [], 0
    if texts:
        yield _record(partition, texts, limits)


def _record(partition: int, texts: Sequence[str], limits: RequestLimits) -> BufferRecord:
    value = f"[{','.join(texts)}]".encode()
    return signed(partition, None, value, [(SETTLES, b"%d" % len(texts))], limits)


def is_settlement(asked: Headers) -> bool:
    """Return whether one of a record's `delayd-*` headers makes it a record of settlements."""
    return any(name == SETTLES for name, _ in asked)


def parse_settlement(record: Record, limits: RequestLimits) -> Request:
    """Return the request of a record of settlements. Refuse one that the master cannot have
    written."""
    check_proof(record, limits)
    try:
        settled = tuple(_settled(*fields) for fields in json.loads(record.value or b""))
    except (ValueError, TypeError) as error:
        raise RefusedError(
            Reason.BAD_PROOF,
            "the proof is right, but the settlements are not as this version writes them: another"
            " program has the cluster key, or the nodes run versions that do not belong together",
        ) from error
    return Request(Op.SETTLE, None, 0, 0, None, None, [], settled=settled)


def _settled(id: str, marker_offset: int, killed: Messages, done: Messages, *rest: Any) -> Settled:
    each_killed, each_done = (tuple(KilledMessage(*m) for m in each) for each in (killed, done))
    return id, Settlement(marker_offset, each_killed, each_done, *rest)
