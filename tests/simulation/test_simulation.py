"""Whole clusters, from seeds: whatever fails, each message is delivered once, in order, in time."""

from pathlib import Path
from random import SystemRandom

import pytest
from simulated_cluster import World
from simulation_checker import Checker
from structlog.testing import capture_logs

FIXED_SEEDS = 50
FRESH_SEEDS = 4

WHAT_SEEDS_ARE_FOR = [
    "FencedError",
    "HigherTermError",
    "ClockDriftError",
    "the lease ran out before the commit",
    "an answer gets lost, applied=True",
    "an answer gets lost, applied=False",
    "at before flush",
    "at after commit",
    "at sync",
    "TOPIC_AUTHORIZATION_FAILED",
    "is killed",
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Some fixed seeds and some fresh ones; their names carry them. `--seed N`: only that one."""
    if "seed" not in metafunc.fixturenames:
        return
    seed = metafunc.config.getoption("--seed")
    fresh = [SystemRandom().randrange(10**9) for _ in range(FRESH_SEEDS)]
    metafunc.parametrize("seed", [*range(FIXED_SEEDS), *fresh] if seed is None else [seed])


def simulate(seed: int, directory: Path) -> tuple[World, Checker]:
    """One run, checked."""
    with capture_logs():
        world = World(seed, directory)
        try:
            world.run()
        finally:
            world.close()
            print(f"seed {seed}: {world.habits}", *world.trace[-200:], sep="\n")
    checker = Checker(world.kafka, world.refused)
    checker.check()
    return world, checker


def test_every_message_is_delivered_exactly_once(seed: int, tmp_path: Path) -> None:
    """docs/design/frontier.md, all of it; `--seed N` replays one."""
    simulate(seed, tmp_path)


def test_a_seed_repeats_itself(tmp_path: Path) -> None:
    """A failure can be replayed: nothing but the seed decides."""
    first, _ = simulate(4, tmp_path / "first")
    again, _ = simulate(4, tmp_path / "again")
    assert first.trace == again.trace
    for name, topic in first.kafka.topics.items():
        for one, other in zip(topic.partitions, again.kafka.topics[name].partitions, strict=True):
            assert one.read(0, 10**9) == other.read(0, 10**9)


def test_the_seeds_do_what_they_are_for(tmp_path: Path) -> None:
    """A simulation in which nothing fails proves nothing."""
    trace, terms, late, redriven, refused = "", 0, 0, 0, 0
    for seed in range(12):
        world, checker = simulate(seed, tmp_path / str(seed))
        trace += "\n".join(world.trace)
        terms += checker.steps[-1].fields["term"]
        late += len(checker.late)
        redriven += len(checker.rules.redriven)
        refused += sum(
            a.op == "redrive" and a.source in checker.rules.refusals for a in checker.answers
        )
        assert len(checker.messages) > 20 and checker.step_of
    assert [what for what in WHAT_SEEDS_ARE_FOR if what not in trace] == []
    assert terms > 60 and late > 10 and redriven > 10 and refused > 10


@pytest.mark.parametrize("broken", ["doubled", "lost", "altered", "early", "counted"])
def test_the_checker_sees_what_is_broken(broken: str, tmp_path: Path) -> None:
    """A check that cannot fail is a defect: the committed records are bent after a good run."""
    world, _ = simulate(4, tmp_path)
    topic = "delayd-frontier" if broken == "counted" else "orders"
    log = next(log for log in world.kafka.topics[topic].partitions if log.read(0, 10**9)[0])
    place, record = next(
        (index, entry.record)
        for index, entry in enumerate(log.entries)
        if entry.record is not None
        and not (entry.transaction and entry.transaction.aborted)
        and (broken != "counted" or b'"delivered":0' not in (entry.record.value or b""))
    )
    if broken == "doubled":
        log.entries.append(log.entries[place])
    elif broken == "lost":
        log.entries[place] = log.entries[place]._replace(record=None)
    elif broken == "altered":
        log.entries[place] = log.entries[place]._replace(record=record._replace(value=b"other"))
    elif broken == "early":
        log.entries[place] = log.entries[place]._replace(record=record._replace(append_ms=0))
    else:
        value = (record.value or b"").replace(b'"late":', b'"late":9')
        log.entries[place] = log.entries[place]._replace(record=record._replace(value=value))
    with pytest.raises((AssertionError, KeyError)):
        Checker(world.kafka, world.refused).check()
