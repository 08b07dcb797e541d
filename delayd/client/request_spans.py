"""Spans of requests, for applications that trace: OpenTelemetry, of the extra `delayd[otel]`.

    schedule reminders    the application's trace: from the request to the broker's acknowledgement
          |  traceparent
          v
    the message, weeks later: the node's span links to this one (delayd/node/delivery/spans.py)

The span's context is written into the record as W3C Trace Context has it (`traceparent`,
`tracestate`), unless the record has one already. Target and consumers get it as it is. Baggage
is not written: it would lie in the buffer for weeks.

Source: docs/guides/tracing.md; OpenTelemetry's semantic conventions for messaging.
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from delayd.client.asking import Ask
from delayd.client.driver import PlainRecord
from delayd.errors import ConfigError
from delayd.request import Op

NAMES: Final = {Op.SCHEDULE: "schedule", Op.REPLACE: "replace", Op.DEBOUNCE: "debounce"}
"""What brings a message: other requests have no span."""

OnEnd = Callable[["Future[Any]"], None]


class RequestSpans:
    """Makes a span of each request that brings a message. Used by any thread."""

    def __init__(self, provider: Any = None) -> None:
        """`provider`: of tracers; the application's if it is left out. Raises ConfigError without
        the extra."""
        try:
            from opentelemetry import trace
            from opentelemetry.trace.propagation import tracecontext
        except ImportError as error:
            raise ConfigError(
                "tracing = True needs OpenTelemetry", remedy="pip install 'delayd[otel]'"
            ) from error
        self._trace = trace
        self._propagator = tracecontext.TraceContextTextMapPropagator()
        self._tracer = trace.get_tracer("delayd", tracer_provider=provider)

    def begin(self, asked: Ask, record: PlainRecord) -> tuple[PlainRecord, OnEnd | None]:
        """Return the record with the context of its span, and what ends the span with the outcome;
        None if it has none."""
        name = NAMES.get(asked.op)
        if name is None:
            return record, None
        topics = [content for each, content in record.headers if each == "delayd-topic"]
        topic = (topics[0] or b"").decode() if topics else ""
        span = self._tracer.start_span(
            f"{name} {topic}",
            kind=self._trace.SpanKind.PRODUCER,
            attributes={
                "messaging.system": "kafka",
                "messaging.operation.name": name,
                "messaging.operation.type": "create",
                "messaging.destination.name": topic,
                **({} if asked.id is None else {"delayd.id": asked.id}),
            },
        )
        headers = list(record.headers)
        if not any(each.lower() in ("traceparent", "tracestate") for each, _ in headers):
            carrier: dict[str, str] = {}
            self._propagator.inject(carrier, self._trace.set_span_in_context(span))
            headers += [(each, text.encode()) for each, text in carrier.items()]

        def end(future: "Future[Any]") -> None:
            if (error := future.exception()) is not None:
                span.record_exception(error)
                span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, str(error)))
            elif (source := getattr(future.result(), "source", None)) is not None:
                span.set_attribute("delayd.source", source)
            span.end()

        return record._replace(headers=headers), end
