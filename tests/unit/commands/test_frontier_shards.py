"""`delayd recover frontier` where a cluster has several shards: each is recovered by itself, and
nobody guesses how many there are.

Source: docs/design/recovering.md, "Several shards".
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from moves import HOUR_MS, Kill
from one_node import CLUSTER_KEY, TIMEOUT_MS, Maker, ShardedNode
from recoveries import MINUTE_MS, Lost, cluster_in, silent

from delayd.cluster.resharding import OWNER, Resharding
from delayd.cluster.topics import last_frontier
from delayd.commands.move.source import Source
from delayd.commands.recover.frontier.clues import Clues, Reader
from delayd.commands.recover.frontier.making import _quotas_at
from delayd.errors import RecoverError
from delayd.wheel.stopped import StoppedWheel, locked, open_stopped
from replication.holds import Hold
from replication.quotas import PENDING, Gate, Quota, QuotaOrder
from replication.record import FrontierRecord, decode, encode, record_key
from replication.recovered import SKEW_MS
from replication.resharding import closed
from replication.shards import shared_out

SHARDS = 3


@pytest.fixture
def lost(tmp_path: Path, make: Maker) -> Lost:
    return cluster_in(tmp_path, make, shards=SHARDS, partitions=2 * SHARDS)


def fill(lost: Lost) -> set[str]:
    """Messages of each partition, some of which are delivered behind the checkpoint; return the
    values that are still to come."""
    partitions = range(lost.node.settings.partitions)
    for n in partitions:
        lost.send(f"soon-{n}", 1_000, partition=n)
        lost.send(f"later-{n}", HOUR_MS + n, partition=n)
    lost.checkpoint()
    for n in partitions:
        lost.send(f"quick-{n}", 500, partition=n)
    lost.go_on(2_000)
    lost.go_on(5_000)
    return {f"later-{n}" for n in partitions}


def deliver_all(lost: Lost, rest: set[str]) -> None:
    """All of the rest comes, each once, and nothing else."""
    before = lost.arrived()
    assert not rest & before.keys()
    lost.start()
    lost.go_on(2 * HOUR_MS, 8)
    after = lost.arrived()
    assert after.keys() - before.keys() == rest
    assert {*after.values()} == {1}


def records(lost: Lost, shard: int) -> list[FrontierRecord]:
    return [
        decode(each.value or b"")
        for each in lost.node.read("delayd-frontier")
        if each.partition == shard
    ]


def refused(lost: Lost, why: str, shards: int | None = None) -> None:
    """The command refuses, and has written nothing by then."""
    kill = Kill()
    with pytest.raises(RecoverError, match=why):
        lost.recover(kill=kill, shards=shards)
    assert kill.calls == []


def cut(lost: Lost, shard: int, last: FrontierRecord) -> None:
    """Cut the partition of a shard back to a record."""
    lost.lose(shard)
    lost.node.kafka.append("delayd-frontier", shard, record_key(shard), encode(last), [])


@pytest.mark.parametrize("shard", range(SHARDS))
def test_of_one_shard_whose_partition_is_lost_a_record_is_made_and_of_no_other(
    lost: Lost, shard: int
) -> None:
    rest = fill(lost)
    lost.stop()
    before = [records(lost, n) for n in range(SHARDS)]
    lost.lose(shard)
    done = lost.recover()
    assert (done.lost, done.shards) == ((shard,), SHARDS)
    for n in range(SHARDS):
        if n != shard:
            assert records(lost, n) == before[n]
    [made] = records(lost, shard)
    last = before[shard][-1].frontier
    assert made.frontier.offsets == last.offsets and made.frontier.term > last.term
    assert made.settings == before[shard][-1].settings
    assert not lost.recover().is_lost
    deliver_all(lost, rest)


def test_what_of_other_shards_no_target_shows_is_in_no_doubt(lost: Lost) -> None:
    """Their frontier says it. Of the shard that is lost, nobody knows."""
    fill(lost)
    for n in range(2 * SHARDS):
        lost.send(f"due-{n}", 100, partition=n)
    lost.checkpoint()
    lost.node.clock.now_ms += 1_000
    lost.stop()
    lost.lose(1)
    lost.node.kafka.delete_topic("orders")
    found = lost.recover(is_dry=True).found
    sources = {each.source for each in found.doubtful.names}
    assert {int(source.partition("/")[0]) % SHARDS for source in sources} == {1}
    assert found.missing.count == 0
    assert found.pending == 2 * SHARDS + 2 * (SHARDS - 1), "those of an hour later, and of others"


def test_each_shard_is_read_from_its_own_last_step_on(lost: Lost) -> None:
    """Of one of them the wheel has heard nothing for a while: its master was elsewhere."""
    lost.checkpoint()
    lost.stop()
    with locked(lost.folder) as layout, open_stopped(layout) as wheel:
        source = Source(wheel)
        known = source.known
        assert len(known.last_steps) == SHARDS
        old = known.last_steps[1]._replace(now_ms=known.now_ms - 5 * MINUTE_MS)
        known = replace(known, last_steps=(known.last_steps[0], old, known.last_steps[2]))
        reader = Reader(
            lost.node.bus, known, source.progress, CLUSTER_KEY.encode(), lost.node.clock, TIMEOUT_MS
        )
        clues = reader.read(source.topics(), silent, is_fenced=False)
    assert clues.since_ms == old.now_ms - SKEW_MS


def test_a_master_of_any_shard_keeps_it_from_everything(lost: Lost) -> None:
    lost.checkpoint()
    lost.stop()
    lost.lose()
    lost.node.etcd.enter(lost.node.settings.realm)
    lease = lost.node.etcd.grant_lease(60)
    lost.node.etcd.campaign(2, "n-1/x", lease.id)
    kill = Kill()
    with pytest.raises(RecoverError, match="n-1"):
        lost.recover(kill=kill)
    assert kill.calls == []


def test_a_pause_goes_to_each_shard_with_its_part_of_the_rate(
    lost: Lost, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost.checkpoint()
    lost.stop()
    lost.lose()
    until_ms = lost.node.clock.now_ms + HOUR_MS
    made = Source.__init__

    def paused(source: Source, wheel: StoppedWheel) -> None:
        made(source, wheel)
        source.known = replace(source.known, holds={"orders": Hold(1, until_ms, 100, 7)})

    monkeypatch.setattr(Source, "__init__", paused)
    lost.recover()
    holds = [records(lost, shard)[-1].holds["orders"] for shard in range(SHARDS)]
    assert [hold.rate for hold in holds] == [34, 33, 33]
    assert {hold.until_ms for hold in holds} == {until_ms}


def resharding(lost: Lost) -> Resharding:
    seen = last_frontier(lost.node.bus, "delayd-frontier", TIMEOUT_MS)
    assert seen is not None
    return Resharding(
        lost.node.bus, seen.record.settings, lost.node.clock, TIMEOUT_MS, 0, wait=lambda _: None
    )


@pytest.fixture
def two(tmp_path: Path, make: Maker) -> Lost:
    return cluster_in(tmp_path, make, shards=2, partitions=4)


def test_a_wheel_that_saw_the_number_of_shards_change_does_not_say_how_many_there_are(
    two: Lost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was told to rest, and perhaps it was ended then, perhaps not."""
    rest = fill(two)
    two.checkpoint()
    two.die()
    resharding(two).to(4)
    two.lose()
    made = Source.__init__

    def resting(source: Source, wheel: StoppedWheel) -> None:
        made(source, wheel)
        source.known = replace(source.known, rest_ms=source.known.now_ms)

    monkeypatch.setattr(Source, "__init__", resting)
    refused(two, "being changed from 2")
    done = two.recover(shards=4)
    assert (done.shards, done.lost) == (4, (0, 1, 2, 3))
    deliver_all(two, rest)


