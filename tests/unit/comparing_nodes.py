"""Nodes that compare their wheels without Kafka, etcd and a network, for tests."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

from exporting_node import BEGIN_MS, SETTINGS, cut, limits, schedule
from one_node import open_replica

from delayd.bus import Record
from delayd.cluster.frontier_log import SeenFrontier
from delayd.errors import CorruptionError
from delayd.node.comparing.comparer import Comparer
from delayd.node.comparing.judging import Logged
from delayd.node.comparing.logged import logged_of
from delayd.node.comparing.ports import Alarmed, Repairer
from delayd.node.comparing.side import ComparisonError, OwnSide, Pace, Side, Source
from delayd.runtime.clock import SystemClock
from delayd.wheel import FrameKind

FAST_BYTES_PER_S = 2**40
HOUR_MS = 3_600_000
PARTITIONS = 2
Otherwise = Callable[[Record], Record | None]


def spread(count: int, first: int = 0, seed: int = 1) -> list[Record]:
    """Schedules in both partitions, due within a minute or within a day."""
    random = Random(seed)
    return [
        schedule(
            first + n,
            BEGIN_MS + random.choice([random.randrange(60_000), random.randrange(23 * HOUR_MS)]),
            partition=n % PARTITIONS,
            value=random.randbytes(random.randrange(200)),
        )
        for n in range(count)
    ]


def due_of(record: Record) -> int:
    return int(dict(record.headers)["delayd-due"] or b"")


def named(record: Record) -> str:
    return f"{record.partition}/{record.offset}"


def lost(which: Record) -> Otherwise:
    return lambda record: None if record is which else record


def altered(which: Record) -> Otherwise:
    return lambda r: r._replace(value=b"something else") if r is which else r


def due_later(which: Record, by_ms: int) -> Otherwise:
    def later(record: Record) -> Record:
        if record is not which:
            return record
        headers = [(n, b"%d" % (due_of(which) + by_ms) if n == "delayd-due" else v)
                   for n, v in record.headers]  # fmt: skip
        return record._replace(headers=headers)

    return later


def far(records: list[Record]) -> Record:
    return max(records, key=due_of)


class ComparingNode:
    """A replica that can be compared, and compares itself with others."""

    def __init__(self, name: str, folder: Path, cluster: "ComparingNodes", hold_ms: int) -> None:
        self.name = name
        self.folder = folder
        self.pace = Pace(SystemClock(), FAST_BYTES_PER_S)
        self._cluster = cluster
        self._hold_ms = hold_ms
        self.wrong: list[CorruptionError] = []
        """Damage that it has read, which ends it."""
        self.told: list[tuple[str, int]] = []
        """Who has told it to look, and where."""
        self.is_master = False
        self.start()

    def start(self, repairer: Repairer | None = None) -> None:
        """Begin a life: with the wheel in the folder, and a comparer that knows nothing."""
        self.repairer = repairer or Alarmed()
        self.replica = open_replica(self.folder, SETTINGS, export_hold_ms=self._hold_ms)
        self.replica.observe(cut(0, append_ms=0))
        self.comparer = Comparer(
            self.replica,
            _Others(self._cluster, self.name),
            self._cluster,
            SystemClock(),
            self.pace,
            node=self.name,
            interval_s=600,
            is_master=lambda: self.is_master,
            on_damage=self.wrong.append,
            again_s=0,
            repairer=self.repairer,
        )

    def take(self, records: Iterable[Record]) -> None:
        """Ingest, in the order of each partition."""
        self.replica.take(list(records))

    @property
    def named(self) -> dict[str, tuple[list[str], str]]:
        """Its findings: by source, who is wrong, and how that was found out."""
        return {
            shown["source"]: (shown["wrong"], shown["by"])
            for shown in (finding.shown() for finding in self.comparer.view.findings)
        }


class ComparingNodes:
    """Nodes of one cluster, and the log that they share."""

    def __init__(self, folder: Path, names: Sequence[str], hold_ms: int = 0) -> None:
        self.logged_records: dict[tuple[int, int], Record] = {}
        """What the buffer still holds."""
        self.nodes = {n: ComparingNode(n, folder / n, self, hold_ms) for n in names}
        self.gone: set[str] = set()
        """They have ended."""
        self.unready: set[str] = set()
        self.silent: set[str] = set()
        """They say that they are ready, and answer nothing."""
        self.breaking: set[str] = set()
        """They break off when digests are asked for."""
        self.meets: Callable[[str], object] = lambda name: None
        """Called whenever a node is made a side."""

    def __getitem__(self, name: str) -> ComparingNode:
        return self.nodes[name]

    def take(
        self, records: Sequence[Record], **otherwise: Callable[[Record], Record | None]
    ) -> None:
        """All ingest these, but for what a node makes of one."""
        for name, node in self.nodes.items():
            made = [otherwise[name](r) if name in otherwise else r for r in records]
            node.take([record for record in made if record is not None])
            node.replica.checkpoint()

    def observe(self, seen: SeenFrontier) -> None:
        """All read a frontier."""
        for node in self.nodes.values():
            node.replica.observe(seen)

    def logged(self, source: Source) -> Logged | None:
        """The log, as `comparer.Log`."""
        record = self.logged_records.get(source[1:])
        if record is None or source.kind != FrameKind.MESSAGE:
            return None
        return logged_of(record, limits(), SETTINGS.lanes)

    def keep(self, records: Iterable[Record]) -> None:
        """The buffer holds these."""
        self.logged_records |= {(record.partition, record.offset): record for record in records}

    def close(self) -> None:
        for node in self.nodes.values():
            node.replica.close()


class _Others:
    def __init__(self, cluster: ComparingNodes, name: str) -> None:
        self._cluster = cluster
        self._name = name

    def ready(self) -> list[str]:
        return [n for n in self.announced() if n not in self._cluster.unready]

    def announced(self) -> list[str]:
        return [n for n in self._cluster.nodes if n not in {self._name, *self._cluster.gone}]

    def side(self, name: str) -> Side:
        self._cluster.meets(name)
        if name in self._cluster.unready | self._cluster.silent | self._cluster.gone:
            raise ComparisonError(f"{name} does not answer")
        node = self._cluster[name]
        side = OwnSide(node.replica, name, node.pace, node.repairer.replayed)
        if name in self._cluster.breaking:
            side.end()
        return side

    def tell(self, side: Side, hour: int) -> None:
        self._cluster[side.about.node].told.append((self._name, hour))


@contextmanager
def comparing(folder: Path, names: str = "abc", hold_ms: int = 0) -> Iterator[ComparingNodes]:
    """Nodes, each with a name of one letter."""
    cluster = ComparingNodes(folder, list(names), hold_ms)
    try:
        yield cluster
    finally:
        cluster.close()


def nothing_found(node: ComparingNode) -> bool:
    """Whether it has found nothing, and hidden nothing."""
    view = node.comparer.view
    return not view.findings and not +view.counts and view.failed == 0 and not node.wrong
