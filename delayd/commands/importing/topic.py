"""Rows of a Kafka topic: its committed records, partition by partition.

Source: docs/guides/importing.md, "Topics".
"""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

from delayd.bus import Bus, Record
from delayd.bus.reading import read_between
from delayd.commands.importing.contents import content_of, text_of
from delayd.commands.importing.mapping import Row
from delayd.errors import ConfigError
from delayd.runtime.clock import Clock

RECORDS_MAX: Final = 1_000
STILL_MS: Final = 30_000
"""Without a record before the end: a broker is down."""


class TopicRows:
    """The records of a topic up to its end of then; later ones are not of this import. The position
    has the offsets that follow and the ends: `{"0": [next, end], ...}`."""

    def __init__(self, bus: Bus, topic: str, clock: Clock) -> None:
        """ConfigError if there is no such topic, KafkaUnreachableError."""
        self._bus = bus
        self._topic = topic
        self._clock = clock
        self.name = f"kafka:{topic}"
        self.disarms = False
        with closing(bus.cluster()) as cluster:
            state = cluster.describe([topic], STILL_MS).get(topic)
            if state is None:
                raise ConfigError(
                    f"there is no topic {topic}", remedy="name it as Kafka has it, after kafka:"
                )
            starts = cluster.start_offsets(topic, STILL_MS)
            ends = cluster.end_offsets(topic, STILL_MS, committed=True)
        self._identity = state.topic_id
        self._starts = starts
        self.start: str | None = json.dumps({p: (starts[p], end) for p, end in ends.items()})

    def identity(self, known: str | None = None) -> str:
        """Return the topic's id."""
        return self._identity

    def disarm(self) -> None:
        """Do nothing: a topic delivers nothing by itself."""

    def kept(self) -> None:
        """Return None: offsets have gaps, so they count nothing."""

    def close(self) -> None:
        """Do nothing: it is opened for each reading."""

    def rows(self, after: str | None) -> Iterator[Row]:
        """Yield the records behind a position. ConfigError if some were removed meanwhile; errors
        as of `read_between`."""
        places = json.loads(after or self.start or "{}")
        spans = {int(p): (at, end) for p, (at, end) in places.items()}
        for partition, (start, end) in sorted(spans.items()):
            if start < min(end, self._starts[partition]):
                raise ConfigError(
                    f"{self._topic} has lost the records {partition}/{start} to"
                    f" {partition}/{self._starts[partition] - 1} before they were imported",
                    remedy="import what is left with another --job, and an id of its own",
                )
            for records in read_between(
                self._bus,
                self._topic,
                {partition: start},
                {partition: end},
                self._clock,
                records_max=RECORDS_MAX,
                timeout_ms=STILL_MS,
            ):
                for record in records:
                    spans[partition] = (record.offset + 1, end)
                    yield self._row(record, json.dumps(spans))

    def _row(self, record: Record, position: str) -> Row:
        fields: dict[str, Any] = {
            "topic": self._topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp_ms": record.append_ms,
            "key": text_of(record.key),
            "value": content_of(record.value),
            "headers": {name: text_of(content) for name, content in record.headers},
        }
        name = f"record {record.partition}/{record.offset}"
        return Row(position, name, fields, record.value, record.key, record.headers)
