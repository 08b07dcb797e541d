"""The grammar of the request headers, one by one; `times.py` has that of times.

All functions take the headers as text and raise RefusedError, and nothing else.
"""

import re
from collections.abc import Mapping
from typing import Final, TypeAlias

from delayd.bus import Record
from delayd.bus.murmur2 import partition_of
from delayd.request.reasons import Reason, RefusedError, quoted
from delayd.request.request import MARKING, Op, Series, Wishes
from delayd.request.times import (
    by_ms_of,
    delay_ms_of,
    due_ms_of,
    late_ms_of,
    level_delay_ms_of,
    max_wait_ms_of,
    until_ms_of,
    window_ms_of,
)
from replication.rules import knows_reschedule
from replication.settings import RULES_VERSION

Fields: TypeAlias = Mapping[str, str]
"""The `delayd-*` headers of one record, by name."""

ID_BYTES_MAX: Final = 256
"""Of an id as UTF-8: a node remembers many ids at once."""

GROUP_BYTES_MAX: Final = ID_BYTES_MAX
"""Of the name of a group as UTF-8."""

PARTITION_MAX: Final = 2**31 - 1
"""Kafka's partition numbers are int32."""

PARTITION_DIGITS_MAX: Final = 10

NUMBER_DIGITS_MAX: Final = 19
"""Digits of 2**63 - 1, Kafka's last offset; also keeps the cost of a hostile number constant."""

CRON_CHARS_MAX: Final = 128
"""Of an expression: a fair number of lists."""

_CRON = re.compile(r"[0-9A-Za-z*,/#-]+(?: +[0-9A-Za-z*,/#-]+){4,5}")
"""What depends on nothing but the text. What it means is for the master's step to say."""
_NAMED: Final = frozenset(
    {"@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually"}
)
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+){0,3}")
ZONE_CHARS_MAX: Final = 64
UTC: Final = "UTC"
"""The zone of a series that names none."""

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_SOURCE = re.compile(r"(0|[1-9][0-9]{0,9})/(0|[1-9][0-9]{0,18})")
_OLDER_OPS = {"schedule": Op.SCHEDULE, "cancel": Op.CANCEL, "replace": Op.REPLACE}
_OPS = {
    **_OLDER_OPS,
    "reschedule": Op.RESCHEDULE,
    "fire": Op.FIRE,
    "debounce": Op.DEBOUNCE,
}
_SCHEDULE = Op.SCHEDULE
_DUES = ("delayd-due", "delayd-delay", "delayd-level")
_COMPARED_WISHES = ("delayd-late", "delayd-window", "delayd-group")
_OF_SERIES = ("delayd-zone", "delayd-until", "delayd-catchup")
_SERIES_FIELDS: Final = frozenset({"delayd-cron", *_OF_SERIES})
_NOT_OF_SERIES = (*_DUES, "delayd-window")
_CATCHUPS = {"once": False, "all": True}
_CANCEL_TAKES = frozenset({"delayd-op", "delayd-id"})
_NEW_DUES = ("delayd-due", "delayd-delay", "delayd-by")
_TAKES: Final = {
    Op.CANCEL: _CANCEL_TAKES,
    Op.FIRE: _CANCEL_TAKES,
    Op.RESCHEDULE: frozenset({*_CANCEL_TAKES, *_NEW_DUES}),
    Op.DEBOUNCE: frozenset(
        {
            *(*_CANCEL_TAKES, "delayd-topic", "delayd-key", "delayd-partition"),
            *("delayd-delay", "delayd-max-wait"),
            *("delayd-receipt", "delayd-late", "delayd-group"),
        }
    ),
}
"""Headers of operations that do not take all that a schedule takes."""


def op_of(fields: Fields, rules_version: int = RULES_VERSION) -> Op:
    """Return the operation. Refuse headers that it does not take."""
    name = fields.get("delayd-op")
    ops = _ops(rules_version)
    op = _SCHEDULE if name is None else ops.get(name)
    if op is _SCHEDULE:
        return Op.REDRIVE if "delayd-redrive" in fields else op
    if op is None:
        raise RefusedError(
            Reason.BAD_OP,
            f"delayd-op {quoted(name or '')} is no operation: use one of {', '.join(ops)}",
        )
    takes = _TAKES.get(op)
    for header in fields:
        if header == "delayd-redrive" or (takes is not None and header not in takes):
            instead = (
                f", or have delayd {op.slug} --group do so with each id of the group"
                if header == "delayd-group"
                else ""
            )
            raise RefusedError(
                Reason.UNEXPECTED_HEADER,
                f"the header {header} has no meaning with delayd-op {op.slug}: leave it out"
                f"{instead}",
            )
    return op


