"""The measuring reader, with a client in place of Kafka's that always has more."""

from types import SimpleNamespace

import pytest

from delayd.bench import reading
from delayd.bench.load import Load
from delayd.bench.reading import planned_of
from delayd.bench.receipts import Planned

AT_ONCE = 2 * reading.JUDGED_AT_ONCE_MAX
LOAD = Load("target", 1_000_000, 1_700_000_000_000, 1_000, 1_000)


class Message:
    """One of the load's."""

    def __init__(self, number: int) -> None:
        self._value = LOAD.value(number)

    def error(self) -> None:
        pass

    def value(self) -> bytes:
        return self._value


class EndlessConsumer:
    """The same messages again and again: a reader that never catches up."""

    def __init__(self, properties: dict[str, object]) -> None:
        self._messages = [Message(number) for number in range(AT_ONCE)]

    def list_topics(self, topic: str, timeout_s: float) -> SimpleNamespace:
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions={0: None})})

    def assign(self, partitions: list[object]) -> None:
        pass

    def poll(self, timeout_s: float) -> Message:
        return self._messages[0]

    def consume(self, count: int, timeout_s: float) -> list[Message]:
        return self._messages[1:]

    def close(self) -> None:
        pass


def test_what_was_received_counts_though_more_is_coming_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A load that nobody keeps up with: what came in time was received."""
    monkeypatch.setattr(reading, "Consumer", EndlessConsumer)
    monkeypatch.setattr(reading, "SETTLE_MS", 0)
    monkeypatch.setattr(reading, "say", lambda _word: None)
    monkeypatch.setattr(reading, "heard", lambda: 0)
    found = reading.read({}, LOAD, with_fired=False)
    assert found is not None and found.seen == sum(map(bool, found.copies)) == AT_ONCE
    assert all(found.received_ms[:AT_ONCE])


def test_a_record_says_where_its_request_lies_and_when_it_was_to_go_out() -> None:
    said = {"delayd-planned": b"12", "delayd-source": b"1/7", "delayd-fired": b"13"}
    assert planned_of(said) == Planned("1/7", 12)
    assert planned_of({**said, "delayd-origin": b"1/2"}) == Planned("1/2", 12), "of a retry"
    assert planned_of({"delayd-source": b"1/7"}) is None
