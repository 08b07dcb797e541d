"""The commit that is checked out: seeds and shares of the tests are drawn by it."""

import subprocess
from pathlib import Path


def commit() -> str:
    """Return the commit that is checked out, and whether files were changed since."""
    return _git("describe", "--always", "--dirty", "--abbrev=12")


def revision() -> str:
    """Return the commit that is checked out, whatever was changed since; or `unknown`."""
    return _git("rev-parse", "HEAD")


def _git(*asked: str) -> str:
    words = ["git", "-C", str(Path(__file__).parent), *asked]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