def op_named(name: str, rules_version: int) -> Op | None:
    """Return the operation of this name, None if there is none."""
    return _ops(rules_version).get(name)


def _ops(rules_version: int) -> Mapping[str, Op]:
    return _OPS if knows_reschedule(rules_version) else _OLDER_OPS


def check_id(id: str | None, op: Op, record: Record, partitions: int) -> None:
    """Refuse an id that is not the record's key or lies in another partition than the key's.

    A schedule needs no id, what is about a message does."""
    if id is None:
        if op in MARKING:
            raise RefusedError(
                Reason.MISSING_ID,
                f"the header delayd-id is missing: delayd-op {op.slug} needs the id of the message"
                " that it is about",
            )
        return
    key = id.encode()
    if len(key) > ID_BYTES_MAX:
        raise RefusedError(
            Reason.BAD_ID,
            f"delayd-id has {len(key)} bytes: use one of 1 to {ID_BYTES_MAX} bytes of UTF-8",
        )
    if key != record.key:
        there = "null" if record.key is None else "another"
        raise RefusedError(
            Reason.BAD_ID,
            f"delayd-id differs from the record's key, which is {there}: send the id as the key,"
            " byte for byte (the key to deliver goes into delayd-key)",
        )
    partition = partition_of(key, partitions)
    if partition != record.partition:
        raise RefusedError(
            Reason.WRONG_PARTITION,
            f"the record is in partition {record.partition} of the buffer, all requests about this"
            f" id belong in partition {partition} (murmur2 of the key modulo {partitions}): set"
            " partitioner=murmur2_random in clients that are made from librdkafka, or send to that"
            " partition",
        )


def target_of(fields: Fields, prefix: str) -> str:
    """Return the target topic; never one that begins with `prefix`."""
    topic = fields.get("delayd-topic")
    if topic is None:
        raise RefusedError(
            Reason.MISSING_TOPIC,
            "the header delayd-topic is missing: it names the topic to deliver to",
        )
    if _TOPIC.fullmatch(topic) is None or topic in (".", ".."):
        raise RefusedError(
            Reason.BAD_TOPIC,
            f"delayd-topic {quoted(topic)} is no legal topic name: 1 to 249 letters, digits,"
            " dots, underscores and hyphens, but not . or ..",
        )
    if topic.startswith((prefix, "__")):
        raise RefusedError(
            Reason.FORBIDDEN_TOPIC,
            f"delayd-topic {quoted(topic)} is never a target: it belongs to delayd ({prefix}*) or"
            " to Kafka (__*)",
        )
    return topic


def asked_due_ms_of(fields: Fields, append_ms: int, *, refuses_units: bool = True) -> int:
    """Return the due time that a record asks for (Unix ms), if it was appended at `append_ms`.

    `refuses_units`: see `due_ms_of`."""
    due = fields.get("delayd-due")
    delay = fields.get("delayd-delay")
    level = fields.get("delayd-level")
    if due is not None and delay is None and level is None:
        return due_ms_of(due, refuses_units=refuses_units)
    if delay is not None and due is None and level is None:
        return append_ms + delay_ms_of(delay)
    if level is not None and due is None and delay is None:
        return append_ms + level_delay_ms_of(level)
    given = [name for name in _DUES if name in fields]
    if given:
        raise RefusedError(
            Reason.SEVERAL_DUES, f"{' and '.join(given)} contradict each other: keep one of them"
        )
    raise RefusedError(
        Reason.MISSING_DUE,
        "no due time: add one of the headers delayd-due, delayd-delay, delayd-level",
    )


