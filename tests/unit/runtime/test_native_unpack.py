"""Frames of plain messages become the records that Python would send; all else is left to it."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from native_message_fuzz import FIRED_MS, by_python, compared, fuzz_messages, mend

from delayd.bus.flat import Outgoing
from delayd.request.bodies import Delivery, plain_message_body
from delayd.runtime import native
from delayd.runtime.native.unpacking import (
    FIELDS,
    RECORDS_BYTES_MAX,
    TARGETS_MAX,
    UNPACKED_MAX,
    Frames,
    Unpacker,
    gather,
)
from delayd.wheel import Entry, Frame
from delayd.wheel.frame import encode

DUE_MS = 1_700_000_000_000
INPUTS = 2_000
Change = Callable[[bytearray], None]


def message(number: int, topic: str = "orders", value: bytes = b"v", headers: int = 1) -> Frame:
    pairs = [("h", b"%d" % each) for each in range(headers)]
    body = plain_message_body(topic, DUE_MS, b"k", value, [*pairs], None)
    return Frame(DUE_MS, 3, number, 7, 0, DUE_MS, body)


def special(number: int) -> Frame:
    """One with an id."""
    body: tuple[Any, ...] = ("orders", DUE_MS, None, b"v", [], None, "id-1", b"d" * 16, "", 0)
    return Frame(DUE_MS, 3, number, 7, 0, DUE_MS, body)


def stored(messages: list[Frame]) -> tuple[list[Entry], Frames]:
    encoded = [encode(frame)[0] for frame in messages]
    entries = [
        Entry(*frame[:5], 0, len(data)) for frame, data in zip(messages, encoded, strict=True)
    ]
    return entries, Frames(Frames.room_for(entries).numbers, bytearray(b"".join(encoded)))


def split(messages: list[Frame], run_min: int, library: native.Library) -> list[int]:
    """What is unpacked, and, negative, what is left to Python."""
    entries, frames = stored(messages)
    unpacker, parts, first, at = Unpacker(library, run_min=run_min), list[int](), 0, 0
    while first < len(entries):
        found = unpacker.unpack(frames, first, at, FIRED_MS)
        taken = found if isinstance(found, int) else found.taken
        parts.append(-taken if isinstance(found, int) else taken)
        at += sum(entry.length for entry in entries[first : first + taken])
        first += taken
    assert compared(unpacker, entries, frames.data) == sum(part for part in parts if part > 0)
    return parts


def test_random_and_damaged_messages_are_unpacked_as_python_would(library: native.Library) -> None:
    report = fuzz_messages(library, Random(1), INPUTS)
    assert report.difference is None
    assert report.taken > INPUTS // 3 and report.broken > INPUTS // 3


def test_a_message_becomes_the_record_that_delivers_it(library: native.Library) -> None:
    entries, frames = stored([message(5, value=b"x" * 300)])
    found = Unpacker(library, run_min=1).unpack(frames, 0, 0, FIRED_MS)
    assert not isinstance(found, int)
    [(topic, record)] = Outgoing(["orders"], found.records, 0, found.record_bytes).each()
    assert (topic, record.partition, record.offset, record.append_ms) == ("orders", -1, 5, DUE_MS)
    assert (record.key, record.value) == (b"k", b"x" * 300)
    assert record.headers == [
        ("h", b"0"),
        ("delayd-due", b"%d" % DUE_MS),
        ("delayd-fired", b"%d" % FIRED_MS),
        ("delayd-source", b"3/5"),
    ]
    delivery = Delivery("orders", None, record.key, record.value, record.headers)
    assert by_python(entries[0], frames.data, 0) == delivery


def test_too_few_plain_messages_in_a_row_are_left_to_python(library: native.Library) -> None:
    plain, other = message(1), special(2)
    assert split([plain] * 9, 3, library) == [9]
    assert split([other] * 5, 3, library) == [-5]
    assert split([plain, plain, other, plain, plain, plain, other], 3, library) == [-3, 3, -1]
    assert split([plain] * 3 + [other, plain, plain, other], 3, library) == [3, -4]


def test_a_run_ends_before_one_more_than_there_is_room_for(library: native.Library) -> None:
    topics = [message(n, f"t-{n}") for n in range(TARGETS_MAX + 1)]
    assert split(topics, 3, library) == [TARGETS_MAX, 1]
    assert split([message(n) for n in range(UNPACKED_MAX + 1)], 3, library) == [UNPACKED_MAX, 1]
    # A frame keeps a short header in 6 bytes, its record in 10.
    wide = [message(n, headers=600) for n in range(40)]
    assert sum(map(abs, split(wide, 3, library))) == len(wide)
    assert split([message(1, headers=6_000)], 1, library) == [1]
    large = [message(n, value=bytes(RECORDS_BYTES_MAX // 3)) for n in range(5)]
    assert split(large, 3, library) == [2, 2, 1]
    assert split([message(1, value=bytes(RECORDS_BYTES_MAX)), message(2)], 1, library) == [-1, 1]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.__setitem__(60, data[60] ^ 1),
        lambda data: data.__setitem__(0, data[0] ^ 1),
        lambda data: data.__setitem__(slice(4, 8), b"\0\0\0\0"),
    ],
    ids=["a byte", "the length", "the CRC"],
)
def test_a_damaged_frame_is_left_to_python(library: native.Library, damage: Change) -> None:
    entries, frames = stored([message(1), message(2)])
    damage(frames.data)
    unpacker = Unpacker(library, run_min=1)
    assert unpacker.unpack(frames, 0, 0, FIRED_MS) == 1
    assert compared(unpacker, entries, frames.data) == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"\xa1h", b"\xa1\xff"),
        (b"\xa1h", b"\xa1\x00"),
        (b"\xa6orders", b"\xa6orde\xc3\x9f"),
        (b"\x9a\xa6orders", b"\x99\xa6orders"),
        (b"\xc4\x01v", b"\xa1\xff\xc0"),
    ],
    ids=["no UTF-8", "a NUL", "not ASCII", "too few fields", "a text"],
)
def test_a_body_that_is_not_plain_is_left_to_python(
    library: native.Library, old: bytes, new: bytes
) -> None:
    _, frames = stored([message(1)])
    changed = frames.data.replace(old, new)
    assert changed != frames.data and len(changed) == len(frames.data)
    mend(changed)
    assert Unpacker(library, run_min=1).unpack(Frames(frames.numbers, changed), 0, 0, FIRED_MS) == 1


@pytest.mark.parametrize("field", ["due_ms", "partition", "offset", "lane", "kind"])
def test_a_frame_that_is_not_its_entry_s_is_left_to_python(
    library: native.Library, field: str
) -> None:
    entries, frames = stored([message(1)])
    other = entries[0]._replace(**{field: entries[0][Entry._fields.index(field)] + 1})
    frames = frames._replace(numbers=Frames.room_for([other]).numbers)
    assert Unpacker(library, run_min=1).unpack(frames, 0, 0, FIRED_MS) == 1


# --- Gathering


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "frames"
    path.write_bytes(bytes(range(200)))
    descriptor = os.open(path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def gathered(
    library: native.Library, file: int, places: list[tuple[int, int]], base: int = 0, end: int = 200
) -> bytes | None:
    """What is read of these positions and lengths."""
    entries = [Entry(0, 0, 0, 0, 0, position, length) for position, length in places]
    frames = Frames.room_for(entries)
    assert len(frames.numbers) == FIELDS * len(entries)
    after = gather(library, file, frames, range(len(entries)), 0, base, end)
    assert after in (None, len(frames.data))
    return None if after is None else bytes(frames.data)


def test_frames_are_read_in_the_order_of_their_entries(library: native.Library, file: int) -> None:
    places = [(10, 5), (15, 5), (100, 3), (0, 2), (103, 1), (199, 1)]
    wanted = b"".join(bytes(range(at, at + size)) for at, size in places)
    assert gathered(library, file, places) == wanted
    shifted = [(at + 1_000, size) for at, size in places]
    assert gathered(library, file, shifted, 1_000, 1_200) == wanted


@pytest.mark.parametrize("place", [(199, 2), (-1, 2), (100, 101), (2**62, 5)], ids=str)
def test_what_is_not_in_the_file_is_not_read(
    library: native.Library, file: int, place: tuple[int, int]
) -> None:
    assert gathered(library, file, [(0, 5), place]) is None


def test_what_was_not_written_by_the_wheel_is_not_read(library: native.Library, file: int) -> None:
    assert gathered(library, file, [(0, 5), (90, 10)], end=100) is not None
    assert gathered(library, file, [(0, 5), (90, 11)], end=100) is None


def test_what_is_not_on_the_disk_is_left_to_python(library: native.Library, file: int) -> None:
    """A file that was cut, and one that cannot be read."""
    assert gathered(library, file, [(190, 20)], end=300) is None
    assert gathered(library, -1, [(0, 5)]) is None
