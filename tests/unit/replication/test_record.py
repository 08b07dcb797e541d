"""The frontier record: the bytes of a frontier, and what is refused as one."""

import json
from dataclasses import replace
from typing import Any

import pytest
from cluster_settings import LANES
from cluster_settings import SETTINGS as CLUSTER
from hypothesis import given
from hypothesis import strategies as st

from replication.frontier import Frontier
from replication.quotas import Quota
from replication.rank import Rank
from replication.record import (
    FrontierFormatError,
    FrontierRecord,
    StepCounts,
    decode,
    encode,
    record_key,
)
from replication.settings import AT_LEAST_ONCE, DAY_MS, EXACTLY_ONCE, NAMED_BY_TOPIC, Settings
from replication.smoothing import Queue

PARTITIONS = 3

SETTINGS = replace(CLUSTER, cluster="ключ", partitions=PARTITIONS)

numbers = st.integers(0, 2**63)
ranks = st.one_of(st.just(Rank(7, 0, 0)), st.builds(Rank, numbers, st.integers(0, 9), numbers))


def tuples(of: st.SearchStrategy[Any], count: int) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(of, min_size=count, max_size=count).map(tuple)


counts = st.integers(0, 99)
quotas = st.builds(Quota, *[counts] * 2, st.integers(-1, 99), *[counts] * 6)
shifts = st.lists(st.tuples(numbers, numbers), max_size=3).map(tuple)
queues = st.builds(Queue, numbers, numbers, st.integers(-1, 2**63), numbers, shifts)
records = st.builds(
    FrontierRecord,
    frontier=st.builds(
        Frontier,
        shard=st.integers(0, 9),
        cursors=tuples(ranks, LANES),
        offsets=tuples(numbers, PARTITIONS),
        own_writes=tuples(st.integers(-1, 2**63), PARTITIONS),
        term=numbers,
        step=numbers,
    ),
    owner=st.text(max_size=20),
    now_ms=numbers,
    counts=st.builds(StepCounts, *[numbers] * 6),
    digest=numbers,
    settings=st.sampled_from(
        [
            SETTINGS,
            replace(SETTINGS, guarantee=AT_LEAST_ONCE),
            replace(SETTINGS, virtual=True),
            replace(SETTINGS, tracing_headers=("x-trace", "x-acme-*")),
        ]
    ),
    smoothing=st.dictionaries(st.text(max_size=9), queues, max_size=2),
    quotas=st.dictionaries(st.text(max_size=9), quotas, max_size=2),
)

FIRST = FrontierRecord(
    frontier=Frontier(0, (Rank(7, 0, 0),) * LANES, (1, 2, 3), (-1, -1, -1), 4, 5),
    owner="node-1/abc",
    now_ms=6,
    counts=StepCounts(delivered=1),
    digest=99,
    settings=SETTINGS,
)


@given(records)
def test_a_record_is_read_as_it_was_written(record: FrontierRecord) -> None:
    """docs/design/frontier.md, Step: the new frontier record, with the step's number and counts."""
    assert decode(encode(record)) == record


def test_lanes_that_differ_are_named_wherever_they_are_and_of_two_halves_the_second() -> None:
    """docs/design/frontier.md, Full steps: one default cursor and the exceptions."""
    usual, other = Rank(7, 0, 0), Rank(6, 1, 8)
    for cursors, cursor, lanes in [
        ((other, usual, usual, usual), [7, 0, 0], {"0": [6, 1, 8]}),
        ((usual, other, usual, usual), [7, 0, 0], {"1": [6, 1, 8]}),
        ((other, other, usual, usual), [6, 1, 8], {"2": [7, 0, 0], "3": [7, 0, 0]}),
        ((usual,) * LANES, [7, 0, 0], {}),
    ]:
        fields = json.loads(
            encode(replace(FIRST, frontier=replace(FIRST.frontier, cursors=cursors)))
        )
        assert (fields["cursor"], fields["lanes"]) == (cursor, lanes)


def test_settings_that_only_look_like_others_that_were_read_are_refused() -> None:
    """docs/design/frontier.md, Takeover: nothing is guessed; 3.0 and 3 are equal in Python."""
    assert decode(encode(FIRST)).settings == SETTINGS
    with pytest.raises(FrontierFormatError, match="partitions"):
        decode(changed(settings={**SETTINGS.to_json(), "partitions": float(PARTITIONS)}))


def test_settings_from_before_there_was_a_choice_mean_exactly_once() -> None:
    """docs/design/frontier.md, At least once: such records stay as they are, byte for byte."""
    fields = SETTINGS.to_json()
    assert "guarantee" not in fields
    assert Settings.from_json(fields).guarantee == EXACTLY_ONCE
    assert "naming" not in fields
    assert Settings.from_json(fields).realm == "ключ"
    unique = replace(SETTINGS, naming=NAMED_BY_TOPIC)
    assert Settings.from_json(unique.to_json()).realm == f"ключ/{SETTINGS.frontier.topic_id}"
    chosen = replace(SETTINGS, guarantee=AT_LEAST_ONCE)
    assert Settings.from_json(chosen.to_json()) == chosen


