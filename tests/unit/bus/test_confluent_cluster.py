"""What librdkafka's administration client says of offsets, and what is made of it."""

from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from delayd.bus.confluent import cluster as ours
from delayd.bus.confluent.cluster import ConfluentCluster
from delayd.errors import KafkaUnreachableError, TopicMismatchError

HUNG = 1
BEHIND: list[None] = []
"""One for each answer of a broker that does not know the topic yet."""
TIMEOUT_MS = 300


class Admin:
    """librdkafka with two partitions, of which the leader of one does not answer: a result without
    an offset, and without an error."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self.properties = properties

    def poll(self, timeout: float) -> int:
        return 0

    def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Future[Any]]:
        if BEHIND:
            BEHIND.pop()
            unknown: Future[Any] = Future()
            unknown.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
            return {"t": unknown}
        partitions = [SimpleNamespace(id=n, leader=SimpleNamespace(id=n)) for n in (0, HUNG)]
        return {"t": _done(SimpleNamespace(partitions=partitions))}

    def list_offsets(
        self, wanted: Mapping[TopicPartition, Any], request_timeout: float, **_: Any
    ) -> dict[TopicPartition, Future[Any]]:
        return {
            place: _done(SimpleNamespace(offset=OFFSET_INVALID if place.partition == HUNG else 7))
            for place in wanted
        }


def _done(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future


@pytest.fixture(autouse=True)
def _admin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "Client", Admin)


def test_a_result_without_an_offset_is_no_sign_of_life() -> None:
    """docs/design/frontier.md, A leader that hangs: only answers end a sparing."""
    with closing(ConfluentCluster({})) as cluster:
        assert cluster.answering({("t", 0), ("t", HUNG)}, TIMEOUT_MS) == {("t", 0)}


def test_offsets_of_which_one_is_missing_are_asked_for_until_the_time_is_over() -> None:
    with closing(ConfluentCluster({})) as cluster, pytest.raises(KafkaUnreachableError):
        cluster.end_offsets("t", TIMEOUT_MS, committed=True)


@pytest.mark.parametrize(("answers", "is_known"), [(1, True), (3, True), (1_000, False)])
def test_a_topic_that_a_broker_does_not_know_may_be_new(answers: int, is_known: bool) -> None:
    """Another broker has made it. Where it stays unknown, that is said within its patience."""
    BEHIND[:] = [None] * answers
    with closing(ConfluentCluster({})) as cluster:
        if is_known:
            with pytest.raises(KafkaUnreachableError):  # for one leader of it is silent
                cluster.end_offsets("t", TIMEOUT_MS, committed=True)
        else:
            with pytest.raises(TopicMismatchError, match="does not exist"):
                cluster.end_offsets("t", 60_000, committed=True)
    assert bool(BEHIND) is not is_known
    BEHIND.clear()
