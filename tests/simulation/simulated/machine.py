"""A machine: what outlives the processes of one node, and how these are started.

A process is the real node: `run_node_in` on an event loop of its own. When it has ended, however,
its supervisor starts the next one, as an init system does.
"""

from collections.abc import Callable
from pathlib import Path

from kernel import Kernel, MachineClock, Process, SimulatedLoop, SimulatedThreads
from kernel.threads import SimulatedEvent

from delayd.bus.memory import MemoryKafka
from delayd.bus.memory.link import Link
from delayd.config.node import NodeConfig
from delayd.coordination.memory import MemoryEtcd
from delayd.errors import (
    BufferPositionError,
    DelaydError,
    DiskError,
    DiskFullError,
    ExitCode,
    FrontierError,
    KafkaUnreachableError,
    ShardsChangedError,
    WheelDiffersError,
)
from delayd.node.monitoring.node_view import NodeView
from delayd.node.node import run_node_in
from delayd.node.surroundings import Surroundings
from delayd.wheel.aside import repair_note
from delayd.wheel.reserve import Reserve
from delayd.wheel.storage import Wheel
from simulated.bus import SimulatedBus
from simulated.disk import Platter, SimulatedDisk
from simulated.etcd import SimulatedCoordination
from simulated.history import History
from simulated.pulses import SimulatedExchange
from simulated.weather import Weather, Wire

OWN_LEASES = 1_000_000


class Doorless:
    """In place of the admin port: nobody calls."""

    def __init__(self, threads: SimulatedThreads, loop: SimulatedLoop) -> None:
        self._told = threads.event()
        self._loop = loop

    @property
    def should_exit(self) -> bool:
        """Return whether it was told to end."""
        return self._told.is_set()

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        self._told.set()

    async def serve(self) -> None:
        """Serve until told to end."""
        await self._loop.run_in_executor(None, self._told.wait)


