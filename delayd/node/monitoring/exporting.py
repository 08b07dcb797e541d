"""`POST /export`: a node's pending messages at one cut, as a Parquet file.

The request is {"frontier": a frontier record's JSON, "wait_ms": how long to wait until the node has
ingested that far}. The answers are in docs/reference/http.md.

Nothing here blocks the event loop: the export runs in a worker thread, and the file is read in one.
When the client goes away the export is aborted.
"""

import asyncio
import hmac
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from delayd.node.export.exporter import Export, ExportError, Refusal
from replication.frontier import ALL_SHARDS
from replication.record import FrontierFormatError, FrontierRecord, decode

BODY_BYTES_MAX = 1024 * 1024
"""A frontier record with a thousand partitions has a tenth of it."""
NUMBER_STOP = 1 << 63
WAIT_MS_MAX = 10 * 60 * 1000
CHUNK_BYTES = 256 * 1024
STALL_S = 60.0
"""A client that takes no bytes for so long is taken for gone."""
MEDIA_TYPE = "application/vnd.apache.parquet"

STATUS_CODES = {
    Refusal.TOO_OLD: 409,
    Refusal.NOT_REACHED: 503,
    Refusal.BUSY: 503,
    Refusal.NO_ROOM: 507,
    Refusal.TOO_LONG: 503,
    Refusal.FAILED: 500,
}


def has_token(request: Request, token: str) -> bool:
    """True if the request shows the token (RFC 6750, in the header). Takes as long whatever is
    shown."""
    shown = request.headers.get("authorization", "")
    return hmac.compare_digest(shown.encode(), f"Bearer {token}".encode())


def refuse_token() -> JSONResponse:
    """Return the response to a request without it."""
    return JSONResponse(
        {
            "problem": "exports need this node's export_token: give it to the audit as"
            " DELAYD_EXPORT_TOKEN",
            "reason": "token",
        },
        status_code=401,
        headers={"www-authenticate": "Bearer"},
    )


async def answer_export(request: Request, begin: Callable[[], Export]) -> Response:
    """Make an export; the response streams it and cleans up after it."""
    try:
        record, wait_ms = _asked(await _body(request))
    except ValueError as error:
        return JSONResponse({"problem": str(error)}, status_code=400)
    try:
        export = begin()
    except ExportError as error:
        return _refused(error)
    try:
        with _abort_when_gone(request.receive, export):
            await run_in_threadpool(export.run, record, wait_ms)
    except ExportError as error:
        await _close(export)
        return _refused(error)
    except BaseException:
        await _close(export)
        raise
    return ExportResponse(export)


class ExportResponse(Response):
    """Streams an export that has run, and closes it whatever happens."""

    media_type = MEDIA_TYPE

    def __init__(self, export: Export) -> None:
        self._export = export
        super().__init__(headers={"content-length": str(export.size_bytes)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it. Ends early, and so breaks the connection off, if the export is aborted."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        try:
            with _abort_when_gone(receive, self._export):
                await send(start)
                position = 0
                while position < self._export.size_bytes:
                    data = await run_in_threadpool(self._export.read, CHUNK_BYTES, position)
                    if not data:
                        return
                    position += len(data)
                    more = position < self._export.size_bytes
                    if not more:
                        # Who has it all may ask for the next one at once.
                        await _close(self._export)
                    chunk = {"type": "http.response.body", "body": data, "more_body": more}
                    await asyncio.wait_for(send(chunk), STALL_S)
        except (ExportError, TimeoutError):
            return
        finally:
            await _close(self._export)


async def _close(export: Export) -> None:
    # To free a large file's blocks takes a while; shielded, because a server that ends cancels.
    await asyncio.shield(run_in_threadpool(export.close))


@contextmanager
def _abort_when_gone(receive: Receive, export: Export) -> Iterator[None]:
    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        await run_in_threadpool(export.abort, ExportError(Refusal.BUSY, "the client went away"))

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            raise ValueError(f"a request has at most {BODY_BYTES_MAX} bytes")
    return bytes(body)


def _asked(body: bytes) -> tuple[FrontierRecord, int]:
    """Return the cut and wait_ms of a request; ValueError if it makes no sense."""
    try:
        fields: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError("the request is no JSON object") from error
    if not isinstance(fields, dict) or "frontier" not in fields:
        raise ValueError('a request is {"frontier": a frontier record, "wait_ms": 30000}')
    wait_ms = fields.get("wait_ms", 0)
    if type(wait_ms) is not int or not 0 <= wait_ms <= WAIT_MS_MAX:
        raise ValueError(f"wait_ms is a whole number from 0 to {WAIT_MS_MAX}")
    try:
        record = decode(json.dumps(fields["frontier"]).encode())
    except FrontierFormatError as error:
        raise ValueError(f"frontier: {error}") from error
    cut = record.frontier
    numbers = chain(*cut.cursors, cut.offsets)
    is_of_all = cut.shard == (0 if cut.shards == 1 else ALL_SHARDS)
    if not is_of_all or not all(0 <= number < NUMBER_STOP for number in numbers):
        raise ValueError("frontier: a number is out of its bounds")
    return record, wait_ms


def _refused(error: ExportError) -> JSONResponse:
    return JSONResponse(
        {"problem": error.problem, "reason": error.refusal.value, **error.more},
        status_code=STATUS_CODES[error.refusal],
    )
