"""Flat records cannot be told from a list of them."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_record_fuzz import fuzz_records, harm

from delayd.bus import UNREADABLE_HEADERS, Record
from delayd.bus.flat import FlatRecords, flattened
from delayd.bus.guarded import _begin_of_last_run, _places_behind
from delayd.bus.unreadable import weight_max
from delayd.runtime import native
from delayd.runtime.native.flat import STRETCHES_MAX, Surveyor

texts = st.none() | st.binary(max_size=5)
names = st.text(st.characters(codec="utf-8"), max_size=4)
records_of_any_kind = st.lists(
    st.builds(
        Record,
        st.integers(0, 3),
        st.integers(0, 2**62),
        st.integers(-1, 2**31 - 1),
        st.integers(-1, 3),
        texts,
        texts,
        st.lists(st.tuples(names, texts), max_size=3),
    ),
    max_size=12,
)


@settings(max_examples=200, deadline=None)
@given(records_of_any_kind, st.data())
def test_a_sequence_of_the_same_records(
    library: native.Library, records: list[Record], draw: st.DataObject
) -> None:
    flat = FlatRecords(Surveyor(library), flattened(records))
    assert list(flat) == records and len(flat) == len(records)
    first, last = (draw.draw(st.integers(-14, 14)) for _ in range(2))
    assert list(flat[first:last]) == records[first:last]
    assert list(flat[:first] + flat[last:]) == records[:first] + records[last:]
    if records:
        at = draw.draw(st.integers(-len(records), len(records) - 1))
        assert flat[at] == records[at]
        assert _begin_of_last_run(flat) == _begin_of_last_run(records)
    assert _places_behind(flat) == _places_behind(records)
    assert flat.survey.weight >= weight_max(records)
    if all(name.isascii() for record in records for name, _ in record.headers):
        assert flat.survey.weight == weight_max(records)


def test_there_is_no_record_behind_the_last(library: native.Library) -> None:
    flat = FlatRecords(Surveyor(library), flattened([Record(0, 1, 2, 3, None, None, [])]))
    for at in (1, -2):
        with pytest.raises(IndexError):
            flat[at]


def test_a_name_that_is_not_utf_8_leaves_the_headers_unreadable(library: native.Library) -> None:
    record = Record(0, 1, 2, 3, b"k", b"v", [("a", b"b"), ("\ud800", b"c")])
    [read] = FlatRecords(Surveyor(library), flattened([record]))
    assert read == record._replace(headers=UNREADABLE_HEADERS)


def test_more_stretches_than_there_is_room_for_at_first(library: native.Library) -> None:
    records = [Record(n % 2, n, 2, 3, None, None, []) for n in range(3 * STRETCHES_MAX)]
    flat = FlatRecords(Surveyor(library), flattened(records))
    assert [(each.partition, each.last_offset) for each in flat.survey.stretches] == [
        (record.partition, record.offset) for record in records
    ]


def test_bytes_that_are_no_records_are_refused(library: native.Library) -> None:
    random, surveyor = Random(7), Surveyor(library)
    whole = flattened([Record(0, 1, 2, 3, b"key", b"v" * 40, [("name", b"content")])])
    with pytest.raises(ValueError, match="no flat records"):
        FlatRecords(surveyor, whole[:-1])
    refused = 0
    for _ in range(500):
        data = whole.copy()
        harm(random, data)
        try:
            list(FlatRecords(surveyor, data))
        except ValueError:
            refused += 1
    assert refused > 100


def test_random_and_damaged_records_are_packed_alike(library: native.Library) -> None:
    """What `make native-fuzz` does with more of them."""
    report = fuzz_records(library, Random(7), 2_000)
    assert report.difference is None, report.difference
    assert report.taken > 300 and report.broken > 100 and report.about_ids > 1_000
