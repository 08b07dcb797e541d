"""Every defect by name: what is planted, and which findings must come of it, and no others.

Here are those of deliveries and dead letters; `catalogue_claims.py` has receipts, replicas and the
frontier. Each takes victims of its own, so any number of them can be planted at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from chaos.batches import LogRecord
from chaos.records import Logged
from defects.operation import Expected, Operation
from defects.past import Victim
from delayd.bus.murmur2 import partition_of

Plant = Callable[[Operation], Sequence[Expected]]
Condition = Callable[[Victim], bool]

DELIVERY_DEFECTS: Final[dict[str, Plant]] = {}


def _defect(plant: Plant) -> Plant:
    DELIVERY_DEFECTS[plant.__name__.strip("_").replace("_", "-")] = plant
    return plant


def has_no_id(victim: Victim) -> bool:
    """Sent without an id, delivered at the first try, and long before it was due."""
    early_enough = victim.message.due_ms > victim.message.record.append_ms
    return victim.id is None and not victim.was_retried and early_enough


def has_own_id(victim: Victim) -> bool:
    """With an id that no other request is about."""
    return victim.id is not None and not victim.is_named and not victim.was_retried


def was_retried(victim: Victim) -> bool:
    """Retried, and without an id."""
    return victim.id is None and victim.was_retried


def _record_of(victim: Victim) -> Logged:
    """Its delivery, or its dead letter."""
    return victim.delivery if victim.fate == "delivered" else victim.letters[0]


def _missing(fault: str, fate: str, condition: Condition = lambda _: True) -> Plant:
    def plant(on: Operation) -> Sequence[Expected]:
        victim = on.past.take(fate, condition)
        on.cut(_record_of(victim))
        return [Expected(fault, victim.source)]

    return plant


def _twice(fault: str, fate: str, condition: Condition = lambda _: True) -> Plant:
    def plant(on: Operation) -> Sequence[Expected]:
        victim = on.past.take(fate, condition)
        on.add_again(_record_of(victim))
        return [Expected(fault, victim.source)]

    return plant


def _changed(
    fault: str,
    fate: str,
    change: Callable[[LogRecord], LogRecord],
    condition: Condition = lambda _: True,
    says: str = "",
) -> Plant:
    def really(record: LogRecord) -> LogRecord:
        changed = change(record)
        assert changed != record, "nothing is changed"
        return changed

    def plant(on: Operation) -> Sequence[Expected]:
        victim = on.past.take(fate, condition)
        on.change(_record_of(victim), really)
        return [Expected(fault, victim.source, says=says)]

    return plant


# --- Lost


DELIVERY_DEFECTS.update(
    {
        "a-delivery-is-missing": _missing("lost", "delivered", has_no_id),
        "a-delivery-under-an-id-is-missing": _missing("lost", "delivered", has_own_id),
        "a-delivery-after-retries-is-missing": _missing("lost", "delivered", was_retried),
        "a-redriven-message-is-missing": _missing(
            "lost", "delivered", lambda v: "redrive" in v.message.record.fields
        ),
        "the-letter-of-a-dead-message-is-missing": _missing("lost", "dead", lambda v: v.id is None),
    }
)


@_defect
def a_delivery_that_does_not_say_whose_it_is(on: Operation) -> Sequence[Expected]:
    victim = on.past.take("delivered", has_no_id)
    row = victim.delivery
    on.change(row, lambda record: record.without_header("delayd-source"))
    return [
        Expected("lost", victim.source),
        Expected("unknown", at=f"{row.partition}/{row.offset}"),
    ]


# --- Doubled


DELIVERY_DEFECTS["a-delivery-twice"] = _twice("duplicate", "delivered", has_no_id)


@_defect
def a_delivery_once_more_as_if_never_retried(on: Operation) -> Sequence[Expected]:
    victim = on.past.take("delivered", was_retried)
    row = victim.delivery
    record = on.record(row).without_header("delayd-origin").without_header("delayd-attempt")
    again = record.with_header("delayd-source", victim.source.encode())
    on.add(row.topic, row.partition, again)
    return [Expected("duplicate", victim.source)]


@_defect
def a_delivery_in_another_target_too(on: Operation) -> Sequence[Expected]:
    victim = on.past.take("delivered", has_no_id)
    row = victim.delivery
    on.add(other_target(on, row), row.partition, on.record(row))
    return [
        Expected("duplicate", victim.source),
        Expected("altered", victim.source, says="topic"),
    ]


# --- Early


@_defect
def early_by_its_own_timestamp(on: Operation) -> Sequence[Expected]:
    def is_for_it(victim: Victim) -> bool:
        return has_no_id(victim) and victim.delivery.topic == on.past.targets[1]

    victim = on.past.take("delivered", is_for_it)
    early_ms = victim.message.due_ms - 1
    on.change(victim.delivery, lambda record: replace(record, timestamp_ms=early_ms))
    return [Expected("early", victim.source)]


@_defect
def early_by_what_it_says(on: Operation) -> Sequence[Expected]:
    victim = on.past.take("delivered", has_no_id)
    early = b"%d" % (victim.message.due_ms - 1)
    on.change(victim.delivery, lambda record: record.with_header("delayd-fired", early))
    return [Expected("early", victim.source)]


@_defect
def early_by_days(on: Operation) -> Sequence[Expected]:
    victim = on.past.take("pending", lambda v: v.id is None)
    topic = victim.message.record.fields["topic"]
    now_ms = on.past.steps[-1].row.append_ms
    partition = partition_for(on, victim, topic)
    on.deliver(victim, topic=topic, partition=partition, fired_ms=now_ms)
    return [Expected("early", victim.source)]


# --- Altered


def _altered(
    says: str, change: Callable[[LogRecord], LogRecord], condition: Condition = has_no_id
) -> Plant:
    return _changed("altered", "delivered", change, condition, says)


def _has_another_key(victim: Victim) -> bool:
    return has_own_id(victim) and "key" in victim.message.record.fields


DELIVERY_DEFECTS.update(
    {
        "another-value": _altered(
            "value", lambda r: replace(r, value=(r.value or b"")[:-1] + b"?")
        ),
        "no-value": _altered("value", lambda r: replace(r, value=None)),
        "an-empty-key": _altered("key", lambda r: replace(r, key=None)),
        # The id instead of the key that was asked for.
        "another-key-under-an-id": _altered(
            "key", lambda r: replace(r, key=r.header("delayd-id").encode()), _has_another_key
        ),
        "another-header-value": _altered("header", lambda r: r.with_header("bytes", b"\x00\xfe")),
        "a-null-header-value": _altered("header", lambda r: r.with_header("bytes", None)),
        "another-header-name": _altered(
            "header",
            lambda r: replace(
                r, headers=tuple(("Bytes" if n == "bytes" else n, c) for n, c in r.headers)
            ),
        ),
        "headers-in-another-order": _altered(
            "order", lambda r: replace(r, headers=(r.headers[1], r.headers[0], *r.headers[2:]))
        ),
        "a-repeated-header-once": _altered("header", lambda r: r.without_header("trace")),
        "one-header-more": _altered(
            "header", lambda r: replace(r, headers=(("more", b""), *r.headers))
        ),
        "another-due-time": _altered(
            "due",
            lambda r: r.with_header("delayd-due", b"%d" % (int(r.header("delayd-due")) - 1)),
        ),
        "no-due-time": _altered("due", lambda r: r.without_header("delayd-due")),
        "another-id": _altered("id", lambda r: r.with_header("delayd-id", b"another"), has_own_id),
        "no-id": _altered("id", lambda r: r.without_header("delayd-id"), has_own_id),
        "another-origin": _altered(
            "origin", lambda r: r.with_header("delayd-origin", b"0/0"), was_retried
        ),
        "no-attempt": _altered(
            "attempt", lambda r: r.without_header("delayd-attempt"), was_retried
        ),
        "a-header-of-the-request": _altered("", lambda r: r.and_header("delayd-topic", b"t")),
        "fired-at-no-time": _altered("time", lambda r: r.with_header("delayd-fired", b"soon")),
    }
)


@_defect
def another_target_partition(on: Operation) -> Sequence[Expected]:
    victim = on.past.take("delivered", has_no_id)
    row = victim.delivery
    on.add(row.topic, (row.partition + 1) % 2, on.cut(row))
    return [Expected("altered", victim.source, says="partition")]


@_defect
def another_target(on: Operation) -> Sequence[Expected]:
    victim = on.past.take("delivered", has_no_id)
    row = victim.delivery
    on.add(other_target(on, row), row.partition, on.cut(row))
    return [Expected("altered", victim.source, says="topic")]


# --- Delivered though it may not be


def _ghost(on: Operation, victim: Victim) -> Sequence[Expected]:
    topic = victim.message.record.fields.get("topic", on.past.targets[0])
    if topic not in on.past.targets:
        topic = on.past.targets[0]
    on.deliver(
        victim,
        topic=topic,
        partition=partition_for(on, victim, topic),
        fired_ms=on.past.steps[-1].row.append_ms,
    )
    return [Expected("ghost", victim.source)]


def _killed(on: Operation, verdict: str) -> Victim:
    told = on.past.take_mark(verdict, lambda t: kills_one_for_a_target(on, t.says["killed"]))
    return on.past.of_source[told.says["killed"][0]]


DELIVERY_DEFECTS.update(
    {
        "a-cancelled-message-comes-out": lambda on: _ghost(on, _killed(on, "cancelled")),
        "a-replaced-message-comes-out": lambda on: _ghost(on, _killed(on, "replaced")),
        "a-duplicate-comes-out": lambda on: _ghost(
            on, on.past.take("refused_as_duplicate", lambda v: v.message.due_ms > 0)
        ),
        "a-conflicting-message-comes-out": lambda on: _ghost(on, on.past.take("conflict")),
    }
)


@_defect
def a_rejected_request_comes_out(on: Operation) -> Sequence[Expected]:
    def has_a_target(victim: Victim) -> bool:
        return victim.message.record.fields.get("topic") in on.past.targets

    return _ghost(on, on.past.take("rejected", has_a_target))


# --- Nobody's


def _unknown(on: Operation, source: str) -> Sequence[Expected]:
    row = on.past.take("delivered", has_no_id).delivery
    record = on.record(row).with_header("delayd-source", source.encode())
    offset = on.add(row.topic, row.partition, record)
    return [Expected("unknown", source, at=f"{row.partition}/{offset}")]


DELIVERY_DEFECTS.update(
    {
        "of-a-source-beyond-the-end": partial(_unknown, source="1/999999999"),
        "of-a-partition-that-is-not": partial(_unknown, source="99/0"),
        "of-a-source-that-is-none": partial(_unknown, source="1-17"),
    }
)


@_defect
def of_an_aborted_transaction(on: Operation) -> Sequence[Expected]:
    seen = {row.offset for row in on.past.buffer if row.partition == 0}
    log = on.surgeon.open(f"{on.past.prefix}buffer", 0)
    hidden = next(record.offset for record in log.records() if record.offset not in seen)
    return _unknown(on, f"0/{hidden}")


@_defect
def of_a_cancel(on: Operation) -> Sequence[Expected]:
    told = on.past.take_mark("not-found")
    return _unknown(on, told.says["source"])


# --- Dead letters


def _with_another_value(record: LogRecord) -> LogRecord:
    return replace(record, value=b"another")


DELIVERY_DEFECTS.update(
    {
        "the-letter-of-a-bad-request-is-missing": _missing(
            "letter-missing", "rejected", lambda v: v.id is None
        ),
        "the-letter-of-a-conflict-is-missing": _missing("letter-missing", "conflict"),
        "a-letter-twice": _twice("letter-doubled", "rejected"),
        "a-letter-of-a-dead-message-twice": _twice("letter-doubled", "dead"),
        "a-letter-with-another-reason": _changed(
            "letter-false",
            "rejected",
            lambda r: r.with_header("delayd-reason", b"bad-level"),
            lambda v: v.letters[0].fields["reason"] == "bad-delay",
        ),
        "a-letter-with-another-value": _changed("letter-false", "rejected", _with_another_value),
        "a-letter-of-a-dead-message-with-another-value": _changed(
            "letter-false", "dead", _with_another_value
        ),
    }
)


@_defect
def a_letter_of_a_good_message(on: Operation) -> Sequence[Expected]:
    victim = on.past.take("delivered", has_no_id)
    _add_letter(on, victim, victim.source)
    return [Expected("letter-false", victim.source)]


@_defect
def a_letter_of_nobody(on: Operation) -> Sequence[Expected]:
    victim = on.past.take("delivered", has_no_id)
    place = _add_letter(on, victim, "1/999999999")
    return [Expected("letter-false", at=place)]


def _add_letter(on: Operation, victim: Victim, source: str) -> str:
    row = victim.message.record
    record = on.record(row)
    for name, content in (("reason", "bad-due"), ("detail", "no"), ("source", source)):
        record = record.and_header(f"delayd-{name}", content.encode())
    offset = on.add(f"{on.past.prefix}dead", row.partition, record)
    return f"{row.partition}/{offset}"


# --- Order


@_defect
def two_neighbours_swapped(on: Operation) -> Sequence[Expected]:
    first, second = on.past.take_pair()
    row = first.delivery
    on.log(row).swap(row.offset, second.delivery.offset)
    return [Expected("order", first.source)]


# --- Choosing


def other_target(on: Operation, row: Logged) -> str:
    """Another topic that has the partition too."""
    return next(topic for topic in on.past.targets[:2] if topic != row.topic)


def partition_for(on: Operation, victim: Victim, topic: str) -> int:
    """Where a message belongs: by its key, if it has one."""
    row = victim.message.record
    key = row.fields["key"].encode() if "key" in row.fields else row.key
    partitions = 4 if topic in on.past.targets[:2] else 2
    return 0 if key is None else partition_of(key, partitions)


def kills_one_for_a_target(on: Operation, killed: Sequence[str]) -> bool:
    """Was one message killed, whose target exists, and did nothing else come of it?"""
    if len(killed) != 1:
        return False
    victim = on.past.of_source[killed[0]]
    is_there = victim.message.record.fields["topic"] in on.past.targets
    return is_there and victim.fate in ("cancelled", "replaced") and not victim.was_retried
