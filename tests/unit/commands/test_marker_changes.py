"""A change of all shards hangs: whatever Kafka has made of its markers, and wherever the tool is
killed, all shards are changed in the end, or none is.

Source: docs/design/lost-markers.md, "A change of all shards".
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pytest
from cluster_settings import LANES, SETTINGS
from marker_kafka import NOW_MS, FakeKafka, FakeLooker, FakeProducer, KilledError

from delayd.cluster.frontier_log import SeenFrontier
from delayd.cluster.resharding import OWNER
from delayd.commands.move.old_cluster import _moved
from delayd.commands.recover.marker import changes, of_shards
from delayd.commands.recover.marker.deciding import Fate
from delayd.commands.recover.marker.of_shards import Seen, look, mend_all
from delayd.commands.recover.marker.showing import marker_json, marker_lines
from delayd.errors import RecoverError
from replication.record import FrontierRecord, StepCounts, decode, encode, record_key
from replication.resharding import closed, resharded
from replication.shards import first_of_shard

COMMIT, ABORT, LOST = True, False, None
ALL: Sequence[tuple[int, int]] = [(1, 2), (2, 4), (4, 2), (2, 2)]
PARTITIONS = 4
NEW = "new/1"


def visible(kafka: FakeKafka, shard: int) -> FrontierRecord | None:
    """The newest record that readers see of a shard."""
    records = kafka.visible(kafka.frontiers[shard])
    return decode(records[-1].value or b"", takes_moved=True) if records else None


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Reads of the made-up Kafka that FakeLooker has not."""

    def read(
        kafka: FakeKafka, _topic: str, _ms: int, shard: int = 0, *, takes_moved: bool = False
    ) -> object:
        record = visible(kafka, shard)
        assert record is None or takes_moved or not record.moved, "only a torn end shows that"
        return None if record is None else SeenFrontier(record, 0, 0), 0

    def any_of(kafka: FakeKafka, topic: str, ms: int) -> object:
        shards = range(len(kafka.frontiers))
        found = [read(kafka, topic, ms, n, takes_moved=True)[0] for n in shards]  # type: ignore[index]
        return next(each for each in found if each is not None)

    def looker(
        kafka: FakeKafka, _raw: object, settings: object, *, shard: int, **_: object
    ) -> object:
        return FakeLooker(kafka, shard, settings)  # type: ignore[arg-type]

    monkeypatch.setattr("delayd.commands.recover.marker.survey.AGAIN_S", 0)
    monkeypatch.setattr(changes, "read_frontier", read)
    monkeypatch.setattr(of_shards, "any_frontier", any_of)
    monkeypatch.setattr(of_shards, "Looker", looker)
    yield


def write(kafka: FakeKafka, record: FrontierRecord, by: int) -> None:
    shard = record.frontier.shard
    kafka.append(
        kafka.frontiers[shard], record_key(shard), encode(record), [], kafka.epochs[by], by
    )


def end(kafka: FakeKafka, shard: int, by: int, how: bool | None) -> None:
    if how is not None:
        kafka.end(kafka.frontiers[shard], kafka.epochs[by], is_commit=how, shard=by)


def closed_shards(before: int, shards: int, now_ms: int = NOW_MS) -> FakeKafka:
    """Shards that somebody has closed, each under the id of its masters; the last step of each was
    taken then."""
    kafka = FakeKafka(max(before, shards))
    for shard in range(before):
        settings = replace(SETTINGS, shards=before, partitions=PARTITIONS)
        reached = replace(first_of_shard(shard, before, PARTITIONS, LANES), step=1)
        record = FrontierRecord(reached, "n/x", now_ms, StepCounts(), 0, settings)
        for each in (record, closed(record, shards, OWNER)):
            kafka.epochs[shard] += 1
            write(kafka, each, shard)
            end(kafka, shard, shard, COMMIT)
    return kafka


def change(
    kafka: FakeKafka, before: int, shards: int, ends: Mapping[int, bool | None]
) -> list[FrontierRecord]:
    """Write the records that open all shards, with these markers; of others nothing is written."""
    parts = [visible(kafka, shard) for shard in range(before)]
    records = resharded(parts, shards, {}, OWNER)  # type: ignore[arg-type]
    kafka.epochs[0] += 1
    for record in records:
        if (shard := record.frontier.shard) in ends:
            write(kafka, record, 0)
            end(kafka, shard, 0, ends[shard])
    return records


def found(kafka: FakeKafka) -> Seen:
    known = next(e for n in range(len(kafka.frontiers)) if (e := visible(kafka, n)) is not None)
    settings = replace(SETTINGS, shards=known.settings.shards)
    more = {"since_ms": None, "timeout_ms": 1, "tell": lambda *_: None}
    return look(kafka, kafka, settings, **more)  # type: ignore[arg-type]


