"""Audits: which there were, and the report of each, as JSON and as a page.

    PUT /audits/ID             takes a report in from who has the cluster key (`audit_reports.py`)
    GET /audits/ID/TICKET      its page, for a browser, which sends no token with a link

A ticket (`tickets.py`) is in the list of audits for everybody who may read the report.

Invariant: a page is not believed, whoever made it. A browser gives it an origin of its own, runs no
script of it, and loads nothing for it: it can neither act nor read in the console's name.
"""

import json
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, FastAPI, Path, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response

from delayd.cluster.member_proof import RefusedError
from delayd.config.api_tokens import ApiToken, Scope
from delayd.node.monitoring.api.audit_models import AuditView
from delayd.node.monitoring.api.kept_audits import NAME
from delayd.node.monitoring.api.problems import ScopeError, TokenError
from delayd.node.monitoring.api.services import Services

HEADERS: Final = {
    "content-security-policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}

AuditId = Annotated[
    str, Path(description="Of the list.", pattern=f"^{NAME.pattern}$", max_length=60)
]


def add_audits(api: APIRouter, services: Services) -> None:
    """Add the routes of the API."""
    Reader = Annotated[ApiToken, Depends(services.access.needs(Scope.READ))]  # noqa: N806

    @api.get("/audits", operation_id="list_audits")
    async def audits(reader: Reader) -> list[AuditView]:
        """The audits that this node knows, the newest first."""
        found = await services.shelf.do(lambda: services.audits.summaries())
        return [
            AuditView(
                **each.model_dump(),
                page=None if reader.is_limited else services.tickets.path(each.id),
            )
            for each in found
        ]

    @api.get("/audits/{id}", operation_id="show_audit", response_model=dict[str, Any])
    async def audit(reader: Reader, id: AuditId) -> Response:
        """The report of an audit, as `delayd audit --json` prints it."""
        _refuse_limited(reader)
        # ASCII: ids in it may be text that no UTF-8 has.
        shown = await services.shelf.do(lambda: json.dumps(services.audits.read(id).report))
        return Response(shown, media_type="application/json")

    @api.get("/audits/{id}/page", operation_id="audit_page", response_class=HTMLResponse)
    async def page(reader: Reader, id: AuditId) -> HTMLResponse:
        """The report of an audit as a page, complete without scripts and network."""
        _refuse_limited(reader)
        return await _page(services, id)


def add_pages_and_intake(app: FastAPI, services: Services) -> None:
    """Add what is for browsers, and for who has the cluster key."""

    @app.put("/audits/{id}", include_in_schema=False)
    async def keep(request: Request, id: AuditId) -> Response:
        """Keep a report."""
        shown = request.headers.get("authorization", "")
        try:
            services.node.members.check(request.method, request.scope["path"], shown)
        except RefusedError as error:
            raise TokenError(
                str(error), remedy="give the audit this cluster's key: DELAYD_CLUSTER_KEY"
            ) from error
        body = await request.body()
        is_new = await services.shelf.do(lambda: services.audits.keep(id, body))
        return JSONResponse({"id": id}, status_code=201 if is_new else 200)

    @app.get("/audits/{id}/{ticket}", include_in_schema=False)
    async def page(id: AuditId, ticket: str) -> HTMLResponse:
        """A report, in a browser."""
        services.tickets.check(id, ticket)
        return await _page(services, id)


async def _page(services: Services, id: str) -> HTMLResponse:
    kept = await services.shelf.do(lambda: services.audits.read(id))
    return HTMLResponse(kept.page, headers=HEADERS)


def _refuse_limited(reader: ApiToken) -> None:
    """Raise ScopeError: reports name messages of all targets."""
    if reader.is_limited:
        raise ScopeError(
            f"the token {reader.name} is for some targets, and a report is of all",
            remedy="the list has the verdict; ask for a token for all targets",
        )
