"""Three nodes, one Kafka in memory, one seed: everything that happens is drawn from it.

Nodes are real replicas over real wheels and real masterships. There is one thread: while a node is
inside a call to Kafka (a *point*), others may act, the clock may pass, the answer may get lost and
the node may die. Nobody elects: leadership is given to anyone at any time and often not taken away,
because the fence must hold whoever tries to be master (docs/design/frontier.md, Fence).

Not here: what must hold (`simulation_checker.py`), power failures, damaged disks, a real network.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, TypeVar
from zlib import crc32

from delayd.bus import Ack, Headers
from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.bus.memory.cluster import MemoryCluster
from delayd.bus.memory.producer import MemoryProducer
from delayd.bus.murmur2 import partition_of
from delayd.errors import FencedError, FrontierError, KafkaUnreachableError, ProducerError
from delayd.frontier_log import FrontierLog
from delayd.mastership import BehindError, ClockDriftError, Grant, HigherTermError, Mastership
from delayd.pace import Pace
from delayd.replica import Replica
from delayd.suspects import Suspects
from delayd.targets import Targets
from delayd.topics import create_topics, load_settings, transactional_id
from delayd.wheel.disk import OpenFile, SystemDisk
from delayd.wheel.storage import Wheel

CLUSTER = "simulated"
PROOF_KEY = b"simulated secret"
CLUSTER_KEY = "the key of the simulated cluster"
START_MS = 1_785_000_000_000
FOREVER_MS = 10**15
RETRY_DELAYS_MS = (200, 900)
IDS = ("one", "two", "three")
LANES = 64
NODES = 3
ACTIONS = 250
"""Those inside of calls count too."""
NESTING_MAX = 2
"""Calls of how many nodes may be under way at once."""
QUIET_ROUNDS_MAX = 600
TIMEOUT_MS = 1_000
WAITS_MAX = 20_000
"""Of one takeover or step: more than any time-out in it takes, at 1 ms each."""

T = TypeVar("T")


def topic_in_lane_of(topic: str) -> str:
    """Another topic that shares its lane."""
    wanted = crc32(topic.encode()) % LANES
    return next(
        name for n in range(10**6) if crc32((name := f"shared-{n}").encode()) % LANES == wanted
    )


TARGETS: Mapping[str, tuple[int, dict[str, str]]] = {
    "orders": (2, {"message.timestamp.type": "LogAppendTime"}),
    topic_in_lane_of("orders"): (1, {}),
    "mails": (1, {"message.timestamp.type": "LogAppendTime"}),
    "calls": (3, {}),
    "states": (1, {"cleanup.policy": "compact"}),
}
"""Partitions and settings. Without LogAppendTime a record carries the delivering node's clock."""


class NodeDied(BaseException):
    """The process of a node ends here and now."""


class Time:
    """The brokers' clock, which is the truth."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic_ms(self) -> int:
        return self.now_ms


class NodeClock:
    """A node's clock: wrong by its skew."""

    def __init__(self, time: Time, skew_ms: int, boot_ms: int) -> None:
        self._time = time
        self._boot_ms = boot_ms
        self.skew_ms = skew_ms

    def wall_ms(self) -> int:
        return self._time.now_ms + self.skew_ms

    def monotonic_ms(self) -> int:
        return self._time.now_ms - self._boot_ms


class InstantCondition(threading.Condition):
    """Nobody waits in a simulation: who has nothing to do is asked again later."""

    def wait(self, timeout: float | None = None) -> bool:
        return False

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        return predicate()


Point = Callable[[str], None]


class SimulatedProducer(MemoryProducer):
    """Lets others act before and after each of its calls."""

    def __init__(self, point: Point, *parts: Any) -> None:
        super().__init__(*parts)
        self._point = point

    @contextmanager
    def _between(self, what: str) -> Any:
        self._point(f"before {what}")
        yield
        self._point(f"after {what}")

    def init_transactions(self, timeout_ms: int) -> None:
        with self._between("init"):
            super().init_transactions(timeout_ms)

    def begin(self) -> None:
        with self._between("begin"):
            super().begin()

    def send(
        self,
        topic: str,
        *,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        partition: int | None = None,
        on_ack: Callable[[Ack], None] | None = None,
    ) -> None:
        with self._between("send"):
            super().send(
                topic, key=key, value=value, headers=headers, partition=partition, on_ack=on_ack
            )

    def flush(self, timeout_ms: int) -> None:
        with self._between("flush"):
            super().flush(timeout_ms)

    def commit(self, timeout_ms: int) -> None:
        with self._between("commit"):
            super().commit(timeout_ms)


