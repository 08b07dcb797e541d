"""Where the cache is."""

from pathlib import Path

from delayd.runtime.cache import cache_directory


def test_the_cache_is_where_delayd_cache_says() -> None:
    assert cache_directory({"DELAYD_CACHE": "/somewhere"}) == Path("/somewhere")