def test_a_topic_that_is_newer_than_the_wheel_says_how_many_shards_there_are(two: Lost) -> None:
    rest = fill(two)
    two.checkpoint()
    two.die()
    resharding(two).to(4)
    two.lose(2)
    done = two.recover()
    assert (done.shards, done.lost) == (4, (2,))
    deliver_all(two, rest)


def test_of_a_closed_shard_beside_one_that_is_lost_nothing_changes(two: Lost) -> None:
    """The change that was under way is ended afterwards, as one whose run was killed. Whether it
    has been ended before, a person must say."""
    rest = fill(two)
    two.checkpoint()
    two.die()
    run = resharding(two)
    run._follow(0, 2, lambda record: closed(record, 4, OWNER))
    before = records(two, 0)
    two.lose(1)
    refused(two, "was being changed from 2 to 4")
    assert two.recover(shards=2).lost == (1,)
    assert records(two, 0) == before
    run.to(4)
    deliver_all(two, rest)


def test_a_topic_whose_partitions_say_different_numbers_is_not_believed(two: Lost) -> None:
    """One was cut to where it was before the change."""
    fill(two)
    two.checkpoint()
    two.die()
    old = records(two, 1)[-1]
    resharding(two).to(4)
    cut(two, 1, old)
    refused(two, r"another number of shards than of others \(2, 4\)")
    done = two.recover(shards=4)
    assert done.shards == 4 and 1 in done.lost


