"""The ingest rules for ids against a naive dictionary, and nodes that forget against one that
never does (docs/design/frontier.md, "Ingest" and "Ids")."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replication.frontier import Frontier, first_frontier
from replication.ids import NOTHING, IdState, KilledMessage, LiveMessage
from replication.ingest import Asked, Decision, Known, LogState, Op, PendingReply, ingest
from replication.rank import Rank
from replication.verdict import CancelMarker, Judgement, judge

ID_MEMORY_MS = 50
TRAILS_MS = (0, ID_MEMORY_MS // 6)
"""By rules 3 and 4."""
START_MS = 1_000


@dataclass
class Request:
    """One drawn record: `append_ms` may step back."""

    op: Op
    id: str
    append_ms: int
    delay_ms: int
    digest: bytes
    continued: int
    """Which of the id's messages a continuation continues, counted from the newest."""
    has_own_time: bool
    """Of a replace: the same once more is the same request."""


requests = st.lists(
    st.builds(
        Request,
        op=st.sampled_from([Op.SCHEDULE, Op.SCHEDULE, Op.CANCEL, Op.REPLACE, Op.CONTINUE]),
        id=st.sampled_from(["a", "b"]),
        append_ms=st.integers(-20, 60),
        delay_ms=st.integers(-10, 100),
        digest=st.sampled_from([b"1", b"2"]),
        continued=st.integers(0, 2),
        has_own_time=st.booleans(),
    ),
    max_size=40,
)


@dataclass
class Naive:
    """What the table of the rules says, message by message."""

    due_of: dict[int, int] = field(default_factory=dict)
    id_of: dict[int, str] = field(default_factory=dict)
    digest_of: dict[int, bytes] = field(default_factory=dict)
    killed_by: dict[int, int] = field(default_factory=dict)
    continued: set[int] = field(default_factory=set)
    replaced: dict[str, int] = field(default_factory=dict)
    """By id: the last replace with a due time of its own."""
    origin_of: dict[int, int] = field(default_factory=dict)

    def live(self, id: str) -> list[int]:
        return [
            offset
            for offset in self.id_of
            if self.id_of[offset] == id
            and offset not in self.killed_by
            and offset not in self.continued
        ]

    def store(self, offset: int, id: str, due_ms: int, digest: bytes) -> None:
        self.id_of[offset], self.due_of[offset], self.digest_of[offset] = id, due_ms, digest

    def take(
        self, offset: int, request: Request, log_ms: int, continues: int | None, *, is_old: bool
    ) -> str:
        """`is_old`: by rules 2 and 3."""
        live = self.live(request.id)
        due_ms = max(request.append_ms + request.delay_ms, request.append_ms)
        if request.op is Op.SCHEDULE:
            taken = [o for o in live if self.due_of[o] > log_ms]
            if taken:
                same = any(self.digest_of[o] == request.digest for o in taken)
                return "duplicate" if same else "conflict"
            self.store(offset, request.id, due_ms, request.digest)
            return "stored"
        if request.op is Op.CONTINUE:
            assert continues is not None
            if continues in self.killed_by and (
                is_old or self.due_of[continues] + ID_MEMORY_MS >= log_ms
            ):
                return "refused"
            self.continued.add(continues)
            self.store(offset, request.id, due_ms, self.digest_of[continues])
            self.origin_of[offset] = self.origin_of.get(continues, continues)
            return "stored"
        is_recent = request.append_ms + request.delay_ms + ID_MEMORY_MS >= log_ms
        is_repeatable = request.op is Op.REPLACE and request.has_own_time and not is_old
        first = self.replaced.get(request.id)
        if is_repeatable and any(
            self.origin_of.get(o, o) == first
            and (is_recent or o == first)
            and self.digest_of[o] == request.digest
            and self.due_of[o] + ID_MEMORY_MS >= log_ms
            for o in live
        ):
            return f"repeats {first}"
        self.replaced.pop(request.id, None)
        if is_repeatable:
            self.replaced[request.id] = offset
        for killed in live:
            self.killed_by[killed] = offset
        if request.op is Op.REPLACE:
            self.store(offset, request.id, due_ms, request.digest)
            return f"stored, killed {sorted(live)}"
        return f"killed {sorted(live)}"


def absolute(drawn: list[Request]) -> list[Request]:
    now_ms, made = START_MS, []
    for request in drawn:
        now_ms += request.append_ms
        made.append(replace(request, append_ms=now_ms))
    return made


def told(decision: Decision, op: Op) -> str:
    if decision.is_refused:
        return "refused"
    if decision.reply is PendingReply.DUPLICATE:
        return "duplicate"
    if decision.reply is PendingReply.CONFLICT:
        return "conflict"
    if decision.repeats >= 0:
        return f"repeats {decision.repeats}"
    killed = f"killed {sorted(m.offset for m in decision.killed)}"
    if op is Op.CANCEL:
        return killed
    return f"stored, {killed}" if op is Op.REPLACE else "stored"


