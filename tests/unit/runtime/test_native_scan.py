"""The native scan cannot be told from Python's."""

import ctypes
from collections import defaultdict
from random import Random

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from native_fuzz import SECOND_MS, fuzz, outcome, without_body

from delayd.runtime import native
from delayd.wheel import Frame
from delayd.wheel.decoding import scan, scan_in_python
from delayd.wheel.frame import HEADER_BYTES, encode
from delayd.wheel.place import OFFSETS_MAX, POSITIONS_MAX

INPUTS = 2_000
frames = st.builds(
    Frame,
    st.integers(SECOND_MS, SECOND_MS + 999),
    st.integers(0, 2**16 - 1),
    st.integers(0, OFFSETS_MAX - 1),
    st.integers(0, 2**16 - 1),
    st.sampled_from([0, 0, 0, 1, 2]),
    st.integers(0, 2**64 - 1),
    st.tuples(st.binary(max_size=40)),
)


@pytest.fixture(autouse=True)
def the_library_runs(library: native.Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "library", library)


@settings(deadline=None)
@given(st.lists(frames, max_size=30), st.integers(0, 60), st.integers(0, 2**40 - 100_000))
def test_whole_frames_of_one_second_are_taken_and_give_the_same(
    library: native.Library, given_frames: list[Frame], cut_bytes: int, position: int
) -> None:
    data = b"".join(encode(frame)[0] for frame in given_frames)
    data = data[: max(0, len(data) - cut_bytes)]
    assert library.scan(data, position) is not None
    assert outcome(scan, data, position) == outcome(scan_in_python, data, position)


@settings(deadline=None)
@given(st.lists(frames, min_size=1, max_size=4), st.data())
def test_any_flipped_bit_is_left_to_python(
    library: native.Library, given_frames: list[Frame], draw: st.DataObject
) -> None:
    data = bytearray().join(encode(frame)[0] for frame in given_frames)
    at = draw.draw(st.integers(0, len(data) - 1))
    data[at] ^= 1 << draw.draw(st.integers(0, 7))
    found = library.scan(bytes(data), 0)
    # A length that is too long may say that its frame goes on behind the data.
    assert found is None or found.bytes < len(data)
    assert outcome(scan, bytes(data), 0) == outcome(scan_in_python, bytes(data), 0)


@pytest.mark.parametrize(
    "due_ms", [0, 999, SECOND_MS - 1, SECOND_MS + 1_000, 2**63, 2**64 - 1], ids=str
)
def test_messages_of_two_seconds_are_left_to_python(library: native.Library, due_ms: int) -> None:
    two = [Frame(each, 0, 1, 2, 0, 3, (b"",)) for each in (SECOND_MS, due_ms)]
    data = b"".join(encode(frame)[0] for frame in two)
    assert library.scan(data, 0) is None
    assert outcome(scan, data, 0) == outcome(scan_in_python, data, 0)


def test_replies_of_any_second_are_counted_only(library: native.Library) -> None:
    data = b"".join(encode(Frame(n * 5_000, 0, n, 2, 1 + n % 2, 3, ()))[0] for n in range(4))
    found = library.scan(data, 0)
    assert found is not None and found.count == 4 and not list(found.places)
    assert outcome(scan, data, 0) == outcome(scan_in_python, data, 0)


@pytest.mark.parametrize("size", [0, 16 * 1024 * 1024])
def test_values_of_no_byte_and_of_16_megabytes_are_taken(
    library: native.Library, size: int
) -> None:
    data = b"".join(encode(Frame(SECOND_MS, 0, n, 2, 0, 3, (b"\0" * size,)))[0] for n in (7, 8))
    assert library.scan(data, 0) is not None
    assert outcome(scan, data, 0) == outcome(scan_in_python, data, 0)


def test_a_message_of_10_000_headers_is_taken(library: native.Library) -> None:
    headers = tuple((f"h{n}\0", b"\xff\0") for n in range(10_000))
    data, _ = encode(Frame(SECOND_MS, 0, 7, 2, 0, 3, ("t", 1, None, None, headers)))
    assert library.scan(data, 0) is not None
    assert outcome(scan, data, 0) == outcome(scan_in_python, data, 0)


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES - 1, HEADER_BYTES])
def test_less_than_a_frame_is_the_beginning_of_one(library: native.Library, size: int) -> None:
    data = encode(Frame(SECOND_MS, 0, 7, 2, 0, 3, (b"value",)))[0][:size]
    found = library.scan(data, 0)
    assert found is not None and (found.bytes, found.count) == (0, 0)


def test_a_frame_without_a_body_is_left_to_python(library: native.Library) -> None:
    data = bytes(without_body(bytearray(encode(Frame(SECOND_MS, 0, 7, 2, 0, 3, ()))[0])))
    assert library.scan(data, 0) is None
    assert outcome(scan, data, 0) == outcome(scan_in_python, data, 0)


def test_a_position_that_no_place_holds_is_left_to_python(library: native.Library) -> None:
    data, _ = encode(Frame(SECOND_MS, 0, 7, 2, 0, 3, (b"value",)))
    assert library.scan(data, POSITIONS_MAX - len(data)) is not None
    assert library.scan(data, POSITIONS_MAX - len(data) + 1) is None
    assert library.scan(data, 2**64 - 1) is None


def test_places_are_added_to_those_of_earlier_slices(library: native.Library) -> None:
    slices = [encode(Frame(SECOND_MS + n % 2, 0, n, 2, 0, 3, (b"",)))[0] for n in range(6)]
    both = []
    for each in (scan, scan_in_python):
        places: defaultdict[int, bytearray] = defaultdict(bytearray)
        at = 0
        for data in slices:
            at += each(data, at, places).bytes
        both.append(places)
    assert both[0] == both[1] and len(both[0]) == 2


def test_random_and_damaged_frames_are_read_alike(library: native.Library) -> None:
    """What `make native-fuzz` does with more of them."""
    report = fuzz(library, Random(7), INPUTS)
    assert report.difference is None, report.difference
    assert report.inputs == INPUTS
    # That it could have found anything.
    assert report.taken > INPUTS // 2 and report.broken > INPUTS // 10


def test_the_fuzzer_finds_a_library_that_counts_wrongly(
    library: native.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong:
        def scan(self, data: bytes, position: int) -> native.Scan | None:
            found = library.scan(data, position)
            return None if found is None else found._replace(crcs=found.crcs ^ 1)

    monkeypatch.setattr(native, "library", Wrong())
    assert fuzz(library, Random(7), INPUTS).difference is not None


@given(st.binary(max_size=70))
def test_both_ways_to_compute_a_crc_give_the_crc(library: native.Library, data: bytes) -> None:
    for way in ("crc32c", "crc32c_by_table"):
        compute = getattr(ctypes.CDLL(library.path), way)
        compute.argtypes, compute.restype = (ctypes.c_char_p, ctypes.c_size_t), ctypes.c_uint32
        assert compute(data, len(data)) == crc32c(data), way
