"""The cluster as it is each second, for whoever listens: `GET /v1/live`, as server-sent events.

One look at the cluster serves all listeners, and there is none without listeners. What this node
knows by itself is of the moment of the event; the rest says of when it is.

Invariants: LISTENERS_MAX streams, each of which ends after STREAM_S; a listener that is slow is
told less often, and holds up nobody.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Final
from weakref import WeakSet

from fastapi import APIRouter, Depends
from fastapi.responses import StreamingResponse

from delayd.config.api_tokens import ApiToken, Scope
from delayd.node.monitoring.api.problems import BusyError
from delayd.node.monitoring.api.reads import cluster_view
from delayd.node.monitoring.api.services import Services

EVENT_S: Final = 1.0
FIRST_LOOK_S: Final = 0.5
"""How long an event waits for the first look. To whoever listens 2 s of silence are a failure."""
STREAM_S: Final = 600
LISTENERS_MAX: Final = 16
"""A quarter of the requests that may be under way."""
DUE_SLOTS: Final = 60


class _Place:
    """One of LISTENERS_MAX, for as long as a stream holds it."""


class Live:
    """Lives on the event loop."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._taken: WeakSet[_Place] = WeakSet()

    def events(self, reader: ApiToken) -> AsyncGenerator[str, None]:
        """Return a stream that yields an event each second, as text, until STREAM_S have passed.

        Raises BusyError if nobody else may listen now.
        """
        if len(self._taken) >= LISTENERS_MAX:
            raise BusyError(f"{LISTENERS_MAX} listen to this node", remedy="ask another node")
        place = _Place()
        self._taken.add(place)  # A stream that never begins gives it back when it is collected.
        return self._stream(reader, place)

    async def _stream(self, reader: ApiToken, place: "_Place") -> AsyncGenerator[str, None]:
        try:
            for _ in range(int(STREAM_S / EVENT_S)):
                looking = self._services.look.begin()
                if looking is not None and self._services.look.report is None:
                    await asyncio.wait([looking], timeout=FIRST_LOOK_S)
                yield f"data: {json.dumps(self._event(reader))}\n\n"
                await asyncio.sleep(EVENT_S)
        finally:
            self._taken.discard(place)

    def _event(self, reader: ApiToken) -> dict[str, Any]:
        node, look = self._services.node, self._services.look
        report, problem = look.report, look.problem
        return {
            "at_ms": node.clock.wall_ms(),
            "node": node.config.node,
            "role": node.role,
            "problem": node.unready(),
            "delivery_lag_ms": node.delivery_lag_ms(),
            "due": None if reader.is_limited else node.due_soon(DUE_SLOTS),
            "cluster": None if report is None else cluster_view(report, reader).model_dump(),
            "cluster_ms": look.report_ms,
            "cluster_problem": None if problem is None else str(problem),
        }


def add_live(api: APIRouter, services: Services) -> None:
    """Add the route. It is not in the document: an answer that does not end is no object."""
    live = Live(services)
    Reader = Annotated[ApiToken, Depends(services.access.needs(Scope.READ))]  # noqa: N806

    @api.get("/live", include_in_schema=False)
    async def listen(reader: Reader) -> StreamingResponse:
        """An event each second."""
        return StreamingResponse(
            live.events(reader),
            media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )
