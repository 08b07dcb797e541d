"""Wires carry bytes as the weather says. Source: chaos/network.py."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass

import pytest

from chaos.network import CUT, DEAF, ETCD, FAIR, KAFKA, MUTE, Weather, Wire, Wires
from delayd.dev.ports import pick_ports

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
        with connection, suppress(OSError):  # A link that is closed resets it.
            while chunk := connection.recv(65536):
                self.got += chunk
                connection.sendall(chunk)

    def wait_for(self, got: bytes) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        while self.got != got:
            assert time.monotonic() < deadline_s, f"the server got {self.got!r}"
            time.sleep(0.002)


@pytest.fixture
def echo() -> Iterator[Echo]:
    with closing(Echo()) as server:
        yield server


@dataclass(frozen=True, slots=True)
class Node:
    """Node n with a wire to kafka and one to etcd, which are the same server."""

    wires: Wires
    kafka: int
    etcd: int

    def connect(self) -> socket.socket:
        """A connection over the wire to kafka."""
        return connect(self.kafka)

    def weather(self, weather: Weather) -> None:
        """On the wire to kafka."""
        self.wires.set(weather, nodes=["n"], to=[KAFKA])


@pytest.fixture
def n(echo: Echo) -> Iterator[Node]:
    kafka, etcd = pick_ports(2)
    planned = [Wire("n", KAFKA, kafka, echo.address), Wire("n", ETCD, etcd, echo.address)]
    with closing(Wires(planned, seed=1)) as wires:
        yield Node(wires, kafka, etcd)


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), TIMEOUT_S)


def hears(connection: socket.socket, within_s: float = TIMEOUT_S) -> bytes | None:
    """The next bytes, or None if none come in time."""
    connection.settimeout(within_s)
    try:
        return connection.recv(65536)
    except TimeoutError:
        return None


def test_in_fair_weather_all_bytes_come_in_their_order(n: Node) -> None:
    sent = bytes(range(256)) * 4_000
    with n.connect() as node:
        sending = threading.Thread(target=node.sendall, args=(sent,))
        sending.start()
        got = b""
        while len(got) < len(sent):
            got += hears(node) or b""
        sending.join()
    assert got == sent


def test_what_a_cut_wire_was_given_comes_when_it_is_mended(n: Node, echo: Echo) -> None:
    with n.connect() as node:
        node.sendall(b"before")
        assert hears(node) == b"before"
        n.weather(CUT)
        node.sendall(b"during")
        assert hears(node, SOON_S) is None
        assert echo.got == b"before"
        n.weather(FAIR)
        assert hears(node) == b"during"


def test_what_a_closed_end_had_sent_before_comes_too(n: Node, echo: Echo) -> None:
    with n.connect() as node:
        node.sendall(b"a")
        assert hears(node) == b"a"
        n.weather(CUT)
        node.sendall(b"b")
    n.weather(FAIR)
    echo.wait_for(b"ab")


def test_a_deaf_node_is_heard_and_a_mute_one_is_not(n: Node, echo: Echo) -> None:
    with n.connect() as node:
        node.sendall(b"1")
        assert hears(node) == b"1"
        n.weather(DEAF)
        node.sendall(b"2")
        echo.wait_for(b"12")
        assert hears(node, SOON_S) is None
        n.weather(MUTE)
        assert hears(node) == b"2"  # what was under way to it
        node.sendall(b"3")
        assert hears(node, SOON_S) is None
        assert echo.got == b"12"


@pytest.mark.parametrize("weather", [CUT, DEAF, MUTE], ids=["cut", "deaf", "mute"])
def test_no_connection_comes_about_while_a_direction_is_cut(
    n: Node, echo: Echo, weather: Weather
) -> None:
    n.weather(weather)
    with n.connect() as node:
        node.sendall(b"hello")
        assert hears(node, SOON_S) is None
        assert echo.connections == 0
        n.weather(FAIR)
        assert hears(node) == b"hello"


def test_only_the_wires_that_were_named_are_cut(n: Node) -> None:
    n.weather(CUT)
    n.wires.set(CUT, nodes=["m"], to=[ETCD])
    with connect(n.etcd) as node:
        node.sendall(b"x")
        assert hears(node) == b"x"


def test_a_slow_wire_delays_each_way(n: Node) -> None:
    with n.connect() as node:
        n.weather(Weather(delay_ms=50))
        begun_s = time.monotonic()
        node.sendall(b"x")
        assert hears(node) == b"x"
        assert time.monotonic() - begun_s >= 0.1


def test_a_lossy_wire_resends_and_loses_nothing(n: Node, echo: Echo) -> None:
    with n.connect() as node:
        n.weather(Weather(stall_chance=1.0, stall_ms=50))
        begun_s = time.monotonic()
        node.sendall(b"x")
        assert hears(node) == b"x"
        assert time.monotonic() - begun_s >= 0.1
    echo.wait_for(b"x")


def test_a_server_that_is_not_there_is_a_closed_connection(n: Node, echo: Echo) -> None:
    echo.close()
    with n.connect() as node:
        assert hears(node) == b""
