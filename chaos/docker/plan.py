"""What will run in containers: names, addresses, commands, configuration. Pure.

Invariants: a part keeps its address on each network as long as it exists; nothing but its folder
and its configuration, both under the run's directory, is taken from this machine into a container.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

from chaos.processes.clocked_node import FILE_VARIABLE as CLOCK_VARIABLE
from chaos.processes.disks import FREE_MIN_BYTES
from delayd.dev.kafka import HEAP_MB, LOG4J, broker_settings
from delayd.dev.nodes import CLUSTER_NAME, toml_value

BROKERS: Final = 3
ETCD_MEMBERS: Final = 3
NODES: Final = 3
LEASE_TTL_S: Final = 3
CLIENT_PORT: Final = 9092
CONTROLLER_PORT: Final = 9093
ETCD_PORT: Final = 2379
PEER_PORT: Final = 2380
ADMIN_PORT: Final = 7070

DATA: Final = "/data"
CONFIG: Final = "/config"
HARNESS: Final = "/harness"
"""Where a container finds its folder, its configuration, and the package `chaos` if it needs it."""

JARS: Final = "/opt/kafka/libs"
ETCD_BINARY: Final = "/usr/local/bin/etcd"
"""In the images of servers; the official ones have them there too."""

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
    """What a part is, with the first of its numbers in addresses."""

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
    """By name, with tag."""

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
    """One part. `addresses` are on all its networks."""

    name: str
    role: Role
    image: str
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    addresses: Mapping[Net, str]
    folders: tuple[Folder, ...]
    files: Mapping[str, str]
    """Of its configuration: text by name."""
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Building:
    """What is built beyond the usual. `network`: the first two numbers of all addresses."""

    directory: Path
    images: Images
    network: str
    cluster_key: str
    cluster_id: str
    is_clocked: bool = False
    has_small_disks: bool = False

    def subnet(self, net: Net) -> str:
        """In CIDR notation."""
        return f"{self.network}.{net.value}.0/24"

    def address(self, role: Role, number: int, net: Net) -> str:
        """Of a part on a network."""
        return f"{self.network}.{net.value}.{role.value + number}"

    def addresses(self, role: Role, number: int) -> dict[Net, str]:
        """Of a part, on all its networks."""
        return {net: self.address(role, number, net) for net in NETS[role]}

    @property
    def bootstrap(self) -> str:
        """All brokers, for nodes and for the harness."""
        hosts = [self.address(Role.BROKER, n, Net.KAFKA) for n in range(1, BROKERS + 1)]
        return ",".join(f"{host}:{CLIENT_PORT}" for host in hosts)

    @property
    def etcd_urls(self) -> tuple[str, ...]:
        """All members, for clients."""
        hosts = [self.address(Role.ETCD, n, Net.ETCD) for n in range(1, ETCD_MEMBERS + 1)]
        return tuple(f"http://{host}:{ETCD_PORT}" for host in hosts)

    def data(self, name: str) -> Path:
        """The folder of a part on this machine."""
        return self.directory / "data" / name

    def config(self, name: str) -> Path:
        """What is configured of a part, on this machine."""
        return self.directory / "config" / name

    def folders(self, name: str) -> tuple[Folder, ...]:
        """Those of every part. The configuration is writable: a clock is set there."""
        return (Folder(self.data(name), DATA, True), Folder(self.config(name), CONFIG, True))

    def clock_file(self, node: str) -> Path:
        """What a node's clock is set with."""
        return self.config(node) / CLOCK


def all_of(building: Building) -> tuple[Container, ...]:
    """In the order in which they start."""
    return (
        *(etcd_member(building, number) for number in range(1, ETCD_MEMBERS + 1)),
        *(broker(building, number) for number in range(1, BROKERS + 1)),
        *(node(building, number) for number in range(1, NODES + 1)),
    )


def broker(building: Building, number: int) -> Container:
    """It prepares its empty folder by itself."""
    host = building.address(Role.BROKER, number, Net.KAFKA)
    voters = ",".join(
        f"{each}@{building.address(Role.BROKER, each, Net.KAFKA)}:{CONTROLLER_PORT}"
        for each in range(1, BROKERS + 1)
    )
    settings = broker_settings(
        number,
        client=f"{host}:{CLIENT_PORT}",
        controller=f"{host}:{CONTROLLER_PORT}",
        voters=voters,
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
    return Container(
        name=f"broker-{number}",
        role=Role.BROKER,
        image=building.images.kafka,
        entrypoint=("sh", "-c"),
        command=(script,),
        addresses=building.addresses(Role.BROKER, number),
        folders=building.folders(f"broker-{number}"),
        files={
            "server.properties": "".join(f"{key}={value}\n" for key, value in settings.items()),
            "log4j2.xml": LOG4J,
        },
    )


def etcd_member(building: Building, number: int) -> Container:
    """It syncs to disk as a production one would."""
    name = f"etcd-{number}"
    host = building.address(Role.ETCD, number, Net.ETCD)
    client, peer = f"http://{host}:{ETCD_PORT}", f"http://{host}:{PEER_PORT}"
    members = ",".join(
        f"etcd-{each}=http://{building.address(Role.ETCD, each, Net.ETCD)}:{PEER_PORT}"
        for each in range(1, ETCD_MEMBERS + 1)
    )
    return Container(
        name=name,
        role=Role.ETCD,
        image=building.images.etcd,
        entrypoint=(ETCD_BINARY,),
        command=(
            *("--name", name, "--data-dir", f"{DATA}/member"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", members, "--initial-cluster-token", building.cluster_id),
        ),
        addresses=building.addresses(Role.ETCD, number),
        folders=building.folders(name),
        files={},
    )


def node(building: Building, number: int, *, called: str | None = None) -> Container:
    """`called` is what it calls itself, if not node-<number>."""
    name = f"node-{number}"
    document: dict[str, object] = {
        "cluster": CLUSTER_NAME,
        "node": called or name,
        "bootstrap": building.bootstrap,
        "etcd": building.etcd_urls,
        "cluster_key": building.cluster_key,
        "admin_port": ADMIN_PORT,
        "lease_ttl_s": LEASE_TTL_S,
        "idle_step_interval_ms": 1_000,
    }
    if building.has_small_disks:
        document["disk_free_min_bytes"] = FREE_MIN_BYTES
    folders = building.folders(name)
    entrypoint: tuple[str, ...] = ("delayd",)
    # The image has variables for these, and they outvote the file.
    variables = {
        "DELAYD_ADMIN_HOST": building.address(Role.NODE, number, Net.ADMIN),
        "DELAYD_DATA_DIR": f"{DATA}/wheel",
    }
    if building.is_clocked:
        entrypoint = ("python", "-m", "chaos.processes.clocked_node")
        folders = (*folders, Folder(CHAOS, f"{HARNESS}/chaos", is_writable=False))
        variables |= {"PYTHONPATH": HARNESS, CLOCK_VARIABLE: f"{CONFIG}/{CLOCK}"}
    return Container(
        name=name,
        role=Role.NODE,
        image=building.images.node,
        entrypoint=entrypoint,
        command=("node", "--config", f"{CONFIG}/node.toml"),
        addresses=building.addresses(Role.NODE, number),
        folders=folders,
        files={"node.toml": "".join(f"{key} = {toml_value(v)}\n" for key, v in document.items())},
        variables=variables,
    )
