"""Requests as values: their arguments, and the plain records that say them on the wire.

For whoever sends with a producer of his own, in a transaction for instance. Nothing is sent here,
and nothing of the cluster is needed. A record with an id must reach partition murmur2(id) modulo
the buffer's partitions: set `partitioner=murmur2_random` in librdkafka (Java and kafka-python do it
by default), or let `Client.schedule_in` and its like send it, which name the partition.
"""

from dataclasses import dataclass, fields
from typing import Unpack

from delayd.client.asking import (
    Ask,
    Content,
    Moment,
    Options,
    ScheduleOptions,
    Span,
    UserHeaders,
    ask,
    ask_cancel,
)
from delayd.client.driver import PlainRecord
from delayd.request import Op

BUFFER = "delayd-buffer"
"""The buffer's name, unless the cluster has a prefix of its own."""


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments of `Client.schedule`, for `schedule_many`."""

    topic: str
    value: Content
    key: Content = None
    in_: Span | None = None
    at: Moment | None = None
    headers: UserHeaders | None = None
    partition: int | None = None
    id: str | None = None

    def ask(self, buffer: str) -> Ask:
        """Return the checked record. RequestRefusedError says what delayd would reject."""
        return ask(buffer, **{each.name: getattr(self, each.name) for each in fields(self)})


def schedule_record(
    topic: str, value: Content, *, buffer: str = BUFFER, **options: Unpack[ScheduleOptions]
) -> PlainRecord:
    """Return the record that schedules a message, as `Client.schedule` does."""
    return ask(buffer, topic, value, **options).record(buffer)


def replace_record(
    id: str, topic: str, value: Content, *, buffer: str = BUFFER, **options: Unpack[Options]
) -> PlainRecord:
    """Return the record that schedules a message in place of what is pending under its id."""
    return ask(buffer, topic, value, id=id, op=Op.REPLACE, **options).record(buffer)


def cancel_record(id: str, *, buffer: str = BUFFER) -> PlainRecord:
    """Return the record that cancels what is pending under an id."""
    return ask_cancel(id).record(buffer)
