"""`pytest tests/scenarios --rewrite` writes what happens now into the transcripts: `git diff` shows
what a change does, and a person judges it."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", default=False, help="write transcripts anew")


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether a transcript that differs is to be written instead of refused."""
    # Only registered if this folder was named on the command line.
    return bool(request.config.getoption("--rewrite", default=False))
