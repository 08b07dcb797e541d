"""Confluent's serializers in front of delayd: the programs of docs/guides/serializers.md, as they
are shown, with the registry in memory that the package brings, and with a real one."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from clusters import TestCluster
from confluent_kafka.schema_registry import SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from nodes import running
from registries import apicurio
from topics_read import Seen, read_until

pytestmark = pytest.mark.real

GUIDE: Final = Path(__file__).parents[2] / "docs" / "guides" / "serializers.md"


def record_of(name: str, field: str) -> str:
    fields = [{"name": field, "type": "long"}]
    return json.dumps({"type": "record", "name": name, "fields": fields})


@pytest.fixture(params=["in memory", pytest.param("Apicurio", marks=pytest.mark.rehearsal)])
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SchemaRegistryClient]:
    if request.param == "in memory":
        yield SchemaRegistryClient.new_client({"url": "mock://"})
        return
    with apicurio(tmp_path) as url, SchemaRegistryClient({"url": url}) as client:
        yield client


def run_program(number: int, cluster: TestCluster, target: str, known: dict[str, Any]) -> None:
    """A block of the guide, with addresses and names of this test."""
    blocks = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.M | re.S)
    ours = {
        'SchemaRegistryClient({"url": "http://localhost:8081"})': "registry_here",
        'Client("localhost:9092")': f'Client("{cluster.bootstrap}", buffer="{cluster.buffer}")',
        '"orders"': f'"{target}"',
    }
    program = blocks[number]
    for shown, here in ours.items():
        program = program.replace(shown, here)
    exec(compile(program, GUIDE, "exec"), known)


def one_of(cluster: TestCluster, target: str) -> Seen:
    """The one record of a target."""
    [seen] = read_until(cluster.bootstrap, target, bool)
    return seen


def test_a_consumer_of_the_target_reads_what_was_serialised_for_it(
    cluster: TestCluster, registry: SchemaRegistryClient
) -> None:
    target = cluster.target("orders")
    with running([cluster.node(0)]):
        run_program(0, cluster, target, {"registry_here": registry})
        seen = one_of(cluster, target)
    for_target = SerializationContext(target, MessageField.VALUE)
    assert AvroDeserializer(registry)(seen.value, for_target) == {"number": 4711, "customer": "Ada"}
    assert seen.key == b"order-4711"
    assert registry.get_subjects() == [f"{target}-value"]


def test_a_schema_id_in_a_header_passes_untouched(cluster: TestCluster) -> None:
    target = cluster.target("orders")
    registry = SchemaRegistryClient.new_client({"url": "mock://"})
    known: dict[str, Any] = {"registry_here": registry}
    with running([cluster.node(0)]):
        run_program(0, cluster, target, known)
        run_program(1, cluster, target, known)
        found = read_until(cluster.bootstrap, target, lambda seen: len(seen) > 1)
    [seen] = [record for record in found if record.key == b"order-4712"]
    [(name, written)] = known["headers"]
    assert name == "__value_schema_id" and seen.headers[0] == (name, written)
    for_target = SerializationContext(target, MessageField.VALUE, dict(seen.headers))
    assert AvroDeserializer(registry)(seen.value, for_target) == {"number": 4712, "customer": "Ada"}


@pytest.mark.rehearsal
def test_what_is_serialised_for_the_buffer_clashes(tmp_path: Path) -> None:
    with apicurio(tmp_path) as url, SchemaRegistryClient({"url": url}) as registry:
        registry.set_compatibility(level="BACKWARD")
        order = AvroSerializer(registry, record_of("Order", "number"))
        invoice = AvroSerializer(registry, record_of("Invoice", "sum"))
        for_buffer = SerializationContext("delayd-buffer", MessageField.VALUE)
        order({"number": 1}, for_buffer)
        with pytest.raises(SchemaRegistryError, match="ncompatible"):
            invoice({"sum": 1}, for_buffer)
        order({"number": 1}, SerializationContext("orders", MessageField.VALUE))
        invoice({"sum": 1}, SerializationContext("invoices", MessageField.VALUE))
        wanted = {"delayd-buffer-value", "orders-value", "invoices-value"}
        assert set(registry.get_subjects()) == wanted


def test_the_attributes_of_a_cloud_event_pass_untouched(cluster: TestCluster) -> None:
    target = cluster.target("events")
    attributes = [
        ("ce_specversion", b"1.0"),
        ("ce_id", b"8a3f"),
        ("ce_type", b"com.example.reminder"),
        ("ce_source", b"/orders/4711"),
        ("ce_time", b"2020-01-01T00:00:00Z"),
        ("ce_expirytime", b"2020-01-01T00:00:01Z"),
        ("content-type", b"application/json"),
    ]
    with running([cluster.node(0)]), cluster.client() as client:
        client.schedule(target, b"{}", in_="1ms", id="order-4711", headers=attributes)
        seen = one_of(cluster, target)
    assert seen.headers[: len(attributes)] == attributes
    assert {name for name, _ in seen.headers[len(attributes) :]} == {
        "delayd-id", "delayd-due", "delayd-fired", "delayd-source",
    }  # fmt: skip
