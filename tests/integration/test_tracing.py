"""A message that is traced from a client, over real brokers and a node, to a collector.

The client's span stays in memory; the node sends its own over HTTP, as OpenTelemetry's settings
say, to a collector of this test. Source: docs/guides/tracing.md.
"""

import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from clusters import make_cluster
from nodes import CLOCK, HANGS_S, wait_for
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from topics_read import read_until

from delayd.client import Client
from delayd.client.outcomes import Scheduled
from delayd.dev.cluster import LocalCluster

pytestmark = pytest.mark.real

COUNT, LEAD_MS = 60, 4_000
"""So many, and in files by the time: they would be written natively, if nobody traced."""


class Collector(ThreadingHTTPServer):
    """Takes spans over HTTP."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Taking)
        self.spans: list[tuple[str, Any]] = []
        """Of each: the instance that sent it, and the span."""


class Taking(BaseHTTPRequestHandler):
    """One request of an exporter."""

    server: Collector

    def do_POST(self) -> None:
        sent = ExportTraceServiceRequest.FromString(
            self.rfile.read(int(self.headers["Content-Length"]))
        )
        for of_resource in sent.resource_spans:
            names = {each.key: each.value.string_value for each in of_resource.resource.attributes}
            for of_scope in of_resource.scope_spans:
                node = names["service.instance.id"]
                self.server.spans += [(node, span) for span in of_scope.spans]
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *_: object) -> None: ...


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """What the application's own provider has made."""
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    return kept


def test_a_delivery_is_found_from_the_request_that_scheduled_it(
    kafka_and_etcd: LocalCluster,
    tmp_path: Path,
    collector: Collector,
    exported: InMemorySpanExporter,
) -> None:
    cluster = make_cluster(kafka_and_etcd, tmp_path)
    target = cluster.target("reminders", partitions=1)
    node = cluster.node(0, traces=True)
    address = f"http://127.0.0.1:{collector.server_port}"
    node.start({"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_BSP_SCHEDULE_DELAY": "200"})
    try:
        node.wait_ready()
        with Client(cluster.bootstrap, buffer=cluster.buffer, tracing=True) as client:
            at_ms = CLOCK.wall_ms() + LEAD_MS
            asking = [client.schedule_async(target, b"v", at=at_ms) for _ in range(COUNT)]
            sent: list[Scheduled] = [each.result(HANGS_S) for each in asking]
        with cluster.client() as untraced:
            untraced.schedule(target, b"v", in_="200ms")
        delivered = read_until(cluster.bootstrap, target, lambda seen: len(seen) > COUNT)
        wait_for(lambda: len(collector.spans) >= len(sent), "the node has sent its spans")
        node.signal(signal.SIGTERM)
        assert node.wait_exit() == 0, node.log[-3000:]
    finally:
        node.kill()
    made = exported.get_finished_spans()
    asked = {(each.attributes or {})["delayd.source"]: each.context for each in made}
    assert len(collector.spans) == len(asked) == len(sent), "one each, and none of the other"
    for node_name, span in collector.spans:
        said = {each.key: each.value.string_value for each in span.attributes}
        [link] = span.links
        context = asked[said["delayd.source"]]
        assert context is not None and node_name == "n0"
        assert link.trace_id == context.trace_id.to_bytes(16)
        assert link.span_id == context.span_id.to_bytes(8)
        assert span.trace_id != link.trace_id and not span.parent_span_id
        assert span.name == f"deliver {target}"
    carried = [any(name == "traceparent" for name, _ in each.headers) for each in delivered]
    assert sum(carried) == len(sent), "it passes untouched"
