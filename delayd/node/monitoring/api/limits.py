"""Limits of targets: which there are and what is used of them, and orders to set and to clear one,
under this node's key."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path
from pydantic import BaseModel, Field

from delayd.cluster.limiting import limits_of, set_quota
from delayd.config.api_tokens import ApiToken, Scope
from delayd.node.monitoring.api.access import refuse_target
from delayd.node.monitoring.api.asked import In
from delayd.node.monitoring.api.reads import cluster_view
from delayd.node.monitoring.api.services import Services
from replication.quotas import MAX_PENDING_MAX, QuotaOrder

Target = Annotated[str, Path(description="The target.", min_length=1, max_length=249)]


class LimitIn(In):
    """How many messages may be pending for a target."""

    max_pending: Annotated[
        int,
        Field(ge=1, le=MAX_PENDING_MAX, description="When as many are, requests are refused."),
    ]


class LimitView(BaseModel):
    """A target, and its limit."""

    topic: str
    state: str
    """open, nearly-full, full, or unlimited."""
    max_pending: int | None = None
    pending: int | None = None
    """As the last step has counted them."""
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
        """Limit how many messages are pending for a target: when as many are, requests are
        refused. The answer comes when a step has obeyed."""
        refuse_target(operator, topic)
        return await services.writes.do(lambda: _order(services, topic, asked.max_pending))

    @api.delete("/targets/{topic}/limit", operation_id="unlimit_target")
    async def unlimit(operator: Operator, topic: Target) -> LimitView:
        """End the limit of a target. The answer comes when a step has obeyed."""
        refuse_target(operator, topic)
        return await services.writes.do(lambda: _order(services, topic, 0))


def _order(services: Services, topic: str, max_pending: int) -> LimitView:
    now_ms = services.node.clock.wall_ms()
    quota = set_quota(services.ordered, QuotaOrder(topic, now_ms, max_pending))
    shown = limits_of({} if quota is None else {topic: quota})
    return LimitView(**shown[0]) if shown else LimitView(topic=topic, state="unlimited")
