"""How far a move has come: records of the topic `<prefix>moved` of the new cluster.

Key: the realm of the old cluster. Value: one JSON object.

    first       {"format": 1, "cut": the frontier record, "digest", "pending", "by_wheel",
                "dead", "receipts": {partition: offset}, "to": [realm, buffer, its topic id],
                "copies": {topic: {partition: offset}} of a move with --mirrored}
    each step   {"format": 1, "done", "content", "last": [due_ms, partition, offset],
                "places": [[partition, first offset, last offset]...]}

`done`, `content` (the sum of the records' contents) and `last` (the rank of the last message) are
of the whole move, `places` are of the step: where its records are in the buffer. `dead` and
`receipts` are where these topics of the new cluster ended before, `copies` where the copies of the
old targets ended. A first record that comes after another one begins anew; it is only written while
nothing is done. The topic keeps all its records: together they say which records of the buffer were
moved.

The transaction that a step is fences all other runs of the same move, and the topic is read behind
that fence to its very end.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

from delayd.bus import Ack, Bus, Producer
from delayd.bus.reading import read_between
from delayd.errors import MoveError
from delayd.runtime.clock import Clock
from replication.rank import Rank
from replication.record import FrontierRecord, decode, encode
from replication.settings import Settings

FORMAT: Final = 1
SUFFIX: Final = "moved"
RECORDS_MAX: Final = 1_000
KEPT: Final = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""Settings of the topic: a record that is gone would be moved a second time."""

Places = list[tuple[int, int, int]]
"""Runs of records of the buffer: partition, first and last offset."""


@dataclass(frozen=True, slots=True)
class Begun:
    """What a move is about, fixed before its first message."""

    cut: FrontierRecord
    digest: int
    pending: int
    by_wheel: bool
    """The cut is what the wheel knows, because the old cluster's Kafka could not be read."""
    dead: Mapping[int, int]
    receipts: Mapping[int, int]
    """Where the new cluster's dead letters and receipts ended, by partition."""
    to: tuple[str, str, str] = ("", "", "")
    """The new cluster's realm, its buffer and that topic's id; of what was read."""
    copies: dict[str, dict[int, int]] | None = None
    """Where the copies of the old targets ended, by topic and partition; None: none count."""


@dataclass(slots=True)
class Progress:
    """What is committed."""

    begun: Begun
    done: int = 0
    content: int = 0
    last: Rank | None = None
    places: Places = field(default_factory=list)


def runs_of(acks: Sequence[Ack]) -> Places:
    """Return the places of these records."""
    runs: Places = []
    for partition, offset in sorted((ack.partition, ack.offset) for ack in acks):
        if runs and runs[-1][0] == partition and runs[-1][2] + 1 == offset:
            runs[-1] = (partition, runs[-1][1], offset)
        else:
            runs.append((partition, offset, offset))
    return runs


