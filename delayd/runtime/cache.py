"""Where delayd keeps what it fetched or made once, and can fetch or make again."""

import sys
from collections.abc import Mapping
from pathlib import Path


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Return the cache: DELAYD_CACHE, else one in the virtual environment, else the user's."""
    if named := environ.get("DELAYD_CACHE"):
        return Path(named).absolute()
    if sys.prefix != sys.base_prefix:
        return Path(sys.prefix) / "cache" / "delayd"
    base = environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "delayd"
