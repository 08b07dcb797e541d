"""A real RabbitMQ for tests, where the machine has one; no package index brings it as a wheel."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pika
import pytest
from nodes import HANGS_S, wait_for

from delayd.dev.ports import pick_ports

PLACES: Final = ("/usr/lib/rabbitmq/bin", "/opt/rabbitmq/sbin", "/usr/local/sbin")
"""Of the scripts themselves: what is on the path may be a wrapper for root."""
FEW_THREADS: Final = "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none"


@contextmanager
def rabbit_server() -> Iterator[str]:
    """Run one in a folder of its own, without root; its URL. Skips the test if there is none."""
    place = next((each for each in PLACES if (Path(each) / "rabbitmq-server").exists()), None)
    if place is None:
        pytest.skip("RabbitMQ is not installed: apt-get install rabbitmq-server")
    port, its_port, mapper_port = pick_ports(3)
    with TemporaryDirectory(prefix="delayd-rabbit-", ignore_cleanup_errors=True) as folder:
        env = {
            **os.environ,
            "HOME": folder,
            "RABBITMQ_NODENAME": f"delayd{port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(its_port),
            "RABBITMQ_MNESIA_BASE": f"{folder}/data",
            "RABBITMQ_LOG_BASE": f"{folder}/log",
            "RABBITMQ_CONFIG_FILE": f"{folder}/none",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": FEW_THREADS,
            "ERL_EPMD_PORT": str(mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        url = f"amqp://guest:guest@127.0.0.1:{port}/%2F"
        with (Path(folder) / "said").open("wb") as said:
            process = subprocess.Popen(
                [f"{place}/rabbitmq-server"], env=env, stdout=said, stderr=said
            )
        try:
            wait_for(lambda: _answers(url) or process.poll() is not None, "RabbitMQ answers")
            assert process.poll() is None, (Path(folder) / "said").read_text()
            yield url
        finally:
            process.terminate()
            process.wait(HANGS_S)
            subprocess.run(["epmd", "-kill"], env=env, check=False, capture_output=True)


def _answers(url: str) -> bool:
    try:
        with closing(pika.BlockingConnection(pika.URLParameters(url))):
            return True
    except (pika.exceptions.AMQPError, OSError):
        return False
