"""What a node has for comparisons, together."""

from pathlib import Path

from comparing_nodes import comparing
from exporting_node import BEGIN_MS, PROOF_KEY, SETTINGS, schedule

from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.cluster.member_proof import MemberKeys
from delayd.node.comparing.service import Comparisons
from delayd.node.comparing.side import OwnSide
from delayd.runtime.clock import SystemClock


def test_all_that_is_held_for_comparisons_gives_way_to_a_short_disk(tmp_path: Path) -> None:
    """docs/design/storage.md, Comparing running nodes: what a node bears."""
    clock = SystemClock()
    with comparing(tmp_path, "a") as nodes:
        nodes.take([schedule(0, BEGIN_MS)])
        replica, pace = nodes["a"].replica, nodes["a"].pace
        comparisons = Comparisons(
            replica,
            MemoryBus(MemoryKafka(clock)),
            dict,
            MemberKeys(PROOF_KEY, SETTINGS.realm),
            clock,
            node="a",
            interval_s=600,
            is_master=lambda: False,
            on_damage=lambda error: None,
        )
        comparisons.answerer.begin("b")
        comparisons.comparer._own = OwnSide(replica, "a", pace)
        files = replica.wheel.snapshots._files
        assert files.holds == 2
        for make_room in replica.room_makers:
            make_room()
        assert files.holds == 0
        comparisons.stop(10)