def run(kafka: FakeKafka) -> Seen:
    seen = found(kafka)
    more = {"since_ms": None, "timeout_ms": 1, "tell": lambda *_: None}
    return mend_all(kafka, kafka, seen, **more) if seen.is_mendable else seen  # type: ignore[arg-type]


def mended(kafka: FakeKafka, writes: int) -> bool:
    """Run the tool, which is killed after so many writes, and then once more. Return whether it was
    killed."""
    kafka.writes_left = writes
    try:
        run(kafka)
        was_killed = False
    except KilledError:
        was_killed = True
    kafka.writes_left = 10**6
    assert run(kafka).is_fine
    assert not kafka.hangs()
    before = dict(kafka.ends)
    assert run(kafka).is_fine and kafka.ends == before, "a further run does nothing"
    return was_killed


@pytest.mark.parametrize(("before", "shards"), ALL)
def test_all_shards_are_changed_or_none_is_wherever_the_tool_is_killed(
    before: int, shards: int
) -> None:
    count = max(before, shards)
    for outcome in (COMMIT, ABORT):
        for ends in itertools.product((outcome, LOST), repeat=count):
            if LOST not in ends:
                continue
            for writes in range(count + 1):
                kafka = closed_shards(before, shards)
                records = change(kafka, before, shards, dict(enumerate(ends)))
                was_killed = mended(kafka, writes)
                is_changed = outcome is COMMIT or {*ends} == {LOST}
                for shard, record in enumerate(records):
                    last = visible(kafka, shard)
                    if is_changed:
                        assert last == record
                    else:
                        assert last is None or last.resharding == shards
                if not was_killed:
                    break
            else:
                raise AssertionError("it was always killed")


def test_a_change_that_was_not_written_to_its_end_never_was() -> None:
    kafka = closed_shards(2, 4)
    change(kafka, 2, 4, {0: LOST, 1: LOST, 2: LOST})
    seen = found(kafka)
    [one] = seen.changes
    assert one.fate is Fate.ABORTED and one.runs.keys() == {0, 1, 2}
    mended(kafka, 10**6)
    assert visible(kafka, 2) is None and visible(kafka, 0).resharding == 4  # type: ignore[union-attr]


def test_what_is_not_complete_is_left_where_shards_are_at_work() -> None:
    kafka = closed_shards(2, 4)
    [_, second, *_] = change(kafka, 2, 4, {2: LOST})
    write(kafka, second, 1)  # Its writer is forgotten: only what came of it is there.
    end(kafka, 1, 1, COMMIT)
    [one] = found(kafka).changes
    assert one.fate is Fate.LEFT and "shards are at work" in one.problem
    before = dict(kafka.ends)
    seen = run(kafka)
    assert not seen.is_fine and kafka.ends == before
    assert marker_json(seen)["problems"][0] == one.problem
    assert any(one.problem in line for line in marker_lines(seen))


def test_a_change_with_another_transaction_behind_it_is_left() -> None:
    kafka = closed_shards(1, 2)
    [first, _] = change(kafka, 1, 2, {0: LOST, 1: LOST})
    kafka.epochs[0] += 1
    write(kafka, replace(first, owner="n/x"), 0)
    [one] = found(kafka).changes
    assert one.fate is Fate.LEFT and "other transactions" in one.problem


def test_nothing_is_ended_in_a_partition_that_somebody_writes_to_meanwhile() -> None:
    kafka = closed_shards(1, 2)
    [first, _] = change(kafka, 1, 2, {0: COMMIT, 1: LOST})
    seen = found(kafka)
    write(kafka, replace(first, frontier=replace(first.frontier, shard=1)), 1)
    before = dict(kafka.ends)
    with pytest.raises(RecoverError, match="somebody writes"):
        mend_all(kafka, kafka, seen, since_ms=None, timeout_ms=1, tell=lambda *_: None)  # type: ignore[arg-type]
    assert kafka.ends == before


def test_the_result_names_what_hangs_and_what_is_next() -> None:
    kafka = closed_shards(2, 4)
    change(kafka, 2, 4, {0: ABORT, 1: LOST, 2: LOST, 3: ABORT})
    seen = found(kafka)
    told = marker_json(seen)
    states = {"0": "aborted", "1": "hanging", "2": "hanging", "3": "aborted"}
    assert told["changes"] == [
        {"shards": 4, "fate": "aborted", "partitions": states, "problem": ""}
    ]
    assert not told["ok"] and told["aborted"] == 0
    lines = [*marker_lines(seen)]
    topic = SETTINGS.frontier.name
    assert f"hanging     {topic}/1  the change to 4 shards" in lines
    assert "change      to 4 shards: abort it in all of them" in lines
    assert "nothing was written; stop all nodes and add --yes" in lines
    done = run(kafka)
    assert marker_json(done)["aborted"] == 2 and marker_json(done)["ok"]
    assert [*marker_lines(done)][-2:] == [
        "closed      shards 0, 1: `delayd shards set 4` ends what was begun",
        "start the nodes",
    ]
    assert {each["to_be"] for each in marker_json(run(kafka))["shards"]} == {4}
    assert [*marker_lines(run(kafka))][-1].startswith("closed      shards 0, 1")


