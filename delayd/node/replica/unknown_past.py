"""Decisions about kept records which a trimmed one may have made: for a replica that was rebuilt
from a log without its beginning (`replication.trimmed`).

Each question is asked before a decision is believed. Its answer is True where the decision is
unknown and makes no difference any more: then the batch notes that the message may be live. Where
it does make a difference, LogNotEnoughError ends the node: the log alone is not enough.

Source: docs/design/trimmed.md, "What decides later".
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from delayd.bus import Record
from delayd.errors import LogNotEnoughError
from replication.frontier import Frontier
from replication.ids import IdState, held_counting
from replication.ingest import REDRIVE_MEMORY_MS, Asked, Decision, Op
from replication.settings import RECEIPTS_ALL, Settings
from replication.trimmed import MAYBE, Beginning, horizons_of, is_settled, maybe_due_ms


class WholePast:
    """Nothing was trimmed, so a replica knows all: each decision is believed."""

    def hides_schedule(self, *_asked: object) -> bool:
        """Return False: nothing is unknown."""
        return False

    hides_continuation = hides_redrive = hides_held = check_marker = hides_schedule
    hides_debounce = hides_schedule


WHOLE_PAST = WholePast()


class UnknownPast:
    """What a replica does not know. Used by its ingest, under its lock."""

    def __init__(self, settings: Settings, beginnings: Sequence[Beginning]) -> None:
        self._beginnings = beginnings
        self._horizons = horizons_of(beginnings, settings)
        self._id_memory_ms = settings.id_memory_ms

    def hides_schedule(
        self,
        record: Record,
        due_ms: int,
        decision: Decision,
        before: IdState,
        covered: Frontier | None,
    ) -> bool:
        """Return whether a schedule under an id may or may not have been stored."""
        as_of_ms = decision.state.as_of_ms(record.append_ms)
        horizon_ms = self._horizons[record.partition].due_ms
        reserved, ids_ms = before.reserved, self._horizons[record.partition].ids_ms
        is_held = (reserved is not None and not reserved.is_whole) and (
            as_of_ms <= ids_ms or bool(held_counting(before, as_of_ms, self._id_memory_ms))
        )
        if not is_held and as_of_ms > horizon_ms and maybe_due_ms(before) <= as_of_ms:
            return False
        # Refused for certain, and answered.
        is_taken = any(m.is_pending(as_of_ms) and m.digest != MAYBE for m in before.live)
        if is_taken and covered is not None and record.offset < covered.offsets[record.partition]:
            return False
        self._require_settled(record, due_ms + self._id_memory_ms, covered)
        return True

    def check_marker(
        self,
        record: Record,
        asked: Asked,
        decision: Decision,
        before: IdState,
        covered: Frontier | None,
    ) -> None:
        """Raise LogNotEnoughError if no step has passed a cancel or replace yet that a trimmed
        record may decide, or if it may repeat a trimmed replace: then what is live stays."""
        repeats_until_ms = asked.due_ms + self._id_memory_ms
        if (
            (asked.op is Op.REPLACE and asked.has_own_time)
            and (before.live and before.replaced_by < 0)
            and asked.due_ms <= self._horizons[record.partition].due_ms
            and decision.state.as_of_ms(record.append_ms) <= repeats_until_ms
        ):
            raise _not_enough(record, repeats_until_ms)
        if covered is not None and record.offset < covered.offsets[record.partition]:
            return
        as_of_ms = decision.state.as_of_ms(record.append_ms)
        until_ms = self._counts_until_ms(record, before)
        if as_of_ms <= until_ms:
            raise _not_enough(record, until_ms)

    def hides_held(
        self,
        record: Record,
        asked: Asked,
        decision: Decision,
        before: IdState,
        covered: Frontier | None,
    ) -> bool:
        """Return whether a reschedule may hold what a trimmed record brought; raise
        LogNotEnoughError if no step has passed it yet."""
        self.check_marker(record, asked, decision, before, covered)
        as_of_ms = decision.state.as_of_ms(record.append_ms)
        return as_of_ms <= self._counts_until_ms(record, before)

    def hides_debounce(
        self,
        record: Record,
        due_ms: int,
        decision: Decision,
        before: IdState,
        covered: Frontier | None,
    ) -> bool:
        """Return whether a trimmed record may have begun the run of a debounce, or be killed by it;
        raise LogNotEnoughError if that makes a difference. `due_ms`: it is due then or before."""
        until_ms = self._counts_until_ms(record, before)
        if before.reserved is not None and not before.reserved.is_whole:
            raise _not_enough(record, until_ms)  # It takes over what nobody here knows.
        if decision.state.as_of_ms(record.append_ms) > until_ms:
            return False
        self._require_settled(record, due_ms + self._id_memory_ms, covered)
        return True

    def _counts_until_ms(self, record: Record, before: IdState) -> int:
        """Return until when a trimmed record may decide what a marker does."""
        ids_ms = self._horizons[record.partition].ids_ms
        return max(ids_ms, maybe_due_ms(before) + self._id_memory_ms)

    def hides_continuation(
        self,
        record: Record,
        continued: tuple[int, int],
        due_ms: int,
        decision: Decision,
        before: IdState,
        covered: Frontier | None,
        moved_by: int,
    ) -> bool:
        """Return whether a continuation under an id may have been refused. `continued`: due time
        and offset of what it continues. `moved_by`: of a reschedule, its offset, else -1."""
        if before.reserved is not None and before.reserved.marker_offset == moved_by:
            return False  # No marker has come since the reschedule.
        continued_due_ms, offset = continued
        as_of_ms = decision.state.as_of_ms(record.append_ms)
        if decision.is_refused or offset >= self._beginnings[record.partition].sure_offset:
            return False
        if continued_due_ms + self._id_memory_ms < as_of_ms:
            return False  # Not refused, whoever killed what it continues.
        if any(message.offset == offset for message in before.live):
            return False  # No marker has come since it was stored.
        self._require_settled(record, due_ms + self._id_memory_ms, covered)
        return True

    def hides_redrive(
        self,
        record: Record,
        due_ms: int,
        decision: Decision,
        states: tuple[IdState, IdState],
        covered: Frontier | None,
    ) -> bool:
        """Return whether a redrive may or may not have been stored. `states`: of its id, and of
        the source that it redrives."""
        id, redriven = states
        as_of_ms = decision.state.as_of_ms(record.append_ms)
        counting = [m for m in redriven.live if m.due_ms + REDRIVE_MEMORY_MS >= as_of_ms]
        if any(m.digest != MAYBE for m in counting):
            return False  # Refused for certain, and the answer is always the same.
        horizon = self._horizons[record.partition]
        is_hidden = bool(counting) or as_of_ms <= horizon.redrives_ms
        if not is_hidden and (as_of_ms > horizon.due_ms and maybe_due_ms(id) <= as_of_ms):
            return False
        memory_ms = as_of_ms + REDRIVE_MEMORY_MS if is_hidden else 0
        self._require_settled(record, max(due_ms + self._id_memory_ms, memory_ms), covered)
        return True

    def _require_settled(
        self, record: Record, counts_until_ms: int, covered: Frontier | None
    ) -> None:
        partition, offset = record.partition, record.offset
        if covered is None or not is_settled(covered, partition, offset, counts_until_ms):
            raise _not_enough(record, counts_until_ms)


Past = UnknownPast | WholePast


def past_of(settings: Settings, beginnings: Sequence[Beginning]) -> Past:
    """Return what is unknown to a replica that began there; `beginnings` are empty if nothing had
    been trimmed."""
    return UnknownPast(settings, beginnings) if beginnings else WHOLE_PAST


def _not_enough(record: Record, until_ms: int) -> LogNotEnoughError:
    return LogNotEnoughError(
        f"a record that was trimmed may decide what becomes of {record.partition}/{record.offset}, "
        "so this node cannot rebuild its wheel from the buffer alone",
        remedy="start it again: it copies another node's wheel, unless on_damage is stop; the "
        f"buffer alone is enough from {told_at(until_ms)} on, if nothing else like it comes: empty "
        "data_dir then, if no node can give a wheel",
    )


def told_at(at_ms: int) -> str:
    """Return a time as people read it."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")


def stores_first(past: Past, settings: Settings) -> bool:
    """Return whether a schedule under an id of which nothing is remembered is stored, without a
    word to anybody."""
    return past is WHOLE_PAST and settings.receipts_written != RECEIPTS_ALL
