"""Random and damaged frames of messages, unpacked for delivery by the native library and by Python.

Each input is a few frames with their entries: plain messages, plain but for one field, and nearly
anything else; some with a byte changed, lost or doubled, and of these some with a right CRC again;
some with an entry that is another frame's. What the library unpacks must be the record that Python
would deliver; what it leaves to Python is lost nowhere, and nothing is said of it.
"""

import struct
from random import Random
from typing import Any, Final
from zlib import crc32

import msgpack
from crc32c import crc32c
from native_record_fuzz import Report

from delayd.bus.flat import Outgoing
from delayd.request.bodies import Delivery, delivered, source_of
from delayd.runtime import native
from delayd.runtime.native.unpacking import Frames, Unpacker
from delayd.wheel import Entry, FrameKind
from delayd.wheel.decoding import decode_all
from delayd.wheel.frame import FORM_OF, HEADER_BYTES, MESSAGE_FORM, BrokenFrameError, encode_fields

DUE_MS: Final = 1_700_000_000_000
FIRED_MS: Final = DUE_MS + 7
TOLD_EVERY: Final = 500_000
NAMES: Final = ("a", "trace", "h" * 40, "", "delayd-due", "\xfc", "a\0b", "\x7f", "\x01")
"""Of headers; most of them are plain."""
SPOILT: Final[tuple[Any, ...]] = (
    *(
        None,
        "",
        "x",
        "1/7",
        b"",
        b"x" * 16,
        b"x" * 300,
        0,
        1,
        -1,
        2**31 - 1,
        2**31,
        2**63,
        2**64 - 1,
    ),
    *(1.5, True, [], [1], [["a", b"b", b"c"]], [["a"]], [["a", "text"]], [[b"a", b"b"]], {"a": 1}),
)
"""In place of any field."""


def fuzz_messages(library: native.Library, random: Random, inputs: int) -> Report:
    """Compare so many inputs; end at the first difference."""
    report = Report()
    unpackers = [Unpacker(library, run_min=run_min) for run_min in (1, 1, 3)]
    while report.inputs < inputs:
        entries, data = a_piece(random)
        report.inputs += 1
        taken = compared(random.choice(unpackers), entries, data)
        if taken is None:
            report.difference = bytes(data)
            break
        report.taken += taken > 0
        report.broken += taken < len(entries)
        if report.inputs % TOLD_EVERY == 0:
            print(f"{report.inputs:,} inputs of messages", flush=True)
    return report


def compared(unpacker: Unpacker, entries: list[Entry], data: bytearray) -> int | None:
    """Return how many messages the library unpacked; None if one of them is not what it should be,
    or if it does not come to an end."""
    frames = Frames(Frames.room_for(entries).numbers, data)
    first = at = taken = 0
    while first < len(entries) and at < len(data):
        run = unpacker.unpack(frames, first, at, FIRED_MS)
        if isinstance(run, int):
            if not 0 < run <= len(entries) - first:
                return None
            at += sum(entry.length for entry in entries[first : first + run])
            first += run
            continue
        names = [target.name for target in run.targets]
        records = Outgoing(names, run.records, 0, run.record_bytes)
        some = entries[first : first + run.taken]
        messages = list(run.messages)
        if not len(some) == run.taken == len(messages) == sum(t.count for t in run.targets):
            return None
        for entry, message, (topic, record) in zip(some, messages, records.each(), strict=True):
            wanted = by_python(entry, data, at)
            partition = None if record.partition < 0 else record.partition
            found = Delivery(topic, partition, record.key, record.value, record.headers)
            crc = crc32(source_of(entry.partition, entry.offset).encode())
            of_target = run.targets[message.target]
            if found != wanted or message.crc != crc or message.partition != record.partition:
                return None
            if topic != of_target.name or message.partition > of_target.partition_max:
                return None
            at += entry.length
        if run.crcs != sum(message.crc for message in messages):
            return None
        first, taken = first + run.taken, taken + run.taken
    return taken


