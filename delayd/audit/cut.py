"""The cut: one committed frontier, and what every node holds at exactly it.

    1. read the newest committed frontier: it is the cut
    2. ask every node for its export at it, all at once; nodes keep working
    3. the ends of topics are fixed later, when they are read (spans.py): whatever the cut covers
       was committed before

A node that is away, behind, or cannot export is named, with its reason. Exports are fetched while
topics are being read.

Source: docs/design/audit.md, "The cut".
"""

import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from delayd.frontier_log import SeenFrontier
from replication.record import encode

INGEST_WAIT_MS: Final = 60_000
"""How long a node may take to ingest up to the cut before it is called behind."""

EXPORT_TIMEOUT_S: Final = 900.0
"""How long a node may take to write its export."""

COPY_BYTES: Final = 1024 * 1024
PROBLEM_CHARS_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """A node to ask. `admin` is `host:port`; without one it is known to be away."""

    node: str
    admin: str | None


@dataclass(frozen=True, slots=True)
class Export:
    """What one node gave: a Parquet file, or the reason why there is none."""

    node: str
    admin: str
    file: Path | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class Cut:
    """A moment to be judged."""

    seen: SeenFrontier
    exports: tuple[Export, ...]


class Exporting:
    """Exports on their way. As a context manager, it waits for those under way when it is left."""

    def __init__(self, seen: SeenFrontier, nodes: Sequence[NodeAddress], folder: Path) -> None:
        self._seen = seen
        self._pool = ThreadPoolExecutor(max_workers=max(1, len(nodes)), thread_name_prefix="export")
        body = json.dumps(
            {"frontier": json.loads(encode(seen.record)), "wait_ms": INGEST_WAIT_MS}
        ).encode()
        folder.mkdir(parents=True, exist_ok=True)
        self._futures: list[Future[Export]] = [
            self._pool.submit(_fetch, address, body, folder / f"{number}.parquet")
            for number, address in enumerate(nodes)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._pool.shutdown(wait=_type is None, cancel_futures=True)

    def finish(self) -> Cut:
        """The cut, once every node has answered or failed to."""
        return Cut(self._seen, tuple(future.result() for future in self._futures))


def nodes_of_members(members: Mapping[str, str]) -> tuple[NodeAddress, ...]:
    """The nodes that etcd knows: name to JSON with `admin`."""
    return tuple(
        NodeAddress(name, str(json.loads(value).get("admin", "")))
        for name, value in sorted(members.items())
    )


def _fetch(address: NodeAddress, body: bytes, file: Path) -> Export:
    if address.admin is None:
        return Export(address.node, "", None, "the node is not running")
    request = urllib.request.Request(
        f"http://{address.admin}/export",
        data=body,
        headers={"content-type": "application/json"},
        method="POST",
    )
    problem = None
    try:
        with (
            urllib.request.urlopen(request, timeout=EXPORT_TIMEOUT_S) as answer,
            file.open("wb") as out,
        ):
            shutil.copyfileobj(answer, out, COPY_BYTES)
            if answer.length:
                # http.client tells of it only when all is read at once.
                raise ValueError(f"the node broke off {answer.length} bytes before the end")
    except urllib.error.HTTPError as error:
        with error:
            problem = f"no export: {_problem_of(error)}"
    except (OSError, ValueError) as error:
        problem = f"no export: {str(error)[:PROBLEM_CHARS_MAX]}"
    if problem is not None:
        file.unlink(missing_ok=True)
        return Export(address.node, address.admin, None, problem)
    return Export(address.node, address.admin, file, None)


def _problem_of(error: urllib.error.HTTPError) -> str:
    try:
        said = json.loads(error.read(64 * 1024))
        return str(said["problem"])[:PROBLEM_CHARS_MAX]
    except (OSError, ValueError, KeyError, TypeError):
        return f"status {error.code}"
