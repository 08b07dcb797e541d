"""The frontier record: the frontier as bytes in its topic, with what audits need beside it.

One JSON object in UTF-8, key `shard-<n>`:

    format      2; 3 where there is `needs`
    needs       {"<feature>": "<release>"}: what a reader must know, each with the first release of
                delayd that knows it (`replication.features`); absent where there is none
    shard       its number; -1 of a joint record, of all shards, which no topic has
    term, step
    owner       "<node>/<nonce>" of the master that wrote it
    now_ms      the master's `now` of the step
    cursor      [due_ms, partition, offset]: the cursor of most lanes
    lanes       {"<lane>": [due_ms, partition, offset]} of the others; in a joint record lanes are
                counted on from shard to shard
    offsets     O by partition
    own_writes  R by partition
    counts      {"delivered", "late", "killed", "retried", "dead", "answers"} of this
                step
    digest      sum over the delivered messages of crc32("<partition>/<offset>"): order-free, so
                that an audit can add it up from the target topics without knowing the order
    settings    the cluster's fixed settings
    barriers    [[partition, offset, version]...] of the barriers below O (`replication.rules`);
                absent where there is none
    moved       the realm of the cluster that took over what is pending here; absent where there is
                none. Only the tool that wrote it reads such a record: it is the last one
    smoothing   {"<topic>": [served_ns, next_ns, tail_ms, tail_partition, [[from_ms, by_ms]...]]}
                of topics with a rate (`replication.smoothing`); absent where there is none
    holds       {"<topic>": [since_ms, until_ms, rate, offset]} of topics that are paused, or were
                (`replication.holds`); absent where there is none
    quotas      {"<topic>": [max_pending, pending, offset, full_ms, written_ms, rate, taken, over,
                at_ms]} of topics that have one (`replication.quotas`), without at_ms where it is 0;
                absent where there is none
    last_steps  [[term, step, now_ms, delivered, digest]...] of a joint record: what the newest
                record of each shard says of its step; absent where there is one shard
    rest_ms     no step passes this time: shards come to rest (`replication.resharding`); absent
                where none does
    resharding  how many shards the cluster is to have: nobody goes on from this record; absent
                where that does not change

A reader refuses a format or a feature that it does not know: to guess at a frontier loses or
doubles messages. A field that it does not know, and that no feature stands for, is optional: the
reader passes over it, in the record, in `counts` and in `settings`. It keeps those of the settings,
because a master writes the settings of the cluster, whatever it knows of them.

Source: docs/design/frontier.md, "Optional fields".
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

from replication.features import (
    BARRIERS,
    FEATURES,
    HOLDS,
    MOVED,
    QUOTAS,
    RESHARDING,
    SHARDS,
    VIRTUAL,
    refuse_unknown,
    rules_feature,
)
from replication.frontier import ALL_SHARDS, Frontier
from replication.holds import Hold
from replication.quotas import Quota
from replication.rank import Rank
from replication.rules import Barrier, Rules
from replication.settings import Settings
from replication.smoothing import Queue

FORMAT: Final = 2
FORMAT_WITH_NEEDS: Final = 3
"""Releases before there were features refuse a record that needs some by its format."""

SETTINGS_REMEMBERED: Final = 8
"""Settings whose JSON is kept: a process serves one cluster, and the settings are most of each of
its records."""


_FIELDS: Final = frozenset(
    {
        *("shard", "term", "step", "owner", "now_ms", "cursor", "lanes", "offsets", "own_writes"),
        *("counts", "digest", "settings", "barriers", "moved", "smoothing", "holds"),
        *("quotas", "rest_ms", "resharding", "last_steps"),
    }
)


class FrontierFormatError(ValueError):
    """The bytes are not a frontier record that this version understands."""

    def __init__(self, message: str, *, since: str = "", moved: str = "") -> None:
        """`since`: the first release of delayd that understands them, if they say so. `moved`: the
        realm that took over, if they are a moved cluster's last record."""
        super().__init__(message)
        self.since = since
        self.moved = moved


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


class LastStep(NamedTuple):
    """What a joint record keeps of the newest step of one shard."""

    term: int
    step: int
    now_ms: int
    delivered: int
    digest: int


_COUNTS: Final = tuple(each.name for each in dataclasses.fields(StepCounts))


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
    barriers: tuple[Barrier, ...] = ()
    """Those that have switched the rules below O."""
    moved: str = ""
    """The realm of the cluster that took over what is pending; empty if none did."""
    holds: Mapping[str, Hold] = field(default_factory=dict)
    """By topic: its pause, until what has waited is out."""
    quotas: Mapping[str, Quota] = field(default_factory=dict)
    """By topic: how many messages may be pending, and whether requests are refused."""
    rest_ms: int = 0
    """The time that no step of the shard passes, Unix ms; 0 if there is none."""
    resharding: int = 0
    """How many shards there will be: this is the last record of the shard as it was; 0 if not."""

    last_steps: tuple[LastStep, ...] = ()
    """Of a joint record: by shard."""

    @property
    def steps(self) -> tuple[LastStep, ...]:
        """Return the last step of each shard; of a record of one, its own."""
        frontier = self.frontier
        own = LastStep(
            frontier.term, frontier.step, self.now_ms, self.counts.delivered, self.digest
        )
        return self.last_steps or (own,)

    @property
    def rules(self) -> Rules:
        """Return the versions of the rules as far as the record knows them."""
        return Rules(self.settings.rules_version, self.barriers)

    @property
    def needs(self) -> dict[str, str]:
        """Return the features that a reader must know, with their releases."""
        names = [MOVED] if self.moved else []
        names += [HOLDS] if self.holds else []
        names += [QUOTAS] if self.quotas else []
        names += [SHARDS] if self.frontier.shards > 1 else []
        names += [RESHARDING] if self.rest_ms or self.resharding else []
        names += [VIRTUAL] if self.settings.virtual else []
        if self.barriers:
            names.append(BARRIERS)
            names += sorted({rules_feature(barrier.version) for barrier in self.barriers})
        return {name: FEATURES[name] for name in names}