class Machine:
    """One machine and the node on it. `start` begins its next life."""

    def __init__(
        self,
        kernel: Kernel,
        weather: Weather,
        config: NodeConfig,
        kafka: MemoryKafka,
        etcd: MemoryEtcd,
        clock: MachineClock,
        history: History,
        *,
        is_coarse: bool = False,
    ) -> None:
        """`is_coarse`: its driver takes batches as librdkafka does."""
        self._is_coarse = is_coarse
        self.name = config.node
        self.clock = clock
        self.link = Link()
        self.platter = Platter()
        self.process: Process | None = None
        self.loop: SimulatedLoop | None = None
        self.coordination: SimulatedCoordination | None = None
        self.lives = 0
        self.is_held = False
        """True while its node must not be started: it is away, or a person works at its disk."""
        self.has_refused = False
        """Did the last process find that its disk and the log do not fit together?"""
        self.known_from_ms = 0
        """What was due before, and its ids, its node need not know: it was rebuilt from a log whose
        beginning had been trimmed. 0 if it knows all."""
        self.is_cut_from_etcd = self.is_deaf_to_etcd = False
        self.is_dark = False
        """True from a loss of power until its node is started again."""
        self.exchange: SimulatedExchange | None = None
        """Its way to the other nodes' pulses, if there are any."""
        self._own_etcd: MemoryEtcd | None = None
        self.exits: list[ExitCode | str] = []
        """What became of processes that ended by themselves: a code, or an error's."""
        self.bug: BaseException | None = None
        """What no node may end with, or do."""
        self.after_call: Callable[[], None] = lambda: None
        """Called after each call to etcd."""
        self.after_stuck: Callable[[], None] = lambda: None
        """Called when a call to a broker that was stuck goes on."""
        self._view: NodeView | None = None
        self._kernel = kernel
        self._weather = weather
        self._config = config
        self._kafka = kafka
        self._etcd = etcd
        self._history = history

    @property
    def is_up(self) -> bool:
        """Return whether a process of the node runs."""
        return self.process is not None and not self.process.is_dead

    @property
    def view(self) -> NodeView | None:
        """Return what runs there; None while it is started or down."""
        return self._view if self.is_up else None

    @property
    def data_dir(self) -> Path:
        """Return where its wheel lies."""
        return self._config.data_dir

    @property
    def nonce(self) -> str:
        """Return the nonce of the life that began last."""
        return f"life-{self.lives}"

    @property
    def is_split(self) -> bool:
        """Return whether an etcd of its own answers it."""
        return self._own_etcd is not None

    @property
    def has_live_grant(self) -> bool:
        """Return whether a delivery of it has a lease, by its own clock."""
        return bool(self.granted)

    @property
    def granted(self) -> list[int]:
        """Return the shards whose deliveries have a lease, by its own clock."""
        if self._view is None or not self.is_up:
            return []
        now_ms = self.clock.monotonic_ms()
        return [
            shard
            for shard, loop in enumerate(self._view.delivery.loops)
            if loop._mastership is not None
            and (grant := loop._grant) is not None
            and grant.has_lease(now_ms)
        ]

    def start(self) -> SimulatedEvent:
        """Start a new process. The event is set when it has ended."""
        assert not self.is_up, f"{self.name} runs already"
        self.lives += 1
        self.has_refused = self.is_dark = False
        self._view = None
        process = self.process = self._kernel.process(f"{self.name}.{self.lives}")
        self._weather.note(f"{process.name} starts")
        self.loop = SimulatedLoop(process)
        wire = Wire(self._weather, process)
        wire.after_stuck = self.after_stuck
        process.spawn("main", lambda: self._main(process, wire))
        ended = SimulatedEvent(self._kernel)
        process.at_death.append(ended.set)
        return ended

    def cut_from_etcd(self, is_cut: bool) -> None:
        """Let no call to etcd arrive, in this life and the next ones."""
        self.is_cut_from_etcd = is_cut
        self._set_way_to_etcd()

    def deafen_to_etcd(self, is_deaf: bool) -> None:
        """Let every call to etcd arrive and no answer come back, in this life and the next ones."""
        self.is_deaf_to_etcd = is_deaf
        self._set_way_to_etcd()

    def _set_way_to_etcd(self) -> None:
        if (way := self.coordination) is None:
            return
        way.heal()
        if self.is_cut_from_etcd:
            way.partition()
        if self.is_deaf_to_etcd:
            way.deafen()

    def split_from_etcd(self, is_split: bool) -> None:
        """Let a server of its own answer, to which all is new: whoever campaigns there has won."""
        # Leases of two servers have nothing in common, their ids neither.
        ids = OWN_LEASES * (1 + self.lives)
        self._own_etcd = MemoryEtcd(self.clock, leases_before=ids) if is_split else None
        if self.coordination is not None:
            self.coordination.ask(self._own_etcd or self._etcd)

    def _main(self, process: Process, wire: Wire) -> None:
        loop = self.loop
        assert loop is not None, "a process has a loop"
        disk = SimulatedDisk(self.platter, wire, self._weather)
        surroundings = self._surroundings(process, wire, loop, disk)
        bus = surroundings.open_bus(None)
        try:
            code = loop.run_main(run_node_in(surroundings, self._config, bus))
            self.exits.append(code)
            self._weather.note(f"{process.name} exits: {code.name}")
            assert not disk.has_failed, f"{process.name} went on over a disk that failed"
        except DelaydError as error:
            self.exits.append(error.code)
            self.has_refused = isinstance(error, BufferPositionError)
            self._weather.note(f"{process.name} exits: {error.code}: {error}")
            if not self._may_end_with(error, disk):
                self.bug = error
        except Exception as error:
            self.bug = error
        self._kernel.kill(process)

    def _may_end_with(self, error: DelaydError, disk: SimulatedDisk) -> bool:
        """Return whether an injected fault, rather than a defect, explains this end."""
        if isinstance(error, FrontierError):
            # A transaction that somebody else left open is taken for a lost commit marker; and a
            # node that is led to zombie leaders ends if it knows more than they do.
            is_stale = self.link.meets_zombies and "has already acted on" in str(error)
            return is_stale or "stays behind" in str(error)
        if isinstance(error, DiskError):
            # Only a new node needs room to start.
            is_new = not (self._config.data_dir / "format.json").exists()
            return disk.has_failed or (is_new and isinstance(error, DiskFullError))
        if isinstance(error, WheelDiffersError):
            return repair_note(self.data_dir) is not None
        ends = KafkaUnreachableError | BufferPositionError | ShardsChangedError
        return isinstance(error, ends)

    def _surroundings(
        self, process: Process, wire: Wire, loop: SimulatedLoop, disk: SimulatedDisk
    ) -> Surroundings:
        threads = SimulatedThreads(process, wire.stumble)

        def open_wheel(folder: Path, partitions: int) -> Wheel:
            disk.write_of_leveldb(folder)
            habits = self._weather.habits
            wheel = Wheel.open(
                folder,
                partitions=partitions,
                disk=disk,
                horizon_s=habits.horizon_s,
                sparse_bytes_max=habits.sparse_bytes_max,
            )
            # An operating system closes what a dead process had open, LevelDB's lock too.
            process.at_death.insert(0, wheel.close)
            return wheel

        def open_admin(view: NodeView) -> Doorless:
            self._view = view
            if view.replica.began and view.replica.wheel.progress is None:
                assert view.frontier is not None, "a node has read a frontier when it starts"
                self.known_from_ms = view.frontier.lowest_cursor.due_ms
                self._weather.inject("rebuilt after a trim", process.name)
            return Doorless(threads, loop)

        self.coordination = SimulatedCoordination(
            self._own_etcd or self._etcd,
            self._config.cluster,
            wire,
            self._weather,
            self._history,
            self.after_call,
        )
        self._set_way_to_etcd()
        return Surroundings(
            clock=self.clock,
            coordination=self.coordination,
            open_bus=lambda largest: SimulatedBus(
                self._kafka,
                self.link,
                self.clock,
                wire,
                self._weather,
                self._history,
                largest,
                is_coarse=self._is_coarse,
            ),
            open_admin=open_admin,
            open_wheel=open_wheel,
            open_reserve=lambda folder, limit_bytes: Reserve(disk, str(folder), limit_bytes),
            threads=threads,
            new_nonce=lambda: self.nonce,
            exchange=self.exchange,
        )