@settings(max_examples=300, deadline=None)
@given(requests, st.sampled_from(TRAILS_MS))
def test_ingest_does_what_a_naive_dictionary_does(drawn: list[Request], trail_ms: int) -> None:
    """Rules: schedule-free, schedule-taken, cancel-kills, replace-kills

    Rules: replace-repeated, continuation-refused
    """
    naive = Naive()
    states: dict[str, IdState] = {}
    kills: dict[int, int] = {}
    log = LogState(0, 0)
    for offset, request in enumerate(absolute(drawn)):
        continues = None
        if request.op is Op.CONTINUE:
            candidates = [
                o for o, id in naive.id_of.items() if id == request.id and o not in naive.continued
            ]
            if not candidates:
                continue
            continues = sorted(candidates)[-1 - request.continued % len(candidates)]
        digest = request.digest if continues is None else naive.digest_of[continues]
        asked = Asked(
            request.op,
            request.append_ms + request.delay_ms,
            0,
            True,
            digest,
            -1 if continues is None else continues,
            -1 if continues is None else naive.origin_of.get(continues, continues),
            continued_due_ms=0 if continues is None else naive.due_of[continues],
            has_own_time=request.has_own_time,
        )
        known = Known(
            states.get(request.id, NOTHING),
            killed_by=None if continues is None else kills.get(continues),
        )
        decision = ingest(log, 0, offset, request.append_ms, asked, known, ID_MEMORY_MS, trail_ms)
        log = decision.state
        as_of_ms = log.as_of_ms(request.append_ms)
        expected = naive.take(offset, request, as_of_ms, continues, is_old=trail_ms == 0)
        assert told(decision, request.op) == expected
        if decision.id is not None:
            states[request.id] = decision.id
        kills |= {m.offset: offset for m in decision.killed}
        live = states.get(request.id, NOTHING).live
        assert sorted(m.offset for m in live) == sorted(naive.live(request.id))
        assert {m.offset: m.due_ms for m in live} == {
            o: naive.due_of[o] for o in naive.live(request.id)
        }


@settings(max_examples=300, deadline=None)
@given(requests, st.lists(st.booleans(), min_size=40, max_size=40), st.sampled_from(TRAILS_MS))
def test_nodes_that_forget_sooner_or_later_judge_alike(
    drawn: list[Request], forgets: list[bool], trail_ms: int
) -> None:
    """A master delivers at once all that is due, or puts it back; one node forgets whenever it may
    (not before it has ingested R: what was put back), one never.

    Rules: forget-alike
    """
    keeps: dict[str, IdState] = {}
    drops: dict[str, IdState] = {}
    log = LogState(0, 0)
    done = first_frontier(0, partitions=1, lanes=1)
    of_last_step: dict[str, list[LiveMessage]] = {}
    log_of = absolute(drawn)
    for offset, request in enumerate(log_of):
        asked = Asked(request.op, request.append_ms + request.delay_ms, 0, True, request.digest)
        asked = asked._replace(has_own_time=request.has_own_time)
        if request.op is Op.CONTINUE:
            if not (candidates := of_last_step.get(request.id)):
                continue
            again = candidates[request.continued % len(candidates)]
            asked = asked._replace(
                digest=again.digest,
                continued_offset=again.offset,
                origin=again.asked_at,
                continued_due_ms=again.due_ms,
            )
        decisions = [
            ingest(
                log,
                0,
                offset,
                request.append_ms,
                asked,
                Known(states.get(request.id, NOTHING)),
                ID_MEMORY_MS,
                trail_ms,
            )
            for states in (keeps, drops)
        ]
        kept, dropped = decisions
        assert (kept.rank, kept.reply) == (dropped.rank, dropped.reply)
        if kept.reply is PendingReply.CANCEL_MARKER:
            verdicts = [
                verdict_of(states.get(request.id, NOTHING), request, offset, decision, done)
                for states, decision in ((keeps, kept), (drops, dropped))
            ]
            assert verdicts[0].outcome is verdicts[1].outcome
            assert verdicts[0].killed == verdicts[1].killed
        for states, decision in ((keeps, kept), (drops, dropped)):
            if decision.id is not None:
                states[request.id] = decision.id
        log = kept.state
        due_ms = max(done.cursors[0].due_ms, request.append_ms + 1)
        before = done
        done = replace(done, cursors=(Rank(due_ms, 0, 0),), offsets=(offset + 1,))
        of_last_step = {
            id: [m for m in state.live if is_done(m, done) and not is_done(m, before)]
            for id, state in keeps.items()
        }
        following = log_of[offset + 1] if offset + 1 < len(log_of) else request
        puts_back = following.op is Op.CONTINUE and of_last_step.get(following.id)
        if forgets[offset] and not puts_back:
            drops = {id: s for id, s in drops.items() if not may_forget(s, log, done)}


