"""All shards of a cluster: looks at changes of all of them and at each, and mends those of which
something is not visible.

Each is mended by itself, one after the other: one that cannot be decided keeps no other waiting. A
run that is killed between two of them is made again, and finds the first one mended.

Source: docs/design/lost-markers.md, "Several shards".
"""

from collections.abc import Sequence
from dataclasses import dataclass

from delayd.bus import Bus
from delayd.bus.raw import RawLog
from delayd.commands.recover.marker.changes import (
    Change,
    any_frontier,
    changes_of,
    end_changes,
)
from delayd.commands.recover.marker.deciding import Fate
from delayd.commands.recover.marker.looking import Facts, Looker, Tell
from delayd.commands.recover.marker.mending import Mended, mend
from delayd.commands.recover.marker.survey import Survey, surveyed
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


@dataclass(slots=True)
class Seen:
    """What was found of a cluster."""

    settings: Settings
    survey: Survey
    changes: list[Change]
    shards: list[Looked]

    @property
    def is_mendable(self) -> bool:
        """Return whether something of it can be mended."""
        return any(each.fate is not Fate.LEFT for each in self.changes) or any(
            each.before.plan.is_mendable for each in self.shards
        )

    @property
    def is_fine(self) -> bool:
        """Return whether nothing is left to do, and nothing is lost."""
        return all(each.is_ended for each in self.changes) and all(
            each.after.plan.is_empty and not each.after.plan.missing for each in self.shards
        )


def look(
    bus: Bus,
    raw: RawLog,
    settings: Settings,
    *,
    since_ms: int | None,
    timeout_ms: int,
    tell: Tell,
) -> Seen:
    """Return what there is of changes of all shards, and of the steps of each. Raises as
    `Looker.look` does."""
    tell("asking the leaders of partitions", 0, 1)
    survey = surveyed(raw, settings, timeout_ms)
    changes = changes_of(bus, raw, survey, settings, timeout_ms)
    rest = survey.without(run for each in changes for run in each.hanging)
    shards = look_at_shards(
        *(bus, raw, settings, rest),
        since_ms=since_ms,
        timeout_ms=timeout_ms,
        tell=tell,
        are_changing=bool(changes),
    )
    return Seen(settings, survey, changes, shards)


def look_at_shards(
    bus: Bus,
    raw: RawLog,
    settings: Settings,
    survey: Survey,
    *,
    since_ms: int | None,
    timeout_ms: int,
    tell: Tell,
    are_changing: bool = False,
) -> list[Looked]:
    """Return what there is of each shard. Former ones, of which the cluster has fewer now, are
    among them if something hangs that their masters wrote, or if all steps since a time are asked
    for: what they ended long ago is over. Shards without a visible record are left out if the
    shards are changing. Raises as `Looker.look` does."""
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
            if shard < settings.shards and not are_changing:
                raise
            continue  # A partition for a shard that never was.
        found.append(Looked(looker, facts, facts))
    return found


def mend_all(
    bus: Bus,
    raw: RawLog,
    seen: Seen,
    *,
    since_ms: int | None,
    timeout_ms: int,
    tell: Tell,
) -> Seen:
    """Do what is to be done: first changes of all shards, then shard by shard. Return what was
    found once the changes were ended, and done. Raises as `end_changes` and `mend` do."""
    ended = [each for each in seen.changes if each.fate is not Fate.LEFT]
    if ended:
        end_changes(bus, raw, ended, seen.survey, seen.settings, timeout_ms)
        newest = any_frontier(bus, seen.settings.frontier.name, timeout_ms)
        settings = seen.settings if newest is None else newest.record.settings
        seen = look(bus, raw, settings, since_ms=since_ms, timeout_ms=timeout_ms, tell=tell)
        seen.changes[:0] = ended
    mend_shards(bus, raw, seen.shards, seen.settings, timeout_ms)
    return seen


def mend_shards(
    bus: Bus, raw: RawLog, looked: Sequence[Looked], settings: Settings, timeout_ms: int
) -> None:
    """Do what is to be done, shard by shard. Raises as `mend` does."""
    for each in looked:
        if each.before.plan.is_mendable:
            each.after, each.mended = mend(bus, raw, each.looker, settings, timeout_ms)
