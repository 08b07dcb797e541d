"""The programs of docs/guides, each with its language's real client on a real Kafka.

Source: docs/reference/requests.md. `test_guide_pages.py` in tests/unit/docs proves that the guides
show these very files.
"""

import contextlib
import functools
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from clusters import TestCluster, make_cluster
from guide_programs import PROGRAMS
from nodes import master_of, node_group
from played_delayd import played_delayd
from topics_read import Seen, read_until

from delayd.bus.murmur2 import partition_of
from delayd.dev.cluster import LocalCluster
from delayd.request.times import due_ms_of

pytestmark = pytest.mark.real

PARTITIONS = 3
"""No power of two: there, partitioners that keep the sign bit would look right."""

IDS = (*(f"order-{n}" for n in range(20)), "x", "a b", "grüße", "日本", "i" * 256)
RUN_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Run:
    """The output of one program and the requests that it wrote, partition by partition."""

    target: str
    scheduled: list[str]
    receipts: list[dict[str, object]]
    delivered: str
    headers: dict[str, str]
    requests: list[Seen]

    def requests_with(self, header: str, value: bytes | None = None) -> list[Seen]:
        """Return the requests with a header of this name and, if one is given, of this value."""
        found = [(seen, dict(seen.headers).get(header)) for seen in self.requests]
        return [seen for seen, has in found if has is not None and value in (None, has)]


@contextlib.contextmanager
def served_by_a_node(cluster: TestCluster) -> Iterator[None]:
    """Have a real node answer the cluster's requests."""
    # Nobody takes over here: a lease that outlasts a machine that is busy compiling.
    node = cluster.node(0, lease_ttl_s=20)
    with node_group([node]):
        node.start()
        master_of([node])
        try:
            yield
        except BaseException:
            print(f"{node.log[-4000:]}\n{node.status()}")
            raise


Server = Callable[[TestCluster], contextlib.AbstractContextManager[None]]
SERVERS: dict[str, Server] = {"played": played_delayd, "node": served_by_a_node}


@pytest.fixture(scope="module", params=["played", "node"])
def server(request: pytest.FixtureRequest) -> Server:
    """Return the server of requests by its name in SERVERS.

    The node is real. The played one surrounds its answers with records that a reader must not
    believe, which a node cannot be made to do.
    """
    return SERVERS[request.param]


@functools.cache
def command_of(language: str) -> list[str]:
    """Return the command of a program; it is made once."""
    return PROGRAMS[language]()


@pytest.fixture(scope="module", params=list(PROGRAMS))
def run(
    request: pytest.FixtureRequest,
    server: Server,
    kafka_and_etcd: LocalCluster,
    tmp_path_factory: pytest.TempPathFactory,
) -> Run:
    """Run one program to its end, with IDS, on a cluster of its own."""
    command = command_of(request.param)
    cluster = make_cluster(kafka_and_etcd, tmp_path_factory.mktemp("guides"), PARTITIONS)
    target = cluster.target(request.param)
    with server(cluster):
        done = subprocess.run(
            [*command, *IDS],
            env={
                **os.environ,
                "LC_ALL": "C.UTF-8",  # Java asks the locale what the bytes of an argument mean
                "DELAYD_BOOTSTRAP": cluster.bootstrap,
                "DELAYD_PREFIX": f"{cluster.name}-",
                "TARGET": target,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"

    def printed(word: str) -> list[str]:
        return re.findall(rf"^{word} (.*)$", done.stdout, re.MULTILINE)

    [delivered] = printed("delivered")
    return Run(
        target,
        printed("scheduled"),
        [json.loads(receipt) for receipt in printed("receipt")],
        delivered,
        dict(re.findall(r"^  (\S+): (.*)$", done.stdout, re.MULTILINE)),
        read_until(cluster.bootstrap, cluster.buffer, lambda seen: len(seen) > 3 * len(IDS)),
    )


@pytest.mark.parametrize(
    ("own", "value", "others"),
    [
        (("delayd-delay", b"1h"), "pay {}", ["delayd-topic"]),
        (("delayd-op", b"replace"), "pay {} now", ["delayd-delay", "delayd-topic"]),
        (("delayd-op", b"cancel"), None, []),
    ],
    ids=["schedule", "replace", "cancel"],
)
def test_a_request_with_an_id_has_exactly_its_headers_and_the_id_as_key(
    run: Run, own: tuple[str, bytes], value: str | None, others: list[str]
) -> None:
    contents = {"delayd-delay": b"2h", "delayd-topic": run.target.encode()}
    requests = {seen.key: seen for seen in run.requests_with(*own)}
    assert set(requests) == {id_.encode() for id_ in IDS}
    for id_ in IDS:
        request = requests[id_.encode()]
        assert request.value == (None if value is None else value.format(id_).encode())
        headers = [own, ("delayd-id", id_.encode()), *((name, contents[name]) for name in others)]
        assert sorted(request.headers) == sorted(headers)


def test_every_request_with_an_id_lies_in_the_partition_of_its_id(run: Run) -> None:
    requests = run.requests_with("delayd-id")
    found = {(seen.key, seen.partition) for seen in requests}
    assert found == {(id_.encode(), partition_of(id_.encode(), PARTITIONS)) for id_ in IDS}
    assert len(requests) == 3 * len(IDS)


def test_a_schedule_without_an_id_has_exactly_its_headers_and_no_key(run: Run) -> None:
    [request] = run.requests_with("delayd-due")
    assert request.key is None and request.value == b"drink water"
    assert sorted(dict(request.headers)) == ["delayd-due", "delayd-topic"]
    assert request.header("delayd-topic") == run.target


def test_each_replace_and_cancel_waits_for_its_own_receipt_and_for_a_committed_one(
    run: Run,
) -> None:
    """Each kills the message that was pending under its id."""
    replaced, cancelled = run.receipts[::2], run.receipts[1::2]
    assert len(replaced) == len(cancelled) == len(IDS)
    for id_, source, first, then in zip(IDS, run.scheduled[:-1], replaced, cancelled, strict=True):
        assert (first["id"], first["verdict"], first["op"]) == (id_, "replaced", "replace")
        assert first["killed"] == [source]
        assert (then["id"], then["verdict"], then["op"]) == (id_, "cancelled", "cancel")
        assert then["killed"] == [first["source"]]


def test_the_delivered_record_is_the_committed_one_of_the_own_request(run: Run) -> None:
    [request] = run.requests_with("delayd-due")
    asked_ms = due_ms_of(request.header("delayd-due"))
    assert run.delivered == "drink water"
    assert list(run.headers) == ["delayd-due", "delayd-fired", "delayd-source"]
    assert run.headers["delayd-source"] == run.scheduled[-1]
    assert asked_ms == int(run.headers["delayd-due"]) <= int(run.headers["delayd-fired"])
