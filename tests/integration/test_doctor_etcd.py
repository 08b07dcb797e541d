"""Real servers of etcd that are old, away, full or about to be, and what `delayd doctor` says.

Source: docs/operations.md, "The doctor".
"""

import base64
import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from doctor_cases import Ward
from guarded_etcd import guarded_etcd
from nodes import HANGS_S, wait_for

from delayd.config.security import Security
from delayd.dev.etcd import etcd_binary, etcd_is_healthy
from delayd.dev.ports import LOOPBACK, pick_ports
from delayd.runtime.clock import SystemClock

pytestmark = pytest.mark.real

QUOTA_BYTES = 2 * 1024 * 1024
VALUE = base64.b64encode(bytes(100_000)).decode()


@contextmanager
def etcd_members(
    folder: Path, count: int, *more: str
) -> Iterator[dict[str, "subprocess.Popen[bytes]"]]:
    """A cluster of etcd, by the URL of each member."""
    ports = pick_ports(2 * count)
    urls = [f"http://{LOOPBACK}:{port}" for port in ports]
    clients, peers = urls[:count], urls[count:]
    initial = ",".join(f"m{n}={peer}" for n, peer in enumerate(peers))
    with ExitStack() as started:
        found = {}
        for number, (client, peer) in enumerate(zip(clients, peers, strict=True)):
            arguments = {
                "--name": f"m{number}",
                "--data-dir": str(folder / f"m{number}"),
                "--listen-client-urls": client,
                "--advertise-client-urls": client,
                "--listen-peer-urls": peer,
                "--initial-advertise-peer-urls": peer,
                "--initial-cluster": initial,
                "--log-level": "error",
                "--unsafe-no-fsync": "true",
            }
            command = [str(etcd_binary()), *(f"{k}={v}" for k, v in arguments.items()), *more]
            with (folder / f"m{number}.log").open("ab") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log)
            started.callback(process.wait)
            started.callback(process.kill)
            found[client] = process
        for client in clients:
            wait_for(lambda at=client: etcd_is_healthy(at), f"etcd at {client} answers")  # type: ignore[misc]
        yield found


def found_of(*urls: str) -> dict[str, str]:
    """What is said of these servers, by code."""
    findings = Ward(SystemClock(), etcd=urls).examine().findings
    return {each.code: each.what for each in findings if each.code.startswith(("etcd", "one-etcd"))}


def put(url: str, number: int) -> bool:
    """Write something large; whether etcd took it."""
    body = json.dumps({"key": base64.b64encode(b"k%d" % number).decode(), "value": VALUE})
    try:
        with closing(urllib.request.urlopen(f"{url}/v3/kv/put", body.encode(), timeout=HANGS_S)):
            return True
    except urllib.error.HTTPError as error:
        with error:
            return False


def test_a_server_that_fills_and_one_that_is_full(tmp_path: Path) -> None:
    with etcd_members(tmp_path, 1, f"--quota-backend-bytes={QUOTA_BYTES}") as members:
        [url] = members
        assert set(found_of(url)) == {"one-etcd"}
        numbers = iter(range(100))
        while "etcd-room" not in found_of(url):
            assert put(url, next(numbers)), "it is found before it is full"
        while put(url, next(numbers)):
            pass
        said = found_of(url)
    assert set(said) == {"one-etcd", "etcd-alarm"} and "NOSPACE" in said["etcd-alarm"]


def test_members_that_are_old_and_one_that_is_away(tmp_path: Path) -> None:
    """Each member is found by what another one says of its cluster."""
    with etcd_members(tmp_path, 3) as members:
        [first, second, third] = members
        said = found_of(first)
        assert set(said) == {"etcd-old"} and "is 3.5.1: before 3.5.11" in said["etcd-old"]
        members[third].kill()
        members[third].wait()
        # It may have led the others.
        wait_for(lambda: third in found_of(first, second).get("etcd-down", ""), "it is missed")
        assert set(found_of(first, second)) == {"etcd-old", "etcd-down"}


def test_a_server_that_asks_for_certificates_and_users(tmp_path: Path) -> None:
    """It is looked at without a user; its own certificate lasts a day."""
    with guarded_etcd(tmp_path) as etcd:
        keys = {k: v for k, v in etcd.keys().items() if k.endswith("_file")}
        ward = Ward(SystemClock(), etcd=(etcd.url,), security=Security(**keys))
        found = {each.code: each for each in ward.examine().findings if "etcd" in each.what}
    assert set(found) == {"one-etcd", "certificate"}
