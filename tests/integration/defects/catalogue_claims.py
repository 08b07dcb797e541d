"""Defects of what delayd claims: receipts, exports, and the frontier's history.

As in catalogue.py: what is planted, and which findings must come of it, and no others.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from chaos.batches import LogRecord
from defects.catalogue import Plant, has_no_id, kills_one_for_a_target, partition_for
from defects.operation import Expected, Operation, saying
from defects.past import Past, Step, Told, Victim, source_of

VERDICT_DEFECTS: Final[dict[str, Plant]] = {}
REPLICA_DEFECTS: Final[dict[str, Plant]] = {}
FRONTIER_DEFECTS: Final[dict[str, Plant]] = {}


def _in(catalogue: dict[str, Plant]) -> Callable[[Plant], Plant]:
    def add(plant: Plant) -> Plant:
        catalogue[plant.__name__.replace("_", "-")] = plant
        return plant

    return add


# --- Receipts


Chosen = Callable[[Past], Told]


def _mark(verdict: str, condition: Callable[[Told], bool] = lambda _: True) -> Chosen:
    return lambda past: past.take_mark(verdict, condition)


def _only_receipt(fate: str, condition: Callable[[Victim], bool] = lambda _: True) -> Chosen:
    """Of a message that has no other."""

    def chosen(past: Past) -> Told:
        return past.take(fate, lambda v: len(v.receipts) == 1 and condition(v)).receipts[0]

    return chosen


def _missing(chosen: Chosen) -> Plant:
    def plant(on: Operation) -> Sequence[Expected]:
        told = chosen(on.past)
        on.cut(told.row)
        return [Expected("verdict-missing", told.says["source"])]

    return plant


def _twice(chosen: Chosen) -> Plant:
    def plant(on: Operation) -> Sequence[Expected]:
        told = chosen(on.past)
        on.add_again(told.row)
        return [Expected("verdict-doubled", told.says["source"])]

    return plant


VERDICT_DEFECTS.update(
    {
        "the-receipt-of-a-cancel-is-missing": _missing(_mark("cancelled")),
        "the-receipt-of-a-late-cancel-is-missing": _missing(_mark("too-late")),
        "the-receipt-of-a-duplicate-is-missing": _missing(_only_receipt("refused_as_duplicate")),
        "the-receipt-of-a-conflict-is-missing": _missing(_only_receipt("conflict")),
        "the-receipt-of-a-bad-request-is-missing": _missing(_only_receipt("rejected")),
        "the-receipt-of-a-dead-message-is-missing": _missing(
            _only_receipt("dead", lambda v: not v.is_named)
        ),
    }
)


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

    return _missing(_only_receipt("dead", lambda v: v.is_named and died_before(v)))(on)


VERDICT_DEFECTS.update(
    {
        "the-receipt-of-a-redrive-is-missing": _missing(
            lambda past: past.take(
                "delivered", lambda v: "redrive" in v.message.record.fields
            ).receipts[0]
        ),
        "a-receipt-twice": _twice(_mark("cancelled")),
    }
)


@_in(VERDICT_DEFECTS)
def two_receipts_that_contradict_each_other(on: Operation) -> Sequence[Expected]:
    told = on.past.take_mark("not-found")
    again = saying(on.record(told.row), told, verdict="too-late")
    on.add(told.row.topic, told.row.partition, again)
    return [Expected("verdict-false", told.says["source"])]


VERDICT_DEFECTS["a-receipt-of-a-dead-message-twice"] = _twice(_only_receipt("dead"))


def _say_false(on: Operation, told: Told, **says: Any) -> Sequence[Expected]:
    assert {**told.says, **says} != told.says, "nothing is false"
    on.say(told, **says)
    return [Expected("verdict-false", told.says["source"])]


def _false(chosen: Chosen, **says: Any) -> Plant:
    return lambda on: _say_false(on, chosen(on.past), **says)


def _delivered_under(on: Operation, told: Told) -> str:
    """The message that a late cancel came too late for."""
    [source] = [
        victim.source
        for victim in on.past.of_id[told.says["id"]]
        if victim.fate == "delivered" and victim.source != told.says["source"]
    ]
    return source


def _came_too_late(past: Past) -> Told:
    """A cancel after its only message was delivered."""

    def is_one(told: Told) -> bool:
        fates = [victim.fate for victim in past.of_id[told.says["id"]]]
        return told.says["op"] == "cancel" and fates == ["delivered"]

    return past.take_mark("too-late", is_one)


def _is_first(told: Told) -> bool:
    """A cancel that killed something itself: what it says is said nowhere else."""
    return len(told.says["killed"]) == 1 and told.says["op"] == "cancel"


@_in(VERDICT_DEFECTS)
def cancelled_of_a_delivered_message(on: Operation) -> Sequence[Expected]:
    told = _came_too_late(on.past)
    return _say_false(on, told, verdict="cancelled", killed=[_delivered_under(on, told)])


VERDICT_DEFECTS["too-late-for-a-cancelled-message"] = _false(
    _mark("cancelled", _is_first), verdict="too-late", killed=[]
)


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
    return _say_false(on, told, verdict="too-late", killed=[])


VERDICT_DEFECTS.update(
    {
        "not-found-where-something-was-killed": _false(
            _mark("cancelled", _is_first), verdict="not-found", killed=[]
        ),
        "not-found-for-a-delivered-message": _false(_came_too_late, verdict="not-found"),
    }
)


@_in(VERDICT_DEFECTS)
def the_killed_list_names_another(on: Operation) -> Sequence[Expected]:
    told = on.past.take_mark("cancelled", _is_first)
    other = on.past.take("cancelled", lambda v: v.source not in told.says["killed"])
    return _say_false(on, told, killed=[other.source])


VERDICT_DEFECTS["the-killed-list-names-nobody"] = _false(_mark("cancelled", _is_first), killed=[])


@_in(VERDICT_DEFECTS)
def replaced_though_it_was_too_late(on: Operation) -> Sequence[Expected]:
    def has_one(told: Told) -> bool:
        victims = on.past.of_id[told.says["id"]]
        others = [v.fate for v in victims if v.source != told.says["source"]]
        return told.says["op"] == "replace" and others == ["delivered"]

    told = on.past.take_mark("too-late", has_one)
    return _say_false(on, told, verdict="replaced", killed=[_delivered_under(on, told)])


VERDICT_DEFECTS.update(
    {
        "a-duplicate-is-called-a-conflict": _false(
            _only_receipt("refused_as_duplicate"), verdict="conflict"
        ),
        "a-bad-request-is-called-scheduled": _false(_only_receipt("rejected"), verdict="scheduled"),
    }
)


@_in(VERDICT_DEFECTS)
def dead_of_a_delivered_message(on: Operation) -> Sequence[Expected]:
    """Under an id that has no receipt at all; so there is one too many, and it is false."""
    victim = on.past.take("delivered", lambda v: v.id is not None and not _is_named(v))
    told = _only_receipt("dead")(on.past)
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


def _unknown(change: Callable[[LogRecord, Told], LogRecord]) -> Plant:
    def plant(on: Operation) -> Sequence[Expected]:
        told = on.past.take_mark("not-found")
        record = change(on.record(told.row), told)
        offset = on.add(told.row.topic, told.row.partition, record)
        return [Expected("verdict-unknown", at=f"{told.row.partition}/{offset}")]

    return plant


def _of_nobody(record: LogRecord, told: Told) -> LogRecord:
    source = "1/999999999"
    return saying(record, told, source=source).with_header("delayd-source", source.encode())


VERDICT_DEFECTS.update(
    {
        "a-receipt-of-nobody": _unknown(_of_nobody),
        "a-receipt-that-is-no-json": _unknown(lambda r, _: replace(r, value=b'{"id":')),
        "a-receipt-under-another-key": _unknown(lambda r, _: replace(r, key=b"another")),
    }
)


def _is_named(victim: Victim) -> bool:
    return victim.is_named or bool(victim.receipts) or victim.was_retried


# --- Exports

Row = dict[str, Any]


def _node(on: Operation, number: int) -> str:
    return sorted(on.exports)[number]


def _place(row: Row) -> str:
    return f"{row['partition']}/{row['offset']}"


def _replica(number: int, fault: str, instead: Callable[[Row, Past], list[Row]]) -> Plant:
    """Other rows instead of one, of a message that no other defect is about; the last is wrong."""

    def plant(on: Operation) -> Sequence[Expected]:
        source, node = on.past.take("pending").source, _node(on, number)
        found = []

        def edit(rows: list[Row]) -> None:
            [at] = [at for at, row in enumerate(rows) if _place(row) == source]
            rows[at : at + 1] = others = instead(rows[at], on.past)
            found.append(Expected(fault, _place(others[-1]) if others else source, node=node))

        on.edit(node, edit)
        return found

    return plant


def _and_a_delivered_one(row: Row, past: Past) -> list[Row]:
    victim = past.take("delivered", has_no_id)
    due_ms, asked = victim.message.due_ms, victim.message.record
    place = {"partition": asked.partition, "offset": asked.offset}
    due = {"due_ms": due_ms, "slot": due_ms // 1000, "append_ms": asked.append_ms}
    return [row, {**row, **place, **due, "id": None, "digest": None}]


def _changed(number: int, name: str, new: Callable[[Any], Any]) -> Plant:
    return _replica(number, "replica-changed", lambda row, _: [{**row, name: new(row[name])}])


REPLICA_DEFECTS.update(
    {
        "a-node-lacks-a-message": _replica(0, "replica-missing", lambda row, _: []),
        "a-node-holds-a-delivered-message": _replica(1, "replica-extra", _and_a_delivered_one),
        "a-node-holds-what-nobody-sent": _replica(
            0, "replica-extra", lambda row, _: [row, {**row, "offset": 999_999_999}]
        ),
        "a-node-holds-a-message-twice": _replica(1, "replica-extra", lambda row, _: [row, row]),
        "a-node-holds-another-payload": _changed(1, "payload_crc", lambda crc: crc ^ 1),
        "a-node-holds-another-due-time": _changed(0, "due_ms", lambda due: due + 1),
        "a-node-files-it-in-another-slot": _changed(1, "slot", lambda slot: slot + 1),
        "a-node-holds-another-lane": _changed(0, "lane", lambda lane: (lane + 1) % 64),
        "a-node-holds-another-target": _changed(1, "topic", lambda topic: f"{topic}x"),
    }
)


@_in(REPLICA_DEFECTS)
def a_node_is_away(on: Operation) -> Sequence[Expected]:
    node = _node(on, 2)
    on.absent.add(node)
    return [Expected("replica-absent", node=node)]


# --- The frontier's history


Says = dict[str, Any]


def _at(step: Step) -> str:
    return f"0/{step.row.offset}"


def _step_cut(choose: Callable[[Past], Step]) -> Plant:
    def plant(on: Operation) -> Sequence[Expected]:
        step = choose(on.past)
        on.cut(step.row)
        following = on.past.steps[on.past.steps.index(step) + 1]
        return [Expected("frontier-step", at=_at(following))]

    return plant


def _broken(change: Callable[[LogRecord], LogRecord]) -> Plant:
    def plant(on: Operation) -> Sequence[Expected]:
        step = on.past.take_idle_step()
        on.change(step.row, change)
        return [Expected("frontier-broken", at=_at(step))]

    return plant


def _step_says(
    fault: str,
    fields: Callable[[Says, Says], Says],
    choose: Callable[[Past], Step] = Past.take_idle_step,
) -> Plant:
    """Other fields in a step, from what it says and what the step before it says."""

    def plant(on: Operation) -> Sequence[Expected]:
        step = choose(on.past)
        said = {**step.says, **fields(step.says, on.past.previous(step).says)}
        assert said != step.says, "nothing is changed"
        value = json.dumps(said, separators=(",", ":")).encode()
        on.change(step.row, lambda record: replace(record, value=value))
        return [Expected(fault, at=_at(step))]

    return plant


def _first_less(name: str) -> Callable[[Says, Says], Says]:
    """One less at first than in the step before."""
    return lambda _, before: {name: [before[name][0] - 1, *before[name][1:]]}


def _delivered_one_more(says: Says, _: Says) -> Says:
    return {"counts": {**says["counts"], "delivered": says["counts"]["delivered"] + 1}}


FRONTIER_DEFECTS.update(
    {
        "cursors-step-back": _step_says("frontier-back", _first_less("cursor")),
        "offsets-step-back": _step_says("frontier-back", _first_less("offsets")),
        "own-writes-step-back": _step_says("frontier-back", _first_less("own_writes")),
        "a-term-falls": _step_says("frontier-term", lambda s, _: {"term": s["term"] - 1}),
        "two-owners-in-a-term": _step_says(
            "frontier-term", lambda s, _: {"owner": "n9/0123456789"}
        ),
        "a-step-is-missing": _step_cut(Past.take_idle_step),
        "a-step-that-delivered-is-missing": _step_cut(Past.take_working_step),
        "a-step-twice": _step_says("frontier-step", lambda s, _: {"step": s["step"] - 1}),
        "a-step-says-another-digest": _step_says(
            "frontier-false", lambda s, _: {"digest": s["digest"] + 1}, Past.take_working_step
        ),
        "a-step-says-that-it-delivered-more": _step_says(
            "frontier-false", _delivered_one_more, Past.take_working_step
        ),
        "a-step-without-work-says-that-it-delivered": _step_says(
            "frontier-false", _delivered_one_more
        ),
        "a-record-that-is-no-frontier": _broken(
            lambda record: replace(record, value=(record.value or b"")[:-1])
        ),
        "a-frontier-of-an-unknown-format": _step_says(
            "frontier-broken", lambda s, _: {"format": 99}
        ),
        "a-frontier-without-a-value": _broken(lambda record: replace(record, value=None)),
        "cursors-run-ahead": _step_says(
            "frontier-ahead", lambda s, _: {"cursor": [s["now_ms"] + 60_001, 0, 0]}
        ),
    }
)
