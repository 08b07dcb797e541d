"""Requests through Kafka: schedule, cancel, replace, debounce, reschedule. As any producer's: no
node is special."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Response

from delayd.client import Scheduled, Sent, Verdict
from delayd.client.asking import (
    Ask,
    Options,
    ask,
    ask_cancel,
    ask_fire,
    ask_reschedule,
    refuse_beyond,
)
from delayd.config.api_tokens import ApiToken, Scope
from delayd.errors import DelaydError
from delayd.node.monitoring.api.access import refuse_target
from delayd.node.monitoring.api.models import (
    BatchIn,
    BatchOut,
    DebounceIn,
    Delivered,
    Judged,
    Placed,
    Problem,
    RescheduleIn,
    ScheduleIn,
)
from delayd.node.monitoring.api.problems import NotKnownError, fields_of
from delayd.node.monitoring.api.reads import Id, known
from delayd.node.monitoring.api.services import Services
from delayd.request import Op

WAIT_MS_DEFAULT = 30_000
WAIT_MS_MAX = 60_000
"""A wait takes one of the few threads."""

ACCEPTED: dict[int | str, dict[str, Any]] = {
    HTTPStatus.ACCEPTED: {"model": Placed, "description": "Kafka has it."}
}
"""The answer of who does not wait."""

Wait = Annotated[
    bool, Query(description="Wait for the verdict. Without, the answer comes when Kafka has it.")
]
TimeoutMs = Annotated[
    int, Query(description="How long to wait for the verdict.", ge=100, le=WAIT_MS_MAX)
]


def add_writes(api: APIRouter, services: Services) -> None:
    """Add the routes."""
    scheduler = Annotated[ApiToken, Depends(services.access.needs(Scope.SCHEDULE))]
    _add_scheduling(api, services, scheduler)
    _add_changes(api, services, scheduler)
    _add_reschedules(api, services, scheduler)
    _add_debounces(api, services, scheduler)


def _add_scheduling(api: APIRouter, services: Services, Scheduler: Any) -> None:  # noqa: N803
    """Add the routes for what is new. `Scheduler` is the type of a token that may schedule."""
    client = services.requests

    @api.post(
        "/messages",
        operation_id="schedule",
        status_code=HTTPStatus.CREATED,
        responses={HTTPStatus.OK: {"model": Judged, "description": "It is not scheduled anew."}},
    )
    async def schedule(
        scheduler: Scheduler,
        message: ScheduleIn,
        response: Response,
        wait: Wait = False,
        timeout_ms: TimeoutMs = WAIT_MS_DEFAULT,
    ) -> Judged | Placed:
        """Schedule one message. With an `id`, the same request again does nothing more: its receipt
        says `duplicate`."""
        refuse_target(scheduler, message.topic)
        options = message.options()
        if wait:
            options["receipts"] = True
        _checked(services, message, message.id, options=options)

        def work() -> Verdict | Scheduled:
            topic, content, id = message.topic, message.content(), message.id
            if not wait:
                return client.client.schedule(topic, content, id=id, **options)
            return client.client.schedule(
                topic, content, wait=True, timeout_ms=timeout_ms, id=id, **options
            )

        outcome = await services.writes.do(work)
        if isinstance(outcome, Scheduled):
            return _placed(outcome)
        if outcome.verdict != "scheduled":
            response.status_code = HTTPStatus.OK
        return _judged(outcome)

    @api.post("/messages/batch", operation_id="schedule_many")
    async def schedule_many(scheduler: Scheduler, batch: BatchIn) -> BatchOut:
        """Schedule many messages, each with its own outcome: a bad one does not stop the others."""
        return await services.writes.do(lambda: _schedule_all(services, scheduler, batch))


def _add_changes(api: APIRouter, services: Services, Scheduler: Any) -> None:  # noqa: N803
    """Add the routes for what is pending under an id."""
    client = services.requests

    @api.put("/messages/{id:path}", operation_id="replace", responses=ACCEPTED)
    async def replace(
        scheduler: Scheduler,
        id: Id,
        message: Delivered,
        response: Response,
        wait: Wait = False,
        timeout_ms: TimeoutMs = WAIT_MS_DEFAULT,
    ) -> Judged | Placed:
        """Schedule a message in place of what is pending under an id. With `at`, the same request
        again gets the same verdict."""
        refuse_target(scheduler, message.topic)
        _checked(services, message, id, Op.REPLACE)

        def work() -> Verdict | Sent:
            _refuse_other_targets(services, scheduler, id, may_be_new=True)
            topic, content, options = message.topic, message.content(), message.options()
            send = partial(client.client.replace, id, topic, content, **options)
            return _sent(send, wait, timeout_ms)

        return _told(await services.writes.do(work), response)

    @api.delete("/messages/{id:path}", operation_id="cancel", responses=ACCEPTED)
    async def cancel(
        scheduler: Scheduler,
        id: Annotated[str, Path(description="The id.", min_length=1)],
        response: Response,
        wait: Wait = False,
        timeout_ms: TimeoutMs = WAIT_MS_DEFAULT,
    ) -> Judged | Placed:
        """Cancel what is pending under an id. A repeated cancel gets the same verdict."""
        ask_cancel(id)  # refuses what cannot be an id

        def work() -> Verdict | Sent:
            _refuse_other_targets(services, scheduler, id, may_be_new=False)
            return _sent(partial(client.client.cancel, id), wait, timeout_ms)

        return _told(await services.writes.do(work), response)


def _add_reschedules(api: APIRouter, services: Services, Scheduler: Any) -> None:  # noqa: N803
    """Add the routes for another due time of what is pending under an id."""
    client = services.requests

    @api.post("/messages/{id:path}/fire", operation_id="fire", responses=ACCEPTED)
    async def fire(
        scheduler: Scheduler,
        id: Id,
        response: Response,
        wait: Wait = False,
        timeout_ms: TimeoutMs = WAIT_MS_DEFAULT,
    ) -> Judged | Placed:
        """Deliver what is pending under an id now, once. Of a series the current occurrence goes
        out, and the series goes on."""
        ask_fire(id)  # refuses what cannot be an id

        def work() -> Verdict | Sent:
            _refuse_other_targets(services, scheduler, id, may_be_new=False)
            return _sent(partial(client.client.fire, id), wait, timeout_ms)

        return _told(await services.writes.do(work), response)

    @api.post("/messages/{id:path}/reschedule", operation_id="reschedule", responses=ACCEPTED)
    async def reschedule(
        scheduler: Scheduler,
        id: Id,
        new: RescheduleIn,
        response: Response,
        wait: Wait = False,
        timeout_ms: TimeoutMs = WAIT_MS_DEFAULT,
    ) -> Judged | Placed:
        """Give what is pending under an id another due time: exactly one of `at`, `delay` and
        `by`."""
        asked = ask_reschedule(id, at=new.at, in_=new.delay, by=new.by)
        refuse_beyond(asked, services.node.replica.limits, services.node.clock.wall_ms())

        def work() -> Verdict | Sent:
            _refuse_other_targets(services, scheduler, id, may_be_new=False)
            send = partial(client.client.reschedule, id, at=new.at, in_=new.delay, by=new.by)
            return _sent(send, wait, timeout_ms)

        return _told(await services.writes.do(work), response)


def _add_debounces(api: APIRouter, services: Services, Scheduler: Any) -> None:  # noqa: N803
    """Add the route for what is sent again and again."""
    client = services.requests

    @api.post(
        "/messages/{id:path}/debounce", operation_id="debounce", status_code=HTTPStatus.ACCEPTED
    )
    async def debounce(scheduler: Scheduler, id: Id, message: DebounceIn) -> Placed:
        """Schedule a message of which only the last one counts: it goes out `delay` after the last
        one with this id, and `max_wait` after the first one at the latest."""
        refuse_target(scheduler, message.topic)
        topic, content, options = message.topic, message.content(), message.options()
        replica = services.node.replica
        buffer = replica.settings.buffer.name
        asked = ask(buffer, topic, content, id=id, op=Op.DEBOUNCE, **options)
        refuse_beyond(asked, replica.limits, services.node.clock.wall_ms())

        def work() -> Scheduled:
            _refuse_other_targets(services, may_be_new=True, id=id, scheduler=scheduler)
            return client.client.debounce(id, topic, content, **options)

        return _placed(await services.writes.do(work))


def _schedule_all(services: Services, scheduler: ApiToken, batch: BatchIn) -> BatchOut:
    """Send those that may be sent, all at once, then wait for each."""
    client = services.requests.client
    under_way: list[object] = []
    for message in batch.messages:
        try:
            refuse_target(scheduler, message.topic)
            _checked(services, message, message.id)
            under_way.append(
                client.schedule_async(
                    message.topic, message.content(), id=message.id, **message.options()
                )
            )
        except DelaydError as error:
            under_way.append(error)
    outcomes: list[Placed | Problem] = []
    for sent in under_way:
        try:
            if isinstance(sent, DelaydError):
                raise sent
            outcomes.append(_placed(client.acknowledged(sent)))  # type: ignore[arg-type]
        except DelaydError as error:
            outcomes.append(Problem(**fields_of(error)))
    failed = sum(isinstance(outcome, Problem) for outcome in outcomes)
    return BatchOut(outcomes=outcomes, failed=failed)


def _checked(
    services: Services,
    message: Delivered,
    id: str | None,
    op: Op = Op.SCHEDULE,
    options: Options | None = None,
) -> Ask:
    """Return the record of a message; RequestRefusedError if this cluster would reject it."""
    replica = services.node.replica
    asked = ask(
        replica.settings.buffer.name,
        message.topic,
        message.content(),
        id=id,
        op=op,
        **(options or message.options()),
    )
    refuse_beyond(asked, replica.limits, services.node.clock.wall_ms())
    return asked


def _refuse_other_targets(
    services: Services, scheduler: ApiToken, id: str, *, may_be_new: bool
) -> None:
    """Raise ScopeError unless all that is known under an id is for targets of the token's own.

    An id of which nothing is known may be replaced, which schedules to a target that was checked;
    but not cancelled: another node may know it.
    """
    if not scheduler.is_limited:
        return
    everything = scheduler.model_copy(update={"targets": ("*",)})
    try:
        found = known(services, everything, id, places=True)
    except NotKnownError:
        if not may_be_new:
            refuse_target(scheduler, None)
        return
    for message in found.messages:
        refuse_target(scheduler, message.topic)


def _sent(send: Callable[..., Any], wait: bool, timeout_ms: int) -> Verdict | Sent:
    """Send a request by a method of the client; return its place or its verdict."""
    outcome: Verdict | Sent
    outcome = send(wait=True, timeout_ms=timeout_ms) if wait else send(wait=False)
    return outcome


def _placed(sent: Sent) -> Placed:
    due_ms = sent.due_ms if isinstance(sent, Scheduled) else None
    return Placed(source=sent.source, append_ms=sent.append_ms, due_ms=due_ms)


def _judged(verdict: Verdict) -> Judged:
    return Judged(**{**asdict(verdict), "killed": list(verdict.killed)})


def _told(outcome: Verdict | Sent, response: Response) -> Judged | Placed:
    if isinstance(outcome, Verdict):
        return _judged(outcome)
    response.status_code = HTTPStatus.ACCEPTED
    return _placed(outcome)
