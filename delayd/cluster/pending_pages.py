"""Pending messages of a cluster, from one of its nodes, page by page (`GET /v1/pending`).

The walk stays with the node that gave the first page: a cursor is a place in its files. Memory is
that of a page, however much is pending. As the pages themselves, a walk has each message that stays
pending, and one or the other twice.
"""

import http.client
import json
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final

from delayd.cluster.admin_client import BODY_BYTES_MAX, opened, url_of
from delayd.errors import ConfigError, NodeUnreachableError
from delayd.runtime.clock import wait_until

PAGE_LIMIT: Final = 1_000
"""Messages of a page: what the API gives at most."""
TIMEOUT_S: Final = 10.0
BUSY_MAX: Final = 60
"""How often in a row a page is asked for again, a second later, of a node that is busy."""
BUSY_MS: Final = 1_000
SILENT_MAX: Final = 4
"""How often a page is asked for of a node that does not answer: a walk may be a long one."""
_BUSY: Final = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})


def _wait(ms: int) -> None:
    wait_until(lambda: False, ms)


class PendingPages:
    """A walk through what matches a filter."""

    def __init__(
        self,
        nodes: tuple[str, ...],
        token: str | None,
        filters: Mapping[str, str | None],
        pause: Callable[[int], object] = _wait,
    ) -> None:
        """`filters` are parameters of the route, such as `group`; None is none. The first node that
        is ready is asked; NodeUnreachableError if none is."""
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._filters = {name: text for name, text in filters.items() if text is not None}
        self._pause = pause
        self.node = self._first(nodes)
        """The node that is asked."""

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield each message as the API has it. NodeUnreachableError, ConfigError."""
        for page in self._pages("pending", {"limit": str(PAGE_LIMIT)}):
            yield from page["messages"]

    def count(self) -> int:
        """Return how many there are. Errors as of `messages`."""
        return sum(page["messages"] for page in self._pages("pending/count", {}))

    def _pages(self, route: str, more: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        cursor: str | None = ""
        while cursor is not None:
            query = {**self._filters, **more, **({"cursor": cursor} if cursor else {})}
            page = self._page(f"/v1/{route}?{urllib.parse.urlencode(query)}")
            yield page
            cursor = page["next"]

    def _page(self, path: str) -> dict[str, Any]:
        silent = 0
        for _ in range(BUSY_MAX):
            try:
                status, body = self._answer(self.node, path)
            except NodeUnreachableError:
                silent += 1
                if silent == SILENT_MAX:
                    raise
                self._pause(BUSY_MS)
                continue
            if status not in _BUSY:
                return self._read(status, body)
            self._pause(BUSY_MS)
        raise NodeUnreachableError(
            f"{self.node} is busy: {_detail(body)}", remedy="run this again later"
        )

    def _read(self, status: int, body: bytes) -> dict[str, Any]:
        if status != HTTPStatus.OK:
            raise ConfigError(
                f"{self.node} does not list what is pending: {_detail(body)}",
                remedy="give a token with the scope read by --token or DELAYD_API_TOKEN, see "
                "docs/operations.md, 'Tokens'"
                if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
                else "correct the options, or upgrade the node",
            )
        page: dict[str, Any] = json.loads(body)
        return page

    def _first(self, nodes: tuple[str, ...]) -> str:
        for node in nodes:
            try:
                status, _ = self._answer(node, "/readyz")
            except NodeUnreachableError:
                continue
            if status == HTTPStatus.OK:
                return node
        raise NodeUnreachableError(
            f"no node is ready ({', '.join(nodes) or 'etcd knows none of this cluster'})",
            remedy="start a node, check --cluster, or name the admin port of a live node with"
            " --admin",
        )

    def _answer(self, node: str, path: str) -> tuple[int, bytes]:
        try:
            with opened(url_of(node) + path, TIMEOUT_S, headers=self._headers) as response:
                return response.status, response.read(BODY_BYTES_MAX)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise NodeUnreachableError(
                f"{node} does not answer: {error}", remedy="run this again, or name another node"
            ) from error


def _detail(body: bytes) -> str:
    try:
        return str(json.loads(body)["detail"])[:500]
    except (ValueError, KeyError, TypeError):
        return "it gives no reason"