class SimulatedAdministration(MemoryCluster):
    """Lets others act before and after the offsets of a topic are read."""

    def __init__(self, point: Point, *parts: Any) -> None:
        super().__init__(*parts)
        self._point = point

    def end_offsets(self, topic: str, timeout_ms: int, *, committed: bool) -> dict[int, int]:
        self._point("before offsets")
        offsets = super().end_offsets(topic, timeout_ms, committed=committed)
        self._point("after offsets")
        return offsets


class SimulatedBus(MemoryBus):
    """A node's way to the brokers, with points."""

    def __init__(self, kafka: MemoryKafka, clock: NodeClock, point: Point) -> None:
        super().__init__(kafka, clock=clock)
        self._point = point

    def transactional_producer(self, transactional_id: str) -> SimulatedProducer:
        return SimulatedProducer(
            self._point,
            self._kafka,
            self.link,
            self._clock,
            transactional_id,
            self._record_bytes_max,
        )

    def cluster(self) -> SimulatedAdministration:
        return SimulatedAdministration(self._point, self._kafka, self.link)


class SimulatedDisk(SystemDisk):
    """The real disk without its waiting; a process may die before any sync."""

    def __init__(self, point: Point) -> None:
        super().__init__()
        self._point = point

    def fdatasync(self, file: OpenFile) -> None:
        self._point("sync")

    def sync_folder(self, path: str) -> None:
        self._point("sync")

    def syncfs(self, folder: OpenFile) -> None:
        self._point("sync")


@dataclass(frozen=True, slots=True)
class Habits:
    """What differs from seed to seed."""

    partitions: int
    records_max: int
    bytes_max: int
    export_hold_ms: int
    death: float
    company: float
    lost_answer: float


class Node:
    """One node: its disk and its clock outlive its processes."""

    def __init__(self, world: "World", number: int, directory: Path, skew_ms: int) -> None:
        self.name = f"node-{number}"
        self._world = world
        self._directory = directory
        self.clock = NodeClock(world.time, skew_ms, START_MS - 10_000 * number)
        self.bus = SimulatedBus(world.kafka, self.clock, lambda what: world.point(self, what))
        self.is_busy = False
        """Is a call of its delivery thread under way?"""
        self.is_doomed = False
        """Its other thread has died: the call under way never returns."""
        self.lives = 0
        self._waits = 0
        self.replica: Replica | None = None
        self.mastership: Mastership | None = None
        self.grant: Grant | None = None

    @property
    def is_alive(self) -> bool:
        return self.replica is not None

    def start(self) -> None:
        """A new process on the old disk, in the order of a real node's start."""
        seen = load_settings(self.bus, CLUSTER, "delayd-", TIMEOUT_MS)
        settings = seen.record.settings
        disk = SimulatedDisk(lambda what: self._world.point(self, what))
        wheel = Wheel.open(self._directory, partitions=settings.partitions, disk=disk)
        habits = self._world.habits
        replica = Replica(
            wheel,
            settings,
            proof_key=PROOF_KEY,
            export_hold_ms=habits.export_hold_ms,
            disk_free_min_bytes=0,
        )
        replica.changed = InstantCondition()
        try:
            replica.observe(seen)
            self.log = FrontierLog(self.bus, settings.frontier.name, 0)
            self.log.open(TIMEOUT_MS)
            self.consumer = self.bus.consumer(settings.buffer.name)
            self.consumer.assign(replica.positions)
            self.suspects = Suspects()
            self.targets = Targets(self.bus.cluster(), self.clock, TIMEOUT_MS)
        except BaseException:
            replica.close()
            raise
        # Only now: the ingest thread of this process begins here.
        self.replica = replica
        self.lives += 1

    def die(self) -> None:
        """What was not checkpointed is gone; a transaction may stay open."""
        if self.replica is not None:
            self.replica.close()
        self.is_doomed = False
        self.replica = None
        self.mastership = None
        self.grant = None

    def ingest(self, records_max: int) -> None:
        """As the ingest thread, which runs beside the delivery thread."""
        if self.replica is not None:
            self.replica.take(self.consumer.poll(records_max, 0))

    def checkpoint(self) -> None:
        if self.replica is not None:
            self.replica.checkpoint()

    def follow(self) -> None:
        if self.replica is not None and self.mastership is None:
            for seen in self.log.poll(0):
                self.replica.observe(seen)

    def lead(self, lease_ms: int) -> None:
        """Leadership is given: take over."""
        if self.replica is None or self.mastership is not None:
            return
        habits = self._world.habits
        self.grant = Grant(f"{self.name}/{self.lives}", self.clock.monotonic_ms() + lease_ms)
        self.mastership = Mastership(
            self.bus,
            self.replica,
            self.log,
            self.targets,
            self.suspects,
            self.clock,
            self.grant,
            Pace(habits.records_max, habits.bytes_max),
            self._progressed,
            idle_interval_ms=1_000,
            clock_drift_max_ms=500,
        )
        if not self._as_master(self.mastership.take_over):
            self.resign()

    def advance(self) -> None:
        """One step, or nothing if nothing is due."""
        if self.mastership is not None and not self._as_master(self.mastership.advance):
            self.resign()

    def resign(self) -> None:
        if self.mastership is not None:
            self.mastership.close()
            self.targets.forget()
        self.mastership = None
        self.grant = None

    def _as_master(self, act: Callable[[], bool]) -> bool:
        """As the delivery thread judges: False if this mastership is over."""
        self._waits = 0
        try:
            return act()
        except (
            FencedError,
            HigherTermError,
            ClockDriftError,
            BehindError,
            ProducerError,
            KafkaUnreachableError,
        ) as error:
            self._world.note(f"{self.name} ends: {type(error).__name__}: {error}")
            return False

    def _progressed(self) -> None:
        """The other threads go on, and time passes, while a master waits in a loop."""
        self._waits += 1
        assert self._waits < WAITS_MAX, f"{self.name} waits for ever"
        self.bus.link.up = True
        self.ingest(20)
        self._world.time.now_ms += 1


