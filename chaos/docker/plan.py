"""The plan of the containers: names, addresses, commands, configuration. Pure.

Invariants: a part keeps its address on each network as long as it exists; a container sees nothing
of this machine but its folder and its configuration, both under the run's directory.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple

from chaos.processes.clocked_node import FILE_VARIABLE as CLOCK_VARIABLE
from chaos.processes.harm import FREE_MIN_BYTES
from delayd.dev.kafka import HEAP_MB, LOG4J, broker_settings
from delayd.dev.nodes import CLUSTER_NAME, toml_value

BROKERS: Final = 3
PARTITIONS: Final = 4
"""Of the buffer, at least."""
NUMBERS: Final = (1, 2, 3)
"""The numbers of the parts of each role."""

LEASE_TTL_S: Final = 3
CLIENT_PORT: Final = 9092
CONTROLLER_PORT: Final = 9093
ETCD_PORT: Final = 2379
PEER_PORT: Final = 2380
ADMIN_PORT: Final = 7070

DATA: Final = "/data"
CONFIG: Final = "/config"
HARNESS: Final = "/harness"
"""Paths in a container: its folder, its configuration, and the package `chaos` if it needs it."""

JARS: Final = "/opt/kafka/libs"
ETCD_BINARY: Final = "/usr/local/bin/etcd"
"""Paths in the images of servers; the official images have them there too."""

USER: Final = 65532
"""The user of the processes in all of them."""

CHAOS: Final = Path(__file__).parents[1]
CLOCK: Final = "clock"


class Net(Enum):
    """A network, with the third number of its addresses."""

    KAFKA = 1
    ETCD = 2
    ADMIN = 3


class Role(Enum):
    """The kind of a part, with the first of its numbers in addresses."""

    BROKER = 10
    ETCD = 20
    NODE = 30


NETS: Final[Mapping[Role, tuple[Net, ...]]] = {
    Role.BROKER: (Net.KAFKA,),
    Role.ETCD: (Net.ETCD,),
    Role.NODE: (Net.ADMIN, Net.KAFKA, Net.ETCD),
}


@dataclass(frozen=True, slots=True)
class Images:
    """Names of images, with their tags."""

    node: str
    kafka: str
    etcd: str


class Folder(NamedTuple):
    """A folder or file of this machine, and its path in the container."""

    here: Path
    inside: str
    is_writable: bool


@dataclass(frozen=True, slots=True)
class Container:
    """One part, with its addresses on all its networks."""

    name: str
    role: Role
    addresses: Mapping[Net, str]
    folders: tuple[Folder, ...]
    address: str
    """The address of its service: `host:port` of a broker, a URL of etcd or a node."""
    image: str
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    """The files of its configuration: text by name."""
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Building:
    """One cluster to be built. `network`: the first two numbers of all addresses."""

    directory: Path
    images: Images
    network: str
    cluster_key: str
    cluster_id: str
    is_clocked: bool = False
    has_small_disks: bool = False
    shards: int = 1

    @property
    def partitions(self) -> int:
        """Those of the buffer: a multiple of the shards."""
        return self.shards * -(-PARTITIONS // self.shards)

    def subnet(self, net: Net) -> str:
        """Return the addresses of a network, in CIDR notation."""
        return f"{self.network}.{net.value}.0/24"

    def address(self, role: Role, number: int, net: Net) -> str:
        """Return the address of a part on a network."""
        return f"{self.network}.{net.value}.{role.value + number}"

    @property
    def bootstrap(self) -> str:
        """All brokers, as nodes and the harness reach them."""
        hosts = [self.address(Role.BROKER, number, Net.KAFKA) for number in NUMBERS]
        return ",".join(f"{host}:{CLIENT_PORT}" for host in hosts)

    @property
    def etcd_urls(self) -> tuple[str, ...]:
        """All members of etcd, as clients reach them."""
        hosts = [self.address(Role.ETCD, number, Net.ETCD) for number in NUMBERS]
        return tuple(f"http://{host}:{ETCD_PORT}" for host in hosts)

    def data(self, name: str) -> Path:
        """Return the folder of a part on this machine."""
        return self.directory / "data" / name

    def config(self, name: str) -> Path:
        """Return the folder of a part's configuration on this machine."""
        return self.directory / "config" / name

    def clock_file(self, node: str) -> Path:
        """Return the file that sets a node's clock."""
        return self.config(node) / CLOCK

    def container(self, role: Role, number: int, *more_folders: Folder, **others: Any) -> Container:
        """Return a part with all its addresses, and the folders of every part; `others` are fields
        of Container. The configuration is writable: a clock is set there."""
        name = f"{role.name.lower()}-{number}"
        data, config = Folder(self.data(name), DATA, True), Folder(self.config(name), CONFIG, True)
        addresses = {net: self.address(role, number, net) for net in NETS[role]}
        return Container(name, role, addresses, (data, config, *more_folders), **others)


