"""Nodes that compare and repair their wheels without Kafka, etcd and a network, for tests."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from comparing_nodes import ComparingNodes
from manual_clock import ManualClock

from delayd.bus import Record
from delayd.coordination.memory import MemoryCoordination, MemoryEtcd
from delayd.errors import WheelDiffersError
from delayd.node.repairing.repairer import WheelRepairer
from delayd.node.repairing.starting import prepare_repair
from delayd.node.repairing.turn import Turn
from delayd.wheel.aside import RepairNote, repair_note

DAY_MS = 24 * 3_600_000


class RepairingNodes(ComparingNodes):
    """Nodes of one cluster that repair their wheels from the log that they share."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        super().__init__(folder, names)
        self.clock = ManualClock()
        self.etcd = MemoryEtcd(self.clock)
        self.ways = {name: MemoryCoordination(self.etcd, "c") for name in names}
        self.log: list[Record] = []
        self.log_lack: str | None = None
        """Why the log is not enough, if it is not."""
        self.check_wheel: Callable[[], object] = lambda: None
        """Whether buffer and frontier are what a wheel knows."""
        self.spare_bytes = 0
        self.is_on = True
        self.repairers: dict[str, WheelRepairer] = {}
        self.ended: dict[str, list[WheelDiffersError]] = {name: [] for name in names}
        for name in names:
            way = self.ways[name]
            way.put_member(name, "{}", way.grant_lease(400 * 24 * 3600).id)
            self._restart(name)

    def write(self, records: Sequence[Record]) -> None:
        """Append to the log."""
        self.log += records

    def _restart(self, name: str) -> None:
        node = self[name]
        node.replica.close()
        turn = Turn(self.ways[name], name)
        self.prepare(name)
        repairer = WheelRepairer(
            node.folder,
            turn,
            self.clock,
            node=name,
            spare_bytes=self.spare_bytes,
            log_lack=lambda: self.log_lack,
            end=lambda error: self._end(name, error),
            is_master=lambda: self[name].is_master,
            may_begin=self.is_on,
        )
        self.repairers[name] = repairer
        node.start(repairer)

    def prepare(self, name: str) -> RepairNote | None:
        """What a start does before it opens the wheel."""
        turn = Turn(self.ways[name], name)
        return prepare_repair(
            self[name].folder, turn, lambda: self.log_lack, self.spare_bytes, self.check_wheel
        )

    def _end(self, name: str, error: WheelDiffersError) -> None:
        self.ended[name].append(error)
        self.gone.add(name)

    def start(self, name: str) -> None:
        """Start a node that has ended: it reads what it has not read of the log."""
        self._restart(name)
        self.gone.discard(name)
        self.read_on(name)

    def read_on(self, name: str) -> None:
        """A node reads the log to its end."""
        replica = self[name].replica
        reached = replica.ingested
        replica.take([r for r in self.log if r.offset >= reached[r.partition]])
        replica.checkpoint()

    def note(self, name: str) -> RepairNote | None:
        """What a node has noted of a repair."""
        return repair_note(self[name].folder)

    def state(self, name: str) -> str | None:
        """How far its repair is."""
        note = self.note(name)
        return None if note is None else note.state.value

    def kept(self, name: str) -> bool:
        """Whether a node keeps a wheel aside."""
        return (self[name].folder / "replaced" / "format.json").exists()

    def round(self, name: str) -> None:
        """A round of a node's comparisons, if it runs."""
        if name not in self.gone:
            self[name].comparer.round()


@contextmanager
def repairing(folder: Path, names: str = "abc") -> Iterator[RepairingNodes]:
    """Nodes, each with a name of one letter."""
    cluster = RepairingNodes(folder, list(names))
    try:
        yield cluster
    finally:
        cluster.close()
