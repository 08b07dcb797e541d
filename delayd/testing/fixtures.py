"""Fixtures of pytest, which finds them by the entry point `pytest11`.

Not imported by anything else: pytest need not be installed.
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
