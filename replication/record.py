"""The frontier record: the frontier as bytes in its topic, with what audits need beside it.

One JSON object in UTF-8, key `shard-<n>`:

    format      2
    shard, term, step
    owner       "<node>/<nonce>" of the master that wrote it
    now_ms      the master's `now` of the step
    cursor      [due_ms, partition, offset]: the cursor of most lanes
    lanes       {"<lane>": [due_ms, partition, offset]} of the others
    offsets     O by partition
    own_writes  R by partition
    counts      {"delivered", "late", "killed", "retried", "dead", "answers"} of this
                step
    digest      sum over the delivered messages of crc32("<partition>/<offset>"): order-free, so
                that an audit can add it up from the target topics without knowing the order
    settings    the cluster's fixed settings
    smoothing   {"<topic>": [served_ns, next_ns, tail_ms, tail_partition, [[from_ms, by_ms]...]]}
                of topics with a rate (`replication.smoothing`); absent where there is none

A reader refuses a format that it does not know: to guess at a frontier loses or doubles messages.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, Final

from replication.frontier import Frontier
from replication.rank import Rank
from replication.settings import Settings
from replication.smoothing import Queue

FORMAT = 2

SETTINGS_REMEMBERED: Final = 8
"""Settings whose JSON is kept: a process serves one cluster, and the settings are most of each of
its records."""


class FrontierFormatError(ValueError):
    """The bytes are not a frontier record that this version understands."""


@dataclass(frozen=True, slots=True)
class StepCounts:
    """How many messages and pending replies a step dealt with."""

    delivered: int = 0
    late: int = 0
    """Those of the delivered that arrived after their cursor had passed."""
    killed: int = 0
    retried: int = 0
    """Requeued, to be tried again."""
    dead: int = 0
    answers: int = 0


@dataclass(frozen=True, slots=True)
class FrontierRecord:
    """A frontier with its provenance."""

    frontier: Frontier
    owner: str
    now_ms: int
    counts: StepCounts
    digest: int
    settings: Settings
    smoothing: Mapping[str, Queue] = field(default_factory=dict)
    """By topic with a rate: what it has given of its turns."""


def record_key(shard: int) -> bytes:
    """Return the key of a shard's frontier records: compaction keeps the newest of each shard."""
    return f"shard-{shard}".encode()


def encode(record: FrontierRecord) -> bytes:
    """Return the value of the record."""
    frontier = record.frontier
    usual = _usual(frontier.cursors)
    fields: dict[str, Any] = {
        "format": FORMAT,
        "shard": frontier.shard,
        "term": frontier.term,
        "step": frontier.step,
        "owner": record.owner,
        "now_ms": record.now_ms,
        "cursor": usual,
        "lanes": {
            str(lane): cursor for lane, cursor in enumerate(frontier.cursors) if cursor != usual
        },
        "offsets": frontier.offsets,
        "own_writes": frontier.own_writes,
        "counts": asdict(record.counts),
        "digest": record.digest,
    }
    settings = f',"settings":{_settings_text(record.settings)}'
    smoothing = f',"smoothing":{_compact(record.smoothing)}' if record.smoothing else ""
    return f"{_compact(fields)[:-1]}{settings}{smoothing}}}".encode()


def decode(value: bytes) -> FrontierRecord:
    """Invert `encode`; raises FrontierFormatError for anything that `encode` does not write."""
    try:
        fields = json.loads(value)
        if fields["format"] != FORMAT:
            raise FrontierFormatError(f"unknown frontier format {fields['format']!r}")
        settings = _settings(_compact(fields["settings"]))
        cursors = [_rank(fields["cursor"])] * settings.lanes
        for lane, cursor in fields["lanes"].items():
            cursors[int(lane)] = _rank(cursor)
        frontier = Frontier(
            shard=_whole(fields["shard"]),
            cursors=tuple(cursors),
            offsets=tuple(map(_whole, fields["offsets"])),
            own_writes=tuple(map(_whole, fields["own_writes"])),
            term=_whole(fields["term"]),
            step=_whole(fields["step"]),
        )
        if not len(frontier.offsets) == len(frontier.own_writes) == settings.partitions:
            raise FrontierFormatError("offsets do not match the number of partitions")
        record = FrontierRecord(
            frontier=frontier,
            owner=str(fields["owner"]),
            now_ms=_whole(fields["now_ms"]),
            counts=StepCounts(**{name: _whole(n) for name, n in fields["counts"].items()}),
            digest=_whole(fields["digest"]),
            settings=settings,
            smoothing={
                topic: _queue(*queue) for topic, queue in fields.get("smoothing", {}).items()
            },
        )
        # Whatever else was let through above (a lane "-1", a field too many) shows here.
        if (again := encode(record)) != value and json.loads(again) != fields:
            raise FrontierFormatError("not what this version would have written")
        return record
    except FrontierFormatError:
        raise
    except (
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
        OverflowError,
        MemoryError,
        RecursionError,
    ) as error:
        raise FrontierFormatError(f"not a frontier record: {error!r}") from error


def _usual(cursors: tuple[Rank, ...]) -> Rank:
    """Return the most frequent cursor; the first one of several that are."""
    if 2 * cursors.count(cursors[0]) > len(cursors):
        return cursors[0]
    [(usual, _)] = Counter(cursors).most_common(1)
    return usual


def _compact(fields: object) -> str:
    return json.dumps(fields, separators=(",", ":"))


@lru_cache(SETTINGS_REMEMBERED)
def _settings_text(settings: Settings) -> str:
    return _compact(settings.to_json())


@lru_cache(SETTINGS_REMEMBERED)
def _settings(text: str) -> Settings:
    return Settings.from_json(json.loads(text))


def _whole(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _queue(*fields: Any) -> Queue:
    *numbers, shifts = fields
    moved = tuple((_whole(from_ms), _whole(by_ms)) for from_ms, by_ms in shifts)
    served_ns, next_ns, tail_ms, partition = map(_whole, numbers)
    return Queue(served_ns, next_ns, tail_ms, partition, moved)


def _rank(parts: list[object]) -> Rank:
    due_ms, partition, offset = map(_whole, parts)
    return Rank(due_ms, partition, offset)
