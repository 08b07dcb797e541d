"""Spans of a client's requests. Source: docs/guides/tracing.md."""

import asyncio
import sys
from typing import Any

import pytest
from opentelemetry import baggage, context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id
from scripted_library import Library

from delayd.bus import Ack
from delayd.client import AsyncClient, Client, NotScheduledError, outbox, schedule_record
from delayd.client.asking import Ask, ask, ask_cancel
from delayd.client.connection import Connection
from delayd.client.driver import Failure, NotTakenError, OnOutcome, PlainRecord
from delayd.client.outbox import Outbox
from delayd.client.outcomes import Scheduled, Sent
from delayd.client.request_spans import RequestSpans
from delayd.client.verdicts import Verdicts
from delayd.errors import ConfigError


class Traced:
    """An outbox whose spans stay in memory."""

    def __init__(self, outcome: Ack | Failure) -> None:
        self.exported = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exported))
        self.library = Library(outcome)
        spans = RequestSpans(self.provider)
        self.outbox = Outbox(self.library, "delayd-buffer", 1_000, spans)  # type: ignore[arg-type]

    def send(self, asked: Ask, kind: Any = Scheduled) -> Any:
        return self.outbox.send(kind, asked)

    @property
    def spans(self) -> Any:
        return self.exported.get_finished_spans()


def reminder(**options: Any) -> Ask:
    return ask("delayd-buffer", "reminders", b"v", in_="30d", **options)


ACKED = Ack(1, 7, 1_000)


def test_a_request_is_a_span_of_the_applications_trace() -> None:
    traced = Traced(ACKED)
    with traced.provider.get_tracer("app").start_as_current_span("order") as order:
        traced.send(reminder(id="order-1")).result(0)
    span = next(each for each in traced.spans if each.name == "schedule reminders")
    assert span.kind is SpanKind.PRODUCER
    assert span.parent.span_id == order.get_span_context().span_id
    assert span.attributes["delayd.id"] == "order-1"
    assert span.attributes["delayd.source"] == "1/7"
    headers = dict(traced.library.sent[0].headers)
    own = span.context
    expected = f"00-{format_trace_id(own.trace_id)}-{format_span_id(own.span_id)}-"
    assert (headers["traceparent"] or b"").startswith(expected.encode())


def test_a_context_that_the_application_wrote_stays() -> None:
    traced = Traced(ACKED)
    traced.send(reminder(headers=[("traceparent", b"00-mine")])).result(0)
    found = [content for name, content in traced.library.sent[0].headers if name == "traceparent"]
    assert found == [b"00-mine"]
    assert len(traced.spans) == 1


def test_baggage_stays_at_home() -> None:
    """It would lie in the buffer for weeks."""
    token = context.attach(baggage.set_baggage("user.email", "a@b"))
    traced = Traced(ACKED)
    traced.send(reminder()).result(0)
    context.detach(token)
    names = {name for name, _ in traced.library.sent[0].headers}
    assert "baggage" not in names and "traceparent" in names


def test_a_request_that_no_producer_took_is_an_error() -> None:
    class Refusing(Library):
        def send(self, record: PlainRecord, on_outcome: OnOutcome) -> bool:
            raise NotTakenError("it has a serializer")

    traced = Traced(ACKED)
    traced.library = Refusing(ACKED)
    monkeyed = pytest.MonkeyPatch()
    monkeyed.setattr(outbox, "transacting", lambda _: traced.library)
    with monkeyed.context(), pytest.raises(NotScheduledError):
        traced.outbox.send_in(object(), Scheduled, reminder())
    monkeyed.undo()
    [span] = traced.spans
    assert span.status.status_code is StatusCode.ERROR


def test_an_async_client_keeps_to_the_applications_trace() -> None:
    traced = Traced(ACKED)

    async def order() -> Any:
        connection = Connection(traced.outbox, Verdicts(lambda: None, 1_000))  # type: ignore[arg-type, return-value]
        with traced.provider.get_tracer("app").start_as_current_span("order") as span:
            async with AsyncClient.over(connection) as client:
                await client.schedule("reminders", b"v", in_="30d")
        return span.get_span_context()

    of_order = asyncio.run(order())
    span = next(each for each in traced.spans if each.name == "schedule reminders")
    assert span.parent is not None and span.parent.span_id == of_order.span_id


def test_a_request_that_failed_is_an_error() -> None:
    traced = Traced(Failure(True, "the topic is gone"))
    future = traced.send(reminder())
    assert future.exception(0) is not None
    [span] = traced.spans
    assert span.status.status_code is StatusCode.ERROR and span.events[0].name == "exception"


def test_a_cancel_has_no_span() -> None:
    traced = Traced(ACKED)
    traced.send(ask_cancel("order-1"), Sent).result(0)
    assert traced.spans == () and "traceparent" not in dict(traced.library.sent[0].headers)


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError) as raised:
        Client("localhost:1", tracing=True)
    assert "pip install 'delayd[otel]'" in str(raised.value.remedy)


def test_who_does_not_trace_writes_no_context() -> None:
    record = schedule_record("reminders", b"v", in_="30d")
    assert "traceparent" not in dict(record.headers)
