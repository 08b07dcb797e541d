"""Leaders of target partitions that hang: they take no records, refuse none and answer nothing."""

from random import Random

from kernel import Kernel

from delayd.bus.memory import MemoryKafka
from simulated.chaos import OWN_TOPICS, Chaos
from simulated.users import TARGETS
from simulated.weather import Weather

EVERY_US = 3_000_000
LASTS_US_MAX = 20_000_000
"""Beyond the first moment at which what waits for a spared partition is due again."""


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
        topics = [chance.choice(list(TARGETS)) for _ in range(chance.choice([1, 1, 2, 3]))]
        if chance.random() < 0.2:
            topics.append(chance.choice(OWN_TOPICS))
        chaos.refused.update(TARGETS.keys() & set(topics))
        for topic in topics:
            kafka.hang(topic, chance.choice(kafka.topics[topic].partitions).number)
        weather.inject("hung leader", " ".join(topics))
        kernel.sleep(chance.randrange(LASTS_US_MAX))
        kafka.end_hangs()
