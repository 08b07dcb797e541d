"""The byte grammar of frames, and the names of files."""

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayd.wheel import Entry, Frame, FrameKind
from delayd.wheel.decoding import decode_all, scan
from delayd.wheel.frame import HEADER_BYTES, BrokenFrameError, encode
from delayd.wheel.layout import Layout, SegmentName, hour_of, parse_hour, parse_segment_file
from delayd.wheel.place import OFFSETS_MAX, entries_at, unpack

pytestmark = pytest.mark.usefixtures("either_path")

texts = st.text(st.characters(exclude_categories=["Cs"]))
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.binary()
    | texts
)
bodies = st.lists(
    st.recursive(scalars, lambda inner: st.lists(inner).map(tuple), max_leaves=8), max_size=6
).map(tuple)
u64 = st.integers(0, 2**64 - 1)
offsets = st.integers(0, OFFSETS_MAX - 1)
u16 = st.integers(0, 2**16 - 1)
frames = st.builds(Frame, u64, u16, offsets, u16, st.sampled_from([0, 1]), u64, bodies)


def scanned(data: bytes, position: int = 0) -> tuple[tuple[int, ...], list[Entry]]:
    """What a scan says, and the messages that it found."""
    places: defaultdict[int, bytearray] = defaultdict(bytearray)
    found = scan(data, position, places)
    of_dues = [entries_at(due_ms, unpack(packed)) for due_ms, packed in places.items()]
    return tuple(found), sorted(entry for entries in of_dues for entry in entries)


def a_frame(*body: Any, due_ms: int = 5_000, offset: int = 7) -> Frame:
    return Frame(due_ms, 1, offset, 3, 0, 4_000, body)


@pytest.mark.parametrize(
    "body",
    [
        (),
        (None, b"", "", ()),
        (b"x" * 1_000_000,),
        ("Straße 日本 🕰", ("\x00", b"\xff\xfe")),
        ("str", b"str"),
        ((("h", None), ("h", b"1"), ("h", b"1")),),
    ],
)
def test_a_body_keeps_none_empty_values_large_values_and_types(body: tuple[Any, ...]) -> None:
    frame = a_frame(*body)
    data, _ = encode(frame)
    [found] = decoded(data, [Entry(*frame[:5], position=0, length=len(data))])
    assert found.body == body
    assert [type(value) for value in found.body] == [type(value) for value in body]


def decoded(data: bytes, entries: list[Entry]) -> list[Frame]:
    return decode_all(entries, lambda size, start: data[start : start + size])


@given(st.lists(frames, max_size=8), st.randoms(use_true_random=False))
def test_entries_become_their_frames_in_any_order(given_frames: list[Frame], order: Any) -> None:
    data, entries = b"", []
    for frame in given_frames:
        more, _ = encode(frame)
        entries.append(Entry(*frame[:5], position=len(data), length=len(more)))
        data += more
    places = list(range(len(entries)))
    order.shuffle(places)
    wanted = [given_frames[place] for place in places]
    assert decoded(data, [entries[place] for place in places]) == wanted


@pytest.mark.parametrize("field", ["due_ms", "partition", "offset", "lane", "kind"])
def test_an_entry_of_another_frame_is_not_read(field: str) -> None:
    frame = a_frame(b"value")
    data, _ = encode(frame)
    entry = Entry(*frame[:5], position=0, length=len(data))
    assert decoded(data, [entry]) == [frame]
    with pytest.raises(BrokenFrameError, match="is another frame"):
        decoded(data, [entry._replace(**{field: getattr(entry, field) + 1})])


def test_an_offset_that_no_partition_reaches_is_refused() -> None:
    data, _ = encode(a_frame(offset=OFFSETS_MAX))
    with pytest.raises(BrokenFrameError, match=f"offset {OFFSETS_MAX}"):
        scanned(data)


