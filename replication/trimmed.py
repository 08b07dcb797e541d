"""A log whose beginning was trimmed: what a node without a wheel may still conclude from it. Pure.

A node that reads such a log from its first kept record on lacks all that older records said. Two
things bound that: a record says nothing of later than its append time plus the longest delay, and
what it says counts for a while after that only. So a partition has three *horizons*:

    due_ms        no trimmed message is due later
    ids_ms        nothing trimmed counts for an id as of later
    redrives_ms   no trimmed redrive counts as of later

`missing` says whether a frontier is beyond them: then all that was trimmed is done, and decides
nothing that is still to come. What is left are kept records from before a horizon, which a trimmed
one may have decided. Whether such a schedule was stored is unknown, and it is noted as a live
message with the digest `MAYBE`. That is no guess as long as it is *settled* either way: done if it
was stored, and due so long ago that no later record asks.

Assumption: a trimmed record was not stamped later than the first kept one by more than the trail of
log time. Kafka's own retention keeps to it: it deletes what is older than what it keeps.
Source: docs/design/trimmed.md.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from replication.frontier import Frontier
from replication.ids import IdState, LiveMessage, with_live, without_live
from replication.ingest import REDRIVE_MEMORY_MS
from replication.log_time import trail_ms_of
from replication.rules import Rules, is_steady
from replication.settings import AT_LEAST_ONCE, STEADY_RULES, Settings

MAYBE: Final = b"?"
"""Digest of a live message that may not have been stored; no request has it."""


class Beginning(NamedTuple):
    """Where the log of a partition began for a node that had nothing of what was before."""

    offset: int
    """0 if nothing was trimmed."""
    append_ms: int
    """Of the first record that was kept."""
    sure_offset: int
    """No record from here on was appended before `Horizon.due_ms`."""
    has_letters: bool
    """False if there was no dead letter yet, and so nothing to redrive."""


UNTRIMMED: Final = Beginning(0, 0, 0, False)


class Horizon(NamedTuple):
    """Times of one partition, Unix ms; -1 if nothing was trimmed that matters."""

    due_ms: int
    ids_ms: int
    redrives_ms: int


class Missing(NamedTuple):
    """Why a log alone is not enough."""

    what: str
    until_ms: int | None
    """From when on it is enough, if time alone helps: when the lowest cursor is beyond."""


def horizon_of(beginning: Beginning, settings: Settings) -> Horizon:
    """Return the horizons of a partition that begins there."""
    if beginning.offset == 0:
        return Horizon(-1, -1, -1)
    # What a master requeues is a record of its own, and due within the longest of these.
    longest_ms = max(settings.max_delay_ms, *settings.retry_delays_ms)
    last_ms = beginning.append_ms + trail_ms_of(settings, STEADY_RULES)
    due_ms = last_ms + longest_ms
    redrives_ms = last_ms + REDRIVE_MEMORY_MS if beginning.has_letters else -1
    return Horizon(due_ms, due_ms + settings.id_memory_ms, redrives_ms)


def missing(
    partition: int,
    start: int,
    beginning: Beginning | None,
    frontier: Frontier,
    rules: Rules,
    settings: Settings,
) -> Missing | None:
    """Return what keeps a partition that begins at offset `start` from being enough for a node
    without a wheel, by the newest frontier; None if it is enough.

    `beginning` is None if no committed record is kept.
    """
    if settings.guarantee == AT_LEAST_ONCE:
        return Missing("the guarantee is at-least-once, where no log proves what was done", None)
    if not is_steady(rules.version_at(partition, start)):
        return Missing(f"it begins by rules older than {STEADY_RULES}", None)
    if beginning is None:
        return Missing("it holds no record that tells when the trimmed ones were appended", None)
    if frontier.offsets[partition] < start:
        return Missing(f"the last frontier has come to offset {frontier.offsets[partition]}", None)
    horizon = horizon_of(beginning, settings)
    until_ms = max(horizon.ids_ms, horizon.redrives_ms)
    if frontier.lowest_cursor.due_ms <= until_ms:
        return Missing("what was trimmed may be pending, or still count for an id", until_ms)
    return None


def with_maybe(
    state: IdState, due_ms: int, offset: int, lane: int, instead_of: int = -1
) -> IdState:
    """Return the state of an id with one more message that may be live; `instead_of`: the offset
    of the message that it continues."""
    return with_live(without_live(state, instead_of), LiveMessage(due_ms, offset, lane, MAYBE))


def maybe_due_ms(state: IdState) -> int:
    """Return the latest due time of what may be live; -1 if all is known."""
    return max((m.due_ms for m in state.live if m.digest == MAYBE), default=-1)


def is_settled(frontier: Frontier, partition: int, offset: int, counts_until_ms: int) -> bool:
    """Return whether it makes no difference any more if a record was stored which counts until
    then: a step has passed it, and all lanes are beyond."""
    return offset < frontier.offsets[partition] and counts_until_ms < frontier.lowest_cursor.due_ms


def horizons_of(beginnings: Sequence[Beginning], settings: Settings) -> tuple[Horizon, ...]:
    """Return the horizons by partition."""
    return tuple(horizon_of(beginning, settings) for beginning in beginnings)
