"""Nodes over Kafka in memory that say what they do: what plays the transcripts `takeover_*.txt`.

Everything but Kafka is real: replicas over wheels on a disk, masterships, readers of the frontier.
One thread, one clock; a command of a transcript does one thing, and `when` puts one inside a call
of another node. Not here: the words of the transcripts (`test_takeover_transcripts.py`).
"""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from hooked_producer import Call, HookedProducer
from manual_clock import START_MS, ManualClock
from one_node import CLUSTER_KEY, FOREVER_MS, TIMEOUT_MS, InstantCondition
from progress_play import ToldEtcd, ToldIdempotentProducer
from structlog.testing import capture_logs

from delayd.bus import Headers
from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.cluster.frontier_log import FrontierLog
from delayd.cluster.topics import create_topics, load_settings
from delayd.coordination.memory import MemoryEtcd
from delayd.errors import DelaydError
from delayd.node.delivery.commits.progress import ProgressCommit
from delayd.node.delivery.delivery_context import DeliveryContext, DeliveryOptions
from delayd.node.delivery.grant import Grant
from delayd.node.delivery.mastership import Mastership
from delayd.node.delivery.standby import Standby
from delayd.node.delivery.step_sizing import StepSizing
from delayd.node.delivery.takeover_run import StaleReadError
from delayd.node.replica.replica import Replica
from delayd.node.replica.told import ArrivalListener
from delayd.node.targets.checks import Targets
from delayd.wheel.storage import Wheel
from replication.frontier import Frontier
from replication.rank import Rank
from replication.record import FrontierRecord, decode
from replication.settings import AT_LEAST_ONCE, EXACTLY_ONCE

WAIT_MS = 250
"""What passes while a master waits for its wheel or for a marker."""


class NodeDied(BaseException):
    """The process of a node ends inside a call."""


class NodeClock(ManualClock):
    """The brokers' clock (`skew_ms` 0), or a node's, which may be wrong."""

    skew_ms = 0

    def wall_ms(self) -> int:
        return self.now_ms + self.skew_ms

    def monotonic_ms(self) -> int:
        return self.now_ms - START_MS


def told(frontier: Frontier) -> str:
    """A frontier in a line; times count from the start of the transcript."""
    lowest = frontier.lowest_cursor
    cursor = "start" if lowest == Rank(0, 0, 0) else f"{lowest.due_ms - START_MS} ms"
    return (
        f"term={frontier.term} step={frontier.step} K={cursor} "
        f"O={list(frontier.offsets)} R={list(frontier.own_writes)}"
    )


class ToldProducer(HookedProducer):
    """Says what it is asked to do."""

    def __init__(self, node: "PlayedNode", *parts: Any) -> None:
        super().__init__(*parts)
        self._node = node

    def around(self, call: Call) -> AbstractContextManager[None]:
        if call.name != "send":
            return self._node.doing(call.name)
        what = self._node.said_of(call.topic, call.value, dict(call.headers))
        return self._node.doing(f"send {call.topic}", what)


class ToldBus(MemoryBus):
    """A node's way to the brokers."""

    def __init__(self, kafka: MemoryKafka, clock: NodeClock, node: "PlayedNode") -> None:
        super().__init__(kafka, clock=clock)
        self._node = node

    def transactional_producer(self, transactional_id: str) -> ToldProducer:
        return ToldProducer(
            self._node,
            self._kafka,
            self.link,
            self._clock,
            transactional_id,
            self._record_bytes_max,
        )

    def idempotent_producer(self) -> ToldIdempotentProducer:
        return ToldIdempotentProducer(
            self._node, self._kafka, self.link, self._clock, self._record_bytes_max
        )


class ToldLog(FrontierLog):
    """Says what is asked of the frontier topic."""

    def __init__(self, node: "PlayedNode", bus: MemoryBus) -> None:
        super().__init__(bus, "delayd-frontier", 0)
        self._node = node

    def stable_end(self, timeout_ms: int) -> int:
        self._stable = super().stable_end(timeout_ms)
        return self._stable

    def high_watermark(self, timeout_ms: int) -> int:
        written = super().high_watermark(timeout_ms)
        self._node.say(f"frontier topic: last stable offset {self._stable}, watermark {written}")
        self._node.is_waiting = not self.read_to <= self._stable == written
        return written

    def catch_up(self, end: int, timeout_ms: int) -> None:
        super().catch_up(end, timeout_ms)
        newest = "no record" if self.newest is None else told(self.newest.record.frontier)
        self._node.say_as_master(f"read the frontier up to {end}: {newest}")

    def is_of_topic(self, record: FrontierRecord, timeout_ms: int) -> bool:
        is_of_topic = super().is_of_topic(record, timeout_ms)
        if not is_of_topic:
            self._node.say("the frontier topic has another id than that record names")
        return is_of_topic


