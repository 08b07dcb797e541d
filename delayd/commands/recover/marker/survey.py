"""Which transactions have no marker, and which shard's masters have begun them. Asks every leader.

A producer is of the shard whose transactional id it has, or whose partition of the frontier topic
it has written to. One that has written to several of these is of the first shard: what all shards
are changed by is one transaction of its id (`delayd topics create`, `delayd shards set`).

Source: docs/design/lost-markers.md, "Several shards".
"""

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Final, Self

from delayd.bus.raw import Active, Place, Producers, RawLog
from delayd.cluster.topics import transactional_id
from delayd.commands.recover.marker.pieces import Run
from delayd.errors import KafkaUnreachableError
from replication.settings import Settings

AGAIN_S: Final = 1.0
"""After this long, a transaction that was only open is over: a step takes less."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What the leaders of all partitions know."""

    frontier: str
    """The frontier topic."""
    found: Producers
    open: Mapping[Place, Set[Active]]
    """Producers whose transaction has no marker, and had none a moment before."""
    producers: Mapping[int, Set[int]]
    """By shard: the ids of its masters' producers. Of each partition of the frontier topic, also of
    those that have no shard any more."""

    def is_known(self, producer: int) -> bool:
        """Return whether it is of a shard."""
        return any(producer in each for each in self.producers.values())

    def written_since(self, producers: Set[int], since_ms: int) -> set[Place]:
        """Return the partitions to which one of these has written since then, or perhaps."""
        return {
            place
            for place, active in self.found.active.items()
            for each in active
            if each.producer.id in producers and (each.last_ms < 0 or each.last_ms >= since_ms)
        }

    def has_open(self, shard: int) -> bool:
        """Return whether a transaction of a shard's masters has no marker, or one in its partition
        of the frontier topic."""
        return bool(self.open.get(Place(self.frontier, shard))) or any(
            each.producer.id in self.producers[shard]
            for active in self.open.values()
            for each in active
        )

    def without(self, runs: Iterable[Run]) -> Self:
        """Return it without these, which are seen to."""
        ours = {(run.place, run.producer_id) for run in runs}
        opened = {
            place: {each for each in active if (place, each.producer.id) not in ours}
            for place, active in self.open.items()
        }
        return replace(self, open={place: each for place, each in opened.items() if each})

    def changes_hanging(self, shard: int) -> list[str]:
        """Return what is to be said of changes of all shards that hang in a shard's partition of
        the frontier topic: they are no steps of its masters."""
        place = Place(self.frontier, shard)
        of_first = self.producers[0] if shard else set()
        return [
            f"a change of all shards hangs in {place} (producer {each.producer.id}): it became "
            "visible in all partitions of the frontier topic, or in none"
            for each in sorted(self.open.get(place, ()))
            if each.producer.id in of_first
        ]


def surveyed(raw: RawLog, settings: Settings, timeout_ms: int) -> Survey:
    """Return what leaders know now. Raise KafkaUnreachableError if a broker leaves out a topic of
    the cluster: it does not know yet what there is."""
    places = raw.places(timeout_ms)
    own = {settings.frontier.name, settings.buffer.name, settings.dead.name}
    if unknown := own - {place.topic for place in places}:
        raise KafkaUnreachableError(
            f"the broker that was asked does not know {', '.join(sorted(unknown))}",
            remedy="are all brokers up? Then run this again",
        )
    found = raw.producers(places, timeout_ms)
    kept = _open(found)
    if kept and not threading.Event().wait(AGAIN_S):
        still = _open(raw.producers(kept, timeout_ms))
        kept = {place: kept[place] & still.get(place, set()) for place in kept}
    frontier = settings.frontier.name
    shards = [place.partition for place in places if place.topic == frontier]
    producers = _by_shard(raw, settings, found, sorted(shards), timeout_ms)
    return Survey(frontier, found, kept, producers)


def _by_shard(
    raw: RawLog, settings: Settings, found: Producers, shards: list[int], timeout_ms: int
) -> dict[int, set[int]]:
    """Return the producers of the masters of each shard."""
    wrote = {
        shard: {
            each.producer.id for each in found.active.get(Place(settings.frontier.name, shard), ())
        }
        for shard in shards
    }
    named: dict[int, int] = {}
    for shard in shards:
        state = raw.transaction(transactional_id(settings.realm, shard), timeout_ms)
        if state is not None:
            named[state.producer.id] = shard
    times = Counter(number for each in wrote.values() for number in each)
    by_shard: dict[int, set[int]] = {shard: set() for shard in shards}
    for shard, numbers in wrote.items():
        for number in numbers:
            by_shard[named.get(number, shard if times[number] == 1 else 0)].add(number)
    for number, shard in named.items():
        by_shard[shard].add(number)
    return by_shard


def _open(found: Producers) -> dict[Place, set[Active]]:
    """Return the producers with a transaction that has no marker, by place."""
    return {
        place: opened
        for place, active in found.active.items()
        if (opened := {each for each in active if each.open_since is not None})
    }
