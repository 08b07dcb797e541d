"""Descriptions of many topics: one request for their partitions, and one for their settings.

Not here: what delayd makes of it.

Invariants:
- a topic looks the same as through the other driver, its id too: nodes compare them;
- what is refused of one topic is told of that topic only.
"""

import base64
from collections.abc import Iterator, Mapping
from typing import Any, Final

from delayd.bus import PartitionState, Survey, TopicState
from delayd.bus.kafka_python.library import (
    ACLOperation,
    DescribeConfigsRequest,
    MetadataRequest,
    errors,
)
from delayd.bus.kafka_python.questions import Question, Said
from delayd.bus.questions import Answers

_TOPIC: Final = 2
_BROKER: Final = 4
"""The types of resources in requests about settings."""


def survey(names: list[str], question: Question, *, patience_ms: int) -> Survey:
    """Return what brokers say about topics; KafkaUnreachableError if there is no answer for any.

    One topic whose metadata still spreads holds up the others for `patience_ms`.
    """
    described = describe(names, question, patience_ms=patience_ms)
    configs = question.ask_some(
        lambda some: DescribeConfigsRequest(resources=[(_TOPIC, name, None) for name in some]),
        _read_configs,
        described.given,
        patience_ms=patience_ms,
    )
    silent = frozenset(described.silent).union(configs.silent)
    if len(silent) == len(names):
        raise question.unreachable(described.passing or configs.passing or "no answer")
    return Survey(
        states={
            name: _state_of(described.given[name], each) for name, each in configs.given.items()
        },
        refused=described.refused | configs.refused,
        silent=silent,
    )


def describe(names: list[str], question: Question, *, patience_ms: int) -> Answers[Any]:
    """Return the descriptions of the partitions of those topics that exist, by name."""
    return question.ask_some(metadata_request, _read_metadata, names, patience_ms=patience_ms)


def broker_settings(brokers: list[int], question: Question) -> dict[int, Mapping[str, str]]:
    """Return the settings of those brokers that tell them. Each knows its own alone."""
    answers = question.ask_brokers(
        {each: DescribeConfigsRequest(resources=[(_BROKER, str(each), None)]) for each in brokers}
    )
    return {
        broker: said.given
        for broker, answer in answers.items()
        for said in _read_configs(answer)
        if said.error is None
    }


def metadata_request(names: list[str]) -> Any:
    """Return a request for these topics and for the brokers; it creates nothing."""
    return MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in names],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=True,
    )


def id_text(topic_id: Any) -> str:
    """A topic's id as librdkafka prints it: base64 without padding. (Kafka's own tools print it for
    URLs, with - and _ in place of + and /.)"""
    return base64.b64encode(topic_id.bytes).decode().rstrip("=")


def _read_metadata(answer: Any) -> Iterator[Said]:
    for topic in answer.topics:
        yield Said(topic.name, _error_of(topic.error_code), topic)


def _read_configs(answer: Any) -> Iterator[Said]:
    for result in answer.results:
        error = _error_of(result.error_code, result.error_message)
        yield Said(result.resource_name, error, {each.name: each.value for each in result.configs})


def _error_of(code: int, message: str | None = None) -> BaseException | None:
    if code == 0:
        return None
    error: BaseException = errors.for_code(code)(message)
    return error


def _state_of(topic: Any, config: Mapping[str, str]) -> TopicState:
    operations = topic.authorized_operations
    return TopicState(
        name=topic.name,
        topic_id=id_text(topic.topic_id),
        partitions=tuple(
            PartitionState(
                leader=p.leader_id if p.leader_id >= 0 else None,
                replicas=len(p.replica_nodes),
                in_sync=len(p.isr_nodes),
            )
            for p in sorted(topic.partitions, key=lambda p: int(p.partition_index))
        ),
        config=config,
        may_write=None if operations is None else ACLOperation.WRITE in operations,
        may_read=None if operations is None else ACLOperation.READ in operations,
    )