def test_compaction_keeps_the_newest_record_of_each_shard() -> None:
    """docs/design/frontier.md, Step: one partition per shard, compacted."""
    assert (record_key(0), record_key(12)) == (b"shard-0", b"shard-12")


def changed(**fields: Any) -> bytes:
    return json.dumps({**json.loads(encode(FIRST)), **fields}).encode()


def test_fields_that_a_newer_release_adds_are_passed_over() -> None:
    """docs/design/frontier.md, Optional fields.

    Rules: optional-fields
    """
    counts = {**json.loads(encode(FIRST))["counts"], "later": 1}
    assert decode(changed(later={"a": [1]}, counts=counts)) == FIRST


def test_settings_that_a_newer_release_adds_are_kept_in_the_clusters_record() -> None:
    """docs/design/frontier.md, Optional fields.

    Rules: optional-fields
    """
    more = {"later": {"a": [1, 2.5, None]}, "unknown": "ключ"}
    read = decode(changed(settings={**SETTINGS.to_json(), **more}))
    assert replace(read.settings, unknown="") == SETTINGS
    written = json.loads(encode(replace(FIRST, settings=read.settings)))["settings"]
    assert written == json.loads(json.dumps({**SETTINGS.to_json(), **more}))


def test_a_feature_that_is_not_known_is_refused_with_the_release_that_knows_it() -> None:
    """docs/design/frontier.md, Optional fields.

    Rules: needed-features
    """
    needs = {"later": "9.2.0", "latest": "10.0.0"}
    with pytest.raises(FrontierFormatError, match=r"later, latest.* since 10\.0\.0") as refused:
        decode(changed(format=3, needs=dict(reversed(needs.items()))))
    assert refused.value.since == "10.0.0"


def test_a_release_that_knows_no_virtual_time_stops_at_such_a_cluster() -> None:
    """docs/adr/0028-virtual-clusters.md."""
    settings = replace(SETTINGS, virtual=True)
    fields = json.loads(encode(replace(FIRST, settings=settings)))
    assert fields["needs"] == {"virtual": "0.2.0"} and fields["settings"]["virtual"] is True
    with pytest.raises(FrontierFormatError, match="what of it must be known"):
        decode(changed(settings=settings.to_json()))


def test_an_unknown_format_is_refused_by_its_name() -> None:
    """docs/design/frontier.md, Takeover: guessing at a frontier means loss or doubles."""
    with pytest.raises(FrontierFormatError, match="unknown frontier format 4"):
        decode(changed(format=4))


@pytest.mark.parametrize("name", sorted(json.loads(encode(FIRST))))
def test_a_record_that_lacks_a_field_is_refused(name: str) -> None:
    """docs/design/frontier.md, Takeover: nothing is guessed."""
    fields = json.loads(encode(FIRST))
    del fields[name]
    with pytest.raises(FrontierFormatError):
        decode(json.dumps(fields).encode())


@pytest.mark.parametrize(
    "fields",
    [
        {"format": None},
        {"format": "2"},
        {"format": 1},
        {"format": 3},
        {"format": 3, "needs": {}},
        {"format": 3, "needs": ["later"]},
        {"format": 2, "needs": {"later": "9.1.0"}},
        {"needs": None},
        {"term": "4"},
        {"term": None},
        {"step": 5.0},
        {"step": True},
        {"shard": [0]},
        {"owner": 7},
        {"now_ms": None},
        {"digest": "99"},
        {"cursor": [7, 0]},
        {"cursor": "700"},
        {"cursor": [7, 0, None]},
        {"lanes": {"4": [7, 0, 0]}},
        {"lanes": {"-1": [8, 0, 0]}},
        {"lanes": {"x": [8, 0, 0]}},
        {"lanes": [[0, [8, 0, 0]]]},
        {"offsets": [1, 2]},
        {"offsets": [1, 2, 3, 4]},
        {"offsets": "123"},
        {"offsets": [1, 2, None]},
        {"own_writes": [-1, -1]},
        {"own_writes": {"0": 1, "1": 1, "2": 1}},
        {"counts": {}},
        {"counts": {"delivered": 1, "other": 2}},
        {"counts": None},
        {"settings": None},
        {"settings": {}},
        {"settings": {**SETTINGS.to_json(), "lanes": "4"}},
        {"settings": {**SETTINGS.to_json(), "max_delay_ms": None}},
        {"settings": {**SETTINGS.to_json(), "lanes": 10**18}},
        {"settings": {**SETTINGS.to_json(), "buffer": {"name": "b", "topic_id": 7}}},
        {"settings": {**SETTINGS.to_json(), "partitions": 2}},
        {"settings": {**SETTINGS.to_json(), "buffer": "delayd-buffer"}},
        {"settings": {**SETTINGS.to_json(), "retry_delays_ms": []}},
        {"settings": {**SETTINGS.to_json(), "retry_delays_ms": [0]}},
        {"settings": {**SETTINGS.to_json(), "retry_delays_ms": [10, -1]}},
        {"settings": {**SETTINGS.to_json(), "retry_delays_ms": [10, "30"]}},
        {"settings": {**SETTINGS.to_json(), "retry_delays_ms": [10.0]}},
        {"settings": {**SETTINGS.to_json(), "retry_delays_ms": [True]}},
        {"settings": {**SETTINGS.to_json(), "retry_delays_ms": {"10": 1}}},
        {"settings": {**SETTINGS.to_json(), "retry_delays_ms": 10}},
        {"settings": {**SETTINGS.to_json(), "retry_delays_ms": [40 * DAY_MS + 1]}},
        {"settings": {**SETTINGS.to_json(), "retry_delays_ms": [1] * 65}},
        {"settings": {**SETTINGS.to_json(), "receipts_written": "some"}},
        {"settings": {**SETTINGS.to_json(), "receipts_written": None}},
        {"settings": {**SETTINGS.to_json(), "key_fingerprint": "0123456789ABCDEF"}},
        {"settings": {**SETTINGS.to_json(), "key_fingerprint": "0123"}},
        {"settings": {**SETTINGS.to_json(), "guarantee": "exactly-once"}},
        {"settings": {**SETTINGS.to_json(), "guarantee": "at-most-once"}},
        {"settings": {**SETTINGS.to_json(), "guarantee": None}},
        {"settings": {**SETTINGS.to_json(), "naming": 1}},
        {"settings": {**SETTINGS.to_json(), "naming": 3}},
        {"settings": {**SETTINGS.to_json(), "tracing_headers": []}},
        {"settings": {**SETTINGS.to_json(), "tracing_headers": "x"}},
        {"settings": {**SETTINGS.to_json(), "tracing_headers": [1]}},
        {"settings": {**SETTINGS.to_json(), "tracing_headers": ["X-Upper"]}},
        {"settings": {**SETTINGS.to_json(), "tracing_headers": ["delayd-id"]}},
        {"settings": {**SETTINGS.to_json(), "tracing_headers": ["*a"]}},
        {"settings": {**SETTINGS.to_json(), "tracing_headers": ["x"] * 33}},
        {"settings": {**SETTINGS.to_json(), "lanes": []}},
    ],
)
def test_a_record_that_is_not_exactly_one_is_refused(fields: dict[str, Any]) -> None:
    """docs/design/frontier.md, Takeover: nothing is guessed, not even what looks close."""
    with pytest.raises(FrontierFormatError):
        decode(changed(**fields))


@given(st.binary(max_size=60))
def test_any_other_bytes_are_refused(value: bytes) -> None:
    """docs/design/frontier.md, Takeover."""
    with pytest.raises(FrontierFormatError):
        decode(value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.sampled_from(sorted(json.loads(encode(FIRST)))), inner, max_size=4)
        ),
        max_leaves=8,
    )
)
def test_any_other_json_is_refused(value: Any) -> None:
    """docs/design/frontier.md, Takeover."""
    with pytest.raises(FrontierFormatError):
        decode(json.dumps(value).encode())


def test_bytes_that_nest_without_end_are_refused() -> None:
    """docs/design/frontier.md, Takeover."""
    with pytest.raises(FrontierFormatError):
        decode(b"[" * 200_000)


def with_numbers(*numbers: int) -> bytes:
    """A record that says so of a topic with a quota, word for word."""
    fields = json.loads(encode(replace(FIRST, quotas={"orders": Quota(10, 1, 5, 0, 0)})))
    fields["quotas"] = {"orders": numbers}
    return json.dumps(fields, separators=(",", ":")).encode()


def test_a_quota_has_the_time_of_its_order_only_where_shards_compare_it() -> None:
    """What was written before there were limits of several shards is read, and written again by
    who reads that."""
    before = with_numbers(10, 1, 5, 0, 0, 0, 0, 0)
    known = replace(FIRST, quotas={"orders": Quota(10, 1, 5, 0, 0)})
    assert decode(before) == known and encode(known) == before
    timed = replace(FIRST, quotas={"orders": Quota(10, 1, 5, 0, 0, at_ms=90)})
    written = with_numbers(10, 1, 5, 0, 0, 0, 0, 0, 90)
    assert decode(written) == timed and encode(timed) == written
    for wrong in ((10, 1, 5, 0, 0, 0, 0, 0, 0), (10, 1, 5, 0, 0), (10, 1, 5, 0, 0, 0, 0, 0, 9, 9)):
        with pytest.raises(FrontierFormatError):
            decode(with_numbers(*wrong))