class ProgressLog:
    """The records of one move."""

    def __init__(
        self, bus: Bus, settings: Settings, old_realm: str, clock: Clock, timeout_ms: int
    ) -> None:
        """`settings` are the new cluster's."""
        self._bus = bus
        self._settings = settings
        self._key = old_realm.encode()
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._to = (settings.realm, settings.buffer.name, settings.buffer.topic_id)
        self._end = 0
        self._is_proven = False
        """A record of this run lies right behind all that `read` has returned."""
        self.topic = f"{settings.prefix}{SUFFIX}"

    def create(self) -> None:
        """Create the topic, with the buffer's replicas, unless it is there. Raise MoveError if it
        is there and does not keep all its records."""
        with closing(self._bus.cluster()) as kafka:
            buffer = self._settings.buffer.name
            state = kafka.describe([buffer], self._timeout_ms)[buffer]
            is_new = kafka.create_topic(
                self.topic,
                partitions=1,
                replication_factor=state.partitions[0].replicas,
                config={
                    **KEPT,
                    "unclean.leader.election.enable": "false",
                    "min.insync.replicas": state.config["min.insync.replicas"],
                },
                timeout_ms=self._timeout_ms,
            )
            config = (
                {} if is_new else kafka.describe([self.topic], self._timeout_ms)[self.topic].config
            )
        wrong = [] if is_new else [key for key, value in KEPT.items() if config.get(key) != value]
        if wrong:
            told = ", ".join(f"{key}={config.get(key)}" for key in wrong)
            raise MoveError(
                f"{self.topic} does not keep its records for ever: {told}",
                remedy="set " + ", ".join(f"{key}={KEPT[key]}" for key in wrong),
            )

    def read(self) -> Progress | None:
        """Return what is committed; None if nothing is. Raises KafkaUnreachableError, and MoveError
        for a record of a newer release, or if the topic has lost records, or is of a buffer that
        is no more."""
        with closing(self._bus.cluster()) as kafka:
            if self.topic not in kafka.describe([self.topic], self._timeout_ms):
                return None
            start = kafka.start_offsets(self.topic, self._timeout_ms)[0]
            self._end = kafka.end_offsets(self.topic, self._timeout_ms, committed=False)[0]
        if start:
            raise MoveError(
                f"{self.topic} begins at offset {start}: its first records were removed, and "
                "nobody knows what was moved",
                remedy="nothing was written; what was moved is in the new buffer. To begin anew, "
                "make a new cluster with empty topics and leave --frontier-from out",
            )
        found: Progress | None = None
        for value in self._values(start, self._end):
            found = _after(found, json.loads(value))
        if found is not None and found.done and found.begun.to != self._to:
            raise MoveError(
                f"{found.done} messages were moved to {found.begun.to[1]} of "
                f"{found.begun.to[0]}, which is no more: the new cluster was made again",
                remedy="nothing was written. Make a new cluster with empty topics under another "
                "--prefix, and leave --frontier-from out, to see what is in doubt",
            )
        return found

    def begin(self, producer: Producer, begun: Begun) -> None:
        """Send the first record. Raises ProducerError, and MoveError if `read` was not all."""
        self._send(
            producer,
            {
                "cut": encode(begun.cut).decode(),
                "digest": begun.digest,
                "pending": begun.pending,
                "by_wheel": begun.by_wheel,
                "dead": begun.dead,
                "receipts": begun.receipts,
                "to": self._to,
                **({} if begun.copies is None else {"copies": begun.copies}),
            },
        )

    def step(self, producer: Producer, progress: Progress, places: Places) -> None:
        """Send the record of a step, whose places they are, likewise."""
        fields = {"done": progress.done, "content": progress.content, "last": progress.last}
        self._send(producer, {**fields, "places": places})

    def _send(self, producer: Producer, fields: dict[str, Any]) -> None:
        acks: list[Ack] = []
        value = json.dumps({"format": FORMAT, **fields}, separators=(",", ":")).encode()
        producer.send(
            self.topic, key=self._key, value=value, headers=[], partition=0, on_ack=acks.append
        )
        producer.flush(self._timeout_ms)
        [ack] = acks
        if self._is_proven:
            return
        # A broker that leads no more may have served `read`; another move may write beside this.
        is_all = ack.offset >= self._end and not any(self._values(self._end, ack.offset))
        if not is_all:
            raise MoveError(
                f"{self.topic} goes on behind offset {self._end}, up to which it was read",
                remedy="run this again: this transaction was not committed",
            )
        self._is_proven = True

    def _values(self, start: int, end: int) -> list[bytes]:
        """Return the committed records of this move between two offsets."""
        found: list[bytes] = []
        for records in read_between(
            self._bus,
            self.topic,
            {0: start},
            {0: end},
            self._clock,
            records_max=RECORDS_MAX,
            timeout_ms=self._timeout_ms,
        ):
            found += [each.value or b"" for each in records if each.key == self._key]
        return found


def _after(progress: Progress | None, fields: dict[str, Any]) -> Progress:
    if fields["format"] != FORMAT:
        raise MoveError(
            f"the progress of this move has the format {fields['format']}",
            remedy="run the version of delayd that began it",
        )
    if "cut" in fields:
        cut = decode(fields["cut"].encode())
        dead, receipts = (_ends(fields[name]) for name in ("dead", "receipts"))
        copies = fields.get("copies")
        realm, buffer, topic_id = fields["to"]
        return Progress(
            Begun(
                cut,
                fields["digest"],
                fields["pending"],
                fields["by_wheel"],
                dead,
                receipts,
                (realm, buffer, topic_id),
                None if copies is None else {t: _ends(ends) for t, ends in copies.items()},
            )
        )
    assert progress is not None, "a step follows a first record"
    progress.done, progress.content = fields["done"], fields["content"]
    progress.last = Rank(*fields["last"])
    progress.places += [(partition, first, last) for partition, first, last in fields["places"]]
    return progress


def _ends(found: Mapping[str, int]) -> dict[int, int]:
    """Return ends of partitions: JSON has no numbers as keys."""
    return {int(partition): end for partition, end in found.items()}
