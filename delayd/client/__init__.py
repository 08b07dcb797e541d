"""The client: schedules, cancels and replaces messages from Python.

    with Client("localhost:9092") as client:
        client.schedule("reminders", b"drink water", in_="2h", id="water-4711")
        client.cancel("water-4711").verdict  # "cancelled"

It is a convenience: any Kafka client can do the same. `Client` is for threads, `AsyncClient` for
asyncio. It writes one record to the buffer topic, says where it landed, and can wait for the
receipt that answers it. The client does not know the cluster's limits: a request that it accepts
may still become a dead letter (`too-far`, `too-large`).

`asking.py` makes the record, also for producers of the user's own, `retrying.py` that of a consumed
record that failed, `outbox.py` sends it,
`verdicts.py` waits for receipts; `driver.py` is the port to the Kafka library, with `confluent.py`
and `kafka_python.py` behind it.

Invariants:
- what the grammar of delayd refuses is refused here, before anything is sent;
- `schedule` returns only when all in-sync replicas of the broker have the request;
- a verdict is the receipt of the call's own request, never a guess;
- every call and every future ends, about its time-out after it began at the latest, and all of them
  at `close`; memory and threads are bounded;
- the buffer topic is never created by sending to it.
"""

from typing import TYPE_CHECKING, Any

from delayd.client.asking import (
    Request,
    cancel_record,
    debounce_record,
    fire_record,
    replace_record,
    reschedule_record,
    schedule_record,
)
from delayd.client.client import Client, Transaction
from delayd.client.driver import PlainRecord
from delayd.client.errors import (
    NotScheduledError,
    OutcomeUnknownError,
    RequestRefusedError,
    VerdictUnknownError,
)
from delayd.client.outbox import REPORT_GRACE_MS
from delayd.client.outcomes import Scheduled, Sent, Verdict
from delayd.client.retrying import RetryPolicy, retry

if TYPE_CHECKING:
    from delayd.client.async_client import AsyncClient as AsyncClient

__all__ = [
    "REPORT_GRACE_MS",
    "AsyncClient",
    "Client",
    "NotScheduledError",
    "OutcomeUnknownError",
    "PlainRecord",
    "Request",
    "RequestRefusedError",
    "RetryPolicy",
    "Scheduled",
    "Sent",
    "Transaction",
    "Verdict",
    "VerdictUnknownError",
    "cancel_record",
    "debounce_record",
    "fire_record",
    "replace_record",
    "reschedule_record",
    "retry",
    "schedule_record",
]


def __getattr__(name: str) -> Any:
    if name == "AsyncClient":  # it takes asyncio along: half of what importing this would cost
        from delayd.client.async_client import AsyncClient

        return AsyncClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