class ToldReplica(Replica):
    """Says what the master waits for, and where it goes on."""

    node: "PlayedNode"

    def wait_ingested(self, frontier: Frontier, timeout_ms: int) -> bool:
        reached = super().wait_ingested(frontier, timeout_ms)
        word = "reached" if reached else "not yet"
        with self.node.doing("wait", f"for the wheel to reach O={list(frontier.offsets)}: {word}"):
            self.node.is_waiting = not reached
        return reached

    def attach(self, listener: ArrivalListener) -> None:
        self.node.say("plan from there on")
        super().attach(listener)


class PlayedNode:
    """One node: its disk outlives its processes."""

    def __init__(self, name: str, play: "Play", folder: Path) -> None:
        self.name = name
        self.play = play
        self.is_waiting = False
        self._is_busy = False
        self._folder = folder
        self.clock = NodeClock()
        self._bus = ToldBus(play.kafka, self.clock, self)
        self._mastership: Mastership | None = None
        self._grant: Grant | None = None
        self.start()

    def start(self) -> None:
        """A new process on the old disk."""
        seen = load_settings(MemoryBus(self.play.kafka), "c", "delayd-", TIMEOUT_MS)
        self._replica = ToldReplica(
            Wheel.open(self._folder, partitions=1),
            seen.record.settings,
            proof_key=CLUSTER_KEY.encode(),
            export_hold_ms=0,
            disk_free_min_bytes=0,
        )
        self._replica.node = self
        self._replica.changed = InstantCondition()
        self._replica.observe(seen)
        self._log = ToldLog(self, self._bus)
        self._log.open(TIMEOUT_MS)
        self._consumer = self._bus.consumer("delayd-buffer")
        self._consumer.assign(self._replica.positions)
        self._targets = Targets(self._bus.cluster(), self.clock, TIMEOUT_MS, anchor="delayd-buffer")

    def say(self, line: str) -> None:
        self.play.say(f"{self.name}: {line}")

    def say_as_master(self, line: str) -> None:
        """The same is asked when a node starts, and then it is no part of the story."""
        if self._is_busy:
            self.say(line)

    @contextmanager
    def doing(self, call: str, what: str = "") -> Iterator[None]:
        """Tell of a call; what a `when` has ordered happens before it, or after."""
        self.play.happen(f"{self.name} {call}", is_before=True)
        self.say(f"{call} {what}".rstrip())
        yield
        self.play.happen(f"{self.name} {call}", is_before=False)

    def said_of(self, topic: str, value: bytes | None, headers: dict[str, bytes | None]) -> str:
        """What is sent, in a few words."""
        if topic == "delayd-frontier":
            return told(decode(value or b"").frontier)
        if topic == "delayd-receipts":
            told_of = json.loads(value or b"")
            return f"{told_of['verdict']} {told_of['id']}"
        if "delayd-settles" in headers:
            return f"settlement of {' '.join(id for id, *_ in json.loads(value or b''))}"
        of = headers.get("delayd-continues") or headers.get("delayd-source") or b""
        return f"of {of.decode()}"

    def read(self, records_max: int = 10**6) -> None:
        """Ingest what is committed in the buffer."""
        self._replica.take(self._consumer.poll(records_max, 0))
        self.say(f"ingested up to {list(self._replica.ingested)}")

    def win(self, lease_ms: int = FOREVER_MS) -> None:
        """Leadership is given: take over."""
        self._grant = Grant(f"{self.name}/1", self.clock.monotonic_ms() + lease_ms)
        commit = None
        if self.play.guarantee == AT_LEAST_ONCE:
            self.play.etcd.end_leases()
            etcd = ToldEtcd(self, self.play.etcd, told)
            leads = etcd.campaign(0, self._grant.owner, etcd.grant_lease(FOREVER_MS).id)
            commit = ProgressCommit(self._bus, etcd, leads, self._log, self.clock)
        context = DeliveryContext(
            standby=Standby(self._bus, self._replica.settings, self.clock),
            replica=self._replica,
            frontier_log=self._log,
            clock=self.clock,
            options=DeliveryOptions(idle_interval_ms=5_000, clock_drift_max_ms=500),
            targets=self._targets,
            step_sizing=StepSizing(100, 10**6),
            note_progress=self._pass_time,
        )
        self._mastership = Mastership(context, self._grant, commit)
        if self._as_master(self._mastership.take_over) and self._mastership is not None:
            self.play.say(f"{self.name} delivers in term {self._mastership.term}", "==")

    def step(self) -> None:
        """One turn of the master's loop."""
        if self._mastership is None:
            self.play.say(f"{self.name} is no master", "==")
            return
        before = len(self.play.lines)
        if self._as_master(self._mastership.advance) and len(self.play.lines) == before:
            self.play.say(f"{self.name} has nothing to do", "==")

    def lose_lease(self) -> None:
        """The control loop withdraws the grant."""
        assert self._grant is not None, "only a master has a lease"
        self._grant.withdrawn = True

    def meet_zombies(self) -> None:
        """New clients of this node ask a broker that is cut off who leads."""
        self._bus.link.meets_zombies = True

    def die(self) -> None:
        """The process ends, here and now."""
        if self._is_busy:
            raise NodeDied
        self._replica.close()
        self._mastership = None
        self.play.say(f"{self.name} is dead", "==")

    def close(self) -> None:
        self._replica.close()

    def _pass_time(self) -> None:
        if self.is_waiting:
            self.play.pass_time(WAIT_MS)

    def _as_master(self, act: Callable[[], bool]) -> bool:
        self._is_busy = True
        try:
            with capture_logs():
                if act():
                    return True
            self._end("its grant has ended")
        except DelaydError as error:
            self._end(f"{error.code}: {error}")
            if isinstance(error, StaleReadError):
                self._log.renew()
        except NodeDied:
            self._is_busy = False
            self.die()
        finally:
            self._is_busy = False
        return False

    def _end(self, reason: str) -> None:
        assert self._mastership is not None, "a mastership ends once"
        self._mastership.close()
        self._mastership = None
        self._targets.forget()
        self.play.say(f"{self.name} is master no more: {reason}", "==")


