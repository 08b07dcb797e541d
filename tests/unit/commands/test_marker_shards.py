"""The masters of several shards write to the same targets. Whatever Kafka has made of the markers
of their last steps, and wherever the tool is killed, each of these steps ends up visible as a whole
and once, or not at all.

Source: docs/design/lost-markers.md, "Several shards".
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from cluster_settings import SETTINGS
from marker_kafka import TARGETS, FakeKafka, FakeLooker, KilledError, frontier, source

from delayd.bus import Headers
from delayd.bus.raw import Place
from delayd.cluster.resharding import OWNER
from delayd.commands.recover.marker import of_shards
from delayd.commands.recover.marker.looking import Facts
from delayd.commands.recover.marker.mending import at_work, mend
from delayd.commands.recover.marker.of_shards import Looked, Seen, mend_shards
from delayd.commands.recover.marker.showing import marker_json, marker_lines
from delayd.commands.recover.marker.survey import surveyed
from replication.frontier import begin_term
from replication.record import FrontierRecord, decode, encode, record_key
from replication.resharding import closed, resting

NOW_MS = 1_000_000
COMMIT, ABORT, LOST = True, False, None
Markers = tuple[bool | None, ...]
"""Of a step, in the two targets and in its shard's partition of the frontier topic."""
WHOLE = (COMMIT,) * 3
SHARDS = 2


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delayd.commands.recover.marker.survey.AGAIN_S", 0)
    monkeypatch.setattr("delayd.commands.recover.marker.mending.WATCH_S", 0)


def played(ends: Sequence[Markers]) -> FakeKafka:
    """Two steps of each shard, whose records lie between each other; these are the markers of the
    second one of each."""
    shards = len(ends)
    kafka = FakeKafka(shards)
    for step, markers in ((1, (WHOLE,) * shards), (2, ends)):
        for target in range(len(TARGETS)):
            for shard in range(shards):
                write_to(kafka, target, step, shard)
            for shard in range(shards):
                end(kafka, TARGETS[target], shard, markers[shard][target])
        for shard in range(shards):
            record = frontier(step, shard, shards)
            write_record(kafka, record, shard)
            end(kafka, kafka.frontiers[shard], shard, markers[shard][-1])
    return kafka


def write_to(kafka: FakeKafka, target: int, step: int, shard: int) -> None:
    place = TARGETS[target]
    headers: Headers = [
        ("delayd-due", b"1"),
        ("delayd-fired", b"%d" % (NOW_MS + step)),
        ("delayd-source", source(place, step, shard).encode()),
    ]
    kafka.append(place, None, value(step, shard), headers, kafka.epochs[shard], shard)


def write_record(kafka: FakeKafka, record: FrontierRecord, by: int) -> None:
    shard = record.frontier.shard
    kafka.append(
        kafka.frontiers[shard], record_key(shard), encode(record), [], kafka.epochs[by], by
    )


def end(kafka: FakeKafka, place: Place, by: int, how: bool | None) -> None:
    if how is not None:
        kafka.end(place, kafka.epochs[by], is_commit=how, shard=by)


def value(step: int, shard: int) -> bytes:
    return b"%d of %d" % (step, shard)


def look(kafka: FakeKafka) -> list[Looked]:
    settings = replace(SETTINGS, shards=len(kafka.epochs))
    survey = surveyed(kafka, settings, 1)
    lookers = [FakeLooker(kafka, shard, settings) for shard in sorted(survey.producers)]
    facts = [looker.look(survey) for looker in lookers]
    return [Looked(*each, each[1]) for each in zip(lookers, facts, strict=True)]


def run(kafka: FakeKafka) -> list[Looked]:
    looked = look(kafka)
    mend_shards(kafka, kafka, looked, SETTINGS, 1)  # type: ignore[arg-type]
    return looked


def becomes_visible(markers: Markers) -> bool:
    """Whether the step is visible once it is mended."""
    return COMMIT in markers or {*markers} == {LOST}