def test_a_number_that_cannot_be_is_refused(two: Lost) -> None:
    two.checkpoint()
    two.stop()
    two.lose()
    with pytest.raises(RecoverError, match="3 shards"):
        two.recover(shards=3)


def grown(two: Lost) -> list[FrontierRecord]:
    """Of 2 shards 4 are made, and shard 0 of 4 delivers beyond what shard 2 has come to: K of 2
    shards would pass it. Its target does not show what it received. Return the closed records."""
    two.checkpoint()
    two.send("m-0", 4_000, partition=0)
    two.send("m-2", 3_000, partition=2)
    two.go_on(500)
    two.checkpoint()
    two.die()
    resharding(two).to(4)
    closed_ones = [records(two, shard)[-2] for shard in range(2)]
    assert [each.resharding for each in closed_ones] == [4, 4]
    two.start()
    two.node.ingest()
    two.node.lead()
    two.node.clock.now_ms += 10_000
    assert isinstance(two.node, ShardedNode)
    for _ in range(5):
        two.node._leading[0].advance()  # The others' masters do nothing.
    assert "m-0" in two.arrived() and "m-2" not in two.arrived()
    two.stop()
    two.node.kafka.topics["orders"].config["cleanup.policy"] = "compact"
    return closed_ones


def recover_of_four(two: Lost) -> None:
    """Told the number, a run loses nothing."""
    done = two.recover(shards=4, takes_doubles=True)
    assert done.shards == 4 and 2 in done.lost
    two.node.kafka.topics["orders"].config["cleanup.policy"] = "delete"
    two.start()
    two.go_on(HOUR_MS, 8)
    assert two.arrived()["m-0"] == two.arrived()["m-2"] == 1


def test_a_topic_that_was_cut_to_where_shards_are_closed_does_not_say_how_many_there_are(
    two: Lost,
) -> None:
    for shard, last in enumerate(grown(two)):
        cut(two, shard, last)
    for shard in (2, 3):
        two.lose(shard)
    refused(two, "ends where the number of shards was being changed from 2 to 4")
    recover_of_four(two)


