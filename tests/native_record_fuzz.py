"""Random and damaged flat records, packed by the native library and by Python.

Each input is a few records of one partition: plain schedules, plain but for one header, and nearly
anything else; some with a byte changed, lost or doubled. Where the library packs a record, its
frame must be Python's; where it leaves a plain record to Python, nothing is lost, and nothing said.
"""

import contextlib
from dataclasses import dataclass
from random import Random
from typing import Final, cast

from cluster_settings import LANES, REQUEST_LIMITS

from delayd.bus import UNREADABLE_HEADERS, Headers, Record
from delayd.bus.flat import FlatRecords, flattened, record_at
from delayd.bus.murmur2 import partition_of
from delayd.bus.unreadable import weight_max
from delayd.node.replica.fast_ingest import FastIngest
from delayd.request import Op, Request, message_body, parse
from delayd.runtime import native
from delayd.runtime.native.flat import Surveyor
from delayd.runtime.native.packing import (
    PACKED_MAX,
    Firsts,
    Packer,
    PackRules,
    Run,
    digest_rules_of,
    limits_of,
)
from delayd.runtime.native.rows import (
    CANCEL,
    ID,
    ID_BYTES,
    KEYED,
    KIND,
    OTHER,
    PLAIN,
    Row,
    RowReader,
    Rows,
)
from delayd.wheel import Frame, FrameKind
from delayd.wheel.catalogue import Catalogue
from delayd.wheel.frame import PackedFrame, packed
from delayd.wheel.id_memory import IdMemory, id_name
from replication.ingest import first_of_id
from replication.rank import lane_of
from replication.settings import TRACING_HEADERS

APPEND_MS: Final = 1_700_000_000_000
KEEP_MS: Final = 86_400_000
TOLD_EVERY: Final = 500_000
NAMES: Final = (
    *("delayd-topic", "delayd-due", "delayd-delay", "delayd-level", "delayd-partition"),
    "delayd-receipt",
    *(
        "delayd-id",
        "delayd-",
        "delayd-x",
        "delayd-receipt",
        "Delayd-id",
        "a",
        "",
        "trace",
        "\xfc",
        "\udc80",
        "a\0b",
    ),
)
CONTENTS: Final = (
    *(b"orders", b"__x", b"delayd-a", b".", b"..", b"a/b", b"x" * 249, b"x" * 250, b"", b"\xff"),
    *(
        b"10s",
        b"0ms",
        b"1d",
        b"2d",
        b"24h",
        b"999999999999999ms",
        b"1000000000000000ms",
        b"5",
        b"s",
    ),
    *(b"0", b"1", b"18", b"19", b"003", b"2147483647", b"2147483648", b"00000000001", b"-1", b"+1"),
    *(b"1700000010000", b"999999999", b"1000000000", b"9999999999", b"10000000000", b"1" * 15),
    *(b"2023-11-14T22:13:20.5Z", "\u0661".encode(), b" 1", b"1 ", None),
)
IDS: Final = tuple(
    id
    for id in (*(b"order-%d" % n for n in range(40)), *(b"x" * n for n in range(250, 258)))
    if partition_of(id, REQUEST_LIMITS.partitions) == 1
)
"""Those that belong where the records are."""
MORE: Final[Headers] = [
    ("delayd-op", b"schedule"),
    ("delayd-op", b"replace"),
    ("delayd-key", b"k"),
    ("delayd-key", "\xfc".encode()),
    ("TRACEPARENT", b"1"),
    ("x-b3-", b"2"),
    ("x-b3", b"3"),
]
DUES: Final[Headers] = [
    ("delayd-delay", b"10s"),
    ("delayd-due", b"1700000010000"),
    ("delayd-level", b"18"),
]


@dataclass(slots=True)
class Report:
    """What a run has seen."""

    inputs: int = 0
    taken: int = 0
    """By the library: frames that it scanned, or records that it packed, one at least."""
    about_ids: int = 0
    """Records of schedules with an id and of cancels that the library read."""
    broken: int = 0
    """Of which both said that they are broken."""
    difference: bytes | None = None
    """The first input that the two do not read alike."""