def judge(kafka: FakeKafka, ends: Sequence[Markers]) -> None:
    """All or nothing of each shard's second step is visible, and nothing hangs."""
    wanted = Counter({value(1, shard): 1 for shard in range(len(ends))})
    wanted += Counter({value(2, shard): 1 for shard, m in enumerate(ends) if becomes_visible(m)})
    for place in TARGETS:
        assert Counter(record.value for record in kafka.visible(place)) == wanted, place
    for shard, markers in enumerate(ends):
        step = 1 + becomes_visible(markers)
        last = decode(kafka.visible(kafka.frontiers[shard])[-1].value or b"").frontier
        assert last.offsets == frontier(step, shard, len(ends)).frontier.offsets
    assert not kafka.hangs()


@pytest.mark.parametrize("shards", [2, 3])
@pytest.mark.parametrize("markers", [*itertools.product((COMMIT, ABORT, LOST), repeat=3)])
def test_each_shards_step_becomes_visible_or_not_by_itself_wherever_the_tool_is_killed(
    markers: Markers, shards: int
) -> None:
    ends = [markers[n % 3 :] + markers[: n % 3] for n in range(shards)]
    for writes in range(6 * shards):
        kafka = played(ends)
        kafka.writes_left = writes
        try:
            run(kafka)
            was_killed = False
        except KilledError:
            was_killed = True
        kafka.writes_left = 10**6
        assert all(each.after.plan.is_empty for each in run(kafka))
        judge(kafka, ends)
        before = dict(kafka.ends)
        assert all(each.mended is None for each in run(kafka)), "a further run does nothing"
        assert kafka.ends == before
        if not was_killed:
            return
    raise AssertionError("it was always killed")


def test_a_shard_that_cannot_be_decided_keeps_no_other_waiting() -> None:
    kafka = played([WHOLE, (LOST, COMMIT, COMMIT)])
    write_to(kafka, 0, 3, 0)
    end(kafka, TARGETS[0], 0, COMMIT)
    write_to(kafka, 1, 3, 0)  # Its frontier record is nowhere.
    looked = run(kafka)
    [problem] = looked[0].after.plan.problems
    assert "its frontier record is lost" in problem and looked[0].mended is None
    assert looked[1].after.plan.is_empty and kafka.open_since(TARGETS[0], 1) is None
    settings = replace(SETTINGS, shards=SHARDS)
    seen = Seen(settings, surveyed(kafka, settings, 1), [], looked)
    told = marker_json(seen)
    assert not told["ok"] and told["problems"] == [problem] and told["committed"] == 1
    assert [(each["shard"], each["fate"]) for each in told["pieces"]] == [
        (0, "left"),
        (1, "committed"),
    ]
    assert any("shard 1: step 2 " in line for line in marker_lines(seen))


def test_what_hangs_of_one_shard_is_not_left_alone_as_nobodys() -> None:
    kafka = played([(LOST, COMMIT, LOST), (COMMIT, LOST, COMMIT)])
    dead = Place(SETTINGS.dead.name, 0)
    kafka.log[dead], kafka.ends[dead] = [], 0
    kafka.append(dead, None, b"", [("delayd-reason", b"dead")], kafka.epochs[1], 1)
    assert all(not each.before.foreign for each in look(kafka))


def test_a_master_of_any_shard_is_seen_at_work() -> None:
    kafka = played([WHOLE, WHOLE])
    watched = [(each.looker, each.before) for each in look(kafka)]
    settings = replace(SETTINGS, shards=SHARDS)
    assert at_work(kafka, watched, settings, 1) == ""
    kafka.states[1] = "Ongoing"
    assert "shard-1 is under way" in at_work(kafka, watched, settings, 1)
    kafka.states[1] = "CompleteCommit"
    write_record(kafka, frontier(3, 1, SHARDS), 1)
    assert "delayd-frontier/1 grows" in at_work(kafka, watched, settings, 1)


def change(kafka: FakeKafka, ends: Sequence[bool | None]) -> None:
    """`delayd shards set`: the first records of all shards, in a transaction of the first one's
    masters."""
    kafka.epochs[0] += 1
    for shard in range(SHARDS):
        record = frontier(2, shard, SHARDS)
        begun = replace(record, owner=OWNER, frontier=begin_term(record.frontier))
        write_record(kafka, begun, 0)
    for shard, how in enumerate(ends):
        end(kafka, kafka.frontiers[shard], 0, how)


