"""A wheel survives real kills at random points, and the model sees each planted fault.

This run makes 20 kills; `make wheel-kills KILLS=500` makes any number.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from wheel_reading import entries_in

from crashes.fed_log import FedLog, count_before, number_of, offsets_after, source_of
from crashes.feeding import FedWheel
from crashes.kills import Killing, told
from crashes.model import Model
from crashes.worker import Marker, Marking

SEED = 20_261_122
KILLS = 20
RECORDS = 500


@pytest.fixture
def fed(tmp_path: Path) -> Iterator[FedWheel]:
    fed = FedWheel(tmp_path / "fed", FedLog(SEED))
    fed.take(RECORDS)
    fed.checkpoint(lambda step: None)
    yield fed
    fed.wheel.close()


@pytest.fixture
def model() -> Model:
    model = Model(FedLog(SEED))
    model.go_to(RECORDS)
    return model


@pytest.mark.long
def test_kills_at_random_points_lose_double_and_alter_nothing(tmp_path: Path) -> None:
    report = Killing(tmp_path, SEED).run(KILLS)
    assert report.problems == [], "\n".join(told(report))
    assert (report.lost, report.doubled, report.altered) == (0, 0, 0)
    assert report.kills == KILLS and report.compared > 5 and report.records > 100
    assert report.in_checkpoint > 0


def test_a_kill_while_the_marker_is_written_leaves_what_it_said_before(tmp_path: Path) -> None:
    path = tmp_path / "marker"
    Marker.clear(path)
    marking = Marking(path, None)
    marking.finished, marking.begun = 764, 790
    for stage in ("ingest", "begin", "finish"):
        before, said_before = path.read_bytes(), Marker.read(path)
        marking.stage(stage)
        after, said_after = path.read_bytes(), Marker.read(path)
        assert said_after.stage == stage
        first, *_, last = [n for n in range(len(after)) if before[n] != after[n]]
        # Bytes are copied in their order, over what was there or over zeros.
        zeros = bytes(last + 1 - first)
        for under in (before[first : last + 1], zeros):
            for cut in range(first, last + 1):
                path.write_bytes(after[:cut] + under[cut - first :] + after[last + 1 :])
                assert Marker.read(path) == said_before, cut
        path.write_bytes(after)


def test_the_log_is_the_same_for_whoever_asks() -> None:
    one, other = FedLog(SEED), FedLog(SEED)
    assert [one.record(n) for n in range(300)] == [other.record(n) for n in reversed(range(300))][
        ::-1
    ]
    assert one.record(7) != FedLog(SEED + 1).record(7)
    assert len({source_of(n) for n in range(1_000)}) == 1_000
    assert [number_of(*source_of(n)) for n in range(1_000)] == list(range(1_000))
    assert [count_before(offsets_after(n)) for n in range(1_000)] == list(range(1_000))


def test_a_wheel_that_took_in_the_log_is_what_the_model_says(fed: FedWheel, model: Model) -> None:
    assert not model.compare(fed.wheel)


def test_the_model_sees_a_lost_frame(fed: FedWheel, model: Model) -> None:
    slot = fed.wheel.slots()[-1]
    lost = [
        (frame.partition, frame.offset) for frame in fed.wheel.read(entries_in(fed.wheel, slot))
    ]
    fed.wheel.forget([slot])
    wrong = model.compare(fed.wheel)
    assert wrong.lost == lost != []
    assert (wrong.doubled, wrong.altered) == ([], [])


def test_the_model_sees_a_frame_that_is_there_twice(fed: FedWheel, model: Model) -> None:
    frame = fed.wheel.read(entries_in(fed.wheel, fed.wheel.slots()[-1]))[0]
    fed.wheel.append([frame])
    wrong = model.compare(fed.wheel)
    assert wrong.doubled == [(frame.partition, frame.offset)]
    assert (wrong.lost, wrong.altered) == ([], [])


def test_the_model_sees_another_payload(fed: FedWheel, model: Model) -> None:
    slot = fed.wheel.slots()[-1]
    frames = fed.wheel.read(entries_in(fed.wheel, slot))
    fed.wheel.forget([slot])
    fed.wheel.append([frame._replace(body=(b"key", b"other")) for frame in frames])
    wrong = model.compare(fed.wheel)
    assert wrong.altered == [(frame.partition, frame.offset) for frame in frames]
    assert (wrong.lost, wrong.doubled) == ([], [])


def test_the_model_sees_forgotten_answers_and_ids(fed: FedWheel, model: Model) -> None:
    fed.wheel.forget_pending_replies(offsets_after(RECORDS))
    [wrong] = model.compare(fed.wheel).others
    assert wrong.startswith("0 replies wait")
    for number in range(RECORDS - 30, RECORDS):
        record = FedLog(SEED).record(number)
        if record.name is not None:
            state = record.state._replace(killed_by=5)
            fed.wheel.ids.remember(record.frame.partition, record.name, state, 600_000)
    assert any(said.startswith("of id ") for said in model.compare(fed.wheel).others)
