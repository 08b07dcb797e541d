"""The report of an audit as it comes in, as far as it is looked at, and as lists show it."""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from delayd.node.monitoring.api.asked import MS_MAX
from delayd.node.monitoring.api.problems import MalformedError

Count = Annotated[int, Field(ge=0, le=MS_MAX)]
FaultName = Annotated[str, Field(pattern=r"^[a-z-]{1,40}$")]


class _Node(BaseModel):
    problem: str | None


class _Report(BaseModel, strict=True):
    """What a list shows of a report; the rest of it is kept as it is."""

    cluster: str
    verdict: Literal["ok", "failed"]
    accepted: Count
    found: Annotated[dict[FaultName, Count], Field(max_length=100)]
    made_ms: Annotated[int, Field(ge=10**12, lt=10**13)]
    wall_ms: Count
    version: Annotated[str, Field(max_length=100)]
    nodes: Annotated[list[_Node], Field(max_length=1_000)]
    notes: Annotated[list[str], Field(max_length=1_000)]


class _Body(BaseModel):
    report: dict[str, Any]
    page: str


class AuditSummary(BaseModel):
    """An audit, as a list shows it."""

    id: str
    made_ms: int
    """When the ends of the topics were read."""
    verdict: Literal["ok", "failed"]
    found: dict[str, int]
    """Findings by fault; none if the verdict is ok."""
    messages: int
    """Requests that were judged, without cancels."""
    nodes: int
    compared: int
    """Nodes whose files were compared."""
    notes: int
    """What could not be judged."""
    wall_ms: int
    version: str
    bytes: int


class AuditView(AuditSummary):
    """An audit in the list."""

    page: str | None
    """Where a browser finds the report, for ten minutes; null for a token for some targets."""


def summary_of(id: str, body: bytes) -> tuple[str, AuditSummary]:
    """Return whose report a body is, by the name of the cluster, and what a list shows of it.

    MalformedError if it is no report.
    """
    try:
        # Ids in it may be text that no UTF-8 has, which other parsers refuse.
        sent = _Body.model_validate(json.loads(body))
        report = _Report.model_validate(sent.report)
        json.dumps(sent.report, allow_nan=False)
        sent.page.encode()
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"this is no audit's report: {_why(error)}") from error
    if (report.verdict == "ok") == bool(report.found):
        raise MalformedError("this is no audit's report: its verdict contradicts its findings")
    return report.cluster, AuditSummary(
        id=id,
        **report.model_dump(include={"made_ms", "verdict", "found", "wall_ms", "version"}),
        messages=report.accepted,
        nodes=len(report.nodes),
        compared=sum(node.problem is None for node in report.nodes),
        notes=len(report.notes),
        bytes=len(body),
    )


def _why(error: Exception) -> str:
    """Return what is wrong, without what was sent."""
    if not isinstance(error, ValidationError):
        return type(error).__name__
    first = error.errors(include_input=False, include_url=False)[0]
    return ".".join(str(part)[:100] for part in first["loc"]) or first["msg"][:200]