@pytest.mark.parametrize("ends", [(COMMIT, LOST), (LOST, COMMIT), (LOST, LOST)])
def test_a_change_of_all_shards_that_hangs_is_no_step_and_a_person_must_decide(
    ends: tuple[bool | None, ...],
) -> None:
    kafka = played([WHOLE, WHOLE])
    change(kafka, ends)
    before = dict(kafka.ends)
    looked = run(kafka)
    for each, how in zip(looked, ends, strict=True):
        assert any("a change of all shards" in p for p in each.after.plan.problems) == (how is LOST)
    assert kafka.ends == before, "nothing was written"


def test_what_the_first_shards_producer_wrote_to_others_is_no_step_of_theirs() -> None:
    """It has written the first record of each, and goes on with its own steps."""
    kafka = played([WHOLE, WHOLE])
    change(kafka, (COMMIT, COMMIT))
    write_to(kafka, 0, 4, 0)
    looked = run(kafka)
    assert looked[0].mended is not None and looked[0].mended.aborted == 1
    assert looked[1].mended is None and not kafka.hangs()


def test_a_closed_shard_stays_closed_when_a_step_is_written_again() -> None:
    kafka = played([(COMMIT, ABORT, ABORT), WHOLE])
    kafka.epochs[0] += 1
    write_record(kafka, closed(frontier(1, 0, SHARDS), 4, OWNER), 0)
    end(kafka, kafka.frontiers[0], 0, COMMIT)
    looked = run(kafka)
    assert looked[0].mended is not None and looked[0].mended.again == 1
    last = decode(kafka.visible(kafka.frontiers[0])[-1].value or b"")
    assert last.resharding == 4
    assert last.frontier.offsets == frontier(2, 0, SHARDS).frontier.offsets


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_rest_that_is_taken_back_is_no_change_of_all_shards(is_closed: bool) -> None:
    """Beside a closed shard it is one: shards that become as many as they were."""
    kafka = played([WHOLE, WHOLE])
    kafka.epochs[0] += 1
    last = resting(frontier(2, 0, SHARDS), 9, OWNER)
    if is_closed:
        last = closed(last, SHARDS, OWNER)
    write_record(kafka, last, 0)
    end(kafka, kafka.frontiers[0], 0, COMMIT)
    back = replace(last, frontier=begin_term(last.frontier), rest_ms=0, resharding=0)
    kafka.epochs[0] += 1
    write_record(kafka, back, 0)
    [plan, _] = [each.after.plan for each in run(kafka)]
    assert any("a change of all shards" in problem for problem in plan.problems) == is_closed
    assert kafka.hangs() == is_closed


def test_a_former_shard_is_looked_at_if_something_of_it_hangs_or_if_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = replace(SETTINGS, shards=1)

    def shards_of(kafka: FakeKafka, since_ms: int | None = None) -> list[int]:
        def looker(*_: object, shard: int, **__: object) -> FakeLooker:
            return FakeLooker(kafka, shard, settings)

        monkeypatch.setattr(of_shards, "Looker", looker)
        looked = of_shards.look_at_shards(
            kafka,  # type: ignore[arg-type]
            kafka,
            settings,
            surveyed(kafka, settings, 1),
            since_ms=since_ms,
            timeout_ms=1,
            tell=lambda *_: None,
        )
        return [each.shard for each in looked]

    over = played([WHOLE, (COMMIT, ABORT, ABORT)])
    assert shards_of(over) == [0]
    assert shards_of(over, since_ms=0) == [0, 1]
    assert shards_of(played([WHOLE, (LOST, COMMIT, COMMIT)])) == [0, 1]
    assert shards_of(played([WHOLE, (COMMIT, COMMIT, LOST)])) == [0, 1]


def test_a_step_of_one_shard_does_not_stop_the_mending_of_another() -> None:
    kafka = played([(LOST, COMMIT, COMMIT), (LOST, COMMIT, COMMIT)])
    looked = look(kafka)
    write_record(kafka, frontier(3, 1, SHARDS), 1)
    facts: Facts
    facts, mended = mend(kafka, kafka, looked[0].looker, SETTINGS, 1)  # type: ignore[arg-type]
    assert mended.committed == 1 and facts.plan.is_empty
