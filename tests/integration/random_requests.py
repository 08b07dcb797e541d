"""Random records for the buffer, from one seed: noise, and what is good but for a spoilt place.

Half of them begin as a good request or as a record that the master wrote, and are then spoilt,
because pure noise never gets past the first check. What they should come to is not known here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from delayd.bus import Headers, Record
from delayd.bus.murmur2 import partition_of
from delayd.request import RequestLimits, continuation
from delayd.request.headers import (
    DEBOUNCE_HEADERS,
    GROUP_HEADERS,
    INTERNAL_HEADERS,
    RESCHEDULE_HEADERS,
    SERIES_HEADERS,
    SUPPORTED_HEADERS,
    UNREADABLE_HEADERS,
    WISH_HEADERS,
    WRITTEN_HEADERS,
)

APPEND_MS: Final = 1_700_000_000_000
"""When the records say that they were appended; brokers know better."""

NAMES: Final = (
    *(
        *SUPPORTED_HEADERS,
        *SERIES_HEADERS,
        *RESCHEDULE_HEADERS,
        *GROUP_HEADERS,
        *DEBOUNCE_HEADERS,
        *INTERNAL_HEADERS,
        *WRITTEN_HEADERS,
        *WISH_HEADERS,
    ),
    *(UNREADABLE_HEADERS, "delayd-", "delayd-\udc80", "delayd-ü", "", "trace", "\ud800", "a\0b"),
)
CONTENTS: Final = (
    *(None, b"", b"\xff", b"orders", b"10s", b"3", b"1700000010000", b"2023-11-14T22:13:20.5Z"),
    *(b"reschedule", b"fire", b"debounce", b"+1ms", b"-1d"),
    *(b"cancel", b"replace", b"schedule", b"0/7", b"1/7", b"2/7", b"3/7", b"i", b"__x", b"0" * 64),
    *(b"yes", b"5d", b"-1", b"99d", b"9" * 30, b"x" * 300, b"a b", b"delayd-buffer"),
)
DUES: Final[Headers] = [("delayd-delay", b"10s"), ("delayd-due", b"1"), ("delayd-level", b"18")]
WISHES: Final[Headers] = [
    ("delayd-receipt", b"yes"),
    ("delayd-late", b"5ms"),
    ("delayd-window", b"2s"),
    ("delayd-group", b"g"),
    ("delayd-group", b"g" * 257),
]
CRONS: Final = (b"@yearly", b"0 0 1 1 *", b"@yearly", b"0 0 30 2 *", b"soon")
"""What is due in the run is due at once: no occurrence, or none for long."""
OF_SERIES: Final[Headers] = [
    *(("delayd-zone", b"Europe/Berlin"), ("delayd-zone", b"Mars/Olympus")),
    *(("delayd-zone", b"a zone"), ("delayd-until", b"253402300799999"), ("delayd-until", b"soon")),
    *(("delayd-catchup", b"all"), ("delayd-catchup", b"some")),
]
CLOCKS: Final = (b"2020-03-29T02:30", b"2020-10-25T02:30:00.5", b"2020-02-30T09:00", b"2020-01-01")
"""Local times, two of them wrong."""
NEW_DUES: Final[Headers] = [("delayd-by", b"+1ms"), ("delayd-by", b"-1d"), ("delayd-delay", b"1d")]
DEBOUNCED: Final[tuple[Headers, ...]] = (
    [("delayd-delay", b"1ms"), ("delayd-max-wait", b"1ms")],
    [("delayd-delay", b"1s"), ("delayd-max-wait", b"1500ms")],
    [("delayd-delay", b"2s"), ("delayd-max-wait", b"1s")],
)
"""The last is refused."""
IDS: Final = (b"i", b"order-4711", "ü".encode(), b"x" * 256)


@dataclass(frozen=True, slots=True)
class Mixture:
    """What the good ones among the records are made of."""

    limits: RequestLimits
    """Of the cluster; its key signs the records of the master's kind."""
    ids: tuple[bytes, ...] = IDS
    topics: tuple[bytes, ...] = (b"orders",)
    target_partitions: tuple[bytes, ...] = (b"3",)
    due: Callable[[Random], tuple[str, bytes | None]] = lambda random: random.choice(DUES)
    value: Callable[[Random], bytes | None] = lambda random: random.choice(
        [None, b"", b"v", b"v" * 700]
    )
    redrives: int = 1
    """So many dead letters are redriven, of each partition."""
    noise: float = 0.5
    """The share of records that nothing good was made of."""
    retries: float = 0.33
    """Of the others, the share that was made of a record of the master's kind."""