def debounce_of(fields: Fields) -> tuple[int, int]:
    """Return the delay and the longest wait of a debounce, in ms."""
    for name in ("delayd-delay", "delayd-max-wait"):
        if name not in fields:
            raise RefusedError(
                Reason.MISSING_DUE,
                f"the header {name} is missing: a message with delayd-op debounce goes out"
                " delayd-delay after the last request, and delayd-max-wait after the first one of"
                " several at the latest",
            )
    delay_ms = delay_ms_of(fields["delayd-delay"])
    return delay_ms, max_wait_ms_of(fields["delayd-max-wait"], delay_ms)


def refuse_max_wait(op: Op) -> None:
    """Refuse what only a debounce may ask for."""
    raise RefusedError(
        Reason.UNEXPECTED_HEADER,
        f"the header delayd-max-wait has no meaning with delayd-op {op.slug}: leave it out, or send"
        " delayd-op debounce",
    )


def refuse_by(fields: Fields, op: Op) -> None:
    """Refuse what only a reschedule may ask for."""
    raise RefusedError(
        Reason.UNEXPECTED_HEADER,
        f"the header delayd-by has no meaning with delayd-op {op.slug}: it is relative to what is"
        " pending, so leave it out, or send delayd-op reschedule",
    )


def new_due_of(fields: Fields, append_ms: int) -> tuple[int, int | None]:
    """Return when a reschedule wants it to be due (Unix ms), or, behind it, how much later than it
    is due now."""
    given = [name for name in _NEW_DUES if name in fields]
    if not given:
        raise RefusedError(
            Reason.MISSING_DUE,
            "no due time: add one of the headers delayd-due, delayd-delay, delayd-by",
        )
    if len(given) > 1:
        raise RefusedError(
            Reason.SEVERAL_DUES, f"{' and '.join(given)} contradict each other: keep one of them"
        )
    if (by := fields.get("delayd-by")) is not None:
        return append_ms, by_ms_of(by)
    return asked_due_ms_of(fields, append_ms), None


def check_no_value(value: bytes | None, op: Op) -> None:
    """Refuse a value where none is used."""
    if value:
        raise RefusedError(
            Reason.UNEXPECTED_VALUE,
            f"delayd-op {op.slug} leaves the message as it is, and this record has a value of"
            f" {len(value)} bytes: send none, or delayd-op replace",
        )


def due_form_of(fields: Fields) -> tuple[str, ...]:
    """Return name and text of the header that gives the due time, as it was sent; of a series of
    each header that says when it is due."""
    names = [name for name in (*_DUES, "delayd-cron", *_OF_SERIES) if name in fields]
    return tuple(part for name in names for part in (name, fields[name]))


def series_of(fields: Fields, *, knows_local_times: bool = True) -> Series | None:
    """Return the series that a record asks for, unresolved; None if it asks for none.

    `knows_local_times`: `delayd-zone` may be of a due time, as since rules version 7."""
    if _SERIES_FIELDS.isdisjoint(fields):  # as a rule
        return None
    cron = fields.get("delayd-cron")
    if cron is None:
        for name in _OF_SERIES:
            if name in fields and not (knows_local_times and name == "delayd-zone"):
                raise RefusedError(
                    Reason.UNEXPECTED_HEADER,
                    f"the header {name} has no meaning without delayd-cron: leave it out",
                )
        return None
    for name in _NOT_OF_SERIES:
        if name in fields:
            raise RefusedError(
                Reason.UNEXPECTED_HEADER if name == "delayd-window" else Reason.SEVERAL_DUES,
                f"{name} and delayd-cron contradict each other: keep one of them",
            )
    is_written_out = len(cron) <= CRON_CHARS_MAX and _CRON.fullmatch(cron) is not None
    if cron not in _NAMED and not is_written_out:
        raise RefusedError(
            Reason.BAD_CRON,
            f"delayd-cron {quoted(cron)} is not five or six fields of at most {CRON_CHARS_MAX}"
            " characters 0-9 A-Z * , / # - together, nor one of"
            f" {', '.join(sorted(_NAMED))}: write it like 0 9 * * MON-FRI",
        )
    until = fields.get("delayd-until")
    catchup = fields.get("delayd-catchup", "once")
    if catchup not in _CATCHUPS:
        raise RefusedError(
            Reason.BAD_CATCHUP, f"delayd-catchup {quoted(catchup)} is neither once nor all"
        )
    until_ms = None if until is None else until_ms_of(until)
    return Series(cron, zone_of(fields), until_ms, _CATCHUPS[catchup])


