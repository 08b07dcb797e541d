"""Every defect by name: what is planted, and which findings must come of it, and no others.

Here are those of deliveries and dead letters; `catalogue_claims.py` has receipts, replicas and the
frontier. Each takes victims of its own, so any number of them can be planted at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from chaos.records import Logged
from defects.batches import LogRecord
from defects.operation import Expected, Operation
from defects.past import Victim
from delayd.bus.murmur2 import partition_of

Plant = Callable[[Operation], Sequence[Expected]]

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


# --- Lost


@_defect
def a_delivery_is_missing(on: Operation) -> Sequence[Expected]:
    victim = on.past.take("delivered", has_no_id)
    on.cut(victim.delivery)
    return [Expected("lost", victim.source)]


@_defect
def a_delivery_under_an_id_is_missing(on: Operation) -> Sequence[Expected]:
    victim = on.past.take("delivered", has_own_id)
    on.cut(victim.delivery)
    return [Expected("lost", victim.source)]


@_defect
def a_delivery_after_retries_is_missing(on: Operation) -> Sequence[Expected]:
    victim = on.past.take("delivered", was_retried)
    on.cut(victim.delivery)
    return [Expected("lost", victim.source)]


@_defect
def a_redriven_message_is_missing(on: Operation) -> Sequence[Expected]:
    victim = on.past.take("delivered", lambda v: "redrive" in v.message.record.fields)
    on.cut(victim.delivery)
    return [Expected("lost", victim.source)]


@_defect
def the_letter_of_a_dead_message_is_missing(on: Operation) -> Sequence[Expected]:
    victim = on.past.take("dead", lambda v: v.id is None)
    on.cut(victim.letters[0])
    return [Expected("lost", victim.source)]


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


@_defect
def a_delivery_twice(on: Operation) -> Sequence[Expected]:
    victim = on.past.take("delivered", has_no_id)
    on.add_again(victim.delivery)
    return [Expected("duplicate", victim.source)]


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
    on: Operation,
    says: str,
    change: Callable[[LogRecord], LogRecord],
    condition: Callable[[Victim], bool] = has_no_id,
) -> Sequence[Expected]:
    victim = on.past.take("delivered", condition)

    def really(record: LogRecord) -> LogRecord:
        changed = change(record)
        assert changed != record, "nothing was altered"
        return changed

    on.change(victim.delivery, really)
    return [Expected("altered", victim.source, says=says)]


@_defect
def another_value(on: Operation) -> Sequence[Expected]:
    return _altered(on, "value", lambda r: replace(r, value=(r.value or b"")[:-1] + b"?"))


@_defect
def no_value(on: Operation) -> Sequence[Expected]:
    return _altered(on, "value", lambda r: replace(r, value=None))


@_defect
def an_empty_key(on: Operation) -> Sequence[Expected]:
    return _altered(on, "key", lambda r: replace(r, key=None))


@_defect
def another_key_under_an_id(on: Operation) -> Sequence[Expected]:
    """The id instead of the key that was asked for."""

    def has_another_key(victim: Victim) -> bool:
        return (
            victim.id is not None and "key" in victim.message.record.fields and has_own_id(victim)
        )

    return _altered(
        on, "key", lambda r: replace(r, key=r.header("delayd-id").encode()), has_another_key
    )


@_defect
def another_header_value(on: Operation) -> Sequence[Expected]:
    return _altered(on, "header", lambda r: r.with_header("bytes", b"\x00\xfe"))


@_defect
def a_null_header_value(on: Operation) -> Sequence[Expected]:
    return _altered(on, "header", lambda r: r.with_header("bytes", None))


@_defect
def another_header_name(on: Operation) -> Sequence[Expected]:
    return _altered(
        on,
        "header",
        lambda r: replace(
            r, headers=tuple(("Bytes" if n == "bytes" else n, c) for n, c in r.headers)
        ),
    )


@_defect
def headers_in_another_order(on: Operation) -> Sequence[Expected]:
    return _altered(
        on, "order", lambda r: replace(r, headers=(r.headers[1], r.headers[0], *r.headers[2:]))
    )


@_defect
def a_repeated_header_once(on: Operation) -> Sequence[Expected]:
    return _altered(on, "header", lambda r: r.without_header("trace"))


@_defect
def one_header_more(on: Operation) -> Sequence[Expected]:
    return _altered(on, "header", lambda r: replace(r, headers=(("more", b""), *r.headers)))


@_defect
def another_due_time(on: Operation) -> Sequence[Expected]:
    return _altered(
        on, "due", lambda r: r.with_header("delayd-due", b"%d" % (int(r.header("delayd-due")) - 1))
    )


@_defect
def no_due_time(on: Operation) -> Sequence[Expected]:
    return _altered(on, "due", lambda r: r.without_header("delayd-due"))


@_defect
def another_id(on: Operation) -> Sequence[Expected]:
    return _altered(on, "id", lambda r: r.with_header("delayd-id", b"another"), has_own_id)


@_defect
def no_id(on: Operation) -> Sequence[Expected]:
    return _altered(on, "id", lambda r: r.without_header("delayd-id"), has_own_id)


@_defect
def another_origin(on: Operation) -> Sequence[Expected]:
    return _altered(on, "origin", lambda r: r.with_header("delayd-origin", b"0/0"), was_retried)


@_defect
def no_attempt(on: Operation) -> Sequence[Expected]:
    return _altered(on, "attempt", lambda r: r.without_header("delayd-attempt"), was_retried)


@_defect
def a_header_of_the_request(on: Operation) -> Sequence[Expected]:
    return _altered(on, "", lambda r: r.and_header("delayd-topic", b"t"))


@_defect
def fired_at_no_time(on: Operation) -> Sequence[Expected]:
    return _altered(on, "time", lambda r: r.with_header("delayd-fired", b"soon"))


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


@_defect
def a_cancelled_message_comes_out(on: Operation) -> Sequence[Expected]:
    told = on.past.take_mark("cancelled", lambda t: kills_one_for_a_target(on, t.says["killed"]))
    return _ghost(on, on.past.of_source[told.says["killed"][0]])


@_defect
def a_replaced_message_comes_out(on: Operation) -> Sequence[Expected]:
    told = on.past.take_mark("replaced", lambda t: kills_one_for_a_target(on, t.says["killed"]))
    return _ghost(on, on.past.of_source[told.says["killed"][0]])


@_defect
def a_duplicate_comes_out(on: Operation) -> Sequence[Expected]:
    return _ghost(on, on.past.take("refused_as_duplicate", lambda v: v.message.due_ms > 0))


@_defect
def a_conflicting_message_comes_out(on: Operation) -> Sequence[Expected]:
    return _ghost(on, on.past.take("conflict"))


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


@_defect
def of_a_source_beyond_the_end(on: Operation) -> Sequence[Expected]:
    return _unknown(on, "1/999999999")


@_defect
def of_a_partition_that_is_not(on: Operation) -> Sequence[Expected]:
    return _unknown(on, "99/0")


@_defect
def of_a_source_that_is_none(on: Operation) -> Sequence[Expected]:
    return _unknown(on, "1-17")


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


@_defect
def the_letter_of_a_bad_request_is_missing(on: Operation) -> Sequence[Expected]:
    victim = on.past.take("rejected", lambda v: v.id is None)
    on.cut(victim.letters[0])
    return [Expected("letter-missing", victim.source)]


@_defect
def the_letter_of_a_conflict_is_missing(on: Operation) -> Sequence[Expected]:
    victim = on.past.take("conflict")
    on.cut(victim.letters[0])
    return [Expected("letter-missing", victim.source)]


@_defect
def a_letter_twice(on: Operation) -> Sequence[Expected]:
    victim = on.past.take("rejected")
    on.add_again(victim.letters[0])
    return [Expected("letter-doubled", victim.source)]


@_defect
def a_letter_of_a_dead_message_twice(on: Operation) -> Sequence[Expected]:
    victim = on.past.take("dead")
    on.add_again(victim.letters[0])
    return [Expected("letter-doubled", victim.source)]


@_defect
def a_letter_with_another_reason(on: Operation) -> Sequence[Expected]:
    victim = on.past.take("rejected", lambda v: v.letters[0].fields["reason"] == "bad-delay")
    on.change(victim.letters[0], lambda r: r.with_header("delayd-reason", b"bad-level"))
    return [Expected("letter-false", victim.source)]


@_defect
def a_letter_with_another_value(on: Operation) -> Sequence[Expected]:
    victim = on.past.take("rejected")
    on.change(victim.letters[0], lambda r: replace(r, value=b"another"))
    return [Expected("letter-false", victim.source)]


@_defect
def a_letter_of_a_dead_message_with_another_value(on: Operation) -> Sequence[Expected]:
    victim = on.past.take("dead")
    on.change(victim.letters[0], lambda r: replace(r, value=b"another"))
    return [Expected("letter-false", victim.source)]


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
