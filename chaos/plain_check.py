"""A second opinion: the figures of an audit, counted once more in plain Python over kafka-python.

It shares no code with delayd. It reads all topics into memory, replays the rules about ids naively
and counts. It knows the usual ways to be refused; of odder ones it believes the dead letter. It
knows nothing of proofs, of requests that an id memory or a retention has forgotten, of more than
32 redrives at a time, and nothing of order, receipts, replicas or the frontier's history.

The cluster must be at rest: nothing is due between the audit and this check.
Source: docs/reference/requests.md.
"""

import json
import re
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from zlib import crc32

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # kafka-python's own code
    from kafka import KafkaConsumer, TopicPartition
    from kafka.partitioner.default import murmur2

UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
LEVELS_S = [1, 5, 10, 30, *range(60, 601, 60), 1_200, 1_800, 3_600, 7_200]
TIMES = {"due", "delay", "level"}
KNOWN = TIMES | {"topic", "key", "partition", "op", "id", "redrive"}
READ_S_MAX = 600
WRONG = ("lost", "duplicate", "early", "altered", "unknown")
ALWAYS = ("accepted", "pending", *WRONG)
FATES = (
    "delivered",
    "cancelled",
    "replaced",
    "rejected",
    "refused_as_duplicate",
    "conflict",
    "dead",
)


class Row(NamedTuple):
    """A committed record. `own` are the user's headers, `told` are delayd's, by their last word."""

    topic: str
    partition: int
    offset: int
    at_ms: int
    key: bytes | None
    value: bytes | None
    own: tuple[tuple[str, bytes | None], ...]
    told: dict[str, str]


@dataclass(eq=False)
class Message:
    """A user's request."""

    row: Row
    due_ms: int
    rank: tuple[int, int, int]
    fate: str | None = None
    """If the log alone decides it."""
    killed: str | None = None
    """By a mark: `cancelled` or `replaced`."""
    attempts: dict[str, str] = field(default_factory=dict)
    """How often it was tried in vain, as each record that continues it says; by its source."""
    deliveries: list[Row] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    """Of its dead letters."""


def agree(report: Mapping[str, Any], counts: Mapping[str, int]) -> None:
    """AssertionError if the audit (its JSON) and the plain check count anything otherwise. Where
    something was tampered with, the fates of what is left need not agree."""
    is_well = report["verdict"] == "ok"
    names = (*ALWAYS, *FATES) if is_well else ALWAYS
    differ = {name: (report[name], counts[name]) for name in names if report[name] != counts[name]}
    assert not differ, f"(the audit, the plain check): {differ}"


def plain_check(bootstrap: str, prefix: str, cut_offset: int | None = None) -> dict[str, int]:
    """How many requests came to what, and how many are wrong. `cut_offset`: of the frontier record
    that was judged; else the newest."""
    [counts] = plain_checks(bootstrap, prefix, cut_offset, [0], lambda _source, _topic: 0).values()
    return counts


def plain_checks(
    bootstrap: str,
    prefix: str,
    cut_offset: int | None,
    parts: Iterable[int],
    part_of: Callable[[str | None, str], int],
    found: Callable[[int, str], None] = lambda _part, _sentence: None,
) -> dict[int, dict[str, int]]:
    """The same, for each part: `part_of` is asked for the part of a request's source, and with None
    for that of a target's topic, if a record in it is nobody's. `found` is told of each request
    that is lost or delivered twice: of which part, and where it lies."""
    frontiers = read_all(bootstrap, [f"{prefix}frontier"])
    judged = [row for row in frontiers if cut_offset is None or row.offset <= cut_offset][-1]
    frontier = json.loads(judged.value or b"")
    buffer = read_all(bootstrap, [f"{prefix}buffer"])
    family, messages = replay(buffer, frontier["settings"])
    topics = {each.row.told["topic"] for each in messages if each.fate != "rejected"}
    partitions_of: dict[str, int] = {}
    counts_of: dict[int, Counter[str]] = {part: Counter() for part in parts}
    for row in read_all(bootstrap, topics, partitions_of):
        if (message := family.get(row.told.get("source", ""))) is not None:
            message.deliveries.append(row)
        elif row.told.keys() & {"source", "fired"}:
            counts_of.setdefault(part_of(None, row.topic), Counter())["unknown"] += 1
    for row in read_all(bootstrap, [f"{prefix}dead"]):
        if (message := family.get(row.told.get("source", ""))) is not None:
            message.reasons.append(row.told.get("reason", ""))
    for message in messages:
        source = f"{message.row.partition}/{message.row.offset}"
        part = part_of(source, message.row.topic)
        counts = counts_of.setdefault(part, Counter())
        counts["accepted"] += 1
        counts[fate := fate_of(message, frontier)] += 1
        counts["duplicate"] += len(message.deliveries) > 1
        if fate == "lost" or len(message.deliveries) > 1:
            found(part, f"{source} of {message.row.at_ms} is {fate}: {message.row.told}")
        for row in message.deliveries:
            fired = row.told.get("fired", "")
            out_ms = min(row.at_ms, int(fired) if fired.isdigit() else row.at_ms)
            counts["early"] += out_ms < message.due_ms
            counts["altered"] += is_altered(message, row, partitions_of[row.topic])
    return {
        part: {name: counts[name] for name in (*ALWAYS, *FATES)}
        for part, counts in counts_of.items()
    }


