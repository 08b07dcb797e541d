"""Order is judged by ranks, exceptions by the frontier's history. Source: chaos/order.py."""

import json
from zlib import crc32

from chaos.order import order_faults
from chaos.records import Logged

LANES = 4
TARGET = "target"
LANE = crc32(TARGET.encode()) % LANES


def request(offset: int, due_ms: int, append_ms: int = 0, **asks: str) -> Logged:
    headers = tuple(
        (f"delayd-{name.replace('_', '-')}", said.encode()) for name, said in asks.items()
    )
    due = ("delayd-due", b"%d" % due_ms)
    return Logged("buffer", 0, offset, append_ms, b"k", b"v", (due, *headers))


def delivery(of: Logged, offset: int, partition: int = 0) -> Logged:
    headers = (("delayd-source", of.place.encode()),)
    return Logged(TARGET, partition, offset, 0, b"k", b"v", headers)


def frontier(number: int, cursor: tuple[int, int, int], passed: int, **lanes: object) -> Logged:
    said = {
        "shard": 0,
        "step": number,
        "cursor": cursor,
        "lanes": lanes,
        "offsets": [passed],
        "settings": {"lanes": LANES},
    }
    return Logged("frontier", 0, number, 0, None, json.dumps(said).encode(), ())


def of_shard(
    number: int, shard: int, shards: int, cursor: tuple[int, int, int], offsets: list[int]
) -> Logged:
    said = {
        "shard": shard,
        "step": number,
        "cursor": cursor,
        "lanes": {},
        "offsets": offsets,
        "settings": {"lanes": LANES, "shards": shards},
    }
    return Logged("frontier", shard, number, 0, None, json.dumps(said).encode(), ())


STEPS = [frontier(0, (0, 0, 0), 0), frontier(1, (50, 0, 0), 10), frontier(2, (300, 0, 0), 10)]


def faults(asked: list[Logged], came: list[Logged], steps: list[Logged] | None = None) -> list[str]:
    return order_faults(asked, came, STEPS if steps is None else steps)


def test_entries_in_the_order_of_their_ranks_pass() -> None:
    asked = [request(1, 200), request(2, 100), request(3, 100)]
    came = [delivery(asked[n], offset) for offset, n in enumerate((1, 2, 0))]
    assert faults(asked, came) == []


def test_a_message_behind_one_of_a_higher_rank_is_found() -> None:
    asked = [request(1, 100), request(2, 200), request(3, 100)]
    came = [delivery(asked[1], 0), delivery(asked[0], 1)]
    [fault] = faults(asked, came)
    assert "0/1" in fault and "0/2" in fault
    swapped = [delivery(asked[2], 0), delivery(asked[0], 1)]
    assert len(faults(asked, swapped)) == 1, "of equal due times the offset decides"


def test_what_arrives_overdue_ranks_by_its_acceptance() -> None:
    asked = [request(1, 5, append_ms=200), request(2, 100)]
    assert faults(asked, [delivery(asked[1], 0), delivery(asked[0], 1)]) == []
    assert len(faults(asked, [delivery(asked[0], 0), delivery(asked[1], 1)])) == 1


def test_other_partitions_have_an_order_of_their_own() -> None:
    asked = [request(1, 100), request(2, 200)]
    assert faults(asked, [delivery(asked[1], 0), delivery(asked[0], 1, partition=1)]) == []


def test_a_late_arrival_is_excepted_and_only_that() -> None:
    asked = [request(1, 200), request(12, 100)]
    came = [delivery(asked[0], 0), delivery(asked[1], 1)]
    late = [*STEPS, frontier(3, (300, 0, 0), 20)]
    assert faults(asked, came, late) == []
    in_time = [STEPS[0], frontier(1, (50, 0, 0), 20), frontier(2, (300, 0, 0), 20)]
    assert len(faults(asked, came, in_time)) == 1


def test_the_cursor_of_the_messages_own_lane_decides() -> None:
    asked = [request(1, 200), request(12, 100)]
    came = [delivery(asked[0], 0), delivery(asked[1], 1)]
    own = frontier(2, (50, 0, 0), 10, **{str(LANE): (300, 0, 0)})
    assert faults(asked, came, [*STEPS[:2], own, frontier(3, (300, 0, 0), 20)]) == []
    others = frontier(2, (300, 0, 0), 10, **{str(LANE): (50, 0, 0)})
    assert len(faults(asked, came, [*STEPS[:2], others, frontier(3, (300, 0, 0), 20)])) == 1


def test_continuations_and_what_they_continue_are_excepted() -> None:
    first, other = request(1, 100), request(2, 200)
    again = request(3, 100, append_ms=150, continues="1", next_due="150", origin="0/1")
    came = [delivery(other, 0), delivery(again, 1)]
    assert faults([first, other, again], came) == []
    assert faults([first, other, again], [delivery(other, 0), delivery(first, 1)]) == []


def test_doubles_and_strangers_are_the_judges() -> None:
    asked = [request(1, 100), request(2, 200)]
    twice = [delivery(asked[0], 0), delivery(asked[1], 1), delivery(asked[0], 2)]
    assert faults(asked, twice) == []
    assert faults(asked[1:], [delivery(asked[1], 0), delivery(asked[0], 1)]) == []


def test_each_shard_has_an_order_of_its_own_and_they_may_change() -> None:
    """One shard, then two: of messages in one partition the order holds all the time."""
    steps = [
        of_shard(0, 0, 1, (0, 0, 0), [0, 0]),
        of_shard(1, 0, 2, (50, 0, 0), [0, 0]),
        of_shard(1, 1, 2, (400, 0, 0), [0, 9]),
        of_shard(2, 0, 2, (300, 0, 0), [9, 0]),
    ]
    here = [request(1, 200), request(2, 100)]
    there = [each._replace(partition=1) for each in here]
    mixed = [delivery(there[0], 0), delivery(here[1], 1)]
    assert faults([here[1], there[0]], mixed, steps) == []
    mixed = [delivery(here[0], 0), delivery(here[1], 1)]
    [fault] = faults(here, mixed, steps)
    assert fault.startswith("0/2: ")
    late = [steps[0], *steps[2:], of_shard(2, 1, 2, (400, 0, 0), [0, 10])]
    late_ones = [request(9, 200), request(5, 300)]
    there = [each._replace(partition=1) for each in late_ones]
    came = [delivery(there[1], 0), delivery(there[0], 1)]
    assert faults(there, came, late) == [], "the cursor of its shard had passed it"
