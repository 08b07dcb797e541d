"""The positions of a follower in its topics, and how far it may go next. Pure.

The order in which topics move makes what is read usable at once, whatever comes first in Kafka:

- the buffer comes before everything else, so whoever is named by a delivery, a receipt or a dead
  letter has been read by then;
- the frontier stops where it was before the evidence was looked at, so all that it covers is in the
  evidence, once that is *settled*: read to the end that it had at a later time.

Invariants: nothing moves back but in a topic that was made again, or that lost its end; a topic
whose end is before its position is never settled.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Self

BATCH_OFFSETS_MAX: Final = 500_000
"""Of the buffer, and of all else together, in one batch."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Last stable offsets and high watermarks of a topic, by partition."""

    stable: tuple[int, ...]
    high: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Positions:
    """A place in all topics. Times are Unix ms."""

    at_ms: int
    """When it was fixed."""
    watch: str
    """The frontier records at which watching began (shard_records.py), as in their topic, which may
    forget them: what they cover is nobody's business here."""
    watch_ms: int
    """The append time of the last of them."""
    buffer_starts: tuple[int, ...]
    """The first offsets of the buffer that Kafka still had then."""
    next: Mapping[str, tuple[int, ...]]
    """The next offset to read, by topic and partition."""
    settled_ms: Mapping[str, int]
    """Of evidence: all that was in the topic at this time is before `next`."""
    behind: Mapping[str, int]
    """Offsets that were there and are left for later, by topic."""
    ids: Mapping[str, str] = field(default_factory=dict)
    """Which topic each target is: one that was deleted and made again has another id."""
    compacted: tuple[str, ...] = ()
    """Targets in which any record may be gone."""
    since_ms: int = 0
    """The append time of the first of the records at which watching began; 0: as `watch_ms`."""

    @property
    def begun_ms(self) -> int:
        """Return from when on evidence counts."""
        return self.since_ms or self.watch_ms

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            name: dict(sorted(said.items())) if isinstance(said, dict) else said
            for name, said in asdict(self).items()
        }

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Self:
        """Read what `to_json` made."""
        topics = {topic: tuple(offsets) for topic, offsets in said["next"].items()}
        return cls(
            **{
                **said,
                "buffer_starts": tuple(said["buffer_starts"]),
                "next": topics,
                "compacted": tuple(said.get("compacted", ())),
            }
        )

    def starting(self, topic: str, offsets: tuple[int, ...], topic_id: str = "") -> Self:
        """Return positions with another topic, to be read from there."""
        assert topic not in self.next, f"{topic} is read already"
        return self._moved(topic, offsets, topic_id)

    def is_other(self, topic: str, topic_id: str) -> bool:
        """Return whether this is another topic than the one of that name that was read; False if
        unknown."""
        known = self.ids.get(topic, "")
        return bool(known and topic_id) and known != topic_id

    def is_beyond(self, topic: str, ends: tuple[int, ...]) -> bool:
        """Return whether the topic ends before what was read of it."""
        at = self.next[topic]
        return len(at) > len(ends) or any(a > end for a, end in zip(at, ends, strict=False))

    def restarting(self, topic: str, partitions: int, topic_id: str) -> Self:
        """Return positions at the beginning of a topic that was made again."""
        return self._unsettled(topic)._moved(topic, (0,) * partitions, topic_id)

    def cut_off(self, topic: str, ends: tuple[int, ...]) -> Self:
        """Return positions at the end of a topic that an unclean election has cut. What has been
        written since is behind this end, or is not read: nobody knows where it began."""
        moved = tuple(min(at, end) for at, end in _paired(self.next[topic], ends))
        return self._unsettled(topic)._moved(topic, moved)

    def skipping(self, topic: str, firsts: tuple[int, ...]) -> Self:
        """Return positions past what Kafka has deleted, by the first offsets that it still has."""
        moved = (max(at, first) for at, first in _paired(self.next[topic], firsts))
        return self._moved(topic, tuple(moved))

    def _moved(self, topic: str, offsets: tuple[int, ...], topic_id: str = "") -> Self:
        ids = {**self.ids, topic: topic_id} if topic_id else self.ids
        return replace(self, next={**self.next, topic: offsets}, ids=ids)

    def _unsettled(self, topic: str) -> Self:
        settled_ms = {name: ms for name, ms in self.settled_ms.items() if name != topic}
        return replace(self, settled_ms=settled_ms)

    def backlog(self, topic: str, ends: tuple[int, ...]) -> int:
        """Return how many offsets lie between here and there."""
        return sum(max(0, end - at) for at, end in _paired(self.next[topic], ends))

    def reading(self, topic: str, ends: Ends, offsets_max: int) -> Self:
        """Return positions further in one topic, by so many offsets at most, the same share in all
        partitions."""
        backlog = self.backlog(topic, ends.stable)
        share = min(1.0, offsets_max / backlog) if backlog else 1.0
        moved = tuple(
            at + int(max(0, end - at) * share) for at, end in _paired(self.next[topic], ends.stable)
        )
        left = sum(max(0, end - at) for at, end in _paired(moved, ends.high))
        return replace(self._moved(topic, moved), behind={**self.behind, topic: left})

    def settling(self, topic: str, ends: Ends, at_ms: int) -> Self:
        """Return positions with the topic settled, if all that was in it at that time is read."""
        moved = self.next[topic]
        if len(moved) < len(ends.high) or any(at < end for at, end in _paired(moved, ends.high)):
            return self
        if self.is_beyond(topic, ends.stable):
            return self
        return replace(self, settled_ms={**self.settled_ms, topic: at_ms})


def _paired(offsets: tuple[int, ...], ends: tuple[int, ...]) -> list[tuple[int, int]]:
    """Pair offsets with ends by partition; a partition that is new is read from its beginning."""
    begun = offsets + (0,) * (len(ends) - len(offsets))
    return list(zip(begun, ends + begun[len(ends) :], strict=True))