def replay(
    buffer: Iterable[Row], settings: Mapping[str, Any]
) -> tuple[dict[str, Message], list[Message]]:
    """The rules about ids: messages by their sources and those of their retries, and all once."""
    family: dict[str, Message] = {}
    messages = []
    live: dict[tuple[int, str | None], dict[int, Message]] = defaultdict(dict)
    log_ms: Counter[int] = Counter()
    redriven = set()
    for row in sorted(buffer, key=lambda row: (row.partition, row.offset)):
        told, place, id = row.told, f"{row.partition}/{row.offset}", row.told.get("id")
        now_ms = log_ms[row.partition] = max(log_ms[row.partition], row.at_ms)
        under_id = live[row.partition, id] if id is not None else {}
        continued = family.get(f"{row.partition}/{told.get('continues')}")
        if continued is not None and {"origin", "proof"} <= told.keys():
            family[place] = continued
            continued.attempts[place] = told.get("attempt", "0")
            if continued.killed is None:
                continued.rank = (max(int(told["next-due"]), row.at_ms), row.partition, row.offset)
                under_id.pop(int(told["continues"]), None)
                under_id[row.offset] = continued
            continue
        op, due_ms = told.get("op", "schedule"), due_of(row, settings)
        if due_ms is not None and op != "schedule":
            for killed in under_id.values():
                killed.killed = "replaced" if op == "replace" else "cancelled"
            under_id.clear()
            if op == "cancel":
                continue
        rank = (max(due_ms or 0, row.at_ms), row.partition, row.offset)
        message = family[place] = Message(row, due_ms or 0, rank)
        messages.append(message)
        pending = [other for other in under_id.values() if other.rank[0] > now_ms]
        if due_ms is None:
            message.fate = "rejected"
        elif "redrive" in told and told["redrive"] in redriven:
            message.fate = "refused_as_duplicate"
        elif pending and op == "schedule" and "redrive" not in told:
            same = as_sent(row) in [as_sent(other.row) for other in pending]
            message.fate = "refused_as_duplicate" if same else "conflict"
        else:
            redriven.add(told.get("redrive"))
            under_id[row.offset] = message
    return family, messages


def due_of(row: Row, settings: Mapping[str, Any]) -> int | None:
    """When it is due, Unix ms (of a cancel: 0), or None if it is refused."""
    told, op = row.told, row.told.get("op", "schedule")
    if "id" in told and told["id"].encode() != row.key:
        return None
    if op == "cancel":
        return 0 if told.keys() == {"op", "id"} else None
    topic, times = told.get("topic", ""), [told[name] for name in TIMES & told.keys()]
    if not topic or topic.startswith(("__", settings["prefix"])) or len(times) != 1:
        return None
    if told.keys() - KNOWN or (op != "schedule" and (op != "replace" or "id" not in told)):
        return None
    if "due" in told:
        due_ms = moment_ms(told["due"])
    elif "delay" in told:
        delay = re.fullmatch(r"([0-9]{1,15})(ms|s|m|h|d)", told["delay"])
        due_ms = delay and row.at_ms + int(delay[1]) * UNITS_MS[delay[2]]
    else:
        level = int(told["level"]) if re.fullmatch("[0-9]{1,2}", told["level"]) else 0
        due_ms = row.at_ms + LEVELS_S[level - 1] * 1_000 if 1 <= level <= 18 else None
    far_ms = row.at_ms + settings["max_delay_ms"]
    return None if due_ms is None or due_ms > far_ms else due_ms


