"""Ingest against a naive dictionary of messages: every operation, with and without ids.

The limits are small here, so that they are reached. What nodes that forget make of the same log is
in test_ingest_model.py.
"""

from dataclasses import dataclass, field
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from replication import ids, ingest
from replication.ids import NOTHING, IdState, KilledMessage, LiveMessage
from replication.ingest import Asked, Decision, Known, LogState, Op, PendingReply
from replication.rank import Rank

ID_MEMORY_MS = 50
LIVE_MAX, REDRIVES_MAX = 4, 2
MONTH_MS = ingest.REDRIVE_MEMORY_MS
LANE = 3

names = st.sampled_from(["a", "b"])
digests = st.sampled_from([b"1", b"2"])
delays = st.one_of(st.integers(-10, 100), st.sampled_from([0, 20, ID_MEMORY_MS]))


@dataclass
class Naive:
    """One message, and what has become of it."""

    id: str | None
    due_ms: int
    digest: bytes
    origin: int = -1
    killed_by: int | None = None
    is_continued: bool = False
    is_forgotten: bool = False


@dataclass
class Partition:
    """What the log has said, message by message."""

    messages: dict[int, Naive] = field(default_factory=dict)
    killed: dict[str, list[int]] = field(default_factory=dict)
    """The last killed set of each id."""
    redriven_ms: dict[str, int] = field(default_factory=dict)

    def live(self, id: str) -> list[int]:
        return sorted(
            offset
            for offset, m in self.messages.items()
            if m.id == id and m.killed_by is None and not m.is_continued and not m.is_forgotten
        )

    def store(self, offset: int, message: Naive) -> None:
        self.messages[offset] = message
        if message.id is not None:
            live = self.live(message.id)
            if len(live) > LIVE_MAX:
                first = min(live, key=lambda o: (self.messages[o].due_ms, o))
                self.messages[first].is_forgotten = True

    def kill(self, id: str, marker: int, log_ms: int) -> list[int]:
        live = self.live(id)
        for offset in live:
            self.messages[offset].killed_by = marker
        by_due = sorted(live, key=lambda o: (self.messages[o].due_ms, o))
        if any(self.messages[o].due_ms + ID_MEMORY_MS >= log_ms for o in live):
            self.killed[id] = by_due
        elif live:
            self.killed[id] = [*self.killed.get(id, []), *by_due][-LIVE_MAX:]
        return live


