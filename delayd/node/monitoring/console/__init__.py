"""The console: one page for people, at `/` of every node. It asks this node's HTTP API, and nothing
else.

Not here: who may see and do what (`delayd.node.monitoring.api.access`): these files are the same
for everybody, and hold nothing of a cluster.

Invariants: no file but those in this folder, which are read once, is served; a browser runs no
script but these files, and loads nothing from elsewhere.
"""

from collections.abc import Mapping
from importlib.resources import files
from typing import Final

from fastapi import FastAPI
from fastapi.responses import Response

TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
"""Without caching: a node of another release has other files."""


def add_console(app: FastAPI) -> None:
    """Add the page and its files."""
    found = {
        each.name: (each.read_bytes(), kind)
        for each in files(__name__).iterdir()
        if (kind := TYPES.get(f".{each.name.rpartition('.')[2]}")) is not None
    }

    @app.get("/", include_in_schema=False)
    async def console() -> Response:
        """The page."""
        return _answer(*found["index.html"])

    @app.get("/console/{name}", include_in_schema=False)
    async def file(name: str) -> Response:
        """One of its files."""
        return _answer(*found[name]) if name in found else Response(status_code=404)


def _answer(content: bytes, kind: str) -> Response:
    return Response(content, media_type=kind, headers=HEADERS)