class Play:
    """Kafka with delayd's topics and one target, nodes `a` and `b`, and what was said."""

    def __init__(self, folder: Path, guarantee: str = EXACTLY_ONCE) -> None:
        self.guarantee = guarantee
        self._clock = NodeClock()
        self.kafka = MemoryKafka(self._clock)
        self.etcd = MemoryEtcd(self._clock)
        create_topics(
            MemoryBus(self.kafka),
            cluster="c",
            cluster_key=CLUSTER_KEY,
            partitions=1,
            guarantee=guarantee,
        )
        self.kafka.create_topic("mails", 1, {"message.timestamp.type": "LogAppendTime"})
        self.lines: list[str] = []
        self._depth = 0
        self._orders: list[tuple[str, bool, Callable[[], None]]] = []
        self.nodes = {name: PlayedNode(name, self, folder / name) for name in ("a", "b")}

    start_ms = START_MS

    def say(self, line: str, sign: str = "->") -> None:
        self.lines.append(f"{'  ' * (self._depth + 1)}{sign} {line}")

    def pass_time(self, by_ms: int) -> None:
        for clock in (self._clock, *(node.clock for node in self.nodes.values())):
            clock.now_ms += by_ms

    def set_skew(self, name: str, skew_ms: int) -> None:
        """From now on the node's wall clock is wrong."""
        self.nodes[name].clock.skew_ms = skew_ms

    def when(self, call: str, is_before: bool, act: Callable[[], None]) -> None:
        """Let something happen once, before or after the next such call."""
        self._orders.append((call, is_before, act))

    def happen(self, call: str, is_before: bool) -> None:
        for order in self._orders:
            if order[:2] == (call, is_before):
                self._orders.remove(order)
                self._depth += 1
                try:
                    order[2]()
                finally:
                    self._depth -= 1
                return

    def request(self, headers: Headers, id: str | None) -> None:
        """A user writes to the buffer."""
        key = None if id is None else id.encode()
        if key is not None:
            headers.append(("delayd-id", key))
        ack = self.kafka.append("delayd-buffer", 0, key, b"v", headers)
        self.say(f"buffer {ack.partition}/{ack.offset}")

    def lose_frontier(self) -> None:
        """The frontier topic is made again; nodes that were told nothing start again."""
        config = self.kafka.topics["delayd-frontier"].config
        self.kafka.delete_topic("delayd-frontier")
        self.kafka.create_topic("delayd-frontier", 1, config)

    def replace_frontier(self, end: int) -> None:
        """The frontier topic is made again, and gets so many records."""
        first = self.kafka.topics["delayd-frontier"].partitions[0].read(0, 10**9)[0][0]
        self.lose_frontier()
        for _ in range(end):
            self.kafka.append("delayd-frontier", 0, first.key, first.value, [])

    def show(self, topic: str) -> None:
        """The committed records of a topic."""
        found = self.kafka.topics[topic].partitions[0].read(0, 10**9)[0]
        sources = [(dict(record.headers)["delayd-source"] or b"").decode() for record in found]
        self.say(f"{topic}: {', '.join(sources) or 'nothing'}", "==")

    def close(self) -> None:
        for node in self.nodes.values():
            node.close()