class IngestMachine(RuleBasedStateMachine):
    """One partition: the rules keep states of ids, the model keeps everything."""

    def __init__(self) -> None:
        super().__init__()
        self._limits = [
            mock.patch.object(ids, "LIVE_MAX", LIVE_MAX),
            mock.patch.object(ingest, "REDRIVES_MAX", REDRIVES_MAX),
        ]
        for limit in self._limits:
            limit.start()
        self.naive = Partition()
        self.log = LogState(0, 0)
        self.largest_ms = 0
        self.append_ms = 10**12
        self.ids: dict[str, IdState] = {}
        self.redriven: dict[str, IdState] = {}
        self.kills: dict[int, int] = {}

    def teardown(self) -> None:
        for limit in self._limits:
            limit.stop()

    def take(
        self,
        op: Op,
        id: str | None = None,
        delay_ms: int = 0,
        digest: bytes = b"",
        *,
        continued: int = -1,
        origin: int = -1,
        source: str | None = None,
        gap: int = 1,
    ) -> tuple[int, Decision]:
        """One record through the rules; what they change is kept, as a wheel keeps it."""
        offset = self.log.next_offset + gap
        asked = Asked(
            op, self.append_ms + delay_ms, LANE, id is not None, digest, continued, origin
        )
        known = Known(
            NOTHING if id is None else self.ids.get(id, NOTHING),
            NOTHING if source is None else self.redriven.get(source, NOTHING),
            self.kills.get(continued),
        )
        decision = ingest.ingest(self.log, 0, offset, self.append_ms, asked, known, ID_MEMORY_MS)
        self.log = decision.state
        self.largest_ms = max(self.largest_ms, self.append_ms)
        assert self.log == LogState(offset + 1, self.largest_ms)
        if decision.id is not None:
            assert id is not None
            self.ids[id] = decision.id
        if decision.redriven is not None:
            assert source is not None
            self.redriven[source] = decision.redriven
        self.kills |= {m.offset: offset for m in decision.killed}
        if decision.rank is not None:
            due_ms = max(self.append_ms, self.append_ms + delay_ms)
            assert decision.rank == Rank(due_ms, 0, offset)
            self.naive.store(offset, Naive(id, due_ms, digest, origin))
        return offset, decision

    def pending(self, id: str | None) -> list[int]:
        live = [] if id is None else self.naive.live(id)
        log_ms = max(self.largest_ms, self.append_ms)
        return [offset for offset in live if self.naive.messages[offset].due_ms > log_ms]

    @rule(
        by_ms=st.one_of(
            st.integers(-20, 60), st.sampled_from([20, ID_MEMORY_MS, MONTH_MS, MONTH_MS + 1])
        )
    )
    def pass_time(self, by_ms: int) -> None:
        """Append times may step back."""
        self.append_ms += by_ms

    @rule(id=st.one_of(st.none(), names), delay=delays, digest=digests, gap=st.integers(0, 2))
    def schedule(self, id: str | None, delay: int, digest: bytes, gap: int) -> None:
        """Rules: schedule-free, schedule-taken"""
        holders = self.pending(id)
        _, decision = self.take(Op.SCHEDULE, id, delay, digest, gap=gap)
        if not holders:
            assert decision.rank is not None and decision.reply is PendingReply.NONE
            return
        same = any(self.naive.messages[offset].digest == digest for offset in holders)
        assert decision.rank is None and decision.id is None
        assert decision.reply is (PendingReply.DUPLICATE if same else PendingReply.CONFLICT)

    @rule(id=names, is_replace=st.booleans(), delay=delays, digest=digests)
    def marker(self, id: str, is_replace: bool, delay: int, digest: bytes) -> None:
        """Rules: cancel-kills, replace-kills"""
        offset = self.log.next_offset + 1
        killed = self.naive.kill(id, offset, max(self.largest_ms, self.append_ms))
        op = Op.REPLACE if is_replace else Op.CANCEL
        at, decision = self.take(op, id, delay, digest if is_replace else b"")
        assert at == offset and decision.reply is PendingReply.CANCEL_MARKER
        assert sorted(m.offset for m in decision.killed) == killed
        assert (decision.rank is not None) is is_replace

    @rule(id=st.one_of(st.none(), names), delay=delays, pick=st.integers(0, 5))
    def put_back(self, id: str | None, delay: int, pick: int) -> None:
        """Rules: continuation-stored, continuation-refused"""
        known = [o for o, m in self.naive.messages.items() if m.id == id and not m.is_continued]
        if not known:
            return
        continued = known[-1 - pick % len(known)]
        message = self.naive.messages[continued]
        message.is_continued = message.killed_by is None
        origin = continued if message.origin < 0 else message.origin
        _, decision = self.take(
            Op.CONTINUE, id, delay, message.digest, continued=continued, origin=origin
        )
        assert decision.reply is PendingReply.NONE
        assert decision.is_refused is (message.killed_by is not None)
        assert (decision.rank is None) is decision.is_refused

    @rule(
        id=st.one_of(st.none(), names),
        source=st.sampled_from(["0/7", "0/9"]),
        delay=delays,
        digest=digests,
    )
    def redrive(self, id: str | None, source: str, delay: int, digest: bytes) -> None:
        """Rules: redrive-once, redrive-room"""
        log_ms = max(self.largest_ms, self.append_ms)
        before_ms = self.naive.redriven_ms.get(source)
        is_full = len(self.pending(id)) >= REDRIVES_MAX
        _, decision = self.take(Op.REDRIVE, id, delay, digest, source=source)
        if before_ms is not None and log_ms - before_ms <= MONTH_MS:
            expected = PendingReply.DUPLICATE
        elif is_full:
            expected = PendingReply.CONFLICT
        else:
            expected = PendingReply.SCHEDULED
            self.naive.redriven_ms[source] = log_ms
        assert decision.reply is expected
        assert (decision.rank is not None) is (expected is PendingReply.SCHEDULED)

    @rule()
    def reject(self) -> None:
        """Rules: reject-answered"""
        _, decision = self.take(Op.REJECT)
        assert decision == Decision(None, PendingReply.REJECTED, self.log)

    @invariant()
    def ids_are_known_as_the_messages_say(self) -> None:
        """Rules: live-limit, killed-set-kept"""
        for id in ("a", "b"):
            state = self.ids.get(id, NOTHING)
            assert state.live == tuple(
                sorted(
                    LiveMessage(m.due_ms, offset, LANE, m.digest, m.origin)
                    for offset in self.naive.live(id)
                    for m in [self.naive.messages[offset]]
                )
            )
            assert state.killed == tuple(
                KilledMessage(m.due_ms, offset, LANE, m.origin)
                for offset in self.naive.killed.get(id, [])
                for m in [self.naive.messages[offset]]
            )


TestIngestAgainstADictionary = IngestMachine.TestCase
TestIngestAgainstADictionary.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, print_blob=True
)