@pytest.mark.parametrize("bit", range(8))
def test_no_flipped_bit_passes_a_read_or_a_scan(bit: int) -> None:
    frame = a_frame("topic", b"key", b"value")
    data, _ = encode(frame)
    entry = Entry(*frame[:5], position=0, length=len(data))
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << bit
        with pytest.raises(BrokenFrameError):
            decoded(bytes(flipped), [entry])
        try:
            found, entries = scanned(bytes(flipped))
        except BrokenFrameError:
            continue
        assert (found, entries) == ((0, 0, 0), []), "only a longer length may be left to the caller"


@given(st.lists(frames, max_size=5), st.integers(0, 2000))
def test_a_scan_finds_every_whole_frame_and_stops_at_the_first_that_is_cut(
    given_frames: list[Frame], cut: int
) -> None:
    encoded = [encode(frame)[0] for frame in given_frames]
    messages: list[Entry] = []
    at = count = 0
    data = b"".join(encoded)[:cut]
    for frame, part in zip(given_frames, encoded, strict=True):
        if at + len(part) > len(data):
            break
        if frame.kind == FrameKind.MESSAGE:
            messages.append(Entry(*frame[:5], position=100 + at, length=len(part)))
        at += len(part)
        count += 1
    crcs = sum(encode(frame)[1] for frame in given_frames[:count])
    assert scanned(data, 100) == ((at, count, crcs), sorted(messages))


@pytest.mark.parametrize("byte", [8, 9, 10, 11])
def test_an_unknown_version_kind_or_flag_is_refused_though_its_crc_is_right(byte: int) -> None:
    from crc32c import crc32c

    data = bytearray(encode(a_frame(b"value"))[0])
    data[byte] ^= 0x40
    data[4:8] = int(crc32c(bytes(data[8:]))).to_bytes(4, "little")
    with pytest.raises(BrokenFrameError, match="unknown form"):
        decoded(bytes(data), [Entry(5_000, 1, 7, 3, 0, position=0, length=len(data))])
    with pytest.raises(BrokenFrameError, match="unknown form"):
        scanned(bytes(data))


def test_a_length_that_no_frame_can_have_is_refused() -> None:
    for length in (0, HEADER_BYTES, 2**32 - 1):
        data = length.to_bytes(4, "little") + bytes(HEADER_BYTES)
        with pytest.raises(BrokenFrameError, match=f"says it is {length} bytes"):
            scanned(data)


def test_the_header_is_as_the_grammar_says() -> None:
    frame = Frame(due_ms=8, partition=5, offset=6, lane=4, kind=1, append_ms=7, body=())
    data, crc = encode(frame)
    assert data == (
        (41).to_bytes(4, "little")
        + crc.to_bytes(4, "little")
        + bytes([1, 1, 0, 0, 4, 0, 5, 0])
        + b"".join(number.to_bytes(8, "little") for number in (6, 7, 8))
        + b"\x90"
    )


@given(st.booleans(), st.integers(0, 2**54), st.integers(0, 2**20))
def test_the_path_of_a_slot_or_an_hour_is_parsed_back(
    is_hour: bool, number: int, generation: int
) -> None:
    name = SegmentName(is_hour, number, generation)
    _, _, folder, file = Layout("/d").segment_file(name).rsplit("/", 3)
    assert parse_hour(folder) == (number if is_hour else hour_of(number))
    assert parse_segment_file(file, name.hour) == name


@pytest.mark.parametrize(
    "name",
    [
        *("hour", "hour.", "hour.01", "hours.0", ".hour.0"),
        *("", "x", "7", "7.", ".0", "07.0", "7.00", "7.0.0", "-7.0", "²7.0"),
    ],
)
def test_a_name_that_is_not_ours_is_not_parsed(name: str) -> None:
    assert parse_segment_file(name, 0) is None


def test_a_file_in_another_hours_folder_is_not_ours() -> None:
    assert parse_segment_file("3600.0", 0) is None
