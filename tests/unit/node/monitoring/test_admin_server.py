"""The admin port's server: where it cannot listen."""

import asyncio
import socket

import pytest
from fastapi import FastAPI

from delayd.errors import ConfigError, ExitCode
from delayd.node.monitoring.http import AdminServer


def test_an_admin_port_that_another_program_has_is_said_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        server = AdminServer(FastAPI(), "127.0.0.1", port)
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}.*in use.*admin_port") as found:
            asyncio.run(server.serve())
    assert found.value.exit_code is ExitCode.USAGE


def test_an_address_of_another_machine_is_said_too() -> None:
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1.*admin_host"):
        asyncio.run(AdminServer(FastAPI(), "192.0.2.1", 7070).serve())


def test_a_name_with_several_addresses_is_listened_on_at_all_of_them() -> None:
    listeners = AdminServer(FastAPI(), "localhost", 0)._listeners()
    addresses = {each[4][0] for each in socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM)}
    try:
        assert {each.getsockname()[0] for each in listeners} == addresses
    finally:
        for each in listeners:
            each.close()
