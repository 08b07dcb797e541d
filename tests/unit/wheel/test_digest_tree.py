"""The descent of a tree of digests: what differs is found in few and bounded exchanges."""

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random

from delayd.wheel.comparing.digest_tree import Descent, DifferingHour, Digest, Level
from delayd.wheel.layout import HOUR_SLOTS, hour_of


class Held:
    """A replica that holds digests of slots, and counts what it is asked."""

    def __init__(self, slots: Mapping[int, Digest]) -> None:
        self.slots = slots
        self.asked: Counter[Level] = Counter()

    def digests(self, level: Level, parents: Sequence[int]) -> Mapping[int, Digest]:
        self.asked[level] += len(parents)
        width = {Level.DAY: 24 * HOUR_SLOTS, Level.SLOT: 1}.get(level, HOUR_SLOTS)
        above = {
            Level.DAY: 1 << 62,
            Level.HOUR: 24 * HOUR_SLOTS,
        }.get(level, HOUR_SLOTS)
        wanted = set(parents)
        digests: dict[int, Digest] = {}
        for slot, digest in self.slots.items():
            if slot // above in wanted:
                frames, crcs = digests.get(slot // width, Digest(0, 0))
                digests[slot // width] = Digest(frames + digest.frames, crcs + digest.crcs)
        return digests


def days_of_slots(days: int) -> dict[int, Digest]:
    return {slot: Digest(4, slot * 7_919 % 65_537) for slot in range(0, days * 24 * HOUR_SLOTS, 37)}


def test_one_second_of_thirty_days_is_found_in_four_exchanges() -> None:
    slots = days_of_slots(30)
    [differing] = Random(5).sample(sorted(slots), 1)
    a, b = Held(slots), Held({**slots, differing: Digest(3, 17)})
    descent = Descent(a, b)
    expected = DifferingHour(hour_of(differing), frozenset({differing}), 4)
    assert list(descent.differing()) == [expected]
    assert descent.exchanges == 4
    assert a.asked == b.asked == Counter(Level)
    assert descent.nodes <= 30 + 24 + 1 + HOUR_SLOTS


def test_thirty_days_that_are_alike_take_one_exchange() -> None:
    descent = Descent(Held(days_of_slots(30)), Held(days_of_slots(30)))
    assert list(descent.differing()) == [] and descent.exchanges == 1


def test_what_differs_everywhere_is_found_everywhere_in_bounded_exchanges() -> None:
    slots = days_of_slots(3)
    descent = Descent(Held({}), Held(slots))
    hours = list(descent.differing())
    assert [hour.hour for hour in hours] == list(range(72))
    assert {slot for hour in hours for slot in hour.slots} == set(slots)
    assert sum(hour.frames for hour in hours) == 4 * len(slots)
    assert descent.exchanges == 3 + 72 // 8