def moment_ms(text: str) -> int | None:
    """Unix ms or RFC 3339; a fraction of a millisecond rounds up."""
    if re.fullmatch("[0-9]{1,15}", text):
        return int(text)
    try:
        since = datetime.fromisoformat(text.upper()) - datetime.fromtimestamp(0, UTC)
    except (ValueError, TypeError):
        return None
    return -(-since // timedelta(milliseconds=1))


def as_sent(row: Row) -> tuple[object, ...]:
    """What makes two requests under an id the same."""
    asked = {name: row.told[name] for name in row.told.keys() & {"topic", "partition", *TIMES}}
    return (asked, key_of(row), row.value, row.own)


def key_of(row: Row) -> bytes | None:
    """The key to deliver."""
    return row.told["key"].encode() if "key" in row.told else row.key


def is_altered(message: Message, row: Row, partitions: int) -> bool:
    """Does a delivery hold anything else than was asked for, or lie in another partition?"""
    asked, told = message.row, row.told
    put_back = told.get("source") != f"{asked.partition}/{asked.offset}"
    key = key_of(asked)
    partition = asked.told.get("partition", row.partition if key is None else None)
    if partition is None:
        partition = (murmur2(key) & 0x7FFFFFFF) % partitions
    return (
        (row.topic, row.key, row.value) != (asked.told.get("topic"), key, asked.value)
        or row.partition != int(partition)
        or row.own != asked.own
        or told.get("due") != str(message.due_ms)
        or told.get("id") != asked.told.get("id")
        or told.get("origin") != (f"{asked.partition}/{asked.offset}" if put_back else None)
        or told.get("attempt", "0") != message.attempts.get(told.get("source", ""), "0")
        or not told.get("fired", "").isdigit()
        or bool(told.keys() - {"id", "due", "fired", "source", "origin", "attempt"})
    )


def fate_of(message: Message, frontier: Mapping[str, Any]) -> str:
    """What became of it."""
    if message.fate is not None:
        return message.fate
    if message.deliveries:
        return "delivered"
    if "dead" in message.reasons:
        return "dead"
    if message.killed is not None:
        return message.killed
    if message.reasons:
        return "rejected"
    lane = str(crc32(message.row.told["topic"].encode()) % frontier["settings"]["lanes"])
    cursor = tuple(frontier["lanes"].get(lane, frontier["cursor"]))
    _, partition, offset = message.rank
    is_done = message.rank < cursor and offset < frontier["offsets"][partition]
    return "lost" if is_done else "pending"


def read_all(
    bootstrap: str, topics: Iterable[str], partitions_of: dict[str, int] | None = None
) -> list[Row]:
    """All committed records of those topics that exist, each once; fills in how many partitions
    they have. TimeoutError if they cannot be read to their ends."""
    consumer: Any = KafkaConsumer(
        bootstrap_servers=bootstrap.split(","),
        group_id=None,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        allow_auto_create_topics=False,
        max_poll_records=10_000,
    )
    try:
        rows = []
        there = consumer.topics()
        places = [
            TopicPartition(topic, number)
            for topic in sorted(set(topics) & there)
            for number in sorted(consumer.partitions_for_topic(topic))
        ]
        if partitions_of is not None:
            partitions_of.update(Counter(place.topic for place in places))
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        deadline_s = time.monotonic() + READ_S_MAX
        while any(consumer.position(place) < ends[place] for place in places):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{sorted(set(topics))} were not read within {READ_S_MAX} s")
            for records in consumer.poll(timeout_ms=100).values():
                rows += [row_of(record) for record in records]
        again = [place for place, n in Counter(row[:3] for row in rows).items() if n > 1]
        if again:
            raise AssertionError(f"kafka-python returned {len(again)} records twice: {again[:3]}")
        return rows
    finally:
        consumer.close()


def row_of(record: Any) -> Row:
    """A record as kafka-python has it."""
    headers = tuple(record.headers)
    told = {
        name.removeprefix("delayd-"): (content or b"").decode(errors="replace")
        for name, content in headers
        if name.startswith("delayd-")
    }
    own = tuple(header for header in headers if not header[0].startswith("delayd-"))
    place = (record.topic, record.partition, record.offset, record.timestamp)
    return Row(*place, record.key, record.value, own, told)