def record_key(shard: int) -> bytes:
    """Return the key of a shard's frontier records: compaction keeps the newest of each shard."""
    return f"shard-{shard}".encode()


def encode(record: FrontierRecord) -> bytes:
    """Return the value of the record."""
    frontier = record.frontier
    usual = _usual(frontier.cursors)
    needs = record.needs
    fields: dict[str, Any] = {
        "format": FORMAT_WITH_NEEDS if needs else FORMAT,
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
        "counts": {name: getattr(record.counts, name) for name in _COUNTS},
        "digest": record.digest,
    }
    if needs:
        fields["needs"] = needs
    if record.barriers:
        fields["barriers"] = record.barriers
    if record.moved:
        fields["moved"] = record.moved
    if record.holds:
        fields["holds"] = record.holds
    if record.quotas:
        fields["quotas"] = {topic: _numbers(quota) for topic, quota in record.quotas.items()}
    if record.last_steps:
        fields["last_steps"] = record.last_steps
    if record.rest_ms:
        fields["rest_ms"] = record.rest_ms
    if record.resharding:
        fields["resharding"] = record.resharding
    settings = f',"settings":{_settings_text(record.settings)}'
    smoothing = f',"smoothing":{_compact(record.smoothing)}' if record.smoothing else ""
    return f"{_compact(fields)[:-1]}{settings}{smoothing}}}".encode()


def decode(value: bytes, *, takes_moved: bool = False) -> FrontierRecord:
    """Invert `encode`; raises FrontierFormatError for anything that `encode` does not write, and
    for the last record of a cluster that was moved, unless `takes_moved`."""
    try:
        fields = json.loads(value)
        _refuse_unknown_needs(fields)
        settings = _settings(_compact(fields["settings"]))
        frontier = _frontier(fields, settings)
        if not len(frontier.offsets) == len(frontier.own_writes) == settings.partitions:
            raise FrontierFormatError("offsets do not match the number of partitions")
        record = FrontierRecord(
            frontier=frontier,
            owner=str(fields["owner"]),
            now_ms=_whole(fields["now_ms"]),
            counts=StepCounts(**{name: _whole(fields["counts"][name]) for name in _COUNTS}),
            digest=_whole(fields["digest"]),
            settings=settings,
            smoothing={
                topic: _queue(*queue) for topic, queue in fields.get("smoothing", {}).items()
            },
            barriers=tuple(Barrier(*map(_whole, each)) for each in fields.get("barriers", ())),
            moved=str(fields.get("moved", "")),
            rest_ms=_whole(fields.get("rest_ms", 0)),
            resharding=_whole(fields.get("resharding", 0)),
            last_steps=tuple(LastStep(*map(_whole, each)) for each in fields.get("last_steps", ())),
            **_of_topics(fields),
        )
        if not record.needs.keys() <= fields.get("needs", {}).keys():
            raise FrontierFormatError("it does not say what of it must be known")
        # Whatever else was let through above (a lane "-1") shows here.
        if (again := encode(record)) != value and _known(json.loads(again)) != _known(fields):
            raise FrontierFormatError("not what this version would have written")
        if record.moved and not takes_moved:
            raise FrontierFormatError(
                f"the cluster was moved: what was pending is in {record.moved}", moved=record.moved
            )
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


def _frontier(fields: Mapping[str, Any], settings: Settings) -> Frontier:
    shard = _whole(fields["shard"])
    parts = settings.shards if shard == ALL_SHARDS else 1
    cursors = [_rank(fields["cursor"])] * (parts * settings.lanes)
    for lane, cursor in fields["lanes"].items():
        cursors[int(lane)] = _rank(cursor)
    return Frontier(
        shard=shard,
        cursors=tuple(cursors),
        offsets=tuple(map(_whole, fields["offsets"])),
        own_writes=tuple(map(_whole, fields["own_writes"])),
        term=_whole(fields["term"]),
        step=_whole(fields["step"]),
        shards=settings.shards,
    )


def _numbers(quota: Quota) -> tuple[int, ...]:
    """Return the numbers of a quota as the record has them: without a time that is 0."""
    return quota if quota.at_ms else quota[:-1]


def _of_topics(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what orders have made of topics."""
    holds, quotas = (fields.get(name, {}).items() for name in ("holds", "quotas"))
    return {
        "holds": {topic: Hold(*map(_whole, numbers)) for topic, numbers in holds},
        "quotas": {topic: Quota(*map(_whole, numbers)) for topic, numbers in quotas},
    }


def _refuse_unknown_needs(fields: Mapping[str, Any]) -> None:
    """Raise FrontierFormatError unless this version knows format and features."""
    needs = fields.get("needs", {})
    refuse_unknown(needs, "the record", FrontierFormatError)
    if fields["format"] != (FORMAT_WITH_NEEDS if needs else FORMAT):
        raise FrontierFormatError(f"unknown frontier format {fields['format']!r}")


def _known(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that this version writes."""
    known = {name: value for name, value in fields.items() if name in _FIELDS}
    return known | {"counts": {name: known["counts"][name] for name in _COUNTS}}


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
