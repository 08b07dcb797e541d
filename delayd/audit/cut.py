"""The cut: one committed frontier, and what every node holds at exactly it.

    1. read the newest committed frontier of each shard: together they are the cut
    2. ask every node for its export at it, all at once; nodes keep working
    3. the ends of topics are fixed later, when they are read (spans.py): whatever the cut covers
       was committed before

A node that is away, behind, or cannot export is named, with its reason; one that is busy with
another audit's export is asked again. Exports are fetched while topics are being read.

Source: docs/design/audit.md, "The cut".
"""

import http.client
import json
import shutil
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final, Self

from delayd.cluster.admin_client import admin_of, opened, url_of
from delayd.cluster.frontier_log import SeenFrontier
from delayd.runtime.clock import SystemClock
from replication.record import encode

INGEST_WAIT_MS: Final = 60_000
"""How long a node may take to ingest up to the cut before it is called behind."""

EXPORT_TIMEOUT_S: Final = 900.0
"""How long a node may take to write its export."""

ALIVE_TIMEOUT_S: Final = 30.0
"""How long a node may take to say that it is there at all."""

BUSY_WAIT_MS: Final = 10 * 60 * 1000
"""How long a node may be busy with other exports."""

BUSY_RETRY_S: Final = 2.0

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
    is_compared: bool = True
    """False if no node could be asked, because nobody knows any."""


class Exporting:
    """Exports on their way. As a context manager, it waits for those under way when it is left,
    but not after an error: then they end with the process."""

    def __init__(
        self,
        seen: SeenFrontier,
        nodes: Sequence[NodeAddress] | None,
        folder: Path,
        token: str | None = None,
    ) -> None:
        """`nodes` None: nobody knows any. `token`: what nodes want to see, if they do."""
        self._seen = seen
        self._is_compared = nodes is not None
        asked = {"frontier": json.loads(encode(seen.record)), "wait_ms": INGEST_WAIT_MS}
        self._body = json.dumps(asked).encode()
        self._headers = {"content-type": "application/json"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"
        folder.mkdir(parents=True, exist_ok=True)
        self._futures = [
            self._begun(address, folder / f"{number}.parquet")
            for number, address in enumerate(nodes or ())
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if failed is None:
            self.finish()

    def finish(self) -> Cut:
        """Return the cut, once every node has answered or failed to."""
        exports = tuple(future.result() for future in self._futures)
        return Cut(self._seen, exports, self._is_compared)

    def _begun(self, address: NodeAddress, file: Path) -> Future[Export]:
        """Fetch an export in a daemon thread: a node that never answers must not keep a process
        that has failed."""
        future: Future[Export] = Future()

        def fetch() -> None:
            try:
                future.set_result(self._export(address, file))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=fetch, name=f"export {address.node}", daemon=True).start()
        return future

    def _export(self, address: NodeAddress, file: Path) -> Export:
        if address.admin is None:
            return Export(address.node, "", None, "the node is not running")
        problem: str | None
        try:
            problem = self._fetch(address.admin, file)
        except (OSError, ValueError, http.client.HTTPException) as error:
            problem = f"{type(error).__name__}: {error}"[:PROBLEM_CHARS_MAX]
        if problem is None:
            return Export(address.node, address.admin, file, None)
        file.unlink(missing_ok=True)
        return Export(address.node, address.admin, None, f"no export: {problem}")

    def _fetch(self, admin: str, file: Path) -> str | None:
        """Fetch an export into the file; return why there is none, or None."""
        with opened(f"{url_of(admin)}/livez", ALIVE_TIMEOUT_S):
            pass  # whatever its status, it is there: a stopped process never answers
        url = f"{url_of(admin)}/export"
        clock = SystemClock()
        begun_ms = clock.monotonic_ms()
        while True:
            with opened(url, EXPORT_TIMEOUT_S, "POST", self._body, self._headers) as answer:
                if answer.status == HTTPStatus.OK:
                    with file.open("wb") as out:
                        shutil.copyfileobj(answer, out, COPY_BYTES)
                    # http.client tells of it only when all is read at once.
                    left = answer.length
                    return f"the node broke off {left} bytes before the end" if left else None
                reason, problem = _refusal_of(answer)
            if reason != "busy" or clock.monotonic_ms() - begun_ms > BUSY_WAIT_MS:
                return problem
            threading.Event().wait(BUSY_RETRY_S)


def parts_of(seen: SeenFrontier) -> tuple[SeenFrontier, ...]:
    """Return the newest record of each shard, of what was seen of all."""
    return seen.parts or (seen,)


def nodes_of_members(members: Mapping[str, str]) -> tuple[NodeAddress, ...]:
    """Return the nodes that etcd knows: name to JSON with `admin`."""
    return tuple(NodeAddress(name, admin_of(member)) for name, member in sorted(members.items()))


def _refusal_of(answer: http.client.HTTPResponse) -> tuple[str, str]:
    """Return reason and problem, as a node gives them."""
    try:
        said = json.loads(answer.read(64 * 1024))
        return str(said.get("reason")), str(said["problem"])[:PROBLEM_CHARS_MAX]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "", f"status {answer.status}"
