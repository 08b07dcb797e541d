"""What a repair asks of the log, and of the wheel that it is to set aside.

Source: docs/design/repairing.md.
"""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from exporting_node import BEGIN_MS, schedule
from manual_clock import ManualClock
from one_node import CLUSTER_KEY, TIMEOUT_MS, open_replica
from pydantic import SecretStr

from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.bus.memory.cluster import MemoryCluster
from delayd.cluster.frontier_log import SeenFrontier
from delayd.cluster.topics import create_topics, load_settings
from delayd.config.cluster_key import fingerprint
from delayd.config.node import NodeConfig
from delayd.coordination.memory import MemoryCoordination, MemoryEtcd
from delayd.errors import BufferPositionError, KafkaUnreachableError, LogNotEnoughError
from delayd.node.disk_opening import open_disk
from delayd.node.repairing.log_proof import log_lack_of
from delayd.node.repairing.turn import Turn
from delayd.node.surroundings import Surroundings
from delayd.runtime.threads import SystemThreads
from delayd.wheel.aside import RepairNote, RepairState, note_repair, repair_note
from delayd.wheel.disk import SystemDisk
from delayd.wheel.reserve import Reserve
from delayd.wheel.storage import Wheel
from replication.settings import KEYS_BEFORE_MAX

KEYS = [CLUSTER_KEY, *(f"key {n}, which is long enough" for n in range(KEYS_BEFORE_MAX))]


class SilentBus(MemoryBus):
    """Brokers that do not answer."""

    def cluster(self) -> MemoryCluster:
        raise KafkaUnreachableError("no broker answered in time", remedy="")


class Parts:
    """A cluster without records, and what a node of it touches."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.kafka = MemoryKafka(self.clock)
        self.bus = MemoryBus(self.kafka)
        create_topics(self.bus, cluster="c", cluster_key=CLUSTER_KEY, partitions=2)
        self.seen = load_settings(self.bus, "c", "delayd-", TIMEOUT_MS)
        self.etcd = MemoryCoordination(MemoryEtcd(self.clock), "c")

    def replace_keys(self, count: int, until_ms: int) -> None:
        """So many keys signed before, all of them until then."""
        old = [fingerprint(key, "c") for key in KEYS[1 : 1 + count]]
        settings = replace(
            self.seen.record.settings, keys_before=tuple(f"{key}/{until_ms}" for key in old)
        )
        self.seen = self.seen._replace(record=replace(self.seen.record, settings=settings))

    def open_disk(self, cluster_key: str = CLUSTER_KEY) -> None:
        """What a start does, and no more."""

        def never(*_: object) -> None:
            raise AssertionError("nothing of a disk")

        config = NodeConfig(
            node="a",
            bootstrap="nowhere:1",
            etcd=("http://nowhere",),
            cluster_key=SecretStr(cluster_key),
            data_dir=self.folder,
            disk_free_min_bytes=0,
        )
        surroundings = Surroundings(
            clock=self.clock,
            coordination=self.etcd,
            open_bus=lambda largest: self.bus,
            open_admin=never,  # type: ignore[arg-type]
            open_wheel=lambda folder, partitions: Wheel.open(folder, partitions=partitions),
            open_reserve=lambda folder, limit: Reserve(SystemDisk(), str(folder), limit),
            threads=SystemThreads(),
            new_nonce=lambda: "n",
        )
        replica, _ = open_disk(config, surroundings, self.bus, self.seen, TIMEOUT_MS)
        replica.close()

    def want_repair(self) -> None:
        """As a node that ends in its turn."""
        self.etcd.put_member("b", "{}", self.etcd.grant_lease(60).id)
        lease = Turn(self.etcd, "a").take()
        assert lease is not None
        note = RepairNote(RepairState.WANTED, 0, lease, (1,), ((0, 0),), ("0/0",))
        note_repair(self.folder, note)


@pytest.mark.parametrize("has_lost", [False, True])
def test_a_wheel_that_knows_more_than_the_log_is_not_set_aside(
    tmp_path: Path, has_lost: bool
) -> None:
    """docs/design/repairing.md, Assumption 1: a new wheel could not tell that records are lost.

    Rules: repaired-from-log
    """
    parts = Parts(tmp_path)
    with closing(open_replica(tmp_path, parts.seen.record.settings)) as replica:
        replica.observe(parts.seen)
        replica.take([schedule(0, BEGIN_MS)] * has_lost)
        replica.checkpoint()
    parts.want_repair()
    if has_lost:
        with pytest.raises(BufferPositionError):
            parts.open_disk()
    else:
        parts.open_disk()
    note = repair_note(tmp_path)
    assert note is not None
    assert note.state is (RepairState.WANTED if has_lost else RepairState.COMPARING)
    assert (tmp_path / "replaced").exists() != has_lost


def lack_of(bus: MemoryBus, seen: SeenFrontier) -> str | None:
    """Why the log is not enough."""
    return log_lack_of(bus, CLUSTER_KEY, ManualClock(), TIMEOUT_MS)(seen)


def test_brokers_that_do_not_answer_are_no_lack_of_the_log(tmp_path: Path) -> None:
    """A repair that failed is not tried again: docs/design/repairing.md, "When it begins"."""
    parts = Parts(tmp_path)
    assert lack_of(parts.bus, parts.seen) is None
    with pytest.raises(KafkaUnreachableError):
        lack_of(SilentBus(parts.kafka), parts.seen)


def test_a_log_that_may_be_signed_by_keys_of_which_nothing_is_known_is_not_enough(
    tmp_path: Path,
) -> None:
    """docs/design/repairing.md, Assumption 3.

    Rules: repaired-from-log
    """
    parts = Parts(tmp_path)
    now_ms = parts.clock.wall_ms()
    parts.kafka.append("delayd-buffer", 1, None, b"v")
    for count, until_ms in ((2, now_ms + 1), (3, now_ms), (3, now_ms + 1)):
        parts.replace_keys(count, until_ms)
        lack = log_lack_of(parts.bus, "\n".join(KEYS), parts.clock, TIMEOUT_MS)(parts.seen)
        if count == KEYS_BEFORE_MAX and until_ms > now_ms:
            assert lack and "delayd-buffer/1 from offset 0 on" in lack
        else:
            assert lack is None


def test_no_node_reads_what_a_key_may_have_signed_that_nobody_names(tmp_path: Path) -> None:
    """docs/design/frontier.md, Cluster keys, 4: it would reject what others have taken."""
    parts = Parts(tmp_path)
    parts.kafka.append("delayd-buffer", 1, None, b"v")
    parts.replace_keys(KEYS_BEFORE_MAX, parts.clock.wall_ms() + 1)
    with pytest.raises(LogNotEnoughError, match="delayd-buffer/1 from offset 0 on"):
        parts.open_disk("\n".join(KEYS))
    parts.replace_keys(KEYS_BEFORE_MAX, parts.clock.wall_ms())
    parts.open_disk("\n".join(KEYS))
