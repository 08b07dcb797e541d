"""Spans of deliveries, for who traces: OpenTelemetry, of the extra `delayd[otel]`.

A delivered message begins a trace of its own, which *links* to the span that scheduled it. A parent
would tie a trace over days, which no collector keeps open and no sampler decides anew. The span
goes from the beginning of the step to its commit; there is one for each message whose request was
traced and sampled, and none of an aborted step.

The record is delivered as it was asked for: its `traceparent` is that of the request.

Source: docs/guides/tracing.md; OpenTelemetry's semantic conventions for messaging.
"""

from collections.abc import Callable
from typing import Any, Final

from delayd.bus import Ack, Headers, Producer
from delayd.bus.flat import Outgoing
from delayd.errors import ConfigError

CARRIED: Final = ("traceparent", "tracestate")
NUMBERS: Final = ("delayd-due", "delayd-attempt", "delayd-occurrence")
TEXTS: Final = ("delayd-id", "delayd-source", "delayd-origin", "delayd-group")
MS_NS: Final = 1_000_000
CLOSE_MS: Final = 2_000

Traced = tuple[str, dict[str, str]]
"""A delivered message: its topic, and those of its headers that its span is made of."""


class TracedSends:
    """The producer of one step, which notes what is delivered of what was traced."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.noted: list[Traced] = []

    def send(
        self,
        topic: str,
        *,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        partition: int | None = None,
        on_ack: Callable[[Ack], None] | None = None,
    ) -> None:
        """As `Producer.send`."""
        self._producer.send(
            topic, key=key, value=value, headers=headers, partition=partition, on_ack=on_ack
        )
        names = {name for name, _ in headers}
        if "traceparent" in names and "delayd-fired" in names:
            wanted = (*CARRIED, *NUMBERS, *TEXTS)
            texts = {
                name: content.decode(errors="replace")
                for name, content in headers
                if name in wanted and content is not None
            }
            self.noted.append((topic, texts))

    def send_flat(self, records: Outgoing) -> None:
        """Nothing is sent so: its headers could not be seen."""
        raise AssertionError("a step that is traced is written in Python")

    def flush(self, timeout_ms: int) -> None:
        """As `Producer.flush`."""
        self._producer.flush(timeout_ms)

    def close(self) -> None:
        """As `Producer.close`."""
        self._producer.close()


class DeliverySpans:
    """Makes the spans of a node. Used by any thread."""

    def __init__(self, node: str, provider: Any = None) -> None:
        """`provider`: of tracers; one that sends spans as OpenTelemetry's own settings say
        (`OTEL_EXPORTER_OTLP_ENDPOINT` and others) if it is left out. Raises ConfigError without the
        extra."""
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation import tracecontext
        except ImportError as error:
            raise ConfigError(
                "traces = true needs OpenTelemetry",
                remedy="pip install 'delayd[otel]', or set traces = false",
            ) from error
        if provider is None:
            names = {"service.name": "delayd", "service.instance.id": node}
            provider = TracerProvider(resource=Resource.create(names), shutdown_on_exit=False)
            provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._provider, self._trace = provider, trace
        self._tracer = provider.get_tracer("delayd")
        self._propagator = tracecontext.TraceContextTextMapPropagator()

    def delivered(self, noted: list[Traced], fired_ms: int, committed_ms: int) -> None:
        """Make the spans of a step that was committed; times are Unix ms."""
        trace = self._trace
        for topic, texts in noted:
            asked = trace.get_current_span(self._propagator.extract(texts))
            context = asked.get_span_context()
            if not (context.is_valid and context.trace_flags.sampled):
                continue
            span = self._tracer.start_span(
                f"deliver {topic}",
                context=trace.set_span_in_context(trace.INVALID_SPAN),
                kind=trace.SpanKind.PRODUCER,
                links=[trace.Link(context)],
                start_time=fired_ms * MS_NS,
                attributes={
                    "messaging.system": "kafka",
                    "messaging.operation.name": "deliver",
                    "messaging.operation.type": "send",
                    "messaging.destination.name": topic,
                    "delayd.late_ms": max(0, committed_ms - int(texts["delayd-due"])),
                    **{_attribute(name): texts[name] for name in TEXTS if name in texts},
                    **{_attribute(name): int(texts[name]) for name in NUMBERS if name in texts},
                },
            )
            span.end(max(fired_ms, committed_ms) * MS_NS)

    def close(self) -> None:
        """Send what is left, within CLOSE_MS."""
        self._provider.force_flush(CLOSE_MS)
        self._provider.shutdown()


def _attribute(header: str) -> str:
    return header.replace("-", ".", 1)
