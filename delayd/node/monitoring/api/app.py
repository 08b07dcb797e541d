"""The API as a whole, on the application of the admin port."""

from http import HTTPStatus
from typing import Any, Final

import structlog
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exception_handlers import (
    http_exception_handler,
    request_validation_exception_handler,
)
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException

from delayd.errors import DelaydError
from delayd.node.monitoring.api.audits import add_audits, add_pages_and_intake
from delayd.node.monitoring.api.dead import add_dead
from delayd.node.monitoring.api.intake import PREFIX, is_of_api, refuse_strange_parameters
from delayd.node.monitoring.api.limits import add_limits
from delayd.node.monitoring.api.live import add_live
from delayd.node.monitoring.api.models import Problem
from delayd.node.monitoring.api.page import HEADERS, page
from delayd.node.monitoring.api.pauses import add_pauses
from delayd.node.monitoring.api.pending import add_pending
from delayd.node.monitoring.api.problems import MEDIA_TYPE, MalformedError, NotKnownError, problem
from delayd.node.monitoring.api.reads import add_reads
from delayd.node.monitoring.api.services import Services
from delayd.node.monitoring.api.writes import add_writes

log = structlog.get_logger()

ERRORS_MAX: Final = 20
"""Of a request that breaks many rules."""

_PROBLEM: Final[dict[str, Any]] = {
    "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
}
_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    "4XX": {"description": "Nothing was done.", **_PROBLEM},
    "5XX": {"description": "Kafka, etcd or this node is not well; the code says how.", **_PROBLEM},
}


def add_api(app: FastAPI, services: Services) -> None:
    """Add the routes of the API, its errors, its document and its page."""
    api = APIRouter(
        prefix=PREFIX,
        responses=_RESPONSES,
        dependencies=[Depends(refuse_strange_parameters)],
    )
    # Before `/messages/{id}`, which any path below would be taken for.
    add_pending(api, services)
    add_dead(api, services)
    add_pauses(api, services)
    add_limits(api, services)
    add_audits(api, services)
    add_live(api, services)
    add_writes(api, services)
    add_reads(api, services)
    app.include_router(api)
    add_pages_and_intake(app, services)
    _add_errors(app)


def add_document(app: FastAPI) -> None:
    """Serve the OpenAPI document as a page too, and name the problems in it."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
            schemas = made.setdefault("components", {}).setdefault("schemas", {})
            schemas["Problem"] = Problem.model_json_schema()
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        """The document as a page."""
        return HTMLResponse(page(app.openapi()), headers=HEADERS)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(DelaydError)
    async def failed(request: Request, error: DelaydError) -> Response:
        return problem(error)

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        if not is_of_api(request.url.path):
            return await request_validation_exception_handler(request, error)
        found = [_told(each) for each in error.errors()[:ERRORS_MAX]]
        return problem(MalformedError(f"the request is malformed: {found[0]}", errors=found))

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        if not is_of_api(request.url.path):
            return await http_exception_handler(request, error)
        if error.status_code == HTTPStatus.NOT_FOUND:
            return problem(NotKnownError("there is no such route", remedy="see /docs"))
        return problem(
            MalformedError(str(error.detail), status=error.status_code, headers=error.headers)
        )

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        """A bug: said in the log, and to the client without what is inside."""
        log.error("api_failed", path=request.url.path, error=repr(error)[:500])
        return problem(
            MalformedError("this is a fault of delayd", status=HTTPStatus.INTERNAL_SERVER_ERROR)
        )


def _told(error: Any) -> str:
    """Return where and why, never what was sent."""
    where = ".".join(str(each)[:100] for each in error["loc"])
    return f"{where}: {error['msg']}"[:500]
