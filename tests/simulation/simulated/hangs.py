"""Leaders of target partitions that hang: they take no records, refuse none and answer nothing.

At times it is a single partition, at times all that a broker leads.
"""

from random import Random

from kernel import Kernel

from delayd.bus.memory import MemoryKafka
from simulated.chaos import OWN_TOPICS, Chaos
from simulated.users import TARGETS
from simulated.weather import Weather

EVERY_US = 3_000_000
LASTS_US_MAX = 20_000_000
"""Beyond several moments at which what waits for a spared partition is due again."""
BROKERS = (1, 2, 3)


def spread_leaders(kafka: MemoryKafka) -> None:
    """Let several brokers lead the partitions; those of delayd's topics have the first."""
    targets = sorted(
        (name, log.number) for name in TARGETS for log in kafka.topics[name].partitions
    )
    for count, place in enumerate(targets):
        kafka.log(*place).leader = BROKERS[count % len(BROKERS)]


def hang_leaders(
    kernel: Kernel, weather: Weather, kafka: MemoryKafka, chaos: Chaos, chance: Random
) -> None:
    """Let some leaders hang for a while, at times one of delayd's own; as a task.

    By a stream of its own: seeds without it stay as they are.
    """
    while not chaos.is_done:
        kernel.sleep(chance.randrange(2 * EVERY_US))
        if chaos.is_done:
            return
        if weather.is_quiet:
            continue
        if chance.random() < 0.3:
            _hang_broker(weather, kafka, chaos, chance.choice(BROKERS))
            kernel.sleep(chance.randrange(LASTS_US_MAX))
            kafka.end_hangs()
            continue
        topics = [chance.choice(list(TARGETS)) for _ in range(chance.choice([1, 1, 2, 3]))]
        if chance.random() < 0.2:
            topics.append(chance.choice(OWN_TOPICS))
        chaos.refused.update(TARGETS.keys() & set(topics))
        for topic in topics:
            kafka.hang(topic, chance.choice(kafka.topics[topic].partitions).number)
        weather.inject("hung leader", " ".join(topics))
        kernel.sleep(chance.randrange(LASTS_US_MAX))
        kafka.end_hangs()


def _hang_broker(weather: Weather, kafka: MemoryKafka, chaos: Chaos, broker: int) -> None:
    """Let all partitions of targets hang that a broker leads."""
    for name in TARGETS:
        for log in kafka.topics[name].partitions:
            if log.leader == broker:
                chaos.refused.add(name)
                kafka.hang(name, log.number)
    weather.inject("hung broker", str(broker))