@dataclass
class Node:
    """What a node knows of ids."""

    log: LogState = field(default_factory=lambda: LogState(0, 0))
    states: dict[str, IdState] = field(default_factory=dict)
    kills: dict[tuple[int, int], int] = field(default_factory=dict)
    """Offset of the cancel marker, by due time and offset of the killed message."""

    def take(self, offset: int, request: Request, again: LiveMessage | None) -> Decision:
        """Decide a record, which continues `again`."""
        due_ms = request.append_ms + request.delay_ms
        asked = Asked(request.op, due_ms, 0, True, request.digest)
        asked = asked._replace(has_own_time=request.has_own_time)
        known = Known(self.states.get(request.id, NOTHING))
        if again is not None:
            asked = asked._replace(
                digest=again.digest,
                continued_offset=again.offset,
                origin=again.asked_at,
                continued_due_ms=again.due_ms,
            )
            known = known._replace(killed_by=self.kills.get((again.due_ms, again.offset)))
        decision = ingest(
            self.log, 0, offset, request.append_ms, asked, known, ID_MEMORY_MS, TRAILS_MS[1]
        )
        if decision.id is not None:
            self.states[request.id] = decision.id
        self.kills |= {(m.due_ms, m.offset): offset for m in decision.killed}
        self.log = decision.state
        return decision

    def forget(self, done: Frontier) -> None:
        """Forget all that a node may forget that has not ingested up to this frontier."""
        self.states = {id: s for id, s in self.states.items() if not may_forget(s, self.log, done)}
        self.kills = {
            (due_ms, offset): marker
            for (due_ms, offset), marker in self.kills.items()
            if due_ms + ID_MEMORY_MS >= self.log.log_ms
            or max(offset, marker) >= done.offsets[0]
            or due_ms >= done.cursors[0].due_ms
        }


@pytest.mark.long
@settings(max_examples=600, deadline=None)
@given(requests, st.integers(0, 40))
def test_a_node_that_rebuilds_decides_as_one_that_was_there(
    drawn: list[Request], passed: int
) -> None:
    """The frontier that it begins with covers the first records. What that step and earlier ones
    put back may come long after the cancel markers that it did not take into account.

    Rules: forget-alike, continuation-refused
    """
    log_of = absolute(drawn)
    passed = min(passed, len(log_of))
    now_ms = max((request.append_ms for request in log_of[:passed]), default=0) + 1
    done = replace(
        first_frontier(0, partitions=1, lanes=1), cursors=(Rank(now_ms, 0, 0),), offsets=(passed,)
    )
    there, rebuilt = Node(), Node()
    messages: dict[str, list[LiveMessage]] = {}
    for offset, request in enumerate(log_of):
        again = None
        if request.op is Op.CONTINUE:
            delivered = [m for m in messages.get(request.id, []) if m.due_ms <= request.append_ms]
            if not delivered:
                continue
            again = delivered[-1 - request.continued % len(delivered)]
            messages[request.id].remove(again)
        befores = [node.states.get(request.id, NOTHING) for node in (there, rebuilt)]
        decisions = [node.take(offset, request, again) for node in (there, rebuilt)]
        kept, dropped = decisions
        assert (kept.rank, kept.reply) == (dropped.rank, dropped.reply)
        assert kept.is_refused == dropped.is_refused
        if kept.reply is PendingReply.CANCEL_MARKER and offset >= passed:
            verdicts = [
                verdict_of(before, request, offset, decision, done)
                for before, decision in zip(befores, decisions, strict=True)
            ]
            assert verdicts[0][:2] == verdicts[1][:2]
        if kept.rank is not None:
            digest = request.digest if again is None else again.digest
            stored = LiveMessage(kept.rank.due_ms, offset, 0, digest)
            messages.setdefault(request.id, []).append(stored)
        rebuilt.forget(done)


def is_done(message: LiveMessage | KilledMessage, done: Frontier) -> bool:
    return done.covers(0, Rank(message.due_ms, 0, message.offset))


def may_forget(state: IdState, log: LogState, done: Frontier) -> bool:
    aged = state.last_due_ms + ID_MEMORY_MS < log.log_ms
    remembered: list[LiveMessage | KilledMessage] = [*state.live, *state.killed]
    return aged and all(is_done(m, done) for m in remembered)


def verdict_of(
    before: IdState, request: Request, offset: int, decision: Decision, done: Frontier
) -> Judgement:
    killed: tuple[KilledMessage, ...] = decision.killed
    is_replace = request.op is Op.REPLACE
    as_of_ms = decision.state.as_of_ms(request.append_ms)
    marker = CancelMarker(is_replace, 0, offset, as_of_ms, killed, before.killed, decision.repeats)
    return judge(marker, done, (), ID_MEMORY_MS)
