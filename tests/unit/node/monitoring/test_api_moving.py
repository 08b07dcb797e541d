"""What the API says of a message while a reschedule has it, and no master has said so yet."""

from http import HTTPStatus
from pathlib import Path

from api_node import ALL, TEAM, ApiNode, Client
from monitored_node import Desk
from one_node import wait_for

from delayd.bus import Headers
from delayd.bus.murmur2 import partition_of


def append(node: ApiNode, value: bytes | None, *headers: tuple[str, bytes]) -> None:
    named: Headers = [("delayd-id", b"order-1"), *headers]
    partition = partition_of(b"order-1", node.settings.partitions)
    node.kafka.append("delayd-buffer", partition, b"order-1", value, named)


def test_what_a_reschedule_has_is_shown_and_is_no_token_s_for_other_targets(
    tmp_path: Path,
) -> None:
    """A replace would end it.

    Rules: reschedule-reserves
    """
    node = ApiNode(tmp_path)
    Desk.start(node)  # it ingests, and nobody leads
    try:
        append(node, b"v", ("delayd-topic", b"billing"), ("delayd-delay", b"1h"))
        append(node, None, ("delayd-op", b"reschedule"), ("delayd-by", b"+1h"))
        wait_for(lambda: node.replica.ingested_count >= 2)
        [shown] = Client(node, ALL)("GET", "/v1/messages/order-1").json()["messages"]
        assert (shown["state"], shown["decided_ms"]) == ("asked", None)
        assert shown["killed_by"] != shown["source"]
        asked = {"topic": "orders", "value": "mine", "delay": "1h"}
        refused = Client(node, TEAM)("PUT", "/v1/messages/order-1", json=asked)
        assert refused.status_code == HTTPStatus.FORBIDDEN
    finally:
        node.stop()