def test_what_a_wheel_saw_of_a_change_is_not_forgotten_for_an_older_topic(
    two: Lost, monkeypatch: pytest.MonkeyPatch
) -> None:
    for shard, last in enumerate(grown(two)):
        cut(two, shard, replace(last, resharding=0))
    for shard in (2, 3):
        two.lose(shard)
    made = Source.__init__

    def seeing(source: Source, wheel: StoppedWheel) -> None:
        made(source, wheel)
        source.known = replace(source.known, resharding=4)

    monkeypatch.setattr(Source, "__init__", seeing)
    refused(two, "being changed from 2, to become 4")
    recover_of_four(two)


def test_partitions_for_more_shards_than_are_known_are_seen(two: Lost) -> None:
    """They were emptied with all others. One whose shard was merged keeps a record."""
    grown(two)
    for shard in range(4):
        two.lose(shard)
    refused(two, "has 4 partitions for 2 shards, and partition 2 holds no record")
    recover_of_four(two)


@pytest.mark.parametrize("copy", ["", "[]", "{", '{"shards": "x"}'])
def test_of_a_topic_that_is_gone_etcd_may_know_another_number(two: Lost, copy: str) -> None:
    grown(two)
    two.lose()
    etcd = two.node.etcd
    etcd.enter(two.node.settings.realm)
    assert two.node.settings.shards == 4
    etcd.put_settings(copy or json.dumps(two.node.settings.to_json()))
    if copy:
        assert two.recover(is_dry=True).shards == 2, "It is for people: it says nothing."
        return
    refused(two, "etcd says that the cluster had 4 shards, and the wheel knows 2")
    recover_of_four(two)


def test_nobody_says_another_number_than_all_that_the_topic_says(two: Lost) -> None:
    grown(two)
    two.lose(3)
    refused(two, "--shards is 2, and all records in delayd-frontier say .* 4", shards=2)
    assert two.recover(shards=4, is_dry=True).lost == (3,)


def test_beside_a_partition_that_was_cut_no_other_is_trusted(two: Lost) -> None:
    """Both were. The target of the one shows it, that of the other does not any more: what that
    had delivered would be delivered again."""
    two.send("x-0", 1_000, partition=0)
    two.send("x-1", 1_000, topic="other", partition=1)
    two.go_on(100)
    two.checkpoint()
    before = [records(two, shard)[-1] for shard in range(2)]
    two.go_on(5_000)
    assert two.arrived()["x-0"] == two.arrived("other")["x-1"] == 1
    two.stop()
    for shard, last in enumerate(before):
        cut(two, shard, last)
    for partition in two.node.kafka.topics["other"].partitions:
        partition.truncate(0)
    refused(two, "1 messages may have been delivered or not")
    found = two.recover(is_dry=True).found
    assert [each.topic for each in found.doubtful.names] == ["other"]


def test_limits_are_recovered_in_each_shard(lost: Lost) -> None:
    """By its own orders and gates; what the checkpoint knows is of all, and is said anew."""
    known = Quota(5, 5, 9, 50, 60, over=PENDING, at_ms=40)
    seen = last_frontier(lost.node.bus, "delayd-frontier", TIMEOUT_MS)
    assert seen is not None
    joint = replace(seen.record, quotas={"orders": known, "other": known})
    clues = Clues(0)
    ended = QuotaOrder("other", 70, 0)
    clues.quotas += [(1, 3, Gate("orders", 80, 0, 2, 5)), (2, 4, ended)]
    clues.quotas += [(0, 5, QuotaOrder("new", 75, 3))]
    begun = known._replace(offset=-1, written_ms=0)
    offsets = (9,) * len(joint.frontier.offsets)
    found = [
        _quotas_at(part, joint, clues)
        for part in shared_out(replace(joint.frontier, offsets=offsets), SHARDS)
    ]
    opened = begun._replace(over=0, full_ms=0)
    assert [each["orders"] for each in found] == [begun, opened, begun], "a gate is of its shard"
    assert ["other" in each for each in found] == [True, True, False]
    assert [each.get("new") for each in found] == [Quota(3, 0, 5, 0, 0, at_ms=75), None, None]
