"""The watch over the master's pulse: carries out the orders of `replication.pulse` on a follower.

It connects to the life that the leader key names, tells the election when that is dead, cut off
from Kafka or has parted, and the other members when it is missed. Not here: what follows from it
(`replication/election.py`).

Source: docs/design/election.md, "Pulse".
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from delayd.errors import CoordinationError
from delayd.node.election.election_context import ElectionContext
from delayd.node.election.etcd_calls import Holder
from delayd.node.election.membership import missed_by
from delayd.node.election.pulse_line import Exchange, Line, Place
from replication import election_facts as facts
from replication.pulse import (
    WAIT_MS,
    Ask,
    AskKafka,
    Fact,
    Find,
    KafkaAnswers,
    KafkaSilent,
    Listen,
    Order,
    Pulse,
    Rest,
    Restraint,
    Verdict,
    Watched,
    most_miss,
)

log = structlog.get_logger()

LOOK_MS = 50
"""How often a node looks if there is somebody to watch."""
REPEAT_MS = 1_000
"""After a failure that nothing here accounts for."""


class PulseWatch:
    """The watch of one node over the master of a shard. Lives on the event loop."""

    def __init__(
        self,
        context: ElectionContext,
        shard: int,
        holder: Callable[[], Holder | None],
        tell: Callable[[facts.Event], None],
    ) -> None:
        """`context`: with an exchange and a contact. `holder`: of the shard's leader key, as the
        node knows it. `tell`: the election."""
        assert context.exchange is not None and context.contact is not None, "it can listen"
        self._etcd = context.coordination
        self._membership = context.membership
        self._exchange = context.exchange
        self._is_kafka_there = context.contact.is_there
        self._clock = context.clock
        self._identity = context.identity
        self._suspicion_ms = context.suspicion_ms
        self._shard = shard
        self._holder = holder
        self._tell = tell
        self._restraint = Restraint()
        self.found_dead_count = 0
        """Leaderships whose master this node took for dead."""
        self._found_dead: Holder | None = None

    async def run(self) -> None:
        """Watch whoever leads, until cancelled."""
        last: Holder | None = None
        while True:
            holder = self._holder()
            if holder == last or holder is None:
                await asyncio.sleep(LOOK_MS / 1000)
                continue
            last = holder
            self._restraint.note_leadership(self._clock.monotonic_ms())
            place = Place.of(holder.admin)
            is_own = (holder.node, holder.nonce) == (self._identity.node, self._identity.nonce)
            if place is None or is_own:
                continue
            try:
                await self._watch(holder, place)
            except Exception:
                # A node that cannot judge its master waits for the lease, as without a pulse.
                log.exception("pulse_failed", master=holder.node)
                last = None
                await asyncio.sleep(REPEAT_MS / 1000)

    async def _watch(self, holder: Holder, place: Place) -> None:
        """Watch one leadership until it is over."""
        watched, line = Pulse(self._suspicion_ms), _Line(self._exchange, holder, place)
        order = watched.handle(Watched(self._clock.monotonic_ms()))
        is_missed = False
        try:
            while self._holder() == holder and not isinstance(order, Rest):
                heard: Callable[[int], Fact]
                if isinstance(order, AskKafka):
                    is_there = await asyncio.to_thread(self._is_kafka_there)
                    heard = KafkaAnswers if is_there else KafkaSilent
                else:
                    heard = await line.obey(order)
                order = watched.handle(heard(self._clock.monotonic_ms()))
                if watched.is_missed or is_missed:
                    is_missed = await self._note_missed(holder, is_missed, watched.is_missed)
        finally:
            line.close()
            self._membership.miss(self._shard, None)
        if isinstance(order, Rest) and order.verdict is Verdict.PARTED:
            self._tell(facts.LeaderParted(self._clock.monotonic_ms()))
        elif isinstance(order, Rest):
            cut_off = order.verdict is Verdict.CUT_OFF
            event = "master_cut_off" if cut_off else "master_found_dead"
            log.warning(event, master=holder.node, nonce=holder.nonce)
            while self._holder() == holder:
                self._depose(holder)
                await asyncio.sleep(WAIT_MS / 1000)

    async def _note_missed(self, holder: Holder, was_missed: bool, is_missed: bool) -> bool:
        """Tell the others if the master is missed, and depose it if most members miss it. Return
        whether the others know it."""
        try:
            if is_missed is not was_missed:
                if is_missed:
                    log.warning("master_missed", master=holder.node, nonce=holder.nonce)
                self._membership.miss(self._shard, holder.nonce if is_missed else None)
                await self._membership.tell()
            members = await asyncio.to_thread(self._etcd.members) if is_missed else {}
        except CoordinationError:
            return was_missed
        missing = [holder.nonce in missed_by(value) for value in members.values()]
        if most_miss(sum(missing), len(missing)):
            self._depose(holder)
        return is_missed

    def _depose(self, holder: Holder) -> None:
        self.found_dead_count += self._found_dead != holder
        self._found_dead = holder
        now_ms = self._clock.monotonic_ms()
        if self._restraint.may_depose_ms(now_ms) <= now_ms:
            self._tell(facts.LeaderFoundDead(now_ms, holder.lease_id))


@dataclass(slots=True)
class _Line:
    """The line to one leadership, opened as often as it takes."""

    exchange: Exchange
    holder: Holder
    place: Place
    """As the leader key says."""
    answered_at: Place | None = None
    line: Line | None = field(default=None)

    async def obey(self, order: Order) -> Callable[[int], Fact]:
        """Carry out an order; return what was heard."""
        if isinstance(order, Listen):
            assert self.line is not None, "a life that has answered is listened to"
            return await self.line.hear(WAIT_MS)
        assert isinstance(order, Find | Ask), f"{order} ends the watch"
        self.close()
        await asyncio.sleep(order.after_ms / 1000)
        place = self.answered_at if isinstance(order, Ask) else None
        heard, self.line = await self.exchange.open(
            place or self.place, self.holder.nonce, self.holder.lease_id, WAIT_MS
        )
        if self.line is not None:
            self.answered_at = self.line.place
        return heard

    def close(self) -> None:
        """Hang up."""
        if self.line is not None:
            self.line.close()
            self.line = None
