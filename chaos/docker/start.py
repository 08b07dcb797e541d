"""From nothing to a cluster of containers: the daemon, the images, free addresses."""

import random
import secrets
from collections.abc import Callable, Mapping
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Final

from chaos.backend import BackendError
from chaos.docker.cluster import DockerCluster
from chaos.docker.engine import Engine, connected, sweep
from chaos.docker.images import images
from chaos.docker.plan import Building, Net
from chaos.scenario import Needs
from delayd.config.cluster_key import new_cluster_key
from delayd.dev.kafka import new_cluster_id

TRIES_MAX: Final = 20
ROUTES: Final = Path("/proc/net/route")


def maker_of(
    tell: Callable[[str], None], base: str | None, named: Mapping[str, str | None]
) -> Callable[[Path, Needs, int], DockerCluster]:
    """Return a maker of clusters, with one daemon and one set of images (images.py). BackendError
    if there is no daemon."""
    client = connected()
    for name in sweep(client):
        tell(f"removed {name}, which a harness that was killed had left")
    made = images(client, tell, base, named)

    def make(directory: Path, needs: Needs, _seed: int) -> DockerCluster:
        """Return a cluster that is up: three brokers, three members of etcd, whatever the needs,
        and as many shards as they say."""
        engine = Engine(client, f"delayd-chaos-{secrets.token_hex(4)}")
        building = Building(
            directory,
            made,
            _networks(engine),
            new_cluster_key(),
            new_cluster_id(),
            is_clocked=needs.is_clocked,
            has_small_disks=needs.has_small_disks,
            shards=needs.shards,
        )
        return DockerCluster(building, engine)

    return make


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
    ours = IPv4Network(f"{network}.0.0/16")
    for line in routes.splitlines()[1:]:
        words = line.split()
        address, mask = (IPv4Address(int(words[n], 16).to_bytes(4, "little")) for n in (1, 7))
        if int(mask) and ours.overlaps(IPv4Network((address, str(mask)), strict=False)):
            return True
    return False
