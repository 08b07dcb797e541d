"""All shards of a cluster: looks at each, and mends those of which something is not visible.

Each is mended by itself, one after the other: one that cannot be decided keeps no other waiting. A
run that is killed between two of them is made again, and finds the first one mended.

Source: docs/design/lost-markers.md, "Several shards".
"""

from collections.abc import Sequence
from dataclasses import dataclass

from delayd.bus import Bus
from delayd.bus.raw import RawLog
from delayd.commands.recover.marker.looking import Facts, Looker, Tell
from delayd.commands.recover.marker.mending import Mended, mend
from delayd.commands.recover.marker.survey import surveyed
from delayd.errors import NotInitialisedError
from replication.settings import Settings


@dataclass(slots=True)
class Looked:
    """What was found of one shard, and what a run has made of it."""

    looker: Looker
    before: Facts
    after: Facts
    """The same as before if nothing was done."""
    mended: Mended | None = None
    """None: nothing was to be done, or could be."""

    @property
    def shard(self) -> int:
        """Return its number."""
        return self.looker.shard


def look_at_shards(
    bus: Bus,
    raw: RawLog,
    settings: Settings,
    *,
    since_ms: int | None,
    timeout_ms: int,
    tell: Tell,
) -> list[Looked]:
    """Return what there is of each shard. Former ones, of which the cluster has fewer now, are
    among them if something hangs that their masters wrote, or if all steps since a time are asked
    for: what they ended long ago is over. Raises as `Looker.look` does."""
    tell("asking the leaders of partitions", 0, 1)
    survey = surveyed(raw, settings, timeout_ms)
    found = []
    for shard in sorted(survey.producers):
        if shard >= settings.shards and since_ms is None and not survey.has_open(shard):
            continue
        looker = Looker(
            bus, raw, settings, since_ms=since_ms, timeout_ms=timeout_ms, tell=tell, shard=shard
        )
        try:
            facts = looker.look(survey)
        except NotInitialisedError:
            if shard < settings.shards:
                raise
            continue  # A partition for a shard that never was.
        found.append(Looked(looker, facts, facts))
    return found


def mend_shards(
    bus: Bus, raw: RawLog, looked: Sequence[Looked], settings: Settings, timeout_ms: int
) -> None:
    """Do what is to be done, shard by shard. Raises as `mend` does."""
    for each in looked:
        if each.before.plan.is_mendable:
            each.after, each.mended = mend(bus, raw, each.looker, settings, timeout_ms)
