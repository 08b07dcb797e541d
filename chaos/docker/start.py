"""From nothing to a cluster of containers: the daemon, the images, free addresses."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from chaos.backend import BackendError
from chaos.docker.cluster import DockerCluster, new_run
from chaos.docker.engine import Engine, connected, sweep
from chaos.docker.images import Wanted, images
from chaos.docker.plan import Building, Images, Net
from chaos.scenario import Needs
from delayd.config.cluster_key import new_cluster_key
from delayd.dev.kafka import new_cluster_id

TRIES_MAX: Final = 20
ROUTES: Final = Path("/proc/net/route")


class Docker:
    """Makes clusters, with one daemon and one set of images. BackendError if there is none."""

    def __init__(self, wanted: Wanted, tell: Callable[[str], None]) -> None:
        self._client: Any = connected()
        for name in sweep(self._client):
            tell(f"removed {name}, which a harness that was killed had left")
        self._images: Images = images(self._client, wanted, tell)

    def make(self, directory: Path, needs: Needs, _seed: int) -> DockerCluster:
        """Up when it returns: with three brokers and three members of etcd, whatever the needs."""
        engine = Engine(self._client, new_run())
        building = Building(
            directory,
            self._images,
            _networks(engine),
            new_cluster_key(),
            new_cluster_id(),
            is_clocked=needs.is_clocked,
            has_small_disks=needs.has_small_disks,
        )
        return DockerCluster(building, engine)


def _networks(engine: Engine) -> str:
    """Return the first two numbers of addresses that are free here."""
    for _ in range(TRIES_MAX):
        network = f"10.{random.randrange(64, 255)}"
        is_taken = is_routed(network, ROUTES.read_text())
        subnets = {net: f"{network}.{net.value}.0/24" for net in Net}
        if not is_taken and engine.make_networks(subnets):
            return network
    raise BackendError("every network that was tried is in use here")


def is_routed(network: str, routes: str) -> bool:
    """Return whether a route of the kernel's table leads there, other than the default one."""
    first, second = (int(number) for number in network.split("."))
    for line in routes.splitlines()[1:]:
        words = line.split()
        address = int(words[1], 16).to_bytes(4, "little")
        mask = int(words[7], 16).to_bytes(4, "little")
        ours = bytes([first, second, 0, 0])
        narrow = bytes(a & b for a, b in zip(mask, b"\xff\xff\x00\x00", strict=True))
        if any(mask) and all(a & m == b & m for a, b, m in zip(address, ours, narrow, strict=True)):
            return True
    return False
