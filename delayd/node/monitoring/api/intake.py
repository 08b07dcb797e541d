"""What is taken in of a request to the API: how much, how slowly, and of how many at a time.

The whole body is read before anything else is done, so no handler waits for a slow client; so it
is for whatever else of the admin port takes a body. A
parameter that a route does not have is refused: whoever misspells a filter would get everything.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, Final, get_origin

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from delayd.errors import DelaydError
from delayd.node.monitoring.api.problems import BusyError, MalformedError, problem

PREFIX: Final = "/v1"
BODY_BYTES_MAX: Final = 8 * 1024 * 1024
"""Some records of Kafka's usual largest size."""
BODY_TIMEOUT_S: Final = 10.0
REQUESTS_MAX: Final = 64
"""At a time: they take half a gigabyte at most, if all bring the largest body."""


class Intake:
    """Goes before an application, for paths below `/v1` and for all that may bring a body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._count = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or (
            not is_of_api(scope["path"]) and scope["method"] in ("GET", "HEAD")
        ):
            await self._app(scope, receive, send)
            return
        if self._count >= REQUESTS_MAX:
            error: DelaydError = BusyError(
                f"{REQUESTS_MAX} requests are under way", remedy="ask again in a second"
            )
            await problem(error)(scope, receive, send)
            return
        self._count += 1
        try:
            await self._answer(scope, receive, send)
        finally:
            self._count -= 1

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                body = await _body(scope, receive)
        except TimeoutError:
            late = f"the body did not arrive within {BODY_TIMEOUT_S:.0f} s"
            error = MalformedError(late, status=HTTPStatus.REQUEST_TIMEOUT)
            await problem(error)(scope, receive, send)
            return
        except MalformedError as malformed:
            await problem(malformed)(scope, receive, send)
            return
        if body is None:
            return
        is_read = False

        async def replay() -> Message:
            nonlocal is_read
            if is_read:
                return await receive()
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, replay, send)


def is_of_api(path: str) -> bool:
    """Return whether a path is one of the API."""
    return path == PREFIX or path.startswith(f"{PREFIX}/")


async def refuse_strange_parameters(request: Request) -> None:
    """Raise MalformedError for a parameter that the route does not have, or has only once."""
    route = request.scope["route"]
    known = {
        field.alias: get_origin(field.field_info.annotation) is list
        for field in _query_fields(route.dependant)
    }
    given = Counter(name for name, _ in request.query_params.multi_items())
    errors = [
        f"query.{name[:100]}: there is no such parameter"
        if name not in known
        else f"query.{name}: it is given {count} times"
        for name, count in given.items()
        if name not in known or (count > 1 and not known[name])
    ]
    if errors:
        raise MalformedError(f"the request is malformed: {errors[0]}", errors=errors)


def _query_fields(dependant: Any) -> Iterator[Any]:
    """Yield the query parameters of a route, also those of what it depends on."""
    yield from dependant.query_params
    for each in dependant.dependencies:
        yield from _query_fields(each)


async def _body(scope: Scope, receive: Receive) -> bytes | None:
    """Return the body; None if the client went away. MalformedError if it is too large."""
    too_large = MalformedError(
        f"the body has more than {BODY_BYTES_MAX} bytes",
        status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        headers={"connection": "close"},
    )
    said = dict(scope["headers"]).get(b"content-length", b"0")
    if said.isdigit() and int(said) > BODY_BYTES_MAX:
        raise too_large
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > BODY_BYTES_MAX:
            raise too_large
        if not message.get("more_body", False):
            return bytes(body)