def test_a_shard_is_closed_however_long_ago_its_last_step_was() -> None:
    kafka = FakeKafka(2)
    for shard in range(2):
        settings = replace(SETTINGS, shards=2, partitions=PARTITIONS)
        reached = first_of_shard(shard, 2, PARTITIONS, LANES)
        record = FrontierRecord(reached, "n/x", 0, StepCounts(), 0, settings)
        for each in (record, closed(record, 4, OWNER)):
            kafka.epochs[shard] += 1
            write(kafka, each, shard)
            end(kafka, shard, shard, LOST if shard and each.resharding else COMMIT)
    done = run(kafka)
    assert done.is_fine and not done.changes and not kafka.hangs()
    assert visible(kafka, 1).resharding == 4  # type: ignore[union-attr]


def torn_move(ends: Sequence[bool | None], now_ms: int) -> FakeKafka:
    """Closed shards that a move has ended in one transaction, with these markers."""
    kafka = closed_shards(len(ends), len(ends), now_ms)
    kafka.epochs[0] += 1
    for shard, how in enumerate(ends):
        write(kafka, _moved(visible(kafka, shard), NEW), 0)  # type: ignore[arg-type]
        end(kafka, shard, 0, how)
    return kafka


@pytest.mark.parametrize("now_ms", [0, NOW_MS])
@pytest.mark.parametrize("outcome", [COMMIT, ABORT])
def test_a_move_ends_all_shards_or_none_wherever_the_tool_is_killed(
    outcome: bool, now_ms: int
) -> None:
    for ends in itertools.product((outcome, LOST), repeat=2):
        for writes in range(3):
            kafka = torn_move(ends, now_ms)
            was_killed = LOST in ends and mended(kafka, writes)
            last = [visible(kafka, shard) for shard in range(2)]
            is_moved = outcome is COMMIT or {*ends} == {LOST}
            assert [each.moved for each in last if each] == [NEW if is_moved else ""] * 2
            assert [each.resharding for each in last if each] == [0 if is_moved else 2] * 2
            if not was_killed:
                break
        else:
            raise AssertionError("it was always killed")


def test_the_result_says_that_a_move_goes_on_and_that_no_node_starts() -> None:
    kafka = torn_move((COMMIT, LOST), NOW_MS)
    lines = [*marker_lines(found(kafka))]
    assert f"hanging     {SETTINGS.frontier.name}/1  the move to {NEW}" in lines
    assert f"move        to {NEW}: commit it in all of them" in lines
    *_, last = marker_lines(run(kafka))
    assert (
        last == f"moved       to {NEW}: run `delayd move` again, which goes on; start no node here"
    )


def test_a_move_of_one_shard_is_ended_however_long_ago_its_last_step_was() -> None:
    kafka = FakeKafka(1)
    settings = replace(SETTINGS, shards=1, partitions=PARTITIONS)
    reached = first_of_shard(0, 1, PARTITIONS, LANES)
    record = FrontierRecord(reached, "n/x", 0, StepCounts(), 0, settings)
    for each, how in ((record, COMMIT), (_moved(record, NEW), LOST)):
        kafka.epochs[0] += 1
        write(kafka, each, 0)
        end(kafka, 0, 0, how)
    assert run(kafka).is_fine and not kafka.hangs()
    assert visible(kafka, 0).moved == NEW  # type: ignore[union-attr]


def test_no_marker_is_written_behind_one_that_kafka_wrote_when_the_masters_were_fenced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody carries the change out right now: the fence aborts it."""
    kafka = closed_shards(1, 2)
    change(kafka, 1, 2, {0: LOST, 1: LOST})
    seen = found(kafka)
    epoch, fence = kafka.epochs[0], FakeProducer.init_transactions

    def fence_and_abort(producer: FakeProducer, ms: int) -> None:
        fence(producer, ms)
        for place in kafka.frontiers:
            kafka.end(place, epoch, is_commit=ABORT)

    monkeypatch.setattr(FakeProducer, "init_transactions", fence_and_abort)
    with pytest.raises(RecoverError, match="somebody writes"):
        mend_all(kafka, kafka, seen, since_ms=None, timeout_ms=1, tell=lambda *_: None)  # type: ignore[arg-type]
    assert visible(kafka, 1) is None, "nothing of what Kafka aborted became visible"


def test_a_whole_change_of_shards_that_are_not_all_closed_is_left() -> None:
    kafka = closed_shards(2, 2)
    [_, second] = change(kafka, 2, 2, {0: LOST})
    write(kafka, second, 1)
    end(kafka, 1, 1, COMMIT)
    write(kafka, second, 0)
    [one] = found(kafka).changes
    assert one.runs.keys() == {0, 1} and one.fate is Fate.LEFT
