"""Look-ups: this node, the cluster, an id."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query

from delayd import __version__
from delayd.client import cancel_record
from delayd.cluster.lookup import state_of, with_records
from delayd.cluster.status import hangs
from delayd.config.api_tokens import ApiToken, Scope
from delayd.node.monitoring.api.models import (
    ClockView,
    ClusterView,
    FailingTargetView,
    FailoverView,
    Health,
    Known,
    KnownMessage,
    LatenessView,
    ShardView,
)
from delayd.node.monitoring.api.problems import BusyError, NotKnownError
from delayd.node.monitoring.api.services import TIMEOUT_MS, Services

Id = Annotated[str, Path(description="The id that the message was scheduled with.", min_length=1)]
Places = Annotated[
    bool,
    Query(
        description="Look in Kafka for target, size and outcome of each message, with the places "
        "of the records: takes seconds, if much was delivered since."
    ),
]


def add_reads(api: APIRouter, services: Services) -> None:
    """Add the routes."""
    node = services.node
    Reader = Annotated[ApiToken, Depends(services.access.needs(Scope.READ))]  # noqa: N806

    @api.get("/health", operation_id="health")
    async def health(_: Reader) -> Health:
        """How is this node? It answers whatever is the matter with Kafka and etcd."""
        return Health(
            node=node.config.node,
            cluster=node.config.cluster,
            version=__version__,
            role=node.role,
            ready=node.unready() is None,
            problem=node.unready(),
            stalled=node.stalled(),
            delivery_lag_ms=node.delivery_lag_ms(),
            now_ms=node.clock.wall_ms(),
        )

    @api.get("/cluster", operation_id="cluster")
    async def cluster(reader: Reader) -> ClusterView:
        """The cluster as `delayd status` shows it: leaders, terms, cursors, lag, nodes, targets
        that fail, lateness, failovers, clocks, and what a person must see to; a second old at
        most."""
        return cluster_view(await services.look.fresh(), reader)

    @api.get("/targets/failing", operation_id="failing_targets")
    async def failing(reader: Reader) -> list[FailingTargetView]:
        """The targets that turn messages away, as the master sees them."""
        return cluster_view(await services.look.fresh(), reader).failing_targets

    @api.get("/messages/{id:path}", operation_id="look_up")
    async def look_up(reader: Reader, id: Id, places: Places = False) -> Known:
        """What is known under an id: what is pending with its due time, what was cancelled or
        replaced and by which request, what is done."""
        cancel_record(id)  # refuses what cannot be an id
        return await services.reads.do(lambda: known(services, reader, id, places))


def known(services: Services, reader: ApiToken, id: str, places: bool) -> Known:
    """Return what this node knows of an id, as far as the reader may see it.

    Raises NotKnownError; BusyError if another node may know more.
    """
    node = services.node
    found = node.known_id(id)
    if found is None:
        if (why := node.unready()) is not None:
            raise BusyError(
                f"this node knows nothing of it, and is not ready: {why}", remedy="ask another node"
            )
        raise NotKnownError("nothing is known of this id", remedy="check the id")
    if places or reader.is_limited:
        settings = node.replica.settings
        shown = with_records(
            found,
            services.bus,
            node.clock,
            buffer=settings.buffer.name,
            dead=settings.dead.name,
            timeout_ms=TIMEOUT_MS if places else TIMEOUT_MS // 3,
        )
    else:
        shown = {**found, "live": [{**each, **state_of(each)} for each in found["live"]]}
    messages = [KnownMessage(**_known_fields(each)) for each in (*shown["live"], *shown["killed"])]
    seen = [each for each in messages if not reader.is_limited or reader.covers(each.topic)]
    if not seen:
        raise NotKnownError("nothing is known of this id", remedy="check the id")
    return Known(id=id, node=node.config.node, messages=seen)


def _known_fields(message: dict[str, Any]) -> dict[str, Any]:
    return {name: message[name] for name in KnownMessage.model_fields if name in message}


def cluster_view(report: dict[str, Any], reader: ApiToken) -> ClusterView:
    """Return as much of a report as a reader may see."""
    nodes, problems = _seen_of_nodes(report, reader)
    return ClusterView(
        cluster=report["cluster"],
        healthy=report["healthy"],
        problems=problems,
        shards=[ShardView(**shard) for shard in report["shards"]],
        failing_targets=[
            FailingTargetView(**each)
            for each in report["failing_targets"]
            if reader.covers(each["topic"])
        ],
        paused=[each for each in report["paused"] if reader.covers(each["topic"])],
        lateness=[
            LatenessView(**each) for each in report["lateness"] if reader.covers(each["topic"])
        ],
        failovers=[FailoverView(**each) for each in report["failovers"]],
        clocks=[ClockView(**each) for each in report["clocks"]],
        nodes=nodes,
    )


def _seen_of_nodes(
    report: dict[str, Any], reader: ApiToken
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return what nodes say of themselves, and what a person must see to, without the targets that
    the reader may not see."""
    nodes: list[dict[str, Any]] = []
    hidden: set[str] = set()
    for node in report["nodes"]:
        spared = node.get("spared_partitions") or []
        mine = [each for each in spared if reader.covers(each["topic"])]
        hidden |= {hangs(node["node"], each) for each in spared if each not in mine}
        nodes.append({**node, "spared_partitions": mine} if spared else node)
    return nodes, [each for each in report["problems"] if each not in hidden]
