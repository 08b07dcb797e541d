"""The frontier records that a recovery writes: one of each shard that is lost. Pure."""

from collections.abc import Sequence
from typing import Final

from delayd.commands.recover.frontier.clues import Clues
from replication.frontier import Frontier
from replication.holds import Hold, obey
from replication.quotas import Quota, QuotaOrder, unsure_quota
from replication.quotas import obey as obey_quota
from replication.record import FrontierRecord, StepCounts
from replication.recovered import beyond
from replication.settings import Settings
from replication.shards import share_of, shared_out

OWNER: Final = "delayd-recover"


def records_of(
    known: FrontierRecord,
    settings: Settings,
    found: Frontier,
    lasts: Sequence[Frontier],
    clues: Clues,
    wall_ms: int,
) -> list[FrontierRecord]:
    """Return the record of each shard, in order, as of this clock (Unix ms). `found` is the
    frontier of all shards to go on from; `lasts` are the last ones of the topic, whosesoever."""
    seen_ms = [each.at_ms for arrivals in clues.arrivals.values() for each in arrivals]
    now_ms = max(wall_ms, known.now_ms, *seen_ms)
    since_ms = min(each.now_ms for each in known.steps)
    parts = shared_out(beyond(found, since_ms, now_ms, lasts), settings.shards)
    return [
        FrontierRecord(
            frontier=part,
            owner=OWNER,
            now_ms=now_ms,
            counts=StepCounts(),
            digest=0,
            settings=settings,
            smoothing=known.smoothing,
            barriers=clues.rules.below(part.offsets),
            holds=_holds_at(part, known, clues, now_ms),
            quotas=_quotas_at(part, known, clues),
        )
        for part in parts
    ]


def _holds_at(part: Frontier, known: FrontierRecord, clues: Clues, now_ms: int) -> dict[str, Hold]:
    """Return the holds at the frontier of a shard: its part of those that are known, and what its
    orders made of them since."""
    holds = dict(known.holds)
    if part.shards > 1 or known.frontier.shards > 1:
        holds = {topic: _shared(hold, part) for topic, hold in holds.items()}
    for partition, offset, order in sorted(clues.orders):
        if known.frontier.offsets[partition] <= offset < part.offsets[partition]:
            holds = obey(holds, order, offset, now_ms)
    return holds


def _shared(hold: Hold, part: Frontier) -> Hold:
    """Return a shard's part of a hold. Its order may have had another home, so no offset names
    it."""
    rate = max(1, share_of(hold.rate, part.shard, part.shards))
    return hold._replace(rate=rate, offset=-1)


def _quotas_at(part: Frontier, known: FrontierRecord, clues: Clues) -> dict[str, Quota]:
    """Return the quotas at a frontier: those that are known, and what orders made of them since.
    Whether a topic is full is what a step of the shard has said last, which is in the log. Of
    several shards what is known is of all, so their gates are written anew."""
    quotas = dict(known.quotas)
    if part.shards > 1 or known.frontier.shards > 1:
        quotas = {topic: unsure_quota([quota], part.shards) for topic, quota in quotas.items()}
    for partition, offset, said in sorted(clues.quotas, key=lambda each: each[:2]):
        if isinstance(said, QuotaOrder):
            if known.frontier.offsets[partition] <= offset < part.offsets[partition]:
                quotas = obey_quota(quotas, said, offset, part.shards)
        elif said.topic in quotas and part.owns(partition):
            at_ms = said.at_ms if said.is_full else 0
            over = 0 if said.shut is None else said.shut.limit
            state = {"full_ms": at_ms, "written_ms": at_ms, "over": over}
            quotas[said.topic] = quotas[said.topic]._replace(**state)
    return quotas
