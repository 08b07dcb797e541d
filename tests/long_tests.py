"""Parameters with which a test computes for long: most runs leave them to others (shares.py)."""

from typing import Any

import pytest


def long_ones(*each: Any) -> list[Any]:
    """Return parameters, or tuples of them, that are marked as long."""
    return [
        pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.long)
        for one in each
    ]