def fuzz_records(library: native.Library, random: Random, inputs: int) -> Report:
    """Compare so many inputs; end at the first difference."""
    report, surveyor = Report(), Surveyor(library)
    limits = limits_of(
        max_delay_ms=REQUEST_LIMITS.max_delay_ms,
        record_bytes_max=REQUEST_LIMITS.record_bytes_max,
        partitions=REQUEST_LIMITS.partitions,
        prefix=REQUEST_LIMITS.prefix,
    )
    digest = digest_rules_of(TRACING_HEADERS)
    packer = Packer(library, limits, lanes=LANES, run_min=1, keep_ms=KEEP_MS, digest=digest)
    reader = RowReader(library, limits, lanes=LANES, digest=digest)
    fast = FastIngest(REQUEST_LIMITS, LANES)
    while report.inputs < inputs:
        records = [a_record(random, offset) for offset in range(random.randrange(1, 6))]
        data = flattened(records)
        is_harmed = random.random() < 0.3
        if is_harmed:
            harm(random, data)
        report.inputs += 1
        try:
            flat = FlatRecords(surveyor, data)
        except ValueError:
            report.broken += 1
            if not is_harmed:
                report.difference = bytes(data)
                break
            # Nobody packs these; it must end all the same.
            pack(packer, random, data, len(data))
            rows_or_nothing(reader, data)
            continue
        taken = compared(packer, random, fast, flat)
        about_ids = rows_compared(reader, fast, flat)
        if taken is None or about_ids is None:
            report.difference = bytes(data)
            break
        report.taken += taken > 0
        report.about_ids += about_ids
        if report.inputs % TOLD_EVERY == 0:
            print(f"{report.inputs:,} inputs of records", flush=True)
    return report


