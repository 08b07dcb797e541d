"""Whole clusters without transactions: nothing is lost, and doubled only what was in doubt."""

from collections import Counter
from pathlib import Path

import pytest
from seeded_tests import bent, parametrize_seeds, played, well
from simulated.chaos import KINDS_WITHOUT_FENCE
from simulated.run import simulate
from simulated.world import World

from replication.settings import AT_LEAST_ONCE

FIXED_SEEDS = 24
FRESH_SEEDS = 3


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize_seeds(metafunc, "at least once: ", FRESH_SEEDS)


def test_a_cluster_without_transactions_loses_nothing(seed: int) -> None:
    """docs/design/simulation.md; `--seed N` replays one."""
    well(simulate(seed, guarantee=AT_LEAST_ONCE))


@pytest.mark.long
def test_nothing_is_lost_and_only_what_was_in_doubt_is_doubled() -> None:
    """docs/design/frontier.md, At least once: what had been delivered after the last progress.

    Rules: progress-after-flush, progress-guarded, progress-follows, progress-topic-behind
    Rules: repeat-ignored
    """
    runs = [well(simulate(seed, guarantee=AT_LEAST_ONCE)) for seed in range(FIXED_SEEDS)]
    faults: Counter[str] = sum((run.faults for run in runs), Counter())
    kinds = KINDS_WITHOUT_FENCE
    assert [k for k in kinds if not any(name.startswith(k) for name in faults)] == []
    trace = "\n".join(line for run in runs for line in run.trace)
    for what in (
        "mastership_superseded",
        "progress applied",
        "progress late",
        ": flush",
        "lease-expired",
    ):
        assert what in trace, f"no run met {what}"
    assert sum(run.failovers for run in runs) > 100
    assert sum(run.delivered for run in runs) > 800
    assert sum(run.doubled for run in runs) > 30


@pytest.mark.parametrize("calm", [1, 2, 3])
def test_without_faults_each_message_comes_once(calm: int, tmp_path: Path) -> None:
    """All that the other guarantee promises holds too: the same judge says so."""
    world = played(calm, tmp_path, AT_LEAST_ONCE)
    world.checker().check()
    judge = world.judge()
    judge.check()
    assert len(world.history.writes) > 10


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Was played to its end without faults. Tests leave it as it was."""
    return played(5, tmp_path_factory.mktemp("world"), AT_LEAST_ONCE)


@pytest.mark.parametrize("broken", ["lost", "altered", "stranger", "ahead", "usurped"])
def test_the_judge_sees_what_is_broken(
    broken: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check that cannot fail is a defect: what was written is bent after a good run."""
    world.judge().check()
    topic = "delayd-frontier" if broken == "ahead" else "orders"
    log = next(log for log in world.kafka.topics[topic].partitions if log.read(0, 10**9)[0])
    place, record = next(
        (index, entry.record)
        for index, entry in enumerate(log.entries)
        if index and entry.record is not None
    )
    with bent(log.entries, world.history.writes):
        if broken == "usurped":
            world.history.writes[3] = world.history.writes[3]._replace(
                leader='{"node": "node-9", "nonce": "life-1"}'
            )
        elif broken == "ahead":
            where = (topic, log.number, record.offset)
            ahead = world.history.sent[where]._replace(known=-1)
            monkeypatch.setitem(world.history.sent, where, ahead)
        else:
            other = {
                "lost": None,
                "altered": record._replace(value=b"other"),
                "stranger": record._replace(
                    headers=[*record.headers, ("delayd-source", b"0/9999")]
                ),
            }[broken]
            log.entries[place] = log.entries[place]._replace(record=other)
        with pytest.raises(AssertionError):
            world.judge().check()


def test_the_judge_sees_what_came_again_though_it_was_covered(tmp_path: Path) -> None:
    """The same record, sent once more by a node that knew of its delivery."""
    world = played(5, tmp_path, AT_LEAST_ONCE)
    log = next(log for log in world.kafka.topics["orders"].partitions if log.read(0, 10**9)[0])
    record = next(entry.record for entry in log.entries if entry.record is not None)
    again = log.append(record.append_ms, record.key, record.value, record.headers)
    last = len(world.history.writes) - 1
    sent = world.history.sent["orders", log.number, record.offset]
    world.history.sent["orders", log.number, again.offset] = sent._replace(known=last)
    with pytest.raises(AssertionError, match="again, after its step"):
        world.judge().check()
