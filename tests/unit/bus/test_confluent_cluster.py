"""What librdkafka's administration client says of offsets, and what is made of it."""

from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, TopicPartition

from delayd.bus.confluent import cluster as ours
from delayd.bus.confluent.cluster import ConfluentCluster
from delayd.errors import KafkaUnreachableError

HUNG = 1
TIMEOUT_MS = 300


class Admin:
    """librdkafka with two partitions, of which the leader of one does not answer: a result without
    an offset, and without an error."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self.properties = properties

    def poll(self, timeout: float) -> int:
        return 0

    def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Future[Any]]:
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
