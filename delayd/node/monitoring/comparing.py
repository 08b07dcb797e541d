"""The routes by which another node compares its wheel with this one's, for members only.

    POST /comparisons/NODE         hold the last checkpoint for that node, and describe it
    POST /comparisons/ID/SHA256    answer the question in the body, which has this digest

Bodies are msgpack (`delayd.node.comparing.answering`). The proof of a request is over its path, and
so over the question; an answer with status 200 carries its own. 202: it is worked on, ask again.
"""

import hashlib
import hmac
from collections.abc import Callable
from typing import Annotated, Protocol

from fastapi import FastAPI, Path, Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from delayd.cluster.member_proof import ANSWER_HEADER, MemberCheck, RefusedError
from delayd.node.comparing.answering import Answerer, NotYetError
from delayd.node.comparing.service import Comparisons
from delayd.node.comparing.side import ComparisonError

QUESTION_BYTES_MAX = 4 * 1024 * 1024
"""Thousands of slots, or the checkpoints of all nodes."""

NodeName = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
Digest = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]


class Compared(Protocol):
    """A node that answers."""

    comparisons: Comparisons
    members: MemberCheck


def add_comparison_routes(app: FastAPI, node: Compared) -> None:
    """Let other members compare what they hold with this node's wheel."""

    async def answer(request: Request, make: Callable[[Answerer], bytes]) -> Response:
        answerer, members = node.comparisons.answerer, node.members
        try:
            shown = request.headers.get("authorization", "")
            passed = members.check(request.method, request.scope["path"], shown)
        except RefusedError as error:
            return JSONResponse({"problem": str(error)}, status_code=401)
        try:
            body = await run_in_threadpool(make, answerer)
        except NotYetError:
            return JSONResponse({"problem": "not yet: ask again"}, status_code=202)
        except ComparisonError as error:
            return JSONResponse({"problem": str(error)}, status_code=503)
        proof = await run_in_threadpool(members.answer, passed, body)
        return Response(body, media_type="application/octet-stream", headers={ANSWER_HEADER: proof})

    @app.post("/comparisons/{asker}", include_in_schema=False)
    async def begin(request: Request, asker: NodeName) -> Response:
        """Hold the last checkpoint for another node."""
        return await answer(request, lambda answerer: answerer.begin(asker))

    @app.post("/comparisons/{id}/{digest}", include_in_schema=False)
    async def ask(request: Request, id: str, digest: Digest) -> Response:
        """Answer a question."""
        question = bytearray()
        async for piece in request.stream():
            question += piece
            if len(question) > QUESTION_BYTES_MAX:
                return JSONResponse({"problem": "the question is too long"}, status_code=413)
        if not hmac.compare_digest(hashlib.sha256(question).hexdigest(), digest):
            return JSONResponse({"problem": "the question was changed"}, status_code=400)
        return await answer(request, lambda answerer: answerer.ask(id, bytes(question)))
