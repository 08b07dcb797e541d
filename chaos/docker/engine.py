"""The one door to Docker's SDK: the containers and networks of one run, and their end.

Invariants: everything made here carries the run's label, and `remove_all` removes all of it, in
any state; the next harness removes what a killed one has left (`sweep`).
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import docker
from docker.errors import APIError, DockerException, NotFound
from docker.types import IPAMConfig, IPAMPool

from chaos.backend import BackendError
from chaos.docker.plan import USER, Container, Net
from delayd.dev.processes import ProcessIdentity, identity_of, is_alive

RUN: Final = "delayd.chaos"
"""The label of everything that a harness makes; its value names the run."""

OWNER: Final = "delayd.chaos.owner"
"""The harness's process, `pid:started`."""

API_TIMEOUT_S: Final = 120
GRACE_S: Final = 30


def connected() -> Any:
    """Return a client of the daemon of DOCKER_HOST or here; BackendError if none answers."""
    try:
        client = docker.from_env(timeout=API_TIMEOUT_S)
        client.ping()
    except DockerException as error:
        raise BackendError(f"no Docker daemon answers (chaos/README.md): {error}") from error
    return client


class Engine:
    """The containers and networks of one run. It knows parts by their names within the run."""

    def __init__(self, client: Any, run: str) -> None:
        self._client = client
        self._run = run
        owner = identity_of(os.getpid())
        self._labels = {RUN: run, OWNER: f"{owner.pid}:{owner.started}"}
        self._label = f"{RUN}={run}"
        self._networks: dict[Net, Any] = {}

    # --- To make

    def make_networks(self, subnets: Mapping[Net, str]) -> bool:
        """Make the networks; False if an address is in use here: try others."""
        for net, subnet in subnets.items():
            pool = IPAMConfig(pool_configs=[IPAMPool(subnet=subnet)])
            try:
                self._networks[net] = self._client.networks.create(
                    f"{self._run}-{net.name.lower()}",
                    driver="bridge",
                    internal=True,
                    ipam=pool,
                    labels=self._labels,
                )
            except APIError as error:
                while self._networks:
                    self._networks.popitem()[1].remove()
                if "overlaps" in str(error):
                    return False
                raise BackendError(f"no network {subnet}: {error}") from error
        return True

    def make(self, part: Container) -> None:
        """Make a container, which has all its addresses before it starts."""
        [first, *others] = part.addresses.items()
        network = self._networks[first[0]].name
        endpoint = self._client.api.create_endpoint_config(ipv4_address=first[1])
        try:
            made = self._client.containers.create(
                part.image,
                list(part.command),
                name=self._full(part.name),
                hostname=part.name,
                entrypoint=list(part.entrypoint),
                environment=dict(part.variables),
                user=f"{USER}:{USER}",
                network=network,
                networking_config={network: endpoint},
                volumes=[
                    f"{each.here}:{each.inside}:{'rw' if each.is_writable else 'ro'}"
                    for each in part.folders
                ],
                labels=self._labels,
                stop_signal="SIGTERM",
            )
            for net, address in others:
                self._networks[net].connect(made, ipv4_address=address)
        except DockerException as error:
            raise BackendError(f"no container {part.name}: {error}") from error

    # --- To break

    def is_running(self, part: str) -> bool:
        """Return whether a part runs; a frozen one does."""
        return bool(self._state(part)["Running"])

    def process_id(self, part: str) -> int:
        """Return the id of its first process on this machine; 0 if it does not run."""
        return int(self._state(part)["Pid"])

    def start(self, part: str) -> None:
        """Start it, with its folder and its addresses."""
        self._do(part, "start")

    def kill(self, part: str) -> None:
        """Send SIGKILL; return when it is gone."""
        self.thaw(part)  # what is frozen cannot be killed
        with suppress(NotFound):
            self._do(part, "kill")
            self._do(part, "wait", timeout=GRACE_S)

    def terminate(self, part: str) -> None:
        """Send SIGTERM; BackendError if it had to be killed."""
        self._do(part, "stop", timeout=GRACE_S)
        if self._state(part)["ExitCode"] == 137:
            raise BackendError(f"{part} did not end within {GRACE_S} s of SIGTERM")

    def freeze(self, part: str) -> None:
        """Pause all its processes."""
        self._do(part, "pause")

    def thaw(self, part: str) -> None:
        """Let its processes go on, if they are paused."""
        if self._state(part)["Paused"]:
            self._do(part, "unpause")

    def take_off(self, part: str, net: Net) -> None:
        """Take it off a network, so that it sends and receives nothing there."""
        with suppress(NotFound):
            self._networks[net].disconnect(self._full(part), force=True)

    def put_on(self, part: Container, net: Net) -> None:
        """Put it back on a network, under its address, if it is not there."""
        container = self._container(part.name)
        if self._networks[net].name not in container.attrs["NetworkSettings"]["Networks"]:
            self._networks[net].connect(container, ipv4_address=part.addresses[net])

    # --- To end

    def write_logs(self, folder: Path) -> None:
        """Write the log of each part to a file of its own."""
        folder.mkdir(parents=True, exist_ok=True)
        for container in self._client.containers.list(filters={"label": self._label}, all=True):
            name = container.name.removeprefix(f"{self._run}-")
            with suppress(DockerException), (folder / f"{name}.log").open("wb") as log:
                log.writelines(container.logs(stream=True, follow=False))

    def remove(self, part: str) -> None:
        """Kill it and forget it."""
        with suppress(NotFound):
            _remove(self._container(part))

    def remove_all(self) -> None:
        """Remove every container and network of this run, in any state."""
        for each in _things(self._client, self._label):
            _remove(each)

    def left(self) -> list[str]:
        """Return the names of what is left of this run."""
        return [each.name for each in _things(self._client, self._label)]

    def _full(self, part: str) -> str:
        return f"{self._run}-{part}"

    def _container(self, part: str) -> Any:
        return self._client.containers.get(self._full(part))

    def _state(self, part: str) -> Mapping[str, Any]:
        try:
            state: Mapping[str, Any] = self._container(part).attrs["State"]
        except NotFound as error:
            raise BackendError(f"there is no {part}") from error
        return state

    def _do(self, part: str, what: str, **options: Any) -> None:
        try:
            getattr(self._container(part), what)(**options)
        except APIError as error:
            raise BackendError(f"{what} {part}: {error}") from error


def sweep(client: Any) -> list[str]:
    """Remove what harnesses that no longer run have left; return its names."""
    swept = []
    for each in _things(client, RUN):
        labels = each.attrs.get("Labels") or each.attrs["Config"]["Labels"]
        pid, _, started = labels.get(OWNER, "0:").partition(":")
        if not is_alive(ProcessIdentity(int(pid), started)):
            swept.append(str(each.name))
            _remove(each)
    return swept


def _things(client: Any, label: str) -> list[Any]:
    """Return all containers and then all networks that carry a label."""
    filters = {"label": label}
    containers = client.containers.list(filters=filters, all=True)
    return [*containers, *client.networks.list(filters=filters)]


def _remove(thing: Any) -> None:
    with suppress(NotFound):
        if hasattr(thing, "logs"):  # a container, with its anonymous volumes
            if thing.status == "paused":
                thing.unpause()
            thing.remove(force=True, v=True)
        else:
            thing.remove()
