"""Fixtures of pytest, for a program's own `conftest.py`:

    pytest_plugins = ["delayd.testing.fixtures"]

No entry point: pytest would then rewrite the assertions of all of delayd in everybody's tests. Not
imported by anything else: pytest need not be installed.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from delayd.testing.in_memory import InMemoryDelayd


@pytest.fixture
def in_memory_delayd() -> "Iterator[InMemoryDelayd]":
    """A delayd of the test's own, whose topics are created as they are named."""
    from delayd.testing.in_memory import InMemoryDelayd

    with InMemoryDelayd() as made:
        yield made
