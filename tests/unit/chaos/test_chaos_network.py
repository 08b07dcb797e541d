"""Wires carry bytes as the weather says. Source: chaos/network.py."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from chaos.network import CUT, DEAF, ETCD, FAIR, KAFKA, MUTE, Weather, Wire, Wires

SOON_S = 0.15
"""How long a test waits for what must not come."""

TIMEOUT_S = 10.0


class Echo:
    """A server that sends back what it gets, and remembers it."""

    def __init__(self) -> None:
        self.got = b""
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._listener.fileno() < 0:
            return
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            while chunk := connection.recv(65536):
                self.got += chunk
                try:
                    connection.sendall(chunk)
                except OSError:
                    return

    def wait_for(self, got: bytes) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        while self.got != got:
            assert time.monotonic() < deadline_s, f"the server got {self.got!r}"
            time.sleep(0.002)


@pytest.fixture
def echo() -> Iterator[Echo]:
    with closing(Echo()) as server:
        yield server


@pytest.fixture
def ports() -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]


@pytest.fixture
def wires(echo: Echo, ports: tuple[int, int]) -> Iterator[Wires]:
    """Of node n: to kafka by the first port, to etcd by the second."""
    kafka, etcd = ports
    planned = [Wire("n", KAFKA, kafka, echo.address), Wire("n", ETCD, etcd, echo.address)]
    with closing(Wires(planned, seed=1)) as wires:
        yield wires


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), TIMEOUT_S)


def hears(connection: socket.socket, within_s: float = TIMEOUT_S) -> bytes | None:
    """The next bytes, or None if none come in time."""
    connection.settimeout(within_s)
    try:
        return connection.recv(65536)
    except TimeoutError:
        return None


def test_in_fair_weather_all_bytes_come_in_their_order(
    wires: Wires, ports: tuple[int, int]
) -> None:
    sent = bytes(range(256)) * 4_000
    with connect(ports[0]) as node:
        sending = threading.Thread(target=node.sendall, args=(sent,))
        sending.start()
        got = b""
        while len(got) < len(sent):
            got += hears(node) or b""
        sending.join()
    assert got == sent


def test_what_a_cut_wire_was_given_comes_when_it_is_mended(
    wires: Wires, echo: Echo, ports: tuple[int, int]
) -> None:
    with connect(ports[0]) as node:
        node.sendall(b"before")
        assert hears(node) == b"before"
        wires.set(CUT, nodes=["n"], to=[KAFKA])
        node.sendall(b"during")
        assert hears(node, SOON_S) is None
        assert echo.got == b"before"
        wires.set(FAIR, nodes=["n"], to=[KAFKA])
        assert hears(node) == b"during"


def test_what_a_closed_end_had_sent_before_comes_too(
    wires: Wires, echo: Echo, ports: tuple[int, int]
) -> None:
    with connect(ports[0]) as node:
        node.sendall(b"a")
        assert hears(node) == b"a"
        wires.set(CUT, nodes=["n"], to=[KAFKA])
        node.sendall(b"b")
    wires.set(FAIR, nodes=["n"], to=[KAFKA])
    echo.wait_for(b"ab")


def test_a_deaf_node_is_heard_and_a_mute_one_is_not(
    wires: Wires, echo: Echo, ports: tuple[int, int]
) -> None:
    with connect(ports[0]) as node:
        node.sendall(b"1")
        assert hears(node) == b"1"
        wires.set(DEAF, nodes=["n"], to=[KAFKA])
        node.sendall(b"2")
        echo.wait_for(b"12")
        assert hears(node, SOON_S) is None
        wires.set(MUTE, nodes=["n"], to=[KAFKA])
        assert hears(node) == b"2"  # what was under way to it
        node.sendall(b"3")
        assert hears(node, SOON_S) is None
        assert echo.got == b"12"


@pytest.mark.parametrize("weather", [CUT, DEAF, MUTE], ids=["cut", "deaf", "mute"])
def test_no_connection_comes_about_while_a_direction_is_cut(
    wires: Wires, echo: Echo, ports: tuple[int, int], weather: Weather
) -> None:
    wires.set(weather, nodes=["n"], to=[KAFKA])
    with connect(ports[0]) as node:
        node.sendall(b"hello")
        assert hears(node, SOON_S) is None
        assert echo.connections == 0
        wires.set(FAIR, nodes=["n"], to=[KAFKA])
        assert hears(node) == b"hello"


def test_only_the_wires_that_were_named_are_cut(wires: Wires, ports: tuple[int, int]) -> None:
    wires.set(CUT, nodes=["n"], to=[KAFKA])
    wires.set(CUT, nodes=["m"], to=[ETCD])
    with connect(ports[1]) as node:
        node.sendall(b"x")
        assert hears(node) == b"x"


def test_a_slow_wire_delays_each_way(wires: Wires, ports: tuple[int, int]) -> None:
    with connect(ports[0]) as node:
        wires.set(Weather(delay_ms=50), nodes=["n"], to=[KAFKA])
        begun_s = time.monotonic()
        node.sendall(b"x")
        assert hears(node) == b"x"
        assert time.monotonic() - begun_s >= 0.1


def test_a_lossy_wire_resends_and_loses_nothing(
    wires: Wires, echo: Echo, ports: tuple[int, int]
) -> None:
    with connect(ports[0]) as node:
        wires.set(Weather(stall_chance=1.0, stall_ms=50), nodes=["n"], to=[KAFKA])
        begun_s = time.monotonic()
        node.sendall(b"x")
        assert hears(node) == b"x"
        assert time.monotonic() - begun_s >= 0.1
    echo.wait_for(b"x")


def test_a_server_that_is_not_there_is_a_closed_connection(
    wires: Wires, echo: Echo, ports: tuple[int, int]
) -> None:
    echo.close()
    with connect(ports[0]) as node:
        assert hears(node) == b""