def record(random: Random, mixture: Mixture) -> Record:
    """A record: noise, or something good that is spoilt in up to two places."""
    key: bytes | None = random.choice(mixture.ids)
    partitions = mixture.limits.partitions
    partition = partition_of(key or b"", partitions)
    is_retry = False
    if random.random() < mixture.noise:
        headers = [noise(random) for _ in range(random.randrange(7))]
    elif random.random() >= mixture.retries:
        headers = request(random, key, mixture)
    else:
        is_retry = True
        headers = retry(random, key, partition, mixture.limits)
    for _ in range(random.randrange(3)):
        at = random.randrange(len(headers) + 1)
        match random.randrange(5):
            case 0:
                headers.insert(at, noise(random))
            case 1 if at < len(headers):
                headers[at] = (headers[at][0], noise(random)[1])
            case 2 if at < len(headers):
                del headers[at]
            case 3:
                key = random.choice([None, b"", b"another", key])
            case 4:
                random.shuffle(headers)
            case _:
                partition = random.randrange(partitions)
    value = b"v" if is_retry else mixture.value(random)
    if ("delayd-op", b"fire") in headers or ("delayd-op", b"reschedule") in headers:
        value = value if random.random() < 0.1 else None
    return Record(partition, random.randrange(2**40), -1, APPEND_MS, key, value, headers)


def noise(random: Random) -> tuple[str, bytes | None]:
    """Any header."""
    content = random.choice(CONTENTS)
    if random.random() < 0.2:
        content = random.randbytes(random.randrange(20))
    return random.choice(NAMES), content


def request(random: Random, key: bytes | None, mixture: Mixture) -> Headers:
    """The headers of a good request."""
    topic: tuple[str, bytes | None] = ("delayd-topic", random.choice(mixture.topics))
    headers: Headers = [("u", random.choice(CONTENTS)), topic, mixture.due(random)]
    with_id: tuple[str, bytes | None] = ("delayd-id", key)
    match random.randrange(7):
        case 6:
            headers[2:] = [with_id, ("delayd-op", b"debounce"), *random.choice(DEBOUNCED)]
            return [*headers, *random.sample(WISHES, random.random() < 0.15)]
        case 5:
            op = random.choice((b"reschedule", b"fire"))
            return [with_id, ("delayd-op", op), random.choice(NEW_DUES)][: 3 - (op == b"fire")]
        case 0:
            headers.append(with_id)
        case 1:
            headers += [with_id, ("delayd-op", b"replace")]
        case 2:
            headers = [with_id, ("delayd-op", b"cancel")]
        case 3:
            partition = partition_of(key or b"", mixture.limits.partitions)
            number = 6 + random.randint(1, mixture.redrives)
            headers.append(("delayd-redrive", b"%d/%d" % (partition, number)))
        case _:
            target_partition = random.choice(mixture.target_partitions)
            headers += [("delayd-key", b"k"), ("delayd-partition", target_partition)]
    if len(headers) > 2:  # no cancel
        if random.random() < 0.1:
            headers[2:3] = [("delayd-cron", random.choice(CRONS)), *random.sample(OF_SERIES, 1)]
        elif random.random() < 0.1:
            headers[2:3] = [("delayd-due", random.choice(CLOCKS)), random.choice(OF_SERIES[:3])]
        headers += random.sample(WISHES, random.random() < 0.15)
    return headers


def retry(random: Random, key: bytes | None, partition: int, limits: RequestLimits) -> Headers:
    """The headers of a record that a master with the key of `limits` wrote."""
    id = None if key is None or random.random() < 0.5 else key.decode()
    digest = b"d" * 16 if id else b""
    body = ("orders", APPEND_MS, key, b"v", [("u", None)], None, id, digest, "", 0)
    written = continuation(
        body,
        partition=partition,
        offset=7,
        rank_due_ms=APPEND_MS,
        next_due_ms=APPEND_MS + 10_000,
        limits=limits,
    )
    return list(written.headers)
