"""Errors as problem+json (RFC 9457), with the codes of docs/operations.md, "Error codes"."""

import json
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, ClassVar, Final

from starlette.responses import Response

from delayd.errors import DelaydError

MEDIA_TYPE: Final = "application/problem+json"
TEXT_CHARS_MAX: Final = 2_000
"""Of a detail: some name what was sent."""


class HttpError(DelaydError):
    """A request that the API does not carry out. Abstract."""

    code = "http-request"
    status: ClassVar[int] = HTTPStatus.BAD_REQUEST
    headers: Mapping[str, str] = {}


class MalformedError(HttpError):
    """The request is not what the document says, or is too large; nothing was done."""

    code = "http-request"

    def __init__(
        self,
        message: str,
        *,
        status: int = HTTPStatus.UNPROCESSABLE_ENTITY,
        errors: Iterable[str] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, remedy="see /openapi.json, or /docs")
        self.answered = int(status)
        self.errors = list(errors)
        self.headers = headers or {}


class TokenError(HttpError):
    """No token, or none that this node knows."""

    code = "http-token"
    status = HTTPStatus.UNAUTHORIZED
    headers: Mapping[str, str] = {"www-authenticate": 'Bearer realm="delayd"'}


class ScopeError(HttpError):
    """The token may not do that, or not with that target."""

    code = "http-scope"
    status = HTTPStatus.FORBIDDEN


class OriginError(HttpError):
    """A browser sent it for a page of another site; nothing was done."""

    code = "http-origin"
    status = HTTPStatus.FORBIDDEN


class NotKnownError(HttpError):
    """There is nothing under that name."""

    code = "http-not-found"
    status = HTTPStatus.NOT_FOUND


class NotKeptError(HttpError):
    """The disk has no room for it, or refuses it; nothing of it is left."""

    code = "http-not-kept"
    status = HTTPStatus.INSUFFICIENT_STORAGE


class RateError(HttpError):
    """Too many requests of one token or address."""

    code = "http-rate"
    status = HTTPStatus.TOO_MANY_REQUESTS
    headers: Mapping[str, str] = {"retry-after": "1"}


class BusyError(HttpError):
    """The node has no thread left for it, or is not ready; nothing was done."""

    code = "http-busy"
    status = HTTPStatus.SERVICE_UNAVAILABLE
    headers: Mapping[str, str] = {"retry-after": "1"}


STATUS_CODES: Final[Mapping[str, int]] = {
    "request-refused": HTTPStatus.UNPROCESSABLE_ENTITY,
    "config": HTTPStatus.UNPROCESSABLE_ENTITY,
    "pause": HTTPStatus.CONFLICT,
    "quota": HTTPStatus.CONFLICT,
    "not-scheduled": HTTPStatus.BAD_GATEWAY,
    "outcome-unknown": HTTPStatus.GATEWAY_TIMEOUT,
    "verdict-unknown": HTTPStatus.GATEWAY_TIMEOUT,
}
"""Of errors that the rest of delayd raises; of all others 503: something around this node is not
well, and the code says what."""


def status_of(error: DelaydError) -> int:
    """Return the status of the answer to a request that ended with this error."""
    if isinstance(error, MalformedError):
        return error.answered
    if isinstance(error, HttpError):
        return int(error.status)
    return int(STATUS_CODES.get(error.code, HTTPStatus.SERVICE_UNAVAILABLE))


def fields_of(error: DelaydError) -> dict[str, Any]:
    """Return an error as the object of a problem."""
    status = status_of(error)
    fields: dict[str, Any] = {
        "type": f"urn:delayd:{error.code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": error.message[:TEXT_CHARS_MAX],
        "code": error.code,
        "remedy": error.remedy[:TEXT_CHARS_MAX],
    }
    if isinstance(error, MalformedError) and error.errors:
        fields["errors"] = error.errors
    return fields


def problem(error: DelaydError) -> Response:
    """Return an error as the answer to a request."""
    headers = dict(error.headers) if isinstance(error, HttpError) else {}
    # ASCII: what was sent may be text that no UTF-8 has.
    body = json.dumps(fields_of(error)).encode()
    return Response(body, status_of(error), headers, MEDIA_TYPE)
