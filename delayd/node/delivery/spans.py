"""Spans of deliveries, for who traces: OpenTelemetry, of the extra `delayd[otel]`.

A delivered message begins a trace of its own, which *links* to the span that scheduled it. A parent
would tie a trace over days, which no collector keeps open and no sampler decides anew. The span
goes from the beginning of the step to its commit; there is one for each message whose request was
traced and sampled, and none of an aborted step.

    delivery thread    notes what a step sends; hands that over behind the commit
          |  at most WAITING_MAX messages: others have no span
          v
    spans thread       makes the spans, and hands them to the exporter's own thread

The record is delivered as it was asked for: its `traceparent` is that of the request.

Source: docs/guides/tracing.md; OpenTelemetry's semantic conventions for messaging.
"""

from collections.abc import Callable
from os import environ
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Final

import structlog

from delayd.bus import Ack, Headers, Producer
from delayd.bus.flat import Outgoing
from delayd.errors import ConfigError
from replication.now import MS_NS
from replication.settings import Settings

CARRIED: Final = {"traceparent": 64, "tracestate": 512}
"""What names the span of a request, and how long each may be: the second takes long to read
otherwise."""
NUMBERS: Final = ("delayd-due", "delayd-attempt", "delayd-occurrence")
TEXTS: Final = ("delayd-id", "delayd-source", "delayd-origin", "delayd-group")
WAITING_MAX: Final = 50_000
"""Messages whose spans are not made yet, of about 1 KB each."""
QUEUE_MAX: Final = 20_000
"""Spans that the exporter has not sent yet, unless OTEL_BSP_MAX_QUEUE_SIZE says otherwise."""
CLOSE_MS: Final = 2_000
"""How long a node that ends waits for spans to be sent."""

log = structlog.get_logger()

Traced = tuple[str, dict[str, str]]
"""A delivered message: its topic, and those of its headers that its span is made of."""
Step = tuple[list[Traced], int, int]
"""What a step has delivered; its time, and that of its commit, Unix ms."""


class TracedSends:
    """The producer of one step, which notes what is delivered of what was traced."""

    def __init__(self, producer: Producer, settings: Settings, spans: "DeliverySpans") -> None:
        """`settings`: of the cluster; what goes to its own topics is no delivery."""
        self._producer = producer
        self._spans = spans
        own = (settings.buffer, settings.dead, settings.receipts, settings.frontier)
        self._own_topics = {topic.name for topic in own}
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
        if topic not in self._own_topics and any(name == "traceparent" for name, _ in headers):
            self.noted.append((topic, _texts(headers)))

    def committed(self, now_ms: int, committed_ms: int) -> None:
        """Have spans made of what the step has delivered: its time, and that of its commit."""
        self._spans.delivered(self.noted, now_ms, committed_ms)

    def send_flat(self, records: Outgoing) -> None:
        """Nothing is sent so: its headers could not be seen."""
        raise AssertionError("a step that is traced is written in Python")

    def flush(self, timeout_ms: int) -> None:
        """As `Producer.flush`."""
        self._producer.flush(timeout_ms)

    def close(self) -> None:
        """As `Producer.close`."""
        self._producer.close()


def _texts(headers: Headers) -> dict[str, str]:
    """Return the headers that a span is made of; of several of one name the last, which is
    delayd's own if the name is."""
    return {
        name: content.decode(errors="replace")
        for name, content in headers
        if content is not None
        and (name in TEXTS or name in NUMBERS or len(content) <= CARRIED.get(name, -1))
    }


class DeliverySpans:
    """Makes the spans of a node. `delivered` is called by any thread, and neither waits nor
    fails."""

    def __init__(self, node: str, provider: Any = None) -> None:
        """`provider`: of tracers; one that sends spans as OpenTelemetry's own settings say
        (`OTEL_EXPORTER_OTLP_ENDPOINT` and others) if it is left out. Raises ConfigError without the
        extra, and for settings that it refuses."""
        try:
            from opentelemetry import trace
            from opentelemetry.trace.propagation import tracecontext
        except ImportError as error:
            raise _lacking() from error
        self._provider = provider or _provider(node)
        self._trace = trace
        self._tracer = self._provider.get_tracer("delayd")
        self._propagator = tracecontext.TraceContextTextMapPropagator()
        self._steps: SimpleQueue[Step | None] = SimpleQueue()
        self._lock = Lock()
        self._waiting = 0
        self.dropped_count = 0
        """Messages that have no span, because too many waited."""
        self._thread = Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()
        self._ending = Thread(target=self._end, name="spans-end", daemon=True)

    def delivered(self, noted: list[Traced], fired_ms: int, committed_ms: int) -> None:
        """Have the spans made of a step that was committed; times are Unix ms."""
        with self._lock:
            if self._waiting + len(noted) > WAITING_MAX:
                if not self.dropped_count:
                    log.warning("spans_dropped", waiting=self._waiting)
                self.dropped_count += len(noted)
                return
            self._waiting += len(noted)
        if noted:
            self._steps.put((noted, fired_ms, committed_ms))

    def close(self) -> None:
        """Send what is left, within CLOSE_MS."""
        self._steps.put(None)
        # Its own time-outs are those of the exporter, for each batch.
        self._ending.start()
        self._ending.join(CLOSE_MS / 1_000)

    def _end(self) -> None:
        self._thread.join()
        self._provider.shutdown()

    def _run(self) -> None:
        while (step := self._steps.get()) is not None:
            noted, fired_ms, committed_ms = step
            for topic, texts in noted:
                try:
                    self._make(topic, texts, fired_ms, committed_ms)
                except Exception:
                    log.exception("span_failed", topic=topic)
            with self._lock:
                self._waiting -= len(noted)

    def _make(self, topic: str, texts: dict[str, str], fired_ms: int, committed_ms: int) -> None:
        trace = self._trace
        carried = {name: texts[name] for name in CARRIED if name in texts}
        context = trace.get_current_span(self._propagator.extract(carried)).get_span_context()
        if not (context.is_valid and context.trace_flags.sampled):
            return
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


def _provider(node: str) -> Any:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise _lacking() from error
    try:
        own = {"service.name": "delayd", "service.instance.id": node}
        told = OTELResourceDetector().detect().attributes  # By the environment, which goes before.
        resource = Resource.create({**own, **told})
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        is_set = "OTEL_BSP_MAX_QUEUE_SIZE" in environ
        queue_max = None if is_set else QUEUE_MAX
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), queue_max))
    except ValueError as error:
        raise ConfigError(
            f"OpenTelemetry refuses its settings: {error}", remedy="look at the variables OTEL_*"
        ) from error
    return provider


def _lacking() -> ConfigError:
    return ConfigError(
        "traces = true needs OpenTelemetry",
        remedy="pip install 'delayd[otel]', or set traces = false",
    )


def _attribute(header: str) -> str:
    return header.replace("-", ".", 1)
