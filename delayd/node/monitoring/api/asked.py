"""What goes into the API. Times are Unix ms."""

import base64
import binascii
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, model_validator

from delayd.client.asking import DebounceOptions, Options

BATCH_MAX: Final = 1_000
"""Messages of one request."""
SOURCES_MAX: Final = 100
"""Dead letters of one redrive."""
MS_MAX: Final = 2**53 - 1
"""The largest time: what every JSON reader reads exactly."""

Ms = Annotated[int, Field(ge=0, le=MS_MAX)]


class In(BaseModel):
    """What is asked: a field that is not known is refused, and so is a number for a text."""

    model_config = ConfigDict(extra="forbid", strict=True)


class HeaderIn(In):
    """A header of the delivered record; without a value it is null."""

    name: Annotated[str, Field(min_length=1, max_length=1_000)]
    value: str | None = None


class Message(In):
    """What will be delivered, and where."""

    topic: Annotated[str, Field(description="Target.", min_length=1, max_length=249)]
    value: Annotated[str | None, Field(description="The value as text; null is a null.")] = None
    value_base64: Annotated[
        str | None, Field(description="The value as bytes, in place of it.")
    ] = None
    key: Annotated[str | None, Field(description="Of the record; default: the id, or none.")] = None
    headers: Annotated[list[HeaderIn], Field(max_length=1_000)] = []
    partition: Annotated[int | None, Field(ge=0, le=2**31 - 1, description="Of the target.")] = None
    late: Annotated[
        str | None,
        Field(description="As delayd-late: later than due and this it expires.", max_length=64),
    ] = None
    group: Annotated[
        str | None,
        Field(description="As delayd-group: needs an id.", min_length=1, max_length=256),
    ] = None
    receipts: Annotated[
        bool, Field(description="Write all its receipts: scheduled and delivered, too.")
    ] = False

    @model_validator(mode="after")
    def _has_one_value(self) -> "Message":
        if self.value is not None and self.value_base64 is not None:
            raise ValueError("give value or value_base64, not both")
        self.content()
        return self

    def content(self) -> bytes | str | None:
        """Return the value of the record."""
        if self.value_base64 is None:
            return self.value
        try:
            return base64.b64decode(self.value_base64, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ValueError("value_base64 is not base64") from error


class Delivered(Message):
    """What will be delivered, where and when."""

    delay: Annotated[
        str | None, Field(description="As delayd-delay: 250ms, 10s, 5m, 2h, 30d.", max_length=64)
    ] = None
    at: Annotated[
        str | Ms | None,
        Field(description="Due time: RFC 3339, or Unix ms; with zone without offset."),
    ] = None
    window: Annotated[
        str | None,
        Field(description="As delayd-window: it may go out so much later.", max_length=64),
    ] = None
    cron: Annotated[
        str | None,
        Field(description="As delayd-cron: it recurs; in place of delay and at.", max_length=128),
    ] = None
    zone: Annotated[
        str | None,
        Field(description="As delayd-zone: of cron (default: UTC), of at.", max_length=64),
    ] = None
    until: Annotated[
        str | Ms | None, Field(description="As delayd-until: no occurrence of cron is later.")
    ] = None
    catchup: Annotated[
        str | None, Field(description="As delayd-catchup: once or all.", max_length=8)
    ] = None

    @model_validator(mode="after")
    def _has_one_time(self) -> "Delivered":
        if sum(each is not None for each in (self.delay, self.at, self.cron)) != 1:
            raise ValueError("give exactly one of delay, at and cron")
        return self

    def options(self) -> Options:
        """Return the rest, as the client takes it."""
        return {
            "key": self.key,
            "in_": self.delay,
            "at": self.at,
            "headers": [(each.name, each.value) for each in self.headers],
            "partition": self.partition,
            "late": self.late,
            "window": self.window,
            "group": self.group,
            "cron": self.cron,
            "zone": self.zone,
            "until": self.until,
            "catchup": self.catchup,
            "receipts": self.receipts,
        }


class ScheduleIn(Delivered):
    """A message to schedule. With an id, the same request again does nothing more."""

    id: Annotated[str | None, Field(description="Id to cancel or replace it by.")] = None


class RescheduleIn(In):
    """Another due time for what is pending under an id."""

    delay: Annotated[
        str | None, Field(description="From now on, as delayd-delay: 10s, 2h.", max_length=64)
    ] = None
    at: Annotated[
        str | Ms | None, Field(description="Due time: RFC 3339 with offset, or Unix ms.")
    ] = None
    by: Annotated[
        str | None,
        Field(description="As delayd-by: so much later, or earlier: +10m, -1h.", max_length=64),
    ] = None

    @model_validator(mode="after")
    def _has_one_time(self) -> "RescheduleIn":
        if sum(each is not None for each in (self.delay, self.at, self.by)) != 1:
            raise ValueError("give exactly one of delay, at and by")
        return self


class DebounceIn(Message):
    """A message of which only the last one counts."""

    delay: Annotated[
        str, Field(description="It goes out so long after the last one: 2s, 1m.", max_length=64)
    ]
    max_wait: Annotated[
        str,
        Field(description="And so long after the first one at the latest: 30s.", max_length=64),
    ]

    def options(self) -> DebounceOptions:
        """Return what is not id, target and value, as the client takes it."""
        return {
            "in_": self.delay,
            "max_wait": self.max_wait,
            "key": self.key,
            "headers": [(each.name, each.value) for each in self.headers],
            "partition": self.partition,
            "late": self.late,
            "group": self.group,
            "receipts": self.receipts,
        }


class BatchIn(In):
    """Messages to schedule, each with an outcome of its own."""

    messages: Annotated[list[ScheduleIn], Field(min_length=1, max_length=BATCH_MAX)]


class RedriveIn(In):
    """Dead letters to send again, each at most once, whoever asks how often."""

    sources: Annotated[
        list[Annotated[str, Field(pattern=r"^[0-9]{1,5}/[0-9]{1,19}$")]],
        Field(min_length=1, max_length=SOURCES_MAX, description="As delayd-source: 3/4711."),
    ]
    topic: Annotated[str | None, Field(min_length=1, max_length=249)] = None
    """Another target than they had."""
    delay: Annotated[str | None, Field(max_length=64)] = None
    at: Annotated[str | None, Field(max_length=64)] = None
    without_id: bool = False
    dry_run: bool = False