def pack(packer: Packer, random: Random, data: bytearray, end: int, at: int = 0) -> Run | int:
    near_slot = random.choice((0, APPEND_MS // 1000 + 11, 10**12))
    trail_ms, takes_ids = random.choice((0, 1_000)), random.random() < 0.7
    rules = PackRules(1, near_slot, 0, 0, 0, trail_ms, None, False, takes_ids)
    taken_max = random.choice((1, 3, PACKED_MAX, 2**32 - 1))
    try:
        return packer.pack(data, at, end, rules, taken_max)
    except ValueError:
        return 0


def compared(packer: Packer, random: Random, fast: FastIngest, flat: FlatRecords) -> int | None:
    """Return how many records the library packed; None if one of them is not what it should be."""
    data, at, end = flat.place
    records = list(flat)
    # Of unreadable headers the driver gives another, which is longer than they are.
    is_readable = all(record.headers != UNREADABLE_HEADERS for record in records)
    if is_readable and flat.survey.weight < weight_max(records):
        return None
    done = taken = 0
    while at < end:
        run = pack(packer, random, data, end, at)
        if isinstance(run, int):
            if run == 0:
                return None
            at = end if done + run == len(records) else flat[done + run :].place[1]
            done += run
            continue
        packed_records = records[done : done + run.taken]
        frames = frames_of(packed_records, fast)
        if frames is None or not run_is_right(run, frames):
            return None
        if run.firsts != firsts_of(packed_records, frames):
            return None
        at, done, taken = at + run.taken_bytes, done + run.taken, taken + run.taken
    return taken


def frames_of(records: list[Record], fast: FastIngest) -> list[PackedFrame] | None:
    """Return Python's frames of records that were packed; None if one of them is no schedule."""
    frames = []
    for record, frame in zip(records, fast.pack(records), strict=True):
        if frame is None:
            asked = parse(record, REQUEST_LIMITS)
            is_keyed = isinstance(asked, Request) and asked.op is Op.SCHEDULE and asked.id
            if not is_keyed or not isinstance(asked, Request) or asked.is_told:
                return None
            assert asked.topic is not None
            lane, due_ms = lane_of(asked.topic, LANES), max(asked.due_ms, record.append_ms)
            made = (due_ms, record.partition, record.offset, lane, FrameKind.MESSAGE)
            frame = packed(Frame(*made, record.append_ms, message_body(asked)))
        if record.partition != 1:
            return None
        frames.append(frame)
    return frames


def run_is_right(run: Run, frames: list[PackedFrame]) -> bool:
    """Return whether a run is made of these frames."""
    order = [(frame.due_ms, frame.offset, frame.lane, len(frame.data)) for frame in frames]
    if [placed[:4] for placed in run.placed] != order:
        return False
    wanted = {(group.is_hour, group.number): bytearray(group.frames) for group in run.groups}
    for frame in frames:
        number = frame.due_ms // 1000
        held = wanted.get((False, number), wanted.get((True, number // 3600), bytearray()))
        if not held.startswith(frame.data):
            return False
        del held[: len(frame.data)]
    crcs = sum(group.crcs for group in run.groups)
    return not any(wanted.values()) and crcs == sum(frame.crc for frame in frames)


def firsts_of(records: list[Record], frames: list[PackedFrame]) -> Firsts:
    """Return what Python remembers of the ids of these records, if nothing is known of them."""
    lines = []
    for place, (record, frame) in enumerate(zip(records, frames, strict=True)):
        asked = parse(record, REQUEST_LIMITS)
        assert isinstance(asked, Request)
        if asked.id is None:
            continue
        memory = IdMemory(cast(Catalogue, None), lambda _kills: None)
        state = first_of_id(frame.due_ms, frame.offset, frame.lane, asked.digest)
        topics = {frame.offset: frame.topic}
        memory.remember(record.partition, id_name(asked.id), state, KEEP_MS, topics)
        (key, value), (end, nothing) = memory.capture().items()
        assert value is not None and nothing == b""
        lines.append((key, value, end, place))
    return Firsts(*map(list, zip(*lines, strict=True))) if lines else Firsts()


def rows_or_nothing(reader: RowReader, data: bytearray) -> None:
    """Read damaged records: it must end, and within its bounds."""
    with contextlib.suppress(ValueError):
        reader.read(data, 0, len(data))


def rows_compared(reader: RowReader, fast: FastIngest, flat: FlatRecords) -> int | None:
    """Return how many rows are about ids; None if one does not say of its record what Python says.
    Anything may be left to it."""
    data, at, end = flat.place
    records, done, about_ids = list(flat), 0, 0
    while at < end:
        read = reader.read(data, at, end)
        if not read.rows:
            return None
        for row in read.rows:
            if not row_is_right(read, row, records[done], fast):
                return None
            done += 1
            about_ids += row[KIND] in (KEYED, CANCEL)
        at = read.end
    return about_ids if done == len(records) else None


def row_is_right(read: Rows, row: Row, record: Record, fast: FastIngest) -> bool:
    """Return whether a row is that of its record."""
    offset, append_ms, due_ms, kind, partition, epoch, lane, topic, begin, *_ = row
    if (offset, partition, epoch) != (record.offset, record.partition, record.leader_epoch):
        return False
    if kind == OTHER:
        return record_at(read.data, read.begin + begin)[0] == record
    asked = parse(record, REQUEST_LIMITS)
    if not isinstance(asked, Request) or append_ms != record.append_ms:
        return False
    if kind != PLAIN:
        id_at = read.begin + row[ID]
        if (asked.id or "").encode() != read.data[id_at : id_at + row[ID_BYTES]]:
            return False
    if kind == CANCEL:
        return asked == Request(Op.CANCEL, None, 0, 0, None, None, [], None, asked.id)
    *_, frame_at, size, crc, digest = row
    frame = packed(
        Frame(due_ms, partition, offset, lane, FrameKind.MESSAGE, append_ms, message_body(asked))
    )
    return (
        asked.op is Op.SCHEDULE
        and (asked.id is None) == (kind == PLAIN)
        and digest == (asked.digest or bytes(16))
        and due_ms == max(asked.due_ms, append_ms)
        and read.topics[topic] == asked.topic
        and lane == lane_of(asked.topic, LANES)
        and (bytes(read.frames[frame_at : frame_at + size]), crc) == (frame.data, frame.crc)
        and (kind == KEYED or fast.pack([record]) == [frame])
    )


def a_record(random: Random, offset: int) -> Record:
    """Return a record that is plain, nearly plain, or anything; often with an id, or a cancel."""
    headers: Headers = [
        ("delayd-topic", random.choice((b"orders", b"pay.ments-1_"))),
        random.choice(DUES),
    ]
    if random.random() < 0.3:
        headers.append(("delayd-partition", b"%d" % random.randrange(200)))
    for _ in range(random.choice((0, 1, 3, 14, 20))):
        headers.append(
            (random.choice(("a", "trace", "h" * 40)), random.randbytes(random.randrange(9)))
        )
    key = random.choice((None, b"", b"k", b"k" * 300))
    if random.random() < 0.6:
        if random.random() < 0.3:
            headers = [each for each in headers if not each[0].startswith("delayd-")]
            headers.append(("delayd-op", b"cancel"))
        key = random.choice(IDS)
        headers.append(("delayd-id", key))
        if random.random() < 0.2:
            headers.append(random.choice(MORE))
    for _ in range(random.choice((0, 0, 0, 1, 2))):
        spoilt = (random.choice(NAMES), random.choice(CONTENTS))
        if random.random() < 0.5:
            headers[random.randrange(len(headers))] = spoilt
        else:
            headers.append(spoilt)
    random.shuffle(headers)
    value = random.choice((None, b"", b"v", random.randbytes(300), bytes(70_000)))
    append_ms = APPEND_MS + random.choice((0, 1, 7_200_000, -APPEND_MS, -APPEND_MS - 1))
    return Record(1 if random.random() < 0.98 else 2, offset, 0, append_ms, key, value, headers)


def harm(random: Random, data: bytearray) -> None:
    """Change something of it."""
    at = (
        random.randrange(len(data))
        if random.random() < 0.5
        else random.randrange(min(99, len(data)))
    )
    kind = random.randrange(5)
    if kind < 2:
        data[at] ^= 1 << random.randrange(8)
    elif kind == 2:
        del data[at : at + random.randrange(60)]
    elif kind == 3:
        data[at:at] = data[at : at + random.randrange(60)]
    else:
        data[at : at + 4] = random.choice((0, 39, 40, len(data), 2**31 - 1, 2**32 - 1)).to_bytes(
            4, "little"
        )
    if not data:
        data += b"\0"