def by_python(entry: Entry, data: bytearray, at: int) -> Delivery | None:
    """Return what Python delivers for it; None if it cannot."""
    whole = bytes(data)
    try:
        [frame] = decode_all([entry], lambda size, _: whole[at : at + size])
    except (BrokenFrameError, ValueError):
        return None
    source = source_of(frame.partition, frame.offset)
    return delivered(frame.body, fired_ms=FIRED_MS, source=source)


def a_piece(random: Random) -> tuple[list[Entry], bytearray]:
    """Return some entries, and their frames, harmed or not."""
    entries, data = [], bytearray()
    for _ in range(random.randrange(1, 6)):
        entry, frame = a_message(random)
        if random.random() < 0.2:
            harm(random, frame)
        if random.random() < 0.05:
            entry = entry._replace(**{random.choice(Entry._fields): random.choice((0, 1, 2**40))})
        # As `gather` leaves it: each frame takes what its entry says.
        size = min(entry.length, len(frame) + 3)
        entry = entry._replace(length=size)
        entries.append(entry)
        data += frame[:size].ljust(size, b"\0")
    return entries, data


def a_message(random: Random) -> tuple[Entry, bytearray]:
    """Return an entry and its frame, of a message that is plain, nearly plain, or anything."""
    body: list[Any] = [
        random.choice(("orders", "pay.ments-1_", "t" * 249)),
        random.choice((0, 1, DUE_MS, 2**63 - 1)),
        random.choice((None, b"", b"k", b"k" * 300)),
        random.choice((None, b"", b"v", random.randbytes(300), bytes(70_000))),
        [
            [random.choice(NAMES[:5]), random.choice((None, b"", random.randbytes(9)))]
            for _ in range(random.choice((0, 1, 3, 15, 16, 40)))
        ],
        random.choice((None, None, 0, 127, 128, 70_000, 2**31 - 1)),
        *(None, b"", "", 0),
    ]
    if random.random() < 0.2:
        body[random.randrange(len(body))] = random.choice(SPOILT)
    if random.random() < 0.05:
        body[4] = [[random.choice(NAMES), random.choice(SPOILT)]]
    if random.random() < 0.03:
        body = random.choice((body[:-1], [*body, (1, 2)], [*body, None]))
    kind = int(random.choice((FrameKind.MESSAGE,) * 30 + tuple(FrameKind)))
    due_ms, partition, offset = (
        DUE_MS + random.randrange(9),
        random.randrange(9),
        random.getrandbits(40),
    )
    fields = (FORM_OF.get(kind, MESSAGE_FORM), 7, partition, offset, DUE_MS, due_ms)
    data = bytearray(encode_fields(*fields, tuple(body))[0])
    if random.random() < 0.05:
        data = widened(data, body)
    return Entry(due_ms, partition, offset, 7, kind, 0, len(data)), data


def widened(data: bytearray, body: list[Any]) -> bytearray:
    """Return the frame with a body in longer forms than it needs."""
    packed = bytearray(b"\xdc" + struct.pack(">H", len(body)))
    for field in body:
        if type(field) is int and 0 <= field < 2**64:
            packed += b"\xcf" + struct.pack(">Q", field)
        elif type(field) is bytes:
            packed += b"\xc6" + struct.pack(">I", len(field)) + field
        elif type(field) is str:
            packed += b"\xdb" + struct.pack(">I", len(field.encode())) + field.encode()
        else:
            packed += msgpack.packb(field)
    data[HEADER_BYTES:] = packed
    mend(data)
    return data


def mend(frame: bytearray) -> None:
    """Make length and CRC right."""
    frame[:4] = len(frame).to_bytes(4, "little")
    frame[4:8] = crc32c(bytes(frame[8:])).to_bytes(4, "little")


def harm(random: Random, frame: bytearray) -> None:
    """Change something of it, and mostly make the CRC right again."""
    at = (
        random.randrange(len(frame))
        if random.random() < 0.3
        else random.randrange(min(90, len(frame)))
    )
    kind = random.randrange(4)
    if kind < 2:
        frame[at] ^= 1 << random.randrange(8)
    elif kind == 2:
        del frame[at : at + random.randrange(60)]
    else:
        frame[at:at] = frame[at : at + random.randrange(60)]
    if len(frame) > HEADER_BYTES and random.random() < 0.8:
        mend(frame)
