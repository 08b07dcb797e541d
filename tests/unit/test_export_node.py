"""Exports of one node over a real wheel and a real writer process: the exact set, at exactly a cut.

Not here: HTTP (test_export_http.py), several nodes (tests/integration/test_export.py).
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from exporting_node import (
    BEGIN_MS,
    ExportingNode,
    cut,
    left_in,
    schedule,
)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ExportingNode]:
    made = ExportingNode(tmp_path)
    yield made
    made.close()


def test_an_export_has_what_is_pending_and_nothing_else(node: ExportingNode) -> None:
    first = [schedule(n, BEGIN_MS + 1_000 * n) for n in range(5)]
    node.take(*first)
    at = cut(1, (4, 0), cursor_ms=BEGIN_MS + 1_500)
    assert node.pending(at) == [(0, 2), (0, 3)]
    assert left_in(node.folder) == []
