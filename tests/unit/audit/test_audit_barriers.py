"""Barriers in the buffer against those that the frontier names.

Source: docs/design/frontier.md, "Rules switch"; docs/design/audit.md.
"""

from dataclasses import replace

import pytest
from cluster_settings import SETTINGS as CLUSTER

from delayd.audit.bounds import Bounds, ShardCut
from replication.frontier import first_frontier
from replication.rules import Barrier
from replication.settings import RULES_VERSION, SMOOTHING_RULES

OLD = Barrier(0, 5, 4)
"""In a part of the buffer that Kafka has deleted."""
FIRST, SECOND, BEYOND = Barrier(0, 20, 4), Barrier(1, 30, 4), Barrier(1, 60, 4)
BOUNDS = Bounds(
    settings=replace(CLUSTER, partitions=2, rules_version=SMOOTHING_RULES),
    frontier=replace(first_frontier(0, partitions=2, lanes=CLUSTER.lanes), offsets=(50, 50)),
    cuts=(ShardCut(0, 0),),
    buffer_starts=(10, 10),
    buffer_ends=(70, 70),
    buffer_latest=(70, 70),
    trimmed_ms={},
    target_partitions={},
    proofs_checked=True,
)


@pytest.mark.parametrize(
    ("named", "logged", "says"),
    [
        ((), (), None),
        ((FIRST, SECOND), (FIRST, SECOND, Barrier(1, 40, 4)), None),
        ((OLD,), (FIRST,), None),
        ((), (BEYOND,), None),
        ((SECOND,), (FIRST, SECOND), "does not name the switch to rules version 4 at 0/20"),
        ((FIRST,), (), "names, and the buffer does not have, the switch to rules version 4 at"),
        ((BEYOND,), (BEYOND,), "names, and the buffer does not have, the switch"),
    ],
    ids=["none", "a second one", "deleted", "beyond O", "not named", "not there", "too early"],
)
def test_a_frontier_names_the_barriers_that_it_has_passed(
    named: tuple[Barrier, ...], logged: tuple[Barrier, ...], says: str | None
) -> None:
    """Rules: frontier-names-barriers"""
    problem = replace(BOUNDS, named_barriers=named, logged_barriers=logged).barriers_problem
    assert (problem is None) == (says is None)
    assert problem is None or (says is not None and problem[0] == 0 and says in problem[1])


def test_it_is_the_frontier_of_the_barriers_shard_that_is_wrong() -> None:
    of_two = replace(BOUNDS, cuts=(ShardCut(0, 0), ShardCut(0, 0)))
    for partition in (0, 1):
        missed = (Barrier(partition, 40, RULES_VERSION + 1),)
        problem = replace(of_two, logged_barriers=missed).barriers_problem
        assert problem is not None and problem[0] == partition
