"""No page of another site changes anything through a browser that reaches this node.

A browser names the site of a page in `Origin` with each request that may change something. The API
needs a token besides, which such a page has not; an export may need none.

Not here: what such a page may read. It gets no answer to see, because none has a CORS header. A
page that makes its own name lead here (DNS rebinding) reads what the operator lets everybody read.
"""

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from delayd.node.monitoring.api.problems import OriginError, problem

SAFE: Final = frozenset(("GET", "HEAD", "OPTIONS"))


class SameOrigin:
    """Goes before an application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http" and scope["method"] not in SAFE and not _is_own(scope):
            error = OriginError(
                "the request comes from a page of another site",
                remedy="use the console of this node; a proxy before it must pass Host on",
            )
            await problem(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _is_own(scope: Scope) -> bool:
    """Return whether a request comes from no page, or from one of this node. Programs send no
    Origin."""
    headers = scope["headers"]
    origins = [value for name, value in headers if name == b"origin"]
    hosts = [value for name, value in headers if name == b"host"]
    sites = [value for name, value in headers if name == b"sec-fetch-site"]
    if any(site not in (b"same-origin", b"none") for site in sites):
        return False
    return all(
        origin.partition(b"://")[2].lower() == host.lower() for origin in origins for host in hosts
    ) and (not origins or bool(hosts))
