"""The routes of the admin port.

GET /livez    200 while the node's loops turn, else 503; never depends on Kafka or etcd
GET /readyz   200 once the node has caught up and can take over, else 503 with the reason
GET /leader   200 on the master, 503 on a follower; the body names the master either way
GET /status   everything, as one JSON object
GET /metrics  figures, in the text format of Prometheus
/v1/          the HTTP API, see api/; GET /docs has it as a page, GET / is the console
POST /export  the node's pending messages at one cut, see exporting.py; with a token, if one is set
/snapshots/   the node's wheel, for other members of the cluster, see snapshots.py
/audits/      reports of audits, from who has the cluster key, and as pages, see api/audits.py
/comparisons/ digests of the node's wheel, for other members of the cluster, see comparing.py
/pulse/NONCE  a line each 250 ms while the life of that nonce lasts, for other members
"""

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from delayd import __version__
from delayd.errors import ConfigError
from delayd.node.monitoring.api.app import add_api, add_document
from delayd.node.monitoring.api.intake import Intake
from delayd.node.monitoring.api.services import Services
from delayd.node.monitoring.comparing import add_comparison_routes
from delayd.node.monitoring.connections import BoundedConnection
from delayd.node.monitoring.console import add_console
from delayd.node.monitoring.exporting import answer_export, has_token, refuse_token
from delayd.node.monitoring.metrics import CONTENT_TYPE, Exposition
from delayd.node.monitoring.node_view import NodeView
from delayd.node.monitoring.origin import SameOrigin
from delayd.node.monitoring.snapshots import add_snapshot_routes


def build_app(
    node: NodeView, export_token: str | None = None, services: Services | None = None
) -> FastAPI:
    """Return the application for one node. If there is a token, exports need it. With services it
    has the HTTP API."""
    app = FastAPI(title="delayd node", version=__version__, docs_url=None, redoc_url=None)
    _add_probes(app, node)
    _add_views(app, node)
    _add_export(app, node, export_token)
    add_snapshot_routes(app, node)
    add_comparison_routes(app, node)
    if services is not None:
        add_api(app, services)
        add_console(app)
    add_document(app)
    app.add_middleware(Intake)
    app.add_middleware(SameOrigin)
    return app


def _add_probes(app: FastAPI, node: NodeView) -> None:
    """Add what Kubernetes, a proxy and the other members ask again and again."""

    @app.get("/livez")
    async def livez() -> JSONResponse:
        """Do the node's loops turn? Not: are Kafka and etcd there."""
        return _answer(node.stalled())

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        """Has the node caught up with the frontier?"""
        return _answer(node.unready())

    @app.get("/leader")
    async def leader() -> JSONResponse:
        """Is this node the master?"""
        body = node.leader()
        return JSONResponse(body, status_code=200 if body["self"] else 503)

    @app.get("/pulse/{life}", include_in_schema=False)
    async def pulse(life: str) -> Response:
        """A line for each beat, and a farewell; 404 of another life."""
        heartbeat = node.control.heartbeat
        if life != heartbeat.life:
            return JSONResponse({"problem": "this is another life"}, status_code=404)
        if heartbeat.is_full:
            return JSONResponse({"problem": "too many listen"}, status_code=503)
        return StreamingResponse(heartbeat.lines(), media_type="text/plain")


def _add_views(app: FastAPI, node: NodeView) -> None:
    """Add what the node says of itself and of its messages."""
    exposition = Exposition(node)

    @app.get("/status")
    async def status() -> dict[str, Any]:
        """Role, term, cursor, positions, counts."""
        return node.status()

    @app.get("/metrics")
    def metrics() -> Response:
        """Figures, in the text format of Prometheus."""
        return Response(exposition.page(), media_type=CONTENT_TYPE)

    @app.get("/pending")
    def pending() -> dict[str, Any]:
        """How many messages are pending, by the hour in which they are due and by target topic."""
        return node.pending()

    @app.get("/ids/{id:path}")
    def known_id(id: str) -> JSONResponse:
        """What is live under an id, and what was killed last."""
        known = node.known_id(id)
        if known is None:
            return JSONResponse({"problem": "nothing is known of this id"}, status_code=404)
        return JSONResponse(known)


