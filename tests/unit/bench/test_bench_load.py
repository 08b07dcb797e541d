"""A benchmark's load, and what receipts of it prove. Not here: a reader on a real Kafka."""

import pytest

from delayd.bench.load import VALUE_BYTES, Load, shuffled
from delayd.bench.receipts import Faults, Planned, Receipts
from delayd.request.spreading import planned_ms_of

BASE_MS = 1_795_379_000_000


def receipts(load: Load, received_ms: list[int], fired_ms: list[int] | None = None) -> Receipts:
    """One copy of each that was received at all."""
    found = Receipts(load)
    for number, (at_ms, sent_ms) in enumerate(
        zip(received_ms, fired_ms or received_ms, strict=True)
    ):
        if at_ms:
            found.write_down(at_ms, load.value(number), sent_ms)
    return found


def on_time(load: Load, late_ms: int = 5) -> list[int]:
    return [load.due_ms(number) + late_ms for number in range(load.count)]


@pytest.mark.parametrize("block", [1, 7, 100, 250])
def test_the_due_times_of_a_load_are_spread_evenly_whatever_its_blocks(block: int) -> None:
    load = Load("target", 1000, BASE_MS, 5_000, block)
    blocks = -(-1000 // block) * block
    wanted = sorted(BASE_MS + place * 5 for place in range(blocks))
    due = [load.due_ms(number) for number in range(1000)]
    assert set(due) <= set(wanted) and len(set(due)) == 1000
    assert max(due) < load.end_ms
    assert sorted(load.by_due()) == sorted(zip(due, range(1000), strict=True))
    if blocks == 1000:
        assert sorted(due) == wanted


def test_a_message_of_a_load_is_known_by_its_value() -> None:
    load = shuffled("target", 500, BASE_MS, 1_000)
    for number in (0, 7, 499):
        value = load.value(number)
        assert len(value) == VALUE_BYTES
        assert load.number_of(value) == number


def test_what_was_altered_is_no_message_of_the_load() -> None:
    load = Load("target", 500, BASE_MS, 1_000)
    value = load.value(3)
    other = Load("target", 500, BASE_MS + 1, 1_000)
    wrong = (None, b"", value[:-1], value[:-1] + b"w", b"x" + value[1:], other.value(3))
    assert [load.number_of(each) for each in wrong] == [None] * len(wrong)
    assert Load("target", 3, BASE_MS, 1_000).number_of(value) is None


def test_what_is_lost_doubled_early_or_altered_is_counted() -> None:
    load = Load("target", 10, BASE_MS, 1_000)
    received = on_time(load)
    received[2] = 0
    received[4] = load.due_ms(4) - 1
    received[5] = load.due_ms(5)
    found = receipts(load, received)
    for _ in range(2):
        found.write_down(received[7], load.value(7))
    assert found.faults() == Faults(lost=1, doubled=1, early=1, altered=0)
    assert receipts(load, on_time(load)).faults() == Faults(0, 0, 0, 0)


def test_lateness_is_of_what_arrived() -> None:
    load = Load("target", 4, BASE_MS, 1_000)
    received = [load.due_ms(number) + 10 * number for number in range(4)]
    received[3] = 0
    assert receipts(load, received).quantiles_ms(500, 1000) == [10, 20]
    assert receipts(load, [0] * 4).quantiles_ms(500) == [0]


def test_a_successors_first_record_was_both_fired_and_received_after_the_death() -> None:
    load = Load("target", 4, BASE_MS, 4_000)
    gone_ms = BASE_MS + 100
    received = [BASE_MS + 5, gone_ms + 50, gone_ms + 3_200, gone_ms + 3_100]
    fired = [BASE_MS, BASE_MS + 1, gone_ms + 3_000, gone_ms + 3_050]
    found = receipts(load, received, fired)
    # Number 3 is due 3,000 ms after the base: it came 200 ms after that, number 2 much later.
    assert found.successor_times(gone_ms, load.due_ms) == (gone_ms + 3_100, None)
    late = receipts(load, [*received[:3], BASE_MS + 3_099], [*fired[:3], gone_ms + 2_905])
    assert late.successor_times(gone_ms, load.due_ms) == (BASE_MS + 3_099,) * 2


def test_a_silence_counts_if_it_touches_the_time_asked_about() -> None:
    load = Load("target", 5, BASE_MS, 5_000)
    received = [BASE_MS + at for at in (1, 900, 1_000, 1_300, 9_000)]
    found = receipts(load, received)
    assert found.silence_ms(BASE_MS + 950, BASE_MS + 1_200) == 300
    assert found.silence_ms(BASE_MS + 950, BASE_MS + 2_000) == 7_700
    assert found.silence_ms(BASE_MS + 20_000, BASE_MS + 30_000) == 0


def windowed(count: int = 4) -> Load:
    return Load("target", count, BASE_MS, spread_ms=0, window_ms=60_000)


@pytest.mark.parametrize("source", ["0/0", "1/123456", "7/4294967296"])
def test_the_reader_plans_as_delayd_does(source: str) -> None:
    load = windowed()
    assert load.planned_ms(3, source) == planned_ms_of(BASE_MS, 60_000, source)
    assert load.end_ms == BASE_MS + 60_000


def test_of_a_window_lateness_counts_from_the_planned_time() -> None:
    load = windowed()
    found = Receipts(load)
    planned_ms = [load.planned_ms(number, f"0/{number}") for number in range(4)]
    assert len(set(planned_ms)) == 4
    for number, at_ms in enumerate(planned_ms[:3]):
        said = Planned(f"0/{number}", at_ms)
        found.write_down(at_ms + 10 * number, load.value(number), said=said)
    assert found.quantiles_ms(500, 1000) == [10, 20]
    found.write_down(planned_ms[3] - 1, load.value(3), said=Planned("0/3", planned_ms[3]))
    assert found.faults() == Faults(lost=0, doubled=0, early=1, altered=0)


def test_what_was_planned_otherwise_is_altered() -> None:
    load = windowed(1)
    at_ms = load.planned_ms(0, "0/0")
    for said in (None, Planned("0/0", at_ms + 1), Planned("0/1", at_ms)):
        found = Receipts(load)
        found.write_down(BASE_MS + 60_000, load.value(0), said=said)
        assert found.faults() == Faults(lost=1, doubled=0, early=0, altered=1)
