"""The notes of a report: what an audit could not judge, and why.

Retention is no fault, but who reads "ok" must know what it was not said of.
Source: docs/design/audit.md, "Retention".
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from delayd.audit.table_loader import Tables

NOTES_MAX: Final = 20
"""Topics that notes of a kind name."""


@dataclass(frozen=True, slots=True)
class Unproven:
    """Messages of a target that are unproven; see judging/retention.py."""

    topic: str
    count: int
    of_target: int
    of_dead: int


def notes_of(
    tables: Tables,
    unproven: Sequence[Unproven],
    *,
    strays: int,
    compared: int,
    are_all_known: bool,
    overdue: int,
    last_steps_ms: Sequence[int],
    requeued: int,
) -> tuple[str, ...]:
    """Return all notes of an audit. `unproven`: most first, at most NOTES_MAX + 1. `strays`:
    records of the frontier topic that no master wrote; `compared`: nodes; `are_all_known`: has
    anybody said how many there are? `overdue`: pending messages; `last_steps_ms`: when
    the last step of each shard was made; `requeued`: messages without lateness."""
    notes = []
    if overdue:
        last_ms = min(last_steps_ms)
        of_shard = f" of shard {last_steps_ms.index(last_ms)}" if len(last_steps_ms) > 1 else ""
        notes.append(
            f"{overdue} messages are pending though they were due more than a minute ago; the last "
            f"step{of_shard} was made at {_text(last_ms)}."
        )
    if strays:
        topic = tables.bounds.settings.frontier.name
        notes.append(
            f"{strays} records in {topic} are not delayd's, by their key, and were skipped: only "
            "delayd should be allowed to write there."
        )
    if not compared:
        notes.append("Replicas were not compared: no node was named.")
    elif not are_all_known:
        notes.append(
            f"{compared} nodes were compared. etcd forgets a node that is down: with --nodes you "
            "say how many there must be."
        )
    if not tables.bounds.proofs_checked:
        notes.append(
            "Records of the buffer that look like the master's own were believed: without the "
            "cluster key their proofs cannot be checked."
        )
    notes.extend(_of_unproven(tables, unproven))
    notes.extend(
        f"{topic} does not exist any more: what was delivered there is unproven."
        for topic in tables.deserted[:NOTES_MAX]
    )
    notes.extend(
        f"{topic} is compacted: what is missing there proves nothing."
        for topic in tables.compacted[:NOTES_MAX]
    )
    notes.extend(_of_trimmed(tables))
    if requeued:
        notes.append(f"Lateness leaves out {requeued} messages that were requeued and tried again.")
    return tuple(notes)


def _of_unproven(tables: Tables, unproven: Sequence[Unproven]) -> Iterable[str]:
    """Yield how many there are of each target, and why."""
    dead = tables.bounds.settings.dead.name
    for each in unproven[:NOTES_MAX]:
        topic = each.topic
        target = "their delivery may have been deleted"
        if topic in tables.deserted:
            target = "the topic does not exist any more"
        elif topic in tables.compacted:
            target = "the topic is compacted"
        of_id = each.count - each.of_target - each.of_dead
        why = {
            target: each.of_target,
            f"their dead letter may have been deleted from {dead}": each.of_dead,
            "requests under their id may have been deleted": of_id,
        }
        reasons = "; ".join(f"{count} because {reason}" for reason, count in why.items() if count)
        yield f"{each.count} messages for {topic} are unproven: {reasons}."
    if len(unproven) > NOTES_MAX:
        yield f"Messages for more than {NOTES_MAX} topics are unproven: the others are not named."


def _of_trimmed(tables: Tables) -> Iterable[str]:
    """Yield since when each topic is a proof."""
    bounds, settings = tables.bounds, tables.bounds.settings
    own = {
        settings.dead.name: "a message of any target that was due earlier may have been a dead "
        "letter there, and is not called lost; nor are letters of earlier requests missed.",
        settings.receipts.name: "no receipt is missed of what was asked or came out earlier.",
        settings.buffer.name: "what names a request that is not there any more is not judged, nor "
        "what such requests decided.",
    }
    others = bounds.trimmed_ms.keys() - {*tables.compacted, *tables.deserted}
    targets = sorted(others - own.keys())[:NOTES_MAX]
    for topic in [*(topic for topic in own if topic in others), *targets]:
        what = own.get(topic, "what was due earlier is not called lost.")
        before = _text(bounds.trimmed_before_ms(topic))
        yield f"Kafka may have deleted what {topic} held before {before}: {what}"


def _text(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
