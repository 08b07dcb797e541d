"""Each case of docs/reference/request-cases.md on a real cluster, with both drivers as nodes.

All cases are played together, in one cluster and in one that forgets ids at once; each is judged by
what an independent reader found of it, and that nothing else was found.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from clusters import make_cluster
from nodes import master_of, node_group, wait_for
from request_cases import CASES
from request_cases.case import PARTITIONS, Case, header_of
from request_judge import judge, known_of
from request_play import Play

from delayd.dev.cluster import LocalCluster

pytestmark = pytest.mark.real

RETRY_DELAYS_MS = (8_000, 1_000)
"""Time to act while a message is retried, and then soon dead."""

FORGETFUL_MS = 1

"""Three nodes start at the same time."""


@pytest.fixture(scope="module")
def plays(
    kafka_and_etcd: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Play, Play]]:
    """The cases, played: in a cluster that remembers ids, and in one that does not."""
    folder = tmp_path_factory.mktemp("cases")
    usual = make_cluster(kafka_and_etcd, folder, PARTITIONS, retry_delays_ms=RETRY_DELAYS_MS)
    forgetful = make_cluster(kafka_and_etcd, folder, PARTITIONS, id_memory_ms=FORGETFUL_MS)
    both = [usual.node(0, driver="confluent"), usual.node(1, driver="kafka-python")]
    one = [forgetful.node(2, driver="kafka-python")]
    with node_group([*both, *one]):
        for node in (*both, *one):
            node.start()
        master_of(both)
        master_of(one)
        played = (
            Play(usual, both, [case for case in CASES if not case.forgets]),
            Play(forgetful, one, [case for case in CASES if case.forgets]),
        )
        try:
            with ThreadPoolExecutor() as threads:
                list(threads.map(Play.run, played))
            yield played
        finally:
            for play in played:
                play.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_request_has_the_outcome_of_its_case_and_no_other(
    plays: tuple[Play, Play], case: Case
) -> None:
    usual, forgetful = plays
    judge(forgetful if case.forgets else usual, case)


def test_nothing_has_an_outcome_that_nobody_asked_for(plays: tuple[Play, Play]) -> None:
    for play in plays:
        for found in (play.seen.delivered, play.seen.letters, play.seen.receipts):
            assert {source for source, records in found.items() if records} <= play.sources()


def test_a_reject_is_a_line_in_the_log_of_each_node(plays: tuple[Play, Play]) -> None:
    usual, _ = plays
    for node in usual.nodes:
        assert "reason=bad-level" in node.log or "suppressed=" in node.log


def test_the_nodes_agree_on_every_id_whatever_their_driver(plays: tuple[Play, Play]) -> None:
    usual, _ = plays
    first, second = usual.nodes
    for case in usual.cases:
        id = header_of(case.steps[-1], "delayd-id")
        if id is not None and len(id) <= 256:

            def agree(id: bytes = id) -> bool:
                one, other = known_of(first, id), known_of(second, id)
                same: bool = (one["live"], one["killed"]) == (other["live"], other["killed"])
                return same

            wait_for(agree, f"both nodes know the same of {id!r}")