def zone_of(fields: Fields) -> str:
    """Return the name of a time zone, which may be that of none."""
    zone = fields.get("delayd-zone", UTC)
    if len(zone) > ZONE_CHARS_MAX or _ZONE.fullmatch(zone) is None:
        raise RefusedError(
            Reason.BAD_ZONE,
            f"delayd-zone {quoted(zone)} is no name of a time zone: write it like Europe/Berlin",
        )
    return zone


def target_partition_of(fields: Fields) -> int | None:
    """Return the target partition, None if the partitioner chooses it."""
    text = fields.get("delayd-partition")
    if text is None:
        return None
    if text.isdigit() and text.isascii() and len(text) <= PARTITION_DIGITS_MAX:
        partition = int(text)
        if partition <= PARTITION_MAX:
            return partition
    raise RefusedError(
        Reason.BAD_PARTITION,
        f"delayd-partition {quoted(text)} is not an integer from 0 to {PARTITION_MAX}",
    )


def wishes_of(fields: Fields) -> Wishes | None:
    """Return what is asked for beside a delivery; None if nothing is."""
    if not (
        "delayd-receipt" in fields
        or "delayd-late" in fields
        or "delayd-window" in fields
        or "delayd-group" in fields
    ):
        return None
    late, window = fields.get("delayd-late"), fields.get("delayd-window")
    return Wishes(
        _is_told(fields.get("delayd-receipt")),
        None if late is None else late_ms_of(late),
        None if window is None else window_ms_of(window),
        _group_of(fields),
    )


def _group_of(fields: Fields) -> str | None:
    group = fields.get("delayd-group")
    if group is None:
        return None
    if "delayd-id" not in fields:
        raise RefusedError(
            Reason.MISSING_ID,
            "delayd-group needs delayd-id, which is missing: what is done with a group is done with"
            " each id, so give the message one, or leave delayd-group out",
        )
    size = len(group.encode())
    if size > GROUP_BYTES_MAX:
        raise RefusedError(
            Reason.BAD_GROUP,
            f"delayd-group has {size} bytes: use one of 1 to {GROUP_BYTES_MAX} bytes of UTF-8",
        )
    return group


def as_sent(fields: Fields) -> tuple[str, ...]:
    """Return name and text of the header that gives the due time, and of each wish that tells two
    requests apart, as they were sent."""
    wishes = ((name, fields[name]) for name in _COMPARED_WISHES if name in fields)
    return tuple(part for each in (due_form_of(fields), *wishes) for part in each)


def _is_told(text: str | None) -> bool:
    if text is None:
        return False
    if text != "yes":
        raise RefusedError(
            Reason.BAD_RECEIPT,
            f"delayd-receipt {quoted(text)} is not yes: leave it out for those that the cluster is"
            " set to write",
        )
    return True


def redrive_of(fields: Fields, record: Record) -> str:
    """Return the source of the dead letter that a redrive sends again."""
    text = fields["delayd-redrive"]
    partition = source_partition_of(text)
    if partition is None:
        raise RefusedError(
            Reason.BAD_REDRIVE,
            f"delayd-redrive {quoted(text)} is no source: copy delayd-source of the dead letter,"
            " which is written like 3/4711",
        )
    if partition != record.partition:
        raise RefusedError(
            Reason.BAD_REDRIVE,
            f"the record is in partition {record.partition} of the buffer, the dead letter"
            f" {quoted(text)} is sent again through partition {partition}: send it there",
        )
    return text


def source_partition_of(text: str) -> int | None:
    """Return the partition of a source (`partition/offset`), None if `text` is not one.

    Sources are compared as text, so there is one way to write one: no signs, no leading zeros.
    """
    match = _SOURCE.fullmatch(text)
    if match is None or int(match[2]) >= 2**63:
        return None
    return int(match[1])


def number_of(text: str) -> int | None:
    """Return the number in a header that delayd wrote, None if `text` is none."""
    if text.isdigit() and text.isascii() and len(text) <= NUMBER_DIGITS_MAX:
        return int(text)
    return None