class World:
    """All of it, and what happens next."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.random = Random(seed)
        self._redrives = Random(f"redrives of {seed}")
        """Apart, so that the seeds go on to mean what they meant without redrives."""
        self.time = Time()
        self.kafka = MemoryKafka(self.time)
        self.trace: list[str] = []
        self.refused: set[str] = set()
        """Targets that refused records at any time."""
        self.is_quiet = True
        chance = self.random
        self.habits = Habits(
            partitions=chance.choice([1, 2, 3]),
            records_max=chance.choice([1, 4, 20, 1_000]),
            bytes_max=chance.choice([300, 100_000]),
            export_hold_ms=chance.choice([0, 300, 3_000, 900_000]),
            death=chance.choice([0, 0.005, 0.02]),
            company=chance.choice([0.01, 0.05, 0.15]),
            lost_answer=chance.choice([0, 0.05, 0.2]),
        )
        self._outside = MemoryBus(self.kafka)
        self.settings = create_topics(
            self._outside,
            cluster=CLUSTER,
            cluster_key=CLUSTER_KEY,
            partitions=self.habits.partitions,
            retry_delays_ms=RETRY_DELAYS_MS,
        )
        assert self.settings.lanes == LANES
        for topic, (partitions, config) in TARGETS.items():
            self.kafka.create_topic(topic, partitions, config)
        self._transactional_id = transactional_id(CLUSTER, 0)
        self._user = self._outside.transactional_producer("a-user")
        self._user.init_transactions(TIMEOUT_MS)
        self._user_is_inside = False
        self._sent = 0
        self._acted = 0
        self.nodes = [
            Node(self, number, directory / str(number), chance.randint(-450, 450))
            for number in range(NODES)
        ]
        for node in self.nodes:
            node.start()

    def run(self) -> None:
        """Anything may happen, then everything is healed and what is due is delivered."""
        self.is_quiet = False
        while self._acted < ACTIONS:
            self.act()
        self.settle()

    def note(self, line: str) -> None:
        """One line of what happened, for whoever reads a failure."""
        self.trace.append(f"{self.time.now_ms - START_MS:>7} {line}")

    # What may happen.

    def act(self) -> None:
        """One thing happens."""
        self._acted += 1
        chance = self.random
        idle = [node for node in self.nodes if not node.is_busy]
        whole = sum(node.is_busy for node in self.nodes) < NESTING_MAX
        node = chance.choice(self.nodes)
        masters = [n for n in idle if n.mastership is not None]
        kind = chance.choices(
            ["send", "pass", "ingest", "advance", "lead", "follow", "checkpoint", "fault"],
            [14, 16, 22, 30 if masters else 0, 4 if masters else 20, 5, 4, 9],
        )[0]
        if kind == "send":
            self.send()
        elif kind == "pass":
            self.time.now_ms += chance.choice([0, 1, 2, 10, 50, 99, 100, 300, 1_500])
        elif kind == "ingest":
            self.do(node, lambda: node.ingest(chance.choice([1, 3, 50])))
        elif kind == "checkpoint":
            self.do(node, node.checkpoint)
        elif kind == "fault":
            self.fault(chance.choice(idle) if idle else None)
        elif idle and whole:
            node = chance.choice(masters if kind == "advance" and masters else idle)
            if not node.is_alive:
                self.do(node, node.start)
            elif kind == "advance":
                self.do(node, node.advance)
            elif kind == "lead":
                lease_ms = chance.choice([300, 3_000, FOREVER_MS, FOREVER_MS])
                self.do(node, lambda: node.lead(lease_ms))
            else:
                self.do(node, node.follow)

    def do(self, node: Node, action: Callable[[], None]) -> None:
        """One node does something, and may die of it."""
        if node.is_doomed:
            return
        if node.is_busy:
            try:
                action()
            except NodeDied:
                node.is_doomed = True
            return
        node.is_busy = True
        try:
            action()
        except NodeDied:
            self.note(f"{node.name} dies")
            node.die()
        except FrontierError as error:
            # It took a transaction that a dead rival has left open for a lost commit marker.
            assert "stays behind" in str(error), error
            self.note(f"{node.name} stops: {error}")
            node.die()
        except KafkaUnreachableError:
            node.die()  # it could not even start
        finally:
            node.is_busy = False

    def point(self, node: Node, what: str) -> None:
        """A node is about to call, or has just called: death, a lost answer, company."""
        if self.is_quiet:
            return
        chance = self.random
        # A step sends many records and commits once, which is when a death matters most.
        if chance.random() < self.habits.death * (5 if what.endswith("commit") else 1):
            self.note(f"{node.name} at {what}")
            raise NodeDied
        if what == "sync":
            return
        if what == "before flush" and chance.random() < self.habits.lost_answer / 4:
            self.kafka.fail_next_flush(self._transactional_id)
        if what == "before commit" and chance.random() < self.habits.lost_answer:
            applied = chance.random() < 0.5
            self.note(f"{node.name}: an answer gets lost, applied={applied}")
            self.kafka.fail_next_commit(self._transactional_id, applied=applied)
        if chance.random() < self.habits.company:
            for _ in range(min(chance.randint(1, 8), ACTIONS - self._acted)):
                self.act()
        if node.is_doomed:
            raise NodeDied

    def fault(self, node: Node | None) -> None:
        """Something that nobody ordered."""
        chance = self.random
        kind = chance.choice(["die", "cut", "skew", "refuse", "expire", "withdraw"])
        if kind == "refuse":
            topic = chance.choice(list(TARGETS))
            code = chance.choice([None, None, "TOPIC_AUTHORIZATION_FAILED", "INVALID_RECORD"])
            self.kafka.refuse(topic, code)
            if code is not None:
                self.refused.add(topic)
        elif kind == "expire":
            self.kafka.expire_transactions()
        elif node is None:
            return
        elif kind == "die":
            self.note(f"{node.name} is killed")
            node.die()
        elif kind == "cut":
            node.bus.link.up = not node.bus.link.up
        elif kind == "skew":
            node.clock.skew_ms = chance.choice([-450, 0, 450, 700, -700])
        elif kind == "withdraw" and node.grant is not None:
            node.grant.withdrawn = True

    # What users send.

    def send(self) -> None:
        """Some requests, perhaps inside a transaction of the user's own."""
        chance = self.random
        if self._user_is_inside and chance.random() < 0.7:
            self._end_user_transaction(commit=chance.random() < 0.6)
        inside = not self._user_is_inside and chance.random() < 0.2
        if inside:
            self._user.begin()
            self._user_is_inside = True
        around_ms = self.time.now_ms + chance.choice([-2_000, 0, 50, 700, 2_500])
        spread_ms = chance.choice([0, 0, 5, 1_000, 4_000])
        partition = chance.choice([None, chance.randrange(self.habits.partitions)])
        for _ in range(chance.choice([1, 1, 3, 12])):
            self._send_one(around_ms + chance.randint(0, spread_ms), partition, inside)
        if inside and chance.random() < 0.5:
            self._end_user_transaction(commit=chance.random() < 0.6)

    def _send_one(self, due_ms: int, partition: int | None, inside: bool) -> None:
        chance = self.random
        self._sent += 1
        value = b"%d" % self._sent
        key = chance.choice([None, b"a", b"b"])
        if chance.random() < 0.4:
            self._send_with_id(due_ms, value, inside)
            return
        expects, topic = "delivered", chance.choice(list(TARGETS))
        if topic == "states" and key is None:
            expects = "dead"
        if chance.random() < 0.05:
            expects, topic = "dead", "nowhere"
        headers: Headers = [("delayd-topic", topic.encode()), ("delayd-due", b"%d" % due_ms)]
        if chance.random() < 0.05:
            expects = "answer"
            headers.append(("delayd-tipo", b"x"))
        headers.append(("expects", expects.encode()))
        if partition is None:
            partition = chance.randrange(self.habits.partitions)
        self._redrive(headers, partition)
        self._append(partition, key, value, headers, inside)

    def _send_with_id(self, due_ms: int, value: bytes, inside: bool) -> None:
        """A request about one of a few ids, so that they meet."""
        chance = self.random
        id = chance.choice(IDS)
        op = chance.choice(["schedule", "schedule", "cancel", "replace"])
        topic = chance.choice(["orders", "mails", "nowhere"])
        headers: Headers = [("delayd-id", id.encode()), ("delayd-op", op.encode())]
        if op != "cancel":
            # Now and then the very same request comes again.
            if chance.random() < 0.3:
                value, due_ms, topic = b"again", due_ms // 4_000 * 4_000, "orders"
            headers.append(("delayd-topic", topic.encode()))
            headers.append(("delayd-due", b"%d" % due_ms))
        expects = b"dead" if topic == "nowhere" else b"delivered"
        headers.append(("expects", b"answer" if op == "cancel" else expects))
        partition = partition_of(id.encode(), self.habits.partitions)
        if op == "schedule":
            self._redrive(headers, partition)
        self._append(partition, id.encode(), value, headers, inside)

    def _redrive(self, headers: Headers, partition: int) -> None:
        """Now and then a schedule says that it sends a dead letter again, one of a few."""
        if self._redrives.random() < 0.15:
            source = f"{partition}/{self._redrives.randrange(8)}"
            headers.append(("delayd-redrive", source.encode()))

    def _append(
        self,
        partition: int,
        key: bytes | None,
        value: bytes,
        headers: Headers,
        inside: bool,
    ) -> None:
        if inside:
            self._user.send(
                "delayd-buffer", key=key, value=value, headers=headers, partition=partition
            )
        else:
            self.kafka.append("delayd-buffer", partition, key, value, headers)

    def _end_user_transaction(self, *, commit: bool) -> None:
        if commit and self.kafka.coordinator.holders["a-user"].touched:
            self._user.commit(TIMEOUT_MS)
        else:
            # Aborted, by the user or because it has been open for too long.
            self._user.close()
            self._user = self._outside.transactional_producer("a-user")
            self._user.init_transactions(TIMEOUT_MS)
        self._user_is_inside = False

    # The end.

    def settle(self) -> None:
        """Faults end; one node is master, and time passes until nothing is left."""
        self.is_quiet = True
        self.note("quiet")
        if self._user_is_inside:
            self._end_user_transaction(commit=True)
        for topic in TARGETS:
            self.kafka.refuse(topic, None)
        self.kafka.coordinator.flush_faults.clear()
        self.kafka.coordinator.commit_faults.clear()
        for node in self.nodes:
            node.bus.link.up = True
            node.clock.skew_ms = max(-450, min(450, node.clock.skew_ms))
            if not node.is_alive:
                node.start()
            node.resign()
        master = self.random.choice(self.nodes)
        master.lead(FOREVER_MS)
        for _ in range(QUIET_ROUNDS_MAX):
            master.ingest(1_000)
            master.advance()
            if master.mastership is None:
                master.lead(FOREVER_MS)
            self.time.now_ms += 20
            if self._has_passed(master, self._last_due_ms()):
                break
        for node in self.nodes:
            node.resign()
            node.ingest(10**6)
            node.follow()
            node.checkpoint()

    def _has_passed(self, master: Node, due_ms: int) -> bool:
        """Has the committed frontier passed all that the buffer holds?"""
        assert master.replica is not None and master.replica.newest is not None
        frontier = master.replica.newest.record.frontier
        return (
            frontier.offsets == master.replica.ingested and frontier.lowest_cursor.due_ms > due_ms
        )

    def _last_due_ms(self) -> int:
        last_ms = START_MS
        for log in self.kafka.topics["delayd-buffer"].partitions:
            for record in log.read(0, 10**9)[0]:
                headers = dict(record.headers)
                due = headers.get("delayd-next-due", headers.get("delayd-due"))
                last_ms = max(last_ms, record.append_ms, int(due or 0))
        return last_ms

    def close(self) -> None:
        """End every process."""
        for node in self.nodes:
            node.die()
