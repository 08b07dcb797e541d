"""All that a node has for comparisons: its rounds, and its answers to others."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from delayd.bus import Bus
from delayd.cluster.member_proof import MemberKeys
from delayd.errors import CorruptionError
from delayd.node.comparing.answering import Answerer
from delayd.node.comparing.comparer import Comparer
from delayd.node.comparing.logged import BufferLog
from delayd.node.comparing.peer import Peers
from delayd.node.comparing.ports import Alarmed, Repairer
from delayd.node.comparing.side import Pace
from delayd.node.replica.replica import Replica
from delayd.runtime.clock import Clock


class Comparisons:
    """Starts and stops them."""

    def __init__(
        self,
        replica: Replica,
        bus: Bus,
        members: Callable[[], Mapping[str, str]],
        keys: MemberKeys,
        clock: Clock,
        *,
        node: str,
        interval_s: float,
        is_master: Callable[[], bool],
        on_damage: Callable[[CorruptionError], object],
        repairer: Repairer | None = None,
    ) -> None:
        """`members` returns the member keys of the cluster in etcd; `interval_s`: 0 for never;
        `on_damage` is called when this node has read what is damaged, in any thread."""
        self.repairer = repairer or Alarmed()
        pace, stopping = Pace(clock), threading.Event()
        self.comparer = Comparer(
            replica,
            Peers(members, keys, clock, node=node, stopping=stopping),
            BufferLog(bus, replica, clock),
            clock,
            pace,
            node=node,
            interval_s=interval_s,
            is_master=is_master,
            on_damage=on_damage,
            stopping=stopping,
            repairer=self.repairer,
        )
        replica.room_makers.append(self.comparer.give_way)
        self.answerer = Answerer(
            replica,
            clock,
            pace,
            node=node,
            is_on=interval_s > 0,
            on_damage=on_damage,
            on_look=self.comparer.look_soon,
            replayed=lambda: self.repairer.replayed,
        )

    def start(self) -> None:
        """Begin the rounds, if they are on."""
        self.comparer.start()

    def stop(self, timeout_s: float) -> None:
        """End all; nobody uses the replica afterwards."""
        self.comparer.stop(timeout_s)
        self.answerer.stop()

    def shown(self) -> dict[str, Any]:
        """Return what /status says of them."""
        return self.comparer.shown()
