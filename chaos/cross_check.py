"""A second opinion: the figures of an audit, counted once more in plain Python over kafka-python.

It shares no code with delayd. It reads all topics into memory, lets the reference model replay them
and counts. It knows the usual ways to be refused; of odder ones it believes the dead letter. It
knows nothing of proofs, of requests that an id memory or a retention has forgotten, of more than
32 redrives at a time, and nothing of order, receipts, replicas or the frontier's history.

The cluster must be at rest: nothing is due between the audit and this check.
Source: docs/reference/requests.md.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from zlib import crc32

from chaos.asked import Asked, read_asked, read_continuation
from chaos.evidence import partition_for, read_all
from chaos.records import Logged
from chaos.reference_model import Message, Model, model_of

UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
LEVELS_S = [1, 5, 10, 30, *range(60, 601, 60), 1_200, 1_800, 3_600, 7_200]
TIMES = {"due", "delay", "level"}
SERIES = {"cron", "zone", "until", "catchup"}
CLOCK = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?"
WISHES = {"receipt", "late", "window", "group"}
KNOWN = TIMES | SERIES | WISHES | {"topic", "key", "partition", "op", "id", "redrive"}
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
    "expired",
    "recurring",
)


def agree(report: Mapping[str, Any], counts: Mapping[str, int]) -> None:
    """Raise AssertionError if the audit (its JSON) and the cross-check count anything otherwise.
    Where something was tampered with, the fates of what is left need not agree."""
    is_well = report["verdict"] == "ok"
    names = (*ALWAYS, *FATES) if is_well else ALWAYS
    differ = {name: (report[name], counts[name]) for name in names if report[name] != counts[name]}
    assert not differ, f"(the audit, the cross-check): {differ}"


def cut_of(report: Mapping[str, Any]) -> dict[int, int]:
    """Return which frontier record of each shard an audit has judged by, by its report."""
    cut = report["cut"]
    return {each["shard"]: each["offset"] for each in cut.get("shards", ())} or {0: cut["offset"]}


def cross_check(
    bootstrap: str, prefix: str, cut: Mapping[int, int] | None = None
) -> dict[str, int]:
    """Return how many requests came to what, and how many are wrong. `cut`: the offsets of the
    frontier records that were judged, by shard; else the newest."""
    [counts] = cross_checks(bootstrap, prefix, cut, [0], lambda _source, _topic: 0).values()
    return counts


def cross_checks(
    bootstrap: str,
    prefix: str,
    cut: Mapping[int, int] | None,
    parts: Iterable[int],
    part_of: Callable[[str | None, str], int],
    found: Callable[[int, str], None] = lambda _part, _sentence: None,
) -> dict[int, dict[str, int]]:
    """Return the same for each part. `part_of` returns the part of a request's source; with None
    that of a target's topic, if a record in it is nobody's. `found` gets each request that is lost
    or delivered twice: its part, and where it lies."""
    # The last of each partition alone is read: one before it may be damaged.
    newest = {
        each.partition: each
        for each in read_all(bootstrap, [f"{prefix}frontier"])
        if each.is_frontier and (cut is None or each.offset <= cut.get(each.partition, -1))
    }
    settings = json.loads(newest[0].value or b"")["settings"]
    shards = range(settings.get("shards", 1))
    frontiers = [json.loads(newest[shard].value or b"") for shard in shards]
    model = replay(read_all(bootstrap, [f"{prefix}buffer"]), settings)
    messages = model.messages.values()
    topics = {each.content.topic or "" for each in messages if each.refused != "rejected"}
    partitions_of: dict[str, int] = {}
    counts_of: dict[int, Counter[str]] = {part: Counter() for part in parts}
    for record in read_all(bootstrap, topics, partitions_of):
        if (message := model.family_of.get(record.fields.get("source", ""))) is not None:
            message.deliveries.append(record)
        elif record.fields.keys() & {"source", "fired"}:
            counts_of.setdefault(part_of(None, record.topic), Counter())["unknown"] += 1
    for record in read_all(bootstrap, [f"{prefix}dead"]):
        if (message := model.family_of.get(record.fields.get("source", ""))) is not None:
            message.letters.append(record)
    for message in messages:
        asked = message.record
        part = part_of(message.source, asked.topic)
        counts = counts_of.setdefault(part, Counter())
        counts["accepted"] += 1
        counts[fate := fate_of(message, frontiers)] += 1
        counts["duplicate"] += len(message.deliveries) > 1
        if fate == "lost" or len(message.deliveries) > 1:
            found(part, f"{message.source} of {asked.append_ms} is {fate}: {asked.fields}")
        for record in message.deliveries:
            counts["early"] += message.is_early(record)
            counts["altered"] += is_altered(message, record, partitions_of[record.topic])
    return {
        part: {name: counts[name] for name in (*ALWAYS, *FATES)}
        for part, counts in counts_of.items()
    }


def replay(buffer: Iterable[Logged], settings: Mapping[str, Any]) -> Model:
    """Return the reference model of a buffer."""
    buffer = sorted(buffer, key=lambda record: (record.partition, record.offset))
    model = model_of(buffer)
    for record in buffer:
        model.take(_asked(record, settings, model))
    return model


def _asked(record: Logged, settings: Mapping[str, Any], model: Model) -> Asked:
    fields = record.fields
    is_known = f"{record.partition}/{fields.get('continues')}" in model.family_of
    if is_known and {"origin", "proof"} <= fields.keys():
        return read_continuation(record)
    return read_asked(record, due_of(record, settings))


def due_of(record: Logged, settings: Mapping[str, Any]) -> int | None:
    """Return when a request is due, Unix ms (of a cancel: 0), or None if it is rejected."""
    fields, op = record.fields, record.fields.get("op", "schedule")
    if "id" in fields and fields["id"].encode() != record.key:
        return None
    if op == "cancel":
        return 0 if fields.keys() == {"op", "id"} else None
    whens = (TIMES | {"cron"}) & fields.keys()
    topic, times = fields.get("topic", ""), [fields[name] for name in whens]
    if not topic or topic.startswith(("__", settings["prefix"])) or len(times) != 1:
        return None
    if op == "debounce":
        return debounced_ms(record, settings)
    if fields.keys() - KNOWN or (op != "schedule" and (op != "replace" or "id" not in fields)):
        return None
    if "cron" not in fields and (SERIES - {"zone"}) & fields.keys():
        return None
    if "cron" in fields or "zone" in fields:  # until a step has found out when that is
        is_clock = re.fullmatch(CLOCK, fields.get("due", "")) is not None
        return record.append_ms if "cron" in fields or is_clock else None
    if "due" in fields:
        due_ms = moment_ms(fields["due"])
    elif "delay" in fields:
        delay = re.fullmatch(r"([0-9]{1,15})(ms|s|m|h|d)", fields["delay"])
        due_ms = delay and record.append_ms + int(delay[1]) * UNITS_MS[delay[2]]
    else:
        level = int(fields["level"]) if re.fullmatch("[0-9]{1,2}", fields["level"]) else 0
        due_ms = record.append_ms + LEVELS_S[level - 1] * 1_000 if 1 <= level <= 18 else None
    far_ms = record.append_ms + settings["max_delay_ms"]
    return None if due_ms is None or due_ms > far_ms else due_ms


def debounced_ms(record: Logged, settings: Mapping[str, Any]) -> int | None:
    """Return when a debounce is due if it is the only one, Unix ms; None if it is rejected."""
    fields = record.fields
    known = {"topic", "key", "partition", "op", "id", "receipt", "late", "group"}
    spans = [
        re.fullmatch(r"([0-9]{1,15})(ms|s|m|h|d)", fields.get(name, ""))
        for name in ("delay", "max-wait")
    ]
    if "id" not in fields or fields.keys() - known != {"delay", "max-wait"} or None in spans:
        return None
    delay_ms, wait_ms = (int(span[1]) * UNITS_MS[span[2]] for span in spans if span)
    is_good = delay_ms <= min(wait_ms, settings["max_delay_ms"])
    return record.append_ms + delay_ms if is_good else None


def moment_ms(text: str) -> int | None:
    """Return the Unix ms of a text that has them or RFC 3339; a fraction of a millisecond rounds
    up. None if it is neither."""
    if re.fullmatch("[0-9]{1,15}", text):
        return None if 10**9 <= int(text) < 10**10 else int(text)  # these look like seconds
    try:
        since = datetime.fromisoformat(text.upper()) - datetime.fromtimestamp(0, UTC)
    except (ValueError, TypeError):
        return None
    return -(-since // timedelta(milliseconds=1))


def is_altered(message: Message, record: Logged, partitions: int) -> bool:
    """Return whether a delivery holds anything else than was asked for, or lies in another
    partition."""
    content = message.content
    right = record.partition
    if content.partition is None and content.key is not None:
        right = partition_for(content.key, partitions)
    return record.partition != right or bool(message.differences(record))


def fate_of(message: Message, frontiers: Sequence[Mapping[str, Any]]) -> str:
    """Return what became of a message, by the log, its deliveries and its dead letters.
    `frontiers`: of each shard, in order."""
    if message.refused is not None:
        names = {"repeated": "refused_as_duplicate", "duplicate": "refused_as_duplicate"}
        return names.get(message.refused, message.refused)
    if message.deliveries:
        return "delivered"
    reasons = [letter.fields.get("reason") for letter in message.letters]
    if "dead" in reasons or "no-occurrence" in reasons:
        return "dead"
    if "expired" in reasons:
        return "expired"
    if message.killed_by is not None:
        return message.killed_by.word
    if reasons:
        return "rejected"
    if message.is_resolved:
        return "recurring"
    frontier = frontiers[message.newest.record.partition % len(frontiers)]
    lane = str(crc32((message.content.topic or "").encode()) % frontier["settings"]["lanes"])
    cursor = tuple(frontier["lanes"].get(lane, frontier["cursor"]))
    rank = message.newest.rank
    is_done = rank < cursor and rank[2] < frontier["offsets"][rank[1]]
    return "lost" if is_done else "pending"
