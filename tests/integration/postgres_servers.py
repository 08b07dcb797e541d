"""A real PostgreSQL for tests, where the machine has one; no package index brings it as a wheel."""

import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest
from nodes import HANGS_S, wait_for

from delayd.dev.ports import LOOPBACK, pick_ports

PLACES: Final = ("/usr/lib/postgresql", "/usr/pgsql", "/usr/local/pgsql")
"""Debian has a folder of each version there, and none of it but psql on the path."""
NEEDED: Final = ("initdb", "postgres", "psql", "pg_isready")
USERS: Final = ("postgres", "nobody")
"""Who runs the server if we are root: it refuses to be run by it."""
SETTINGS: Final = {
    "wal_level": "logical",
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "fsync": "off",
    "timezone": "UTC",
}


@dataclass(frozen=True, slots=True)
class Postgres:
    """A server that runs. Whoever connects from this machine may do all."""

    binaries: Path
    port: int

    def psql(self, **options: Any) -> "subprocess.Popen[str]":
        """Start a program that carries out what is written to it, and ends at the first error."""
        url = f"postgresql://postgres@{LOOPBACK}:{self.port}/postgres"
        strict = ("--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "-v", "ON_ERROR_STOP=1")
        command = [str(self.binaries / "psql"), *strict, url]
        return subprocess.Popen(command, stdin=subprocess.PIPE, text=True, **options)

    def run(self, sql: str) -> str:
        """Carry it out. Return what it printed."""
        with self.psql(stdout=subprocess.PIPE, stderr=subprocess.PIPE) as psql:
            out, errors = psql.communicate(sql, HANGS_S)
        assert psql.returncode == 0, errors
        return out


@contextmanager
def postgres_server() -> Iterator[Postgres]:
    """Run one in a folder of its own. Skips the test if there is none."""
    binaries = postgres_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    user = _user()
    with TemporaryDirectory(prefix="delayd-postgres-", ignore_cleanup_errors=True) as folder:
        if user is not None:
            os.chown(folder, user, -1)
        data, log = Path(folder) / "data", Path(folder) / "log"
        made = subprocess.run(
            [binaries / "initdb", "--no-sync", "--auth=trust", "-U", "postgres", "-D", data],
            **_as(user, folder), check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert made.returncode == 0, made.stdout
        server = Postgres(binaries, pick_ports(1)[0])
        given = {**SETTINGS, "port": server.port}
        settings = [part for name, value in given.items() for part in ("-c", f"{name}={value}")]
        with log.open("wb") as said:
            process = subprocess.Popen(
                [binaries / "postgres", "-D", data, *settings],
                **_as(user, folder), stdout=said, stderr=said,
            )  # fmt: skip
        try:
            wait_for(lambda: _answers(server) or process.poll() is not None, "PostgreSQL answers")
            assert process.poll() is None, log.read_text()
            yield server
        finally:
            process.send_signal(signal.SIGINT)  # ends connections, too
            process.wait(HANGS_S)


def postgres_binaries() -> Path | None:
    """The folder of the server's programs; None if they are not there."""
    on_path = shutil.which("initdb")
    places = [Path(on_path).resolve().parent] if on_path is not None else []
    for place in PLACES:
        places += sorted(Path(place).glob("*/bin"), reverse=True)
        places.append(Path(place) / "bin")
    return next((each for each in places if all((each / name).exists() for name in NEEDED)), None)


def _user() -> int | None:
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name: entry.pw_uid for entry in pwd.getpwall()}
    return next((known[name] for name in USERS if name in known), None)


def _as(user: int | None, folder: str) -> dict[str, Any]:
    here: dict[str, Any] = {"cwd": folder, "env": {**os.environ, "LC_ALL": "C.UTF-8"}}
    return here if user is None else {**here, "user": user, "extra_groups": []}


def _answers(server: Postgres) -> bool:
    ready = [str(server.binaries / "pg_isready"), "-q", "-h", LOOPBACK, "-p", str(server.port)]
    return subprocess.run(ready, check=False).returncode == 0
