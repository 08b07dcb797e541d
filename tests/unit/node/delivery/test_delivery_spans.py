"""Spans of what a whole node delivers, over Kafka in memory.

Source: docs/guides/tracing.md.
"""

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from manual_clock import START_MS
from one_node import OneNode, wait_for
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, format_span_id, format_trace_id

from delayd.bus.memory.producer import MemoryProducer
from delayd.errors import ConfigError, ProducerError
from delayd.node.delivery import spans
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
        self.spans.delivered([], 0, 0)
        wait_for(lambda: not self.spans._waiting)
        return list(self.exported.get_finished_spans())


@pytest.fixture
def node(tmp_path: Path) -> Any:
    made = TracedNode(tmp_path / "n", "orders", retry_delays_ms=(1_000,))
    yield made
    made.close()
    made.spans.close()


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
    found = node.go_on(DUE_MS + 500)
    assert len(found) == len(node.read("orders")) == 50


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
    found = node.go_on(DUE_MS + 1_500)
    assert node.failures and len(node.read("orders")) == 1
    assert len(found) == 1


@pytest.mark.parametrize(
    "more",
    [
        [SAMPLED, ("delayd-fired", b"1")],
        [SAMPLED, ("delayd-fired", b"1"), ("delayd-attempt", b"x")],
        [SAMPLED, ("delayd-source", b"0/0"), ("delayd-fired", b"1"), ("delayd-due", b"x")],
    ],
)
def test_a_dead_letter_of_forwarded_headers_is_no_delivery_and_ends_nobody(
    node: TracedNode, more: list[tuple[str, bytes]]
) -> None:
    """A consumer sends on what it got."""
    node.send("orders", DUE_MS, more=more)
    node.send("orders", DUE_MS, more=[SAMPLED])
    found = node.go_on(DUE_MS + 500)
    assert [span.name for span in found] == ["deliver orders"]
    assert len(node.read("delayd-dead")) == 1 and not node.failures


def test_a_context_that_is_too_long_is_left_out(node: TracedNode) -> None:
    """It would take minutes to read."""
    node.send("orders", DUE_MS, more=[SAMPLED, ("tracestate", b"a=1 x" + b" " * 50_000 + b"x")])
    [span] = node.go_on(DUE_MS + 500)
    [link] = span.links
    assert not link.context.trace_state


def test_too_many_spans_are_dropped_and_counted(
    node: TracedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans, "WAITING_MAX", 2)
    for _ in range(3):
        node.send("orders", DUE_MS, more=[SAMPLED])
    assert node.go_on(DUE_MS + 500) == []
    assert node.spans.dropped_count == 3 and len(node.read("orders")) == 3


def test_a_span_that_cannot_be_made_ends_nobody(
    node: TracedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no span")

    monkeypatch.setattr(node.spans, "_make", fail)
    node.send("orders", DUE_MS, more=[SAMPLED])
    node.send("orders", DUE_MS + 1_000, more=[SAMPLED])
    assert node.go_on(DUE_MS + 1_500) == []
    assert len(node.read("orders")) == 2 and not node.failures


def test_a_node_ends_though_its_collector_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "CLOSE_MS", 50)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")
        made = DeliverySpans("n")
        carried = {"traceparent": SAMPLED[1].decode(), "delayd-due": "1", "delayd-source": "0/0"}
        made.delivered([("orders", carried)] * 10, 1, 2)
        made.close()
        assert made._ending.is_alive(), "the exporter tries on, and nobody waits for it"
        made._ending.join(60)
        assert not made._ending.is_alive()


def test_settings_that_are_refused_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "100")
    with pytest.raises(ConfigError, match="refuses its settings"):
        DeliverySpans("n")
