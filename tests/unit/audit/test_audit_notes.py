"""What an audit says of what it could not judge."""

from collections.abc import Mapping
from typing import Any

from cluster_settings import SETTINGS

from delayd.audit.bounds import Bounds, ShardCut
from delayd.audit.notes import NOTES_MAX, Unproven, notes_of
from delayd.audit.table_loader import Tables
from replication.frontier import first_frontier

AT_MS = 1_785_000_000_000
AT = "2026-07-25T17:20:00Z"
NOTHING: Any = None
"""No note reads a table."""

PLAIN: Mapping[str, Any] = {
    "compared": 3,
    "are_all_known": True,
    "overdue": 0,
    "last_steps_ms": [AT_MS],
    "requeued": 0,
    "strays": 0,
}


def notes(
    trimmed_ms: Mapping[str, tuple[int, ...]],
    *unproven: Unproven,
    compacted: tuple[str, ...] = (),
    deserted: tuple[str, ...] = (),
    **said: Any,
) -> tuple[str, ...]:
    bounds = Bounds(
        settings=SETTINGS,
        frontier=first_frontier(0, 2, 8),
        cuts=(ShardCut(0, AT_MS),),
        buffer_starts=(0, 0),
        buffer_ends=(0, 0),
        buffer_latest=(0, 0),
        trimmed_ms=trimmed_ms,
        target_partitions={},
        proofs_checked=True,
    )
    tables = Tables(
        logged=NOTHING,
        deliveries=NOTHING,
        receipts=NOTHING,
        letters=NOTHING,
        frontiers=NOTHING,
        bounds=bounds,
        read_ms=AT_MS,
        counts=(),
        compacted=compacted,
        deserted=deserted,
    )
    return notes_of(tables, unproven, **{**PLAIN, **said})


def test_a_cluster_that_is_well_needs_no_note() -> None:
    assert notes({}) == ()


def test_who_was_not_compared_is_told() -> None:
    assert ["not compared" in note for note in notes({}, compared=0)] == [True]
    assert ["2 nodes were" in note for note in notes({}, compared=2, are_all_known=False)] == [True]


def test_records_that_are_not_delayds_are_told() -> None:
    [note] = notes({}, strays=3)
    assert "3 records in delayd-frontier" in note


def test_what_is_overdue_is_told_with_the_time_of_the_last_step() -> None:
    [note] = notes({}, overdue=7)
    assert "7 messages are pending" in note
    assert AT in note


def test_of_shards_that_is_told_which_makes_no_steps() -> None:
    """The others may go on."""
    [note] = notes({}, overdue=3, last_steps_ms=[AT_MS + 90_000, AT_MS, AT_MS + 60_000])
    assert f"the last step of shard 1 was made at {AT}" in note


def test_each_trimmed_topic_says_what_it_does_not_prove() -> None:
    trimmed_ms = dict.fromkeys(("orders", "delayd-dead", "delayd-receipts"), (0, AT_MS))

    told = notes(trimmed_ms)

    def of(topic: str) -> str:
        [note] = [each for each in told if f"what {topic} held before {AT}" in each]
        return note

    assert "any target" in of("delayd-dead")
    assert "receipt" in of("delayd-receipts")
    assert of("orders").endswith("what was due earlier is not called lost.")
    assert len(told) == 3


def test_messages_are_unproven_because_of_what_kafka_has_deleted() -> None:
    trimmed_ms = {"mails": (AT_MS,), "bills": (AT_MS,)}

    told = notes(
        trimmed_ms,
        Unproven("orders", 10, 5, 3),
        Unproven("mails", 4, 4, 0),
        Unproven("bills", 2, 2, 0),
        compacted=("bills",),
        deserted=("mails",),
    )

    assert told == (
        "10 messages for orders are unproven: 5 because their delivery may have been deleted; "
        "3 because their dead letter may have been deleted from delayd-dead; "
        "2 because requests under their id may have been deleted.",
        "4 messages for mails are unproven: 4 because the topic does not exist any more.",
        "2 messages for bills are unproven: 2 because the topic is compacted.",
        "mails does not exist any more: what was delivered there is unproven.",
        "bills is compacted: what is missing there proves nothing.",
    )


def test_notes_name_a_limited_number_of_topics() -> None:
    names = [f"t{number}" for number in range(NOTES_MAX + 5)]
    trimmed_ms = dict.fromkeys((*names, "delayd-dead"), (AT_MS,))

    told = notes(trimmed_ms, *(Unproven(name, 1, 1, 0) for name in names[: NOTES_MAX + 1]))

    assert len(told) == NOTES_MAX + 1 + 1 + NOTES_MAX
    assert any("others are not named" in note for note in told)
    assert any("delayd-dead" in note for note in told)
