"""The dead letters that a selection means, read from their topic, and as JSON.

The JSON loses nothing: bytes that are not UTF-8 are base64.

The read ends at the end that the topic had when it began: a letter that is written meanwhile, for
instance by a redrive that fails, is not read.
"""

import base64
import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from delayd.bus import Bus
from delayd.bus.reading import read_between
from delayd.errors import ConfigError
from delayd.request import Reason
from delayd.request.grammar import source_partition_of
from delayd.request.letters import Letter, letter_of
from delayd.request.reasons import RefusedError
from delayd.request.times import delay_ms_of, due_ms_of
from delayd.runtime.clock import Clock

RECORDS_MAX: Final = 500

Json: TypeAlias = dict[str, Any]

_SUMMARY: Final = (
    *("source", "reason", "detail", "dead_ms", "topic", "id"),
    *("origin", "attempts", "truncated_bytes"),
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A selection: a letter must match every field that is given. Times are Unix ms."""

    sources: frozenset[str] = frozenset()
    reasons: frozenset[str] = frozenset()
    topics: frozenset[str] = frozenset()
    ids: frozenset[str] = frozenset()
    since_ms: int | None = None
    until_ms: int | None = None
    """Exclusive."""

    @property
    def is_everything(self) -> bool:
        """Return whether no field is given."""
        return self == Wanted()

    def has(self, letter: Letter) -> bool:
        """Return whether this letter matches."""
        return (
            (not self.sources or letter.source in self.sources)
            and (not self.reasons or letter.reason in self.reasons)
            and (not self.topics or letter.topic in self.topics)
            and (not self.ids or letter.id in self.ids)
            and (self.since_ms is None or letter.dead_ms >= self.since_ms)
            and (self.until_ms is None or letter.dead_ms < self.until_ms)
        )


def wanted(
    now_ms: int,
    sources: Iterable[str] | None = None,
    reasons: Iterable[str] | None = None,
    topics: Iterable[str] | None = None,
    ids: Iterable[str] | None = None,
    since: str | None = None,
    until: str | None = None,
) -> Wanted:
    """Return the selection of these options. Raise ConfigError if no letter can match one."""
    made = Wanted(
        frozenset(sources or ()),
        frozenset(reasons or ()),
        frozenset(topics or ()),
        frozenset(ids or ()),
        None if since is None else _moment_ms("--since", since, now_ms),
        None if until is None else _moment_ms("--until", until, now_ms),
    )
    for source in sorted(made.sources):
        if source_partition_of(source) is None:
            raise ConfigError(
                f"{source!a} is no source", remedy="it is written like 3/4711, as in delayd-source"
            )
    known = [reason.slug for reason in Reason]
    unknown = sorted(made.reasons - set(known))
    if unknown:
        raise ConfigError(
            f"there is no reason {unknown[0]!a}", remedy=f"use one of {', '.join(known)}"
        )
    if made.since_ms is not None and made.until_ms is not None and made.since_ms >= made.until_ms:
        raise ConfigError("--until is not after --since, so no letter is meant")
    return made


def _moment_ms(option: str, text: str, now_ms: int) -> int:
    """Return the Unix ms of a due time, or of a delay before now."""
    try:
        return now_ms - delay_ms_of(text)
    except RefusedError:
        pass
    try:
        return due_ms_of(text)
    except RefusedError as error:
        raise ConfigError(
            f"{option} {text!a} is no time",
            remedy="write Unix ms, RFC 3339 with Z or an offset, or how long ago, such as 2h",
        ) from error


def letters(
    bus: Bus, topic: str, wanted: Wanted, clock: Clock, timeout_ms: int
) -> Iterator[Letter]:
    """Yield the committed letters that are wanted, of each partition in its order.

    Other records are skipped. Raises TopicMismatchError if there is no such topic,
    KafkaUnreachableError if there is no progress for `timeout_ms`, ConsumerError.
    """
    with closing(bus.cluster()) as kafka:
        ends = kafka.end_offsets(topic, timeout_ms, committed=True)
        starts = kafka.start_offsets(topic, timeout_ms)
        if wanted.since_ms is not None:
            since = kafka.offsets_since(topic, wanted.since_ms, timeout_ms)
            starts = {p: max(start, since.get(p, ends[p])) for p, start in starts.items()}
    sources = set(wanted.sources)
    for records in read_between(
        bus, topic, starts, ends, clock, records_max=RECORDS_MAX, timeout_ms=timeout_ms
    ):
        for record in records:
            letter = letter_of(record)
            if letter is not None and wanted.has(letter):
                yield letter
                # A source has one letter: when all that were asked for are found, it is over.
                sources.discard(letter.source)
                if wanted.sources and not sources:
                    return


def newest(letters: Iterable[Letter], letters_max: int) -> tuple[list[Letter], Counter[str]]:
    """Return the newest letters, oldest first, as `slim` leaves them, and how many have a reason.

    Memory: `letters_max` letters.
    """
    reasons: Counter[str] = Counter()

    def counted_letters() -> Iterator[tuple[int, int, Letter]]:
        for number, letter in enumerate(letters):
            reasons[letter.reason] += 1
            yield letter.dead_ms, number, slim(letter)

    kept = heapq.nlargest(letters_max, counted_letters())
    return [letter for _, _, letter in reversed(kept)], reasons


def slim(letter: Letter) -> Letter:
    """Return a letter with only what a line about it needs."""
    named = [h for h in letter.headers if h[0] in ("delayd-topic", "delayd-id")]
    return letter._replace(key=None, value=None, headers=named)


def summary(letter: Letter) -> Json:
    """Return a letter without its record, as JSON."""
    return {name: getattr(letter, name) for name in _SUMMARY}


def whole(letter: Letter) -> Json:
    """Return a letter with its record, as JSON."""
    return {
        **summary(letter),
        "key": _content(letter.key),
        "value": _content(letter.value),
        "headers": [[name, _content(content)] for name, content in letter.headers],
    }


def _content(content: bytes | None) -> Any:
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}
