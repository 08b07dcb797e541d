"""What tests ask of targets."""

from delayd.node.targets.checks import (
    Targets,
)

TIMEOUT_MS = 1_000


def problem(
    targets: Targets, topic: str, partition: int | None = None, key: bytes | None = b"k"
) -> str | None:
    targets.look_up([topic])
    return targets.problem_of(topic, partition, key, 10)


def refusal(
    targets: Targets, topic: str, partition: int | None = None, key: bytes | None = b"k"
) -> str:
    found = problem(targets, topic, partition, key)
    assert found is not None, f"{topic} has no problem"
    return found