def _add_export(app: FastAPI, node: NodeView, export_token: str | None) -> None:
    """Add the export. If there is a token, it needs it."""

    @app.post("/export")
    async def export(request: Request) -> Response:
        """What is pending on this node at exactly one cut, as Parquet."""
        if export_token is not None and not has_token(request, export_token):
            return refuse_token()
        return await answer_export(request, node.begin_export)


def build_fetching_app(fetching: Callable[[], dict[str, Any]]) -> FastAPI:
    """Return the application for a node that fetches its wheel: alive, and ready for nothing.

    `fetching` returns the whole of /status.
    """
    app = FastAPI(title="delayd node", version=__version__, docs_url=None, redoc_url=None)
    problem = "the node fetches its wheel from another node"

    @app.get("/livez")
    async def livez() -> JSONResponse:
        """It lives."""
        return _answer(None)

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        """It is not ready."""
        return _answer(problem)

    @app.get("/leader")
    async def leader() -> JSONResponse:
        """It is not the master, and knows of none."""
        return JSONResponse({"master": None, "self": False, "shards": []}, status_code=503)

    @app.get("/status")
    async def status() -> dict[str, Any]:
        """From whom, how much, how fast."""
        return fetching()

    @app.get("/pulse/{life}", include_in_schema=False)
    async def pulse(life: str) -> JSONResponse:
        """It leads nobody: whoever asks means a former life."""
        return JSONResponse({"problem": "this is another life"}, status_code=404)

    @app.get("/{path:path}", include_in_schema=False)
    async def anything_else(path: str) -> JSONResponse:
        """It cannot say: a 404 would mean that a message is not known."""
        return _answer(problem)

    return app


def _answer(problem: str | None) -> JSONResponse:
    if problem is None:
        return JSONResponse({"ok": True})
    return JSONResponse({"ok": False, "problem": problem}, status_code=503)


class AdminServer(uvicorn.Server):
    """Uvicorn in the node's own event loop: signals belong to the node."""

    def __init__(
        self,
        app: FastAPI,
        host: str,
        port: int,
        cert: Path | None = None,
        key: Path | None = None,
        client_ca: Path | None = None,
        *,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """With a certificate, and its key, it speaks TLS; with `client_ca` it takes certificates of
        clients that one of those authorities has signed. `on_end` is called when it has ended, in a
        thread of its own."""
        self._on_end = on_end
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                http=BoundedConnection,
                ws="none",
                log_config=None,
                # Warnings say what clients sent: whoever likes could fill the log.
                log_level="error",
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=1,
                ssl_certfile=cert,
                ssl_keyfile=key,
                ssl_ca_certs=None if client_ca is None else str(client_ca),
                ssl_cert_reqs=ssl.CERT_NONE if client_ca is None else ssl.CERT_OPTIONAL,
            )
        )

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer until `should_exit` is set. ConfigError if the port cannot be listened on."""
        try:
            await super().serve(self._listeners() if sockets is None else sockets)
        finally:
            await asyncio.to_thread(self._on_end)

    def _listeners(self) -> list[socket.socket]:
        """Return a socket for each address that the host's name has. Uvicorn, which would bind
        them too, ends the process without a word to the node if that fails."""
        host, port = self.config.host, self.config.port
        with contextlib.ExitStack() as bound:
            try:
                listeners = [
                    bound.enter_context(_listener(family, address))
                    for family, address in _addresses(host, port)
                ]
            except OSError as error:
                raise ConfigError(
                    f"the admin port {host}:{port} cannot be listened on: {error.strerror}",
                    remedy="end the program that has it, which may be another node, or set "
                    "admin_host and admin_port to an address of this machine and a free port",
                ) from error
            bound.pop_all()
            return listeners

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave SIGTERM and SIGINT to the node."""
        yield


def _addresses(host: str, port: int) -> list[tuple[int, Any]]:
    """Return family and address of each place that a host's name means. Raises OSError."""
    try:
        # An address needs no resolver.
        is_old = ipaddress.ip_address(host).version == 4
        return [(socket.AF_INET, (host, port)) if is_old else (socket.AF_INET6, (host, port, 0, 0))]
    except ValueError:
        pass
    flags = socket.AI_PASSIVE
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=flags)
    return list({(int(each[0]), each[4]): None for each in found})


def _listener(family: int, address: Any) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener
