"""Defects of what delayd claims: receipts, exports, and the frontier's history.

As in catalogue.py: what is planted, and which findings must come of it, and no others.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from defects.catalogue import Plant, has_no_id, kills_one_for_a_target, partition_for
from defects.operation import Expected, Operation, saying
from defects.past import Step, Told, Victim, source_of

VERDICT_DEFECTS: Final[dict[str, Plant]] = {}
REPLICA_DEFECTS: Final[dict[str, Plant]] = {}
FRONTIER_DEFECTS: Final[dict[str, Plant]] = {}


def _in(catalogue: dict[str, Plant]) -> Callable[[Plant], Plant]:
    def add(plant: Plant) -> Plant:
        catalogue[plant.__name__.replace("_", "-")] = plant
        return plant

    return add


# --- Receipts


def _missing(on: Operation, told: Told) -> Sequence[Expected]:
    on.cut(told.row)
    return [Expected("verdict-missing", told.says["source"])]


def _only_receipt(victim: Victim) -> bool:
    return len(victim.receipts) == 1


@_in(VERDICT_DEFECTS)
def the_receipt_of_a_cancel_is_missing(on: Operation) -> Sequence[Expected]:
    return _missing(on, on.past.take_mark("cancelled"))


@_in(VERDICT_DEFECTS)
def the_receipt_of_a_late_cancel_is_missing(on: Operation) -> Sequence[Expected]:
    return _missing(on, on.past.take_mark("too-late"))


@_in(VERDICT_DEFECTS)
def the_receipt_of_a_duplicate_is_missing(on: Operation) -> Sequence[Expected]:
    return _missing(on, on.past.take("refused_as_duplicate", _only_receipt).receipts[0])


@_in(VERDICT_DEFECTS)
def the_receipt_of_a_conflict_is_missing(on: Operation) -> Sequence[Expected]:
    return _missing(on, on.past.take("conflict", _only_receipt).receipts[0])


@_in(VERDICT_DEFECTS)
def the_receipt_of_a_bad_request_is_missing(on: Operation) -> Sequence[Expected]:
    return _missing(on, on.past.take("rejected", _only_receipt).receipts[0])


@_in(VERDICT_DEFECTS)
def the_receipt_of_a_dead_message_is_missing(on: Operation) -> Sequence[Expected]:
    victim = on.past.take("dead", lambda v: _only_receipt(v) and not v.is_named)
    return _missing(on, victim.receipts[0])


@_in(VERDICT_DEFECTS)
def the_receipt_of_a_message_that_died_before_its_cancel_is_missing(
    on: Operation,
) -> Sequence[Expected]:
    asked_ms = {source_of(row): row.append_ms for row in on.past.buffer}
    others: dict[str, list[str]] = {}
    for told in on.past.receipts:
        others.setdefault(told.says["id"], []).append(told.says["source"])

    def died_before(victim: Victim) -> bool:
        """No cancel came while the step that gave it up was under way: then its log has two
        stories, and the receipt may be missing."""
        asked = [asked_ms[source] for source in others[victim.id or ""] if source != victim.source]
        return all(
            letter.append_ms < at_ms
            for letter in victim.letters
            for at_ms in asked
            if at_ms >= victim.message.record.append_ms
        )

    victim = on.past.take("dead", lambda v: _only_receipt(v) and v.is_named and died_before(v))
    return _missing(on, victim.receipts[0])


@_in(VERDICT_DEFECTS)
def the_receipt_of_a_redrive_is_missing(on: Operation) -> Sequence[Expected]:
    victim = on.past.take("delivered", lambda v: "redrive" in v.message.record.fields)
    return _missing(on, victim.receipts[0])


@_in(VERDICT_DEFECTS)
def a_receipt_twice(on: Operation) -> Sequence[Expected]:
    told = on.past.take_mark("cancelled")
    on.add_again(told.row)
    return [Expected("verdict-doubled", told.says["source"])]


@_in(VERDICT_DEFECTS)
def two_receipts_that_contradict_each_other(on: Operation) -> Sequence[Expected]:
    told = on.past.take_mark("not-found")
    again = saying(on.record(told.row), told, verdict="too-late")
    on.add(told.row.topic, told.row.partition, again)
    return [Expected("verdict-false", told.says["source"])]


@_in(VERDICT_DEFECTS)
def a_receipt_of_a_dead_message_twice(on: Operation) -> Sequence[Expected]:
    told = on.past.take("dead", _only_receipt).receipts[0]
    on.add_again(told.row)
    return [Expected("verdict-doubled", told.says["source"])]


def _false(on: Operation, told: Told, **says: Any) -> Sequence[Expected]:
    assert {**told.says, **says} != told.says, "nothing is false"
    on.say(told, **says)
    return [Expected("verdict-false", told.says["source"])]


def _delivered_under(on: Operation, told: Told) -> str:
    """The message that a late cancel came too late for."""
    [source] = [
        victim.source
        for victim in on.past.of_id[told.says["id"]]
        if victim.fate == "delivered" and victim.source != told.says["source"]
    ]
    return source


def _has_one_delivered(on: Operation) -> Callable[[Told], bool]:
    def has(told: Told) -> bool:
        fates = [victim.fate for victim in on.past.of_id[told.says["id"]]]
        return told.says["op"] == "cancel" and fates == ["delivered"]

    return has


@_in(VERDICT_DEFECTS)
def cancelled_of_a_delivered_message(on: Operation) -> Sequence[Expected]:
    told = on.past.take_mark("too-late", _has_one_delivered(on))
    return _false(on, told, verdict="cancelled", killed=[_delivered_under(on, told)])


@_in(VERDICT_DEFECTS)
def too_late_for_a_cancelled_message(on: Operation) -> Sequence[Expected]:
    return _false(on, on.past.take_mark("cancelled", _is_first), verdict="too-late", killed=[])


@_in(VERDICT_DEFECTS)
def too_late_for_a_message_that_is_delivered_later(on: Operation) -> Sequence[Expected]:
    """The cancel was ignored: nobody could know yet that it would come too late."""
    end_ms = on.past.steps[-1].row.append_ms

    def is_before_its_time(told: Told) -> bool:
        if not (_is_first(told) and kills_one_for_a_target(on, told.says["killed"])):
            return False
        if not on.past.has_free_step(told):
            return False
        due_ms = on.past.of_source[told.says["killed"][0]].message.due_ms
        return bool(told.says["at_ms"] + 200 < due_ms < end_ms)

    told = on.past.take_mark("cancelled", is_before_its_time)
    on.past.keep_step(told)
    victim = on.past.of_source[told.says["killed"][0]]
    topic = victim.message.record.fields["topic"]
    partition = partition_for(on, victim, topic)
    times_ms = (step.says["now_ms"] for step in on.past.steps)
    fired_ms = next(now_ms for now_ms in times_ms if now_ms >= victim.message.due_ms)
    on.deliver(victim, topic=topic, partition=partition, fired_ms=fired_ms)
    return _false(on, told, verdict="too-late", killed=[])


@_in(VERDICT_DEFECTS)
def not_found_where_something_was_killed(on: Operation) -> Sequence[Expected]:
    return _false(on, on.past.take_mark("cancelled", _is_first), verdict="not-found", killed=[])


@_in(VERDICT_DEFECTS)
def not_found_for_a_delivered_message(on: Operation) -> Sequence[Expected]:
    told = on.past.take_mark("too-late", _has_one_delivered(on))
    return _false(on, told, verdict="not-found")


@_in(VERDICT_DEFECTS)
def the_killed_list_names_another(on: Operation) -> Sequence[Expected]:
    told = on.past.take_mark("cancelled", _is_first)
    other = on.past.take("cancelled", lambda v: v.source not in told.says["killed"])
    return _false(on, told, killed=[other.source])


@_in(VERDICT_DEFECTS)
def the_killed_list_names_nobody(on: Operation) -> Sequence[Expected]:
    return _false(on, on.past.take_mark("cancelled", _is_first), killed=[])


@_in(VERDICT_DEFECTS)
def replaced_though_it_was_too_late(on: Operation) -> Sequence[Expected]:
    def has_one(told: Told) -> bool:
        victims = on.past.of_id[told.says["id"]]
        others = [v.fate for v in victims if v.source != told.says["source"]]
        return told.says["op"] == "replace" and others == ["delivered"]

    told = on.past.take_mark("too-late", has_one)
    return _false(on, told, verdict="replaced", killed=[_delivered_under(on, told)])


@_in(VERDICT_DEFECTS)
def a_duplicate_is_called_a_conflict(on: Operation) -> Sequence[Expected]:
    told = on.past.take("refused_as_duplicate", _only_receipt).receipts[0]
    return _false(on, told, verdict="conflict")


@_in(VERDICT_DEFECTS)
def a_bad_request_is_called_scheduled(on: Operation) -> Sequence[Expected]:
    told = on.past.take("rejected", _only_receipt).receipts[0]
    return _false(on, told, verdict="scheduled")


@_in(VERDICT_DEFECTS)
def dead_of_a_delivered_message(on: Operation) -> Sequence[Expected]:
    """Under an id that has no receipt at all; so there is one too many, and it is false."""
    victim = on.past.take("delivered", lambda v: v.id is not None and not _is_named(v))
    told = on.past.take("dead", _only_receipt).receipts[0]
    assert victim.id is not None
    record = saying(
        on.record(told.row),
        told,
        id=victim.id,
        source=victim.source,
        due_ms=victim.message.due_ms,
    )
    record = replace(record, key=victim.id.encode())
    record = record.with_header("delayd-source", victim.source.encode())
    on.add(told.row.topic, victim.message.record.partition, record)
    return [Expected("verdict-false", victim.source)]


@_in(VERDICT_DEFECTS)
def a_receipt_of_nobody(on: Operation) -> Sequence[Expected]:
    told = on.past.take_mark("not-found")
    source = "1/999999999"
    record = saying(on.record(told.row), told, source=source)
    record = record.with_header("delayd-source", source.encode())
    offset = on.add(told.row.topic, told.row.partition, record)
    return [Expected("verdict-unknown", at=f"{told.row.partition}/{offset}")]


@_in(VERDICT_DEFECTS)
def a_receipt_that_is_no_json(on: Operation) -> Sequence[Expected]:
    told = on.past.take_mark("not-found")
    record = replace(on.record(told.row), value=b'{"id":')
    offset = on.add(told.row.topic, told.row.partition, record)
    return [Expected("verdict-unknown", at=f"{told.row.partition}/{offset}")]


@_in(VERDICT_DEFECTS)
def a_receipt_under_another_key(on: Operation) -> Sequence[Expected]:
    told = on.past.take_mark("not-found")
    record = replace(on.record(told.row), key=b"another")
    offset = on.add(told.row.topic, told.row.partition, record)
    return [Expected("verdict-unknown", at=f"{told.row.partition}/{offset}")]


def _is_first(told: Told) -> bool:
    """A cancel that killed something itself: what it says is said nowhere else."""
    return len(told.says["killed"]) == 1 and told.says["op"] == "cancel"


def _is_named(victim: Victim) -> bool:
    return victim.is_named or bool(victim.receipts) or victim.was_retried


# --- Exports

Rows = list[dict[str, Any]]


def _node(on: Operation, number: int) -> str:
    return sorted(on.exports)[number]


def _take_row(on: Operation, rows: Rows) -> dict[str, Any]:
    """A row of a message that no other defect is about."""
    victim = on.past.take("pending")
    [row] = [r for r in rows if f"{r['partition']}/{r['offset']}" == victim.source]
    return row


def _place(row: dict[str, Any]) -> str:
    return f"{row['partition']}/{row['offset']}"


def _replica(
    on: Operation, number: int, fault: str, change: Callable[[Rows, dict[str, Any]], str]
) -> Sequence[Expected]:
    found = []
    node = _node(on, number)

    def edit(rows: Rows) -> None:
        found.append(Expected(fault, change(rows, _take_row(on, rows)), node=node))

    on.edit(node, edit)
    return found


@_in(REPLICA_DEFECTS)
def a_node_lacks_a_message(on: Operation) -> Sequence[Expected]:
    def change(rows: Rows, row: dict[str, Any]) -> str:
        rows.remove(row)
        return _place(row)

    return _replica(on, 0, "replica-missing", change)


@_in(REPLICA_DEFECTS)
def a_node_holds_a_delivered_message(on: Operation) -> Sequence[Expected]:
    victim = on.past.take("delivered", has_no_id)

    def change(rows: Rows, row: dict[str, Any]) -> str:
        due_ms, asked = victim.message.due_ms, victim.message.record
        place = {"partition": asked.partition, "offset": asked.offset}
        due = {"due_ms": due_ms, "slot": due_ms // 1000, "append_ms": asked.append_ms}
        rows.append({**row, **place, **due, "id": None, "digest": None})
        return victim.source

    return _replica(on, 1, "replica-extra", change)


@_in(REPLICA_DEFECTS)
def a_node_holds_what_nobody_sent(on: Operation) -> Sequence[Expected]:
    def change(rows: Rows, row: dict[str, Any]) -> str:
        rows.append({**row, "offset": 999_999_999})
        return f"{row['partition']}/999999999"

    return _replica(on, 0, "replica-extra", change)


@_in(REPLICA_DEFECTS)
def a_node_holds_a_message_twice(on: Operation) -> Sequence[Expected]:
    def change(rows: Rows, row: dict[str, Any]) -> str:
        rows.append(dict(row))
        return _place(row)

    return _replica(on, 1, "replica-extra", change)


def _changed(number: int, **fields: Callable[[Any], Any]) -> Plant:
    def plant(on: Operation) -> Sequence[Expected]:
        def change(rows: Rows, row: dict[str, Any]) -> str:
            for name, new in fields.items():
                row[name] = new(row[name])
            return _place(row)

        return _replica(on, number, "replica-changed", change)

    return plant


REPLICA_DEFECTS["a-node-holds-another-payload"] = _changed(1, payload_crc=lambda crc: crc ^ 1)
REPLICA_DEFECTS["a-node-holds-another-due-time"] = _changed(0, due_ms=lambda due: due + 1)
REPLICA_DEFECTS["a-node-files-it-in-another-slot"] = _changed(1, slot=lambda slot: slot + 1)
REPLICA_DEFECTS["a-node-holds-another-lane"] = _changed(0, lane=lambda lane: (lane + 1) % 64)
REPLICA_DEFECTS["a-node-holds-another-target"] = _changed(1, topic=lambda topic: f"{topic}x")


@_in(REPLICA_DEFECTS)
def a_node_is_away(on: Operation) -> Sequence[Expected]:
    node = _node(on, 2)
    on.absent.add(node)
    return [Expected("replica-absent", node=node)]


# --- The frontier's history


def _at(step: Step) -> str:
    return f"0/{step.row.offset}"


def _rewrite(on: Operation, step: Step, fault: str, /, **fields: Any) -> Sequence[Expected]:
    said = {**step.says, **fields}
    assert said != step.says, "nothing is changed"
    value = json.dumps(said, separators=(",", ":")).encode()
    on.change(step.row, lambda record: replace(record, value=value))
    return [Expected(fault, at=_at(step))]


@_in(FRONTIER_DEFECTS)
def cursors_step_back(on: Operation) -> Sequence[Expected]:
    step = on.past.take_idle_step()
    due_ms, *place = on.past.previous(step).says["cursor"]
    return _rewrite(on, step, "frontier-back", cursor=[due_ms - 1, *place])


@_in(FRONTIER_DEFECTS)
def offsets_step_back(on: Operation) -> Sequence[Expected]:
    step = on.past.take_idle_step()
    first, *others = on.past.previous(step).says["offsets"]
    return _rewrite(on, step, "frontier-back", offsets=[first - 1, *others])


@_in(FRONTIER_DEFECTS)
def own_writes_step_back(on: Operation) -> Sequence[Expected]:
    step = on.past.take_idle_step()
    first, *others = on.past.previous(step).says["own_writes"]
    return _rewrite(on, step, "frontier-back", own_writes=[first - 1, *others])


@_in(FRONTIER_DEFECTS)
def a_term_falls(on: Operation) -> Sequence[Expected]:
    step = on.past.take_idle_step()
    return _rewrite(on, step, "frontier-term", term=step.says["term"] - 1)


@_in(FRONTIER_DEFECTS)
def two_owners_in_a_term(on: Operation) -> Sequence[Expected]:
    step = on.past.take_idle_step()
    return _rewrite(on, step, "frontier-term", owner="n9/0123456789")


@_in(FRONTIER_DEFECTS)
def a_step_is_missing(on: Operation) -> Sequence[Expected]:
    step = on.past.take_idle_step()
    on.cut(step.row)
    following = on.past.steps[on.past.steps.index(step) + 1]
    return [Expected("frontier-step", at=_at(following))]


@_in(FRONTIER_DEFECTS)
def a_step_that_delivered_is_missing(on: Operation) -> Sequence[Expected]:
    step = on.past.take_working_step()
    on.cut(step.row)
    following = on.past.steps[on.past.steps.index(step) + 1]
    return [Expected("frontier-step", at=_at(following))]


@_in(FRONTIER_DEFECTS)
def a_step_twice(on: Operation) -> Sequence[Expected]:
    step = on.past.take_idle_step()
    return _rewrite(on, step, "frontier-step", step=step.says["step"] - 1)


@_in(FRONTIER_DEFECTS)
def a_step_says_another_digest(on: Operation) -> Sequence[Expected]:
    step = on.past.take_working_step()
    return _rewrite(on, step, "frontier-false", digest=step.says["digest"] + 1)


@_in(FRONTIER_DEFECTS)
def a_step_says_that_it_delivered_more(on: Operation) -> Sequence[Expected]:
    step = on.past.take_working_step()
    counts = step.says["counts"]
    more = {**counts, "delivered": counts["delivered"] + 1}
    return _rewrite(on, step, "frontier-false", counts=more)


@_in(FRONTIER_DEFECTS)
def a_step_without_work_says_that_it_delivered(on: Operation) -> Sequence[Expected]:
    step = on.past.take_idle_step()
    counts = {**step.says["counts"], "delivered": 1}
    return _rewrite(on, step, "frontier-false", counts=counts)


@_in(FRONTIER_DEFECTS)
def a_record_that_is_no_frontier(on: Operation) -> Sequence[Expected]:
    step = on.past.take_idle_step()
    on.change(step.row, lambda record: replace(record, value=(record.value or b"")[:-1]))
    return [Expected("frontier-broken", at=_at(step))]


@_in(FRONTIER_DEFECTS)
def a_frontier_of_an_unknown_format(on: Operation) -> Sequence[Expected]:
    return _rewrite(on, on.past.take_idle_step(), "frontier-broken", format=99)


@_in(FRONTIER_DEFECTS)
def a_frontier_without_a_value(on: Operation) -> Sequence[Expected]:
    step = on.past.take_idle_step()
    on.change(step.row, lambda record: replace(record, value=None))
    return [Expected("frontier-broken", at=_at(step))]


@_in(FRONTIER_DEFECTS)
def cursors_run_ahead(on: Operation) -> Sequence[Expected]:
    step = on.past.take_idle_step()
    return _rewrite(on, step, "frontier-ahead", cursor=[step.says["now_ms"] + 60_001, 0, 0])
