"""Ingest: what becomes of a record, as a pure function of the log.

The decision depends only on the committed records of the record's own partition, in order: never on
a clock, on the frontier, on local configuration or on who is master. So all replicas agree.

A record is decided in three parts: `Asked` is what the request parser made of it, `LogState` is
what the partition's log has said before, and `Decision` is what the wheel must keep.

Source: docs/design/frontier.md, "Ingest".
"""

from enum import IntEnum
from typing import NamedTuple

from replication.rank import Rank, due_of


class Op(IntEnum):
    """What a record asks for, as far as ingest cares."""

    SCHEDULE = 0
    """Deliver something later."""
    REJECT = 1
    """Nothing that can be done: an answer says why."""


class Asked(NamedTuple):
    """The parts of a request that ingest decides by."""

    op: Op
    due_ms: int
    """Requested due time; meaningless for a reject."""


class LogState(NamedTuple):
    """What a partition's log has said so far."""

    next_offset: int
    """1 + the offset of the last record ingested."""
    log_ms: int
    """L: the largest append time so far. Append times can step back, L does not."""


class Keep(IntEnum):
    """What the wheel keeps of a record."""

    MESSAGE = 0
    """A live message, under its rank."""
    ANSWER = 1
    """An answer, to be written by the step that passes the record's offset."""


class Decision(NamedTuple):
    """What becomes of a record."""

    keep: Keep
    rank: Rank
    """Of a message: its place in the order. Of an answer: append time, partition, offset."""
    state: LogState
    """The partition's state afterwards."""


def ingest(state: LogState, partition: int, offset: int, append_ms: int, asked: Asked) -> Decision:
    """Decide one record; records of a partition must come in offset order, without repeats."""
    assert offset >= state.next_offset, (
        f"partition {partition}: offset {offset} came after {state.next_offset - 1}"
    )
    after = LogState(offset + 1, max(state.log_ms, append_ms))
    if asked.op is Op.REJECT:
        return Decision(Keep.ANSWER, Rank(append_ms, partition, offset), after)
    return Decision(Keep.MESSAGE, Rank(due_of(asked.due_ms, append_ms), partition, offset), after)