def all_of(building: Building) -> tuple[Container, ...]:
    """Return all parts, in the order in which they start."""
    makers = (etcd_member, broker, node)
    return tuple(make(building, number) for make in makers for number in NUMBERS)


def broker(building: Building, number: int) -> Container:
    """Return a broker, which prepares its empty folder by itself."""
    hosts = {each: building.address(Role.BROKER, each, Net.KAFKA) for each in NUMBERS}
    client = f"{hosts[number]}:{CLIENT_PORT}"
    settings = broker_settings(
        number,
        client=client,
        controller=f"{hosts[number]}:{CONTROLLER_PORT}",
        voters=",".join(f"{each}@{host}:{CONTROLLER_PORT}" for each, host in hosts.items()),
        data=Path(DATA) / "log",
        brokers=BROKERS,
    )
    properties = f"{CONFIG}/server.properties"
    java = (
        f"java -cp '{JARS}/*' -Xmx{HEAP_MB[BROKERS]}m -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
        f" -XX:-UsePerfData -Dlog4j2.configurationFile=file://{CONFIG}/log4j2.xml"
    )
    script = (
        f"test -e {DATA}/log/bootstrap.checkpoint ||"
        f" {java} kafka.tools.StorageTool format -t {building.cluster_id} -c {properties} &&"
        f" exec {java} kafka.Kafka {properties}"
    )
    text = "".join(f"{key}={value}\n" for key, value in settings.items())
    return building.container(
        Role.BROKER,
        number,
        address=client,
        image=building.images.kafka,
        entrypoint=("sh", "-c"),
        command=(script,),
        files={"server.properties": text, "log4j2.xml": LOG4J},
    )


def etcd_member(building: Building, number: int) -> Container:
    """Return a member of etcd, which syncs to disk as in production."""
    hosts = {each: building.address(Role.ETCD, each, Net.ETCD) for each in NUMBERS}
    client, peer = (f"http://{hosts[number]}:{port}" for port in (ETCD_PORT, PEER_PORT))
    members = ",".join(f"etcd-{each}=http://{host}:{PEER_PORT}" for each, host in hosts.items())
    return building.container(
        Role.ETCD,
        number,
        address=client,
        image=building.images.etcd,
        entrypoint=(ETCD_BINARY,),
        command=(
            *("--name", f"etcd-{number}", "--data-dir", f"{DATA}/member"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", members, "--initial-cluster-token", building.cluster_id),
        ),
    )


def node(building: Building, number: int, called: str | None = None) -> Container:
    """Return a node; `called` is its own name for itself, if not node-<number>."""
    host = building.address(Role.NODE, number, Net.ADMIN)
    document: dict[str, object] = {
        "cluster": CLUSTER_NAME,
        "node": called or f"node-{number}",
        "bootstrap": building.bootstrap,
        "etcd": building.etcd_urls,
        "cluster_key": building.cluster_key,
        "admin_port": ADMIN_PORT,
        "lease_ttl_s": LEASE_TTL_S,
        "idle_step_interval_ms": 1_000,
    }
    if building.has_small_disks:
        document["disk_free_min_bytes"] = FREE_MIN_BYTES
    entrypoint: tuple[str, ...] = ("delayd",)
    # The image has variables for these, and variables win over the file.
    variables = {"DELAYD_ADMIN_HOST": host, "DELAYD_DATA_DIR": f"{DATA}/wheel"}
    folders: list[Folder] = []
    if building.is_clocked:
        entrypoint = ("python", "-m", "chaos.processes.clocked_node")
        folders = [Folder(CHAOS, f"{HARNESS}/chaos", is_writable=False)]
        variables |= {"PYTHONPATH": HARNESS, CLOCK_VARIABLE: f"{CONFIG}/{CLOCK}"}
    return building.container(
        Role.NODE,
        number,
        *folders,
        address=f"http://{host}:{ADMIN_PORT}",
        image=building.images.node,
        entrypoint=entrypoint,
        command=("node", "--config", f"{CONFIG}/node.toml"),
        files={"node.toml": "".join(f"{key} = {toml_value(v)}\n" for key, v in document.items())},
        variables=variables,
    )
