"""Pauses of targets: which there are, and orders to pause and to resume, under this node's key."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path
from pydantic import BaseModel, Field, model_validator

from delayd.cluster.pausing import give_order, paused_of
from delayd.config.api_tokens import ApiToken, Scope
from delayd.errors import ConfigError
from delayd.node.monitoring.api.access import refuse_target
from delayd.node.monitoring.api.asked import In
from delayd.node.monitoring.api.models import Ms
from delayd.node.monitoring.api.reads import cluster_view
from delayd.node.monitoring.api.services import Services
from delayd.request.reasons import RefusedError
from delayd.request.times import delay_ms_of, due_ms_of
from replication.holds import Order
from replication.smoothing import RATE_MAX

Target = Annotated[str, Path(description="The target.", min_length=1, max_length=249)]
Rate = Annotated[
    int | None,
    Field(ge=1, le=RATE_MAX, description="Records a second of what has waited."),
]


class PauseIn(In):
    """How long a target is paused."""

    until: Annotated[
        str | Ms | None, Field(description="When it ends by itself: RFC 3339, or Unix ms.")
    ] = None
    lasting: Annotated[
        str | None, Field(description="In place of it: 10m, 2h; 24h at most.", max_length=64)
    ] = None
    rate: Rate = None

    @model_validator(mode="after")
    def _has_one_end(self) -> "PauseIn":
        if (self.until is None) == (self.lasting is None):
            raise ValueError("give exactly one of until and lasting")
        return self


class ResumeIn(In):
    """How fast what has waited goes out."""

    rate: Rate = None


class PausedView(BaseModel):
    """A target that is paused, or that was and of which messages still wait."""

    topic: str
    state: str
    """paused, resuming, or not-paused."""
    since_ms: int | None = None
    until_ms: int | None = None
    rate: int | None = None


def add_pauses(api: APIRouter, services: Services) -> None:
    """Add the routes."""
    needs = services.access.needs
    Reader = Annotated[ApiToken, Depends(needs(Scope.READ))]  # noqa: N806
    Operator = Annotated[ApiToken, Depends(needs(Scope.OPERATE))]  # noqa: N806

    @api.get("/targets/paused", operation_id="paused_targets")
    async def paused(reader: Reader) -> list[dict[str, Any]]:
        """The targets that are paused, and those of which messages still wait."""
        return cluster_view(await services.look.fresh(), reader).paused

    @api.post("/targets/{topic}/pause", operation_id="pause_target")
    async def pause(operator: Operator, topic: Target, asked: PauseIn) -> PausedView:
        """Deliver nothing to a target for a while; what becomes due waits. Again, it renews the
        pause. The answer comes when a step has obeyed."""
        refuse_target(operator, topic)
        until_ms = _until_ms(asked, services.node.clock.wall_ms())
        return await services.writes.do(lambda: _order(services, topic, until_ms, asked.rate))

    @api.post("/targets/{topic}/resume", operation_id="resume_target")
    async def resume(operator: Operator, topic: Target, asked: ResumeIn) -> PausedView:
        """End the pause of a target: what has waited goes out in its order. The answer comes when
        a step has obeyed."""
        refuse_target(operator, topic)
        return await services.writes.do(lambda: _order(services, topic, 0, asked.rate))


def _until_ms(asked: PauseIn, now_ms: int) -> int:
    try:
        if asked.lasting is not None:
            return now_ms + delay_ms_of(asked.lasting)
        return max(1, due_ms_of(str(asked.until)))
    except RefusedError as error:
        raise ConfigError(error.detail) from error


def _order(services: Services, topic: str, until_ms: int, rate: int | None) -> PausedView:
    clock = services.node.clock
    hold = give_order(services.ordered, Order(topic, clock.wall_ms(), until_ms, rate or 0))
    shown = paused_of({} if hold is None else {topic: hold}, clock.wall_ms())
    return PausedView(**shown[0]) if shown else PausedView(topic=topic, state="not-paused")
