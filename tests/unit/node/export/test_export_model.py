"""Random requests, cuts and checkpoints: an export is what a naive reading of the log says.

The model reads the log up to the cut and nothing else; it knows neither marks' offsets nor slots.
"""

import tempfile
from pathlib import Path
from typing import NamedTuple

from cluster_settings import LANES, PARTITIONS
from exporting_node import (
    BEGIN_MS,
    ExportingNode,
    Row,
    cancel,
    continued,
    cut,
    schedule,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from delayd.bus import Record
from delayd.bus.murmur2 import partition_of
from replication.rank import Rank, lane_of

IDS = ("a", "b", "c", "d")
TOPICS = ("x", "y", "z")
SPAN_MS = 6_000


class Stored(NamedTuple):
    """A message, as the model sees it."""

    due_ms: int
    offset: int
    topic: str
    id: str | None


class Asked(NamedTuple):
    """One move of a random user, or of the master that puts back the latest message of an id."""

    op: str
    id: str | None
    topic: str
    delay_ms: int
    gap_ms: int
    checkpoint: bool


ASKED = st.builds(
    Asked,
    op=st.sampled_from(["schedule", "schedule", "schedule", "cancel", "replace", "continue"]),
    id=st.one_of(st.none(), st.sampled_from(IDS)),
    topic=st.sampled_from(TOPICS),
    delay_ms=st.integers(-500, SPAN_MS),
    gap_ms=st.integers(0, 300),
    checkpoint=st.booleans(),
)


class Model:
    """One partition, read from the beginning."""

    def __init__(self) -> None:
        self.pending: dict[int, Stored] = {}
        self.live: dict[str, list[Stored]] = {}

    def read(self, op: str, message: Stored, log_ms: int, continues: int | None) -> None:
        """The rules of docs/design/frontier.md, "Ingest", as shortly as they can be said."""
        live = self.live.setdefault(message.id, []) if message.id else []
        if op == "continue":
            if continues not in self.pending:
                return  # it was killed
            live[:] = [other for other in live if other.offset != continues]
        elif op == "schedule":
            if any(other.due_ms > log_ms for other in live):
                return  # a duplicate or a conflict
        else:
            for other in live:
                self.pending.pop(other.offset, None)
            live.clear()
            if op == "cancel":
                return
        live.append(message)
        self.pending[message.offset] = message


class Log:
    """What was written, with what the model needs to read it again."""

    def __init__(self) -> None:
        self.next = [0] * PARTITIONS
        self.now_ms = BEGIN_MS
        self.latest: dict[str, Record] = {}
        self.models = [Model() for _ in range(PARTITIONS)]
        self.moves: list[tuple[int, str, Stored, int, int | None]] = []

    def write(self, asked: Asked) -> Record | None:
        """The record of a move, or None if it makes no sense now."""
        self.now_ms += asked.gap_ms
        op, id, due_ms = asked.op, asked.id, self.now_ms + asked.delay_ms
        if (id is None and op != "schedule") or (op == "continue" and id not in self.latest):
            return None
        partition = partition_of(id.encode(), PARTITIONS) if id else 0
        offset = self.next[partition]
        self.next[partition] += 1
        continues: int | None = None
        if op == "continue":
            assert id is not None
            before = self.latest.pop(id)
            record = continued(before, offset, due_ms)._replace(append_ms=self.now_ms)
            continues, topic = before.offset, dict(before.headers)["delayd-topic"]
            message = Stored(max(due_ms, self.now_ms), offset, (topic or b"").decode(), id)
        elif op == "cancel":
            assert id is not None
            record = cancel(offset, id, append_ms=self.now_ms)
            message = Stored(0, offset, "", id)
        else:
            record = schedule(
                offset,
                due_ms,
                id=id,
                op=op,
                topic=asked.topic,
                append_ms=self.now_ms,
                value=b"%d" % offset,
            )
            message = Stored(max(due_ms, self.now_ms), offset, asked.topic, id)
        self.moves.append((partition, op, message, self.now_ms, continues))
        model = self.models[partition]
        model.read(op, message, self.now_ms, continues)
        if id is not None and op in ("schedule", "replace") and offset in model.pending:
            self.latest[id] = record  # only what was stored is ever put back
        return record

    def pending(self, offsets: tuple[int, ...], cursors: list[Rank]) -> list[Row]:
        """What the model says of a cut."""
        models = [Model() for _ in range(PARTITIONS)]
        for partition, op, message, log_ms, continues in self.moves:
            if message.offset < offsets[partition]:
                models[partition].read(op, message, log_ms, continues)
        return sorted(
            (partition, stored.offset)
            for partition, model in enumerate(models)
            for stored in model.pending.values()
            if Rank(stored.due_ms, partition, stored.offset)
            >= cursors[lane_of(stored.topic, LANES)]
        )


@settings(max_examples=60, deadline=None)
@given(
    st.lists(ASKED, min_size=1, max_size=60),
    st.lists(st.integers(0, SPAN_MS), min_size=LANES, max_size=LANES),
    st.lists(st.floats(0, 1), min_size=PARTITIONS, max_size=PARTITIONS),
)
def test_an_export_is_what_a_naive_reading_of_the_log_says(
    asked: list[Asked], cursors_ms: list[int], shares: list[float]
) -> None:
    """docs/design/storage.md, "Exports"."""
    log = Log()
    with tempfile.TemporaryDirectory() as folder:
        node = ExportingNode(Path(folder))
        try:
            for move in asked:
                record = log.write(move)
                if record is not None:
                    node.take(record)
                if move.checkpoint:
                    node.replica.checkpoint()
            cursors = [Rank(BEGIN_MS + ms, 0, 0) for ms in cursors_ms]
            offsets = tuple(int(end * share) for end, share in zip(log.next, shares, strict=True))
            at = cut(1, offsets, cursors=dict(enumerate(cursors)))
            assert node.pending(at) == log.pending(offsets, cursors)
            whole = cut(2, tuple(log.next))
            assert node.pending(whole) == log.pending(tuple(log.next), [Rank(0, 0, 0)] * LANES)
        finally:
            node.close()
