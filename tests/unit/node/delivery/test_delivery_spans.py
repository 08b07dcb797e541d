"""Spans of what a whole node delivers, over Kafka in memory.

Source: docs/guides/tracing.md.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from manual_clock import START_MS
from one_node import OneNode
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, format_span_id, format_trace_id

from delayd.bus.memory.producer import MemoryProducer
from delayd.errors import ProducerError
from delayd.node.delivery.delivery_context import DeliveryContext
from delayd.node.delivery.flat_step import NEVER, FlatStep
from delayd.node.delivery.spans import DeliverySpans

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = ("traceparent", f"00-{TRACE}-{SPAN}-01".encode())
UNSAMPLED = ("traceparent", f"00-{TRACE}-{SPAN}-00".encode())
DUE_MS = START_MS + 500


class TracedNode(OneNode):
    """A node whose spans stay in memory."""

    def __init__(self, folder: Path, *targets: str, **options: Any) -> None:
        super().__init__(folder, *targets, **options)
        self.exported = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exported))
        self.spans = DeliverySpans("n", provider)

    def delivery_context(self) -> DeliveryContext:
        context = super().delivery_context()
        options = replace(context.options, spans=self.spans)
        return replace(context, options=options, flat_step=FlatStep(run_min=NEVER))

    def go_on(self, until_ms: int) -> list[ReadableSpan]:
        """Take steps until then, and return the spans so far."""
        while self.clock.now_ms < until_ms:
            self.clock.now_ms += 100
            self.ingest()
            self.step()
        return list(self.exported.get_finished_spans())


@pytest.fixture
def node(tmp_path: Path) -> Any:
    made = TracedNode(tmp_path / "n", "orders", retry_delays_ms=(1_000,))
    yield made
    made.close()


def test_a_delivery_begins_a_trace_that_links_to_its_request(node: TracedNode) -> None:
    asked = node.send("orders", DUE_MS, id="order-1", more=[SAMPLED])
    [span] = node.go_on(DUE_MS + 500)
    [link] = span.links
    assert format_trace_id(link.context.trace_id) == TRACE
    assert format_span_id(link.context.span_id) == SPAN
    assert span.parent is None and span.context.trace_id != link.context.trace_id
    assert (span.name, span.kind) == ("deliver orders", SpanKind.PRODUCER)
    assert span.attributes is not None
    assert span.attributes["delayd.id"] == "order-1"
    assert span.attributes["delayd.source"] == f"{asked.partition}/{asked.offset}"
    assert span.attributes["delayd.due"] == DUE_MS
    late_ms = span.attributes["delayd.late_ms"]
    assert isinstance(late_ms, int) and 0 <= late_ms <= 500
    assert span.start_time is not None and span.end_time is not None
    assert DUE_MS * 10**6 <= span.start_time <= span.end_time
    [delivered] = node.read("orders")
    assert SAMPLED in delivered.headers, "it passes untouched"


def test_each_of_many_messages_has_a_span(node: TracedNode) -> None:
    """Not those alone that are too few to be written natively."""
    for number in range(50):
        node.send("orders", DUE_MS, value=b"%d" % number, more=[SAMPLED])
    node.replica.checkpoint()
    spans = node.go_on(DUE_MS + 500)
    assert len(spans) == len(node.read("orders")) == 50


def test_what_was_not_sampled_or_not_traced_has_none(node: TracedNode) -> None:
    node.send("orders", DUE_MS, more=[UNSAMPLED])
    node.send("orders", DUE_MS, more=[("traceparent", b"no context \xff")])
    node.send("orders", DUE_MS)
    assert node.go_on(DUE_MS + 500) == []
    assert len(node.read("orders")) == 3


def test_a_message_that_is_tried_again_has_one_span_and_says_so(node: TracedNode) -> None:
    node.send("later", DUE_MS, more=[SAMPLED])
    assert node.go_on(DUE_MS + 500) == []
    node.kafka.create_topic("later", 1, {"message.timestamp.type": "LogAppendTime"})
    [span] = node.go_on(DUE_MS + 3_000)
    assert span.attributes is not None and span.attributes["delayd.attempt"] == 1
    assert "delayd.origin" in span.attributes


def test_a_step_that_is_aborted_has_none(node: TracedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.send("orders", DUE_MS, more=[SAMPLED])
    node.go_on(DUE_MS - 100)
    commit = MemoryProducer.commit

    def refuse(self: MemoryProducer, timeout_ms: int) -> None:
        monkeypatch.setattr(MemoryProducer, "commit", commit)
        raise ProducerError("the connection was lost")

    monkeypatch.setattr(MemoryProducer, "commit", refuse)
    spans = node.go_on(DUE_MS + 1_500)
    assert node.failures and len(node.read("orders")) == 1
    assert len(spans) == 1
