"""Limits of targets: which there are and what is used of them, and orders to set and to clear one,
under this node's key."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path
from pydantic import BaseModel, Field

from delayd.cluster.limiting import change_quota, limits_of, set_quota
from delayd.config.api_tokens import ApiToken, Scope
from delayd.node.monitoring.api.access import refuse_target
from delayd.node.monitoring.api.asked import In
from delayd.node.monitoring.api.reads import cluster_view
from delayd.node.monitoring.api.services import Services
from replication.quotas import MAX_PENDING_MAX, RATE_MAX, RATE_WINDOW_S, Quota, QuotaOrder

Target = Annotated[str, Path(description="The target.", min_length=1, max_length=249)]


class LimitIn(In):
    """How many messages may be pending for a target, and how many requests a second are taken. What
    is left out stays as it is."""

    max_pending: Annotated[
        int | None,
        Field(
            ge=0,
            le=MAX_PENDING_MAX,
            description="When as many are, requests are refused; 0: any number.",
        ),
    ] = None
    rate: Annotated[
        int | None,
        Field(
            ge=0,
            le=RATE_MAX,
            description=f"Requests a second, as a mean of {RATE_WINDOW_S} s; 0: any number.",
        ),
    ] = None


class LimitView(BaseModel):
    """A target, and its limit."""

    topic: str
    state: str
    """open, nearly-full, full, or unlimited."""
    max_pending: int | None = None
    pending: int | None = None
    """As the last step has counted them."""
    rate: int | None = None
    taken: int | None = None
    """Requests in the last 10 s, as the last step has counted them."""
    refused_by: str | None = None
    """pending or rate: the limit that is named to those who are refused."""
    full_since_ms: int | None = None


def add_limits(api: APIRouter, services: Services) -> None:
    """Add the routes."""
    needs = services.access.needs
    Reader = Annotated[ApiToken, Depends(needs(Scope.READ))]  # noqa: N806
    Operator = Annotated[ApiToken, Depends(needs(Scope.OPERATE))]  # noqa: N806

    @api.get("/targets/limits", operation_id="target_limits")
    async def limits(reader: Reader) -> list[dict[str, Any]]:
        """The targets that have a limit, and what is used of it."""
        return cluster_view(await services.look.fresh(), reader).limits

    @api.put("/targets/{topic}/limit", operation_id="limit_target")
    async def limit(operator: Operator, topic: Target, asked: LimitIn) -> LimitView:
        """Limit how many messages are pending for a target, or come in a second: over that,
        requests are refused. The answer comes when a step has obeyed."""
        refuse_target(operator, topic)
        limits = asked.max_pending, asked.rate
        return await services.writes.do(
            lambda: _view(topic, change_quota(services.ordered, topic, *limits))
        )

    @api.delete("/targets/{topic}/limit", operation_id="unlimit_target")
    async def unlimit(operator: Operator, topic: Target) -> LimitView:
        """End the limits of a target. The answer comes when a step has obeyed."""
        refuse_target(operator, topic)
        order = QuotaOrder(topic, services.node.clock.wall_ms(), 0)
        return await services.writes.do(lambda: _view(topic, set_quota(services.ordered, order)))


def _view(topic: str, quota: Quota | None) -> LimitView:
    shown = limits_of({} if quota is None else {topic: quota})
    return LimitView(**shown[0]) if shown else LimitView(topic=topic, state="unlimited")
