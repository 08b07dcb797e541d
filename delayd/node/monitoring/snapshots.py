"""The routes by which another node copies this one's wheel, for members of the cluster only.

    POST   /snapshots/NODE               pin the last checkpoint for that node, and describe it
    GET    /snapshots/ID                 describe it
    GET    /snapshots/ID/lines/KEY       lines of the catalogue after this key, in hexadecimal
    GET    /snapshots/ID/bytes/POSITION  bytes of the stream of files from there on
    GET    /snapshots/ID/bytes/POSITION/SIZE    so many of them at most
    DELETE /snapshots/ID                 let go of it

Lines are a msgpack array of keys and values in turn. Every answer with status 200 carries its proof
(`delayd.cluster.member_proof`), which is the checksum of the body, too.

Nothing here blocks the event loop: reading and signing happen in worker threads.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Annotated, Protocol

from fastapi import FastAPI, Path, Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from delayd.cluster.member_proof import ANSWER_HEADER, MemberCheck, RefusedError
from delayd.node.snapshots.donor import Donor, NoSnapshotError
from delayd.wheel.snapshot import packed

KEY_START = "-"
"""In place of a key: before the first one."""

NodeName = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
Key = Annotated[str, Path(pattern=r"^(-|([0-9a-f]{2})+)$", max_length=8_000)]
Position = Annotated[int, Path(ge=0, lt=1 << 63)]


class Giver(Protocol):
    """A node that gives its wheel."""

    donor: Donor
    members: MemberCheck


def add_snapshot_routes(app: FastAPI, node: Giver) -> None:
    """Let other members copy what this node's donor gives."""

    async def answer(request: Request, make: Callable[[Donor], bytes]) -> Response:
        donor, members = node.donor, node.members
        try:
            shown = request.headers.get("authorization", "")
            passed = members.check(request.method, request.scope["path"], shown)
        except RefusedError as error:
            return JSONResponse({"problem": str(error)}, status_code=401)
        try:
            body = await run_in_threadpool(make, donor)
        except NoSnapshotError as error:
            status = 503 if request.method == "POST" else 404
            return JSONResponse({"problem": str(error)}, status_code=status)
        proof = await run_in_threadpool(members.answer, passed, body)
        await asyncio.sleep(donor.pause_s(len(body)))
        return Response(body, media_type="application/octet-stream", headers={ANSWER_HEADER: proof})

    @app.post("/snapshots/{fetcher}", include_in_schema=False)
    async def begin(request: Request, fetcher: NodeName) -> Response:
        """Pin the last checkpoint for another node."""
        return await answer(request, lambda donor: _json(donor.begin(fetcher)))

    @app.get("/snapshots/{id}", include_in_schema=False)
    async def described(request: Request, id: str) -> Response:
        """What a snapshot is."""
        return await answer(request, lambda donor: _json(donor.described(id)))

    @app.get("/snapshots/{id}/lines/{key}", include_in_schema=False)
    async def lines(request: Request, id: str, key: Key) -> Response:
        """Some lines of the catalogue."""
        after = b"" if key == KEY_START else bytes.fromhex(key)
        return await answer(
            request,
            lambda donor: packed(donor.lines_after(id, after)),
        )

    @app.get("/snapshots/{id}/bytes/{position}", include_in_schema=False)
    async def read(request: Request, id: str, position: Position) -> Response:
        """Some bytes of the files."""
        return await answer(request, lambda donor: donor.bytes_at(id, position))

    @app.get("/snapshots/{id}/bytes/{position}/{size}", include_in_schema=False)
    async def read_some(request: Request, id: str, position: Position, size: Position) -> Response:
        """Some bytes of the files, for one who has the others."""
        return await answer(request, lambda donor: donor.bytes_at(id, position, size))

    @app.delete("/snapshots/{id}", include_in_schema=False)
    async def end(request: Request, id: str) -> Response:
        """Let go of a snapshot."""

        def give_up(donor: Donor) -> bytes:
            donor.end(id)
            return _json({"ended": id})

        return await answer(request, give_up)


def _json(fields: object) -> bytes:
    return json.dumps(fields).encode()
