"""A whole run: three nodes, their brokers, etcd and users, from beginning to end.

faults for `FAULTS_US`  ->  quiet until all that is due was delivered, `SETTLE_US_MAX` at most
                        ->  every node is told to end, and does
"""

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from at_least_once_checker import AtLeastOnceChecker
from frontier_order import in_order
from kernel import SECOND_US, Kernel, MachineClock, Process
from log_rules import Step, joint_steps, step_of_fields
from pydantic import SecretStr
from simulation_checker import Checker, committed

from delayd.bus import Record
from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.cluster.topics import create_topics
from delayd.config.node import NodeConfig
from delayd.errors import ExitCode
from delayd.request.request import RequestLimits
from replication.record import decode, record_key
from replication.settings import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    LOCAL_TIME_RULES,
    NAMED_BY_CLUSTER,
    RULES_VERSION,
    SERIES_RULES,
    STEADY_RULES,
    WISHES_RULES,
)
from simulated.backlog import Backlog
from simulated.bus import Bell
from simulated.chaos import FREE_MIN_BYTES, HEAVY_BATCH, KINDS, Chaos
from simulated.differences import Differences
from simulated.etcd_away import lose_etcd
from simulated.hangs import hang_leaders, spread_leaders
from simulated.history import History, RecordedEtcd
from simulated.limiting import Limiters
from simulated.machine import Machine
from simulated.pausing import Pausers
from simulated.pulses import PORT, Pulses
from simulated.replaced_disks import ReplacedDisks
from simulated.resharding import Resharders
from simulated.switching import Switchers
from simulated.upkeep import Upkeep
from simulated.users import FAR_MS, TARGETS, Users, topic_in_lane_of
from simulated.weather import Habits, Weather
from simulated.witness import DEPOSED_US, Witness
from simulated.years import Years, slow_down

CLUSTER = "simulated"
CLUSTER_KEY = "the key of the simulated cluster"
RETRY_DELAYS_MS = (200, 900)
NODES = 3
RESHARDED = (1, 2, 4)
"""Numbers of shards that people choose."""
FAULTS_US = 15 * SECOND_US
SETTLE_US_MAX = 90 * SECOND_US
"""Faults are over: within this all that is due is delivered (liveness)."""
REST_US = 3 * SECOND_US
END_US_MAX = 60 * SECOND_US
ALONE_US_MAX = 300 * SECOND_US
DRIFT_PPM_MAX = 95
RATES: tuple[dict[str, int], ...] = (
    {},
    {"orders": 2, topic_in_lane_of("orders"): 1_500},
    {"orders": 15, "mails": 1},
    {"mails": 5, "calls": 3, "states": 1},
)
"""Of the targets: `rate_max`, the same on all nodes. Requests come in bursts, 20 a second."""


class World:
    """One run. `kinds`: the faults that it may draw from. Beside them zombie leaders (`zombies`),
    leaders that hang (`hangs`), disks that are short of room (`full_disks`), and an etcd that is
    away for long (`etcd_away`). With `pulses` nodes listen to their master, and at times hear what
    is not true.

    `days`: instead of some seconds, play so many days; nothing happens in most of them.
    """

    def __init__(
        self,
        seed: int,
        directory: Path,
        kinds: tuple[str, ...] = KINDS,
        guarantee: str = EXACTLY_ONCE,
        *,
        zombies: bool = False,
        hangs: bool = False,
        full_disks: bool = False,
        replaced_disks: bool = False,
        pulses: bool = False,
        etcd_away: bool = False,
        rules_version: int = RULES_VERSION,
        days: int = 0,
        switches: bool = False,
        differences: bool = False,
        moves: bool = False,
        pauses: bool = False,
        quotas: bool = False,
        debounces: bool = False,
        shards: int = 1,
        reshards: bool = False,
    ) -> None:
        """`switches`: the rules are switched from that version to the newest meanwhile.
        `differences`: wheels are changed, and nodes compare and repair theirs. `moves`: users give
        messages other due times. `pauses`: people pause targets and resume them. `quotas`: they
        limit what is pending for targets. `debounces`: users send messages of which the last one
        counts. `shards`: of the cluster. `reshards`: people give it others meanwhile."""
        self._pauses, self._quotas = pauses, quotas
        self._zombies = zombies
        self._hangs = hangs
        self._full_disks = full_disks
        self._replaces_disks = replaced_disks
        self._loses_etcd = etcd_away
        self._plants_differences = differences
        self._moves = moves
        self._debounces = debounces
        self.shards = shards
        chance = Random(f"{seed}: habits")
        self.seed = seed
        self.directory = directory
        self.guarantee = guarantee
        self.rules_version = rules_version
        self.history = History()
        self.habits = Habits.of(chance, kinds)
        self._reshards = reshards
        self.shards_max = max(shards, *RESHARDED) if reshards else shards
        if (most := self.shards_max) > 1:
            partitions = -(-self.habits.partitions // most) * most
            self.habits = replace(self.habits, partitions=partitions)
        self.days = days
        if days:
            self.habits = slow_down(self.habits, chance)
        if zombies:
            # A marker gets lost where there is one replica, and then no other broker can lead.
            self.habits = replace(self.habits, lost_marker=0)
        self.rates = Random(f"{seed}: rates").choice(RATES)
        self.kernel = Kernel(Random(f"{seed}: turns"))
        self.weather = Weather(self.kernel, Random(f"{seed}: weather"), self.habits, str(directory))
        self.broker_clock = self._clock(chance, 0)
        self.kafka = MemoryKafka(self.broker_clock, changed=Bell(self.kernel))
        self.upkeep = Upkeep(self.kafka)
        self.backlog = Backlog(self.kafka)
        self._create_topics()
        self.etcd = RecordedEtcd(
            self._clock(chance, 0), self.history, expiry_lag_ms=chance.choice([0, 300])
        )
        self.machines = [
            Machine(
                self.kernel,
                self.weather,
                self._config(number, directory),
                self.kafka,
                self.etcd,
                self._clock(chance, 400),
                self.history,
                is_coarse=HEAVY_BATCH in kinds and number > 0,
            )
            for number in range(NODES)
        ]
        self.witness = Witness(self.kernel, self.etcd, CLUSTER, self.shards_max)
        for machine in self.machines:
            self.witness.watch(machine)
        self.pulses: Pulses | None = None
        if pulses:
            moods = Random(f"{seed}: pulses")
            self.pulses = Pulses(self.kernel, self.weather, moods, self.machines)
            for machine in self.machines:
                machine.exchange = self.pulses.exchange_of(machine.name)
            self.weather.at_deposition = lambda: self.witness.excuse(DEPOSED_US)
        random = Random(f"{seed}: users")
        is_steady = switches or rules_version >= STEADY_RULES
        traces = Random(f"{seed}: traces") if is_steady else None
        has_wishes = switches or rules_version >= WISHES_RULES
        wishes = Random(f"{seed}: wishes") if has_wishes else None
        self.users = Users(
            *(self.kernel, self.kafka, random, self.habits.partitions, traces, wishes),
            has_series=(RULES_VERSION if switches else rules_version) >= SERIES_RULES,
            has_local_times=(RULES_VERSION if switches else rules_version) >= LOCAL_TIME_RULES,
        )
        self.chaos = Chaos(
            self.kernel,
            self.weather,
            Random(f"{seed}: chaos"),
            self.machines,
            self.kafka,
            self.etcd,
            self.broker_clock,
            self.witness,
            self.users.burst,
            leaps=is_steady,
        )
        self.soon_ms = FAR_MS // 2
        """What is due later is far away: no run waits for it."""
        self.switchers = Switchers(
            self.kernel,
            self.weather,
            Random(f"{seed}: switch"),
            self.kafka,
            CLUSTER_KEY,
            RULES_VERSION,
        )
        self.pausers = Pausers(
            self.kernel,
            self.weather,
            Random(f"{seed}: pauses"),
            self.kafka,
            self._limits(),
            [*TARGETS],
        )
        self.limiters = Limiters(
            self.kernel,
            self.weather,
            Random(f"{seed}: quotas"),
            self.kafka,
            self._limits,
            [*TARGETS],
        )
        self.resharders = Resharders(
            self.kernel,
            self.weather,
            Random(f"{seed}: reshards"),
            self.kafka,
            self.broker_clock,
            self.history,
            RESHARDED,
        )
        self._switches = switches
        self.differences = Differences(self.kernel, self.weather, self.machines)
        self._outside = self.weather.brokers = self.kernel.process("outside")
        self._is_ending = False

    def _create_topics(self) -> None:
        create_topics(
            MemoryBus(self.kafka),
            cluster=CLUSTER,
            cluster_key=CLUSTER_KEY,
            partitions=self.habits.partitions,
            retry_delays_ms=RETRY_DELAYS_MS,
            id_memory_ms=self.habits.id_memory_ms,
            guarantee=self.guarantee,
            max_delay_ms=self.habits.max_delay_ms,
            naming=NAMED_BY_CLUSTER,  # as the digests of earlier seeds have it
            rules_version=self.rules_version,
            shards=self.shards,
        )
        for topic, (partitions, config) in TARGETS.items():
            self.kafka.create_topic(topic, partitions, config)
        if self._hangs:
            spread_leaders(self.kafka)

    def _limits(self) -> RequestLimits:
        seen = self.kafka.log("delayd-frontier", 0).read(0, 10**9)[0]
        settings = decode([r.value or b"" for r in seen if r.key == record_key(0)][-1]).settings
        return RequestLimits.of(settings, CLUSTER_KEY.encode())

    def judge(self) -> Checker | AtLeastOnceChecker:
        """Return the judge of this run, by its cluster's guarantee."""
        if self.guarantee == AT_LEAST_ONCE:
            return AtLeastOnceChecker(self.checker(), self.history)
        return self.checker()

    def checker(self) -> Checker:
        """Return the checker of this run, once it has ended."""
        return Checker(
            self.kafka,
            self.chaos.refused,
            brokers_stepped_back_ms=self.chaos.stepped_back_ms[self.broker_clock],
            nodes_stepped_back_ms=max(self.chaos.stepped_back_ms[m.clock] for m in self.machines),
            id_memory_ms=self.habits.id_memory_ms,
            due_by_ms=self.kafka.clock.wall_ms(),
            rules_version=self.rules_version,
            ignores_repeats=self.guarantee == AT_LEAST_ONCE,
            rates=self.rates,
            gone=self.upkeep.gone,
            barriers=self.switchers.written,
            orders=self.pausers.written,
            quotas=self.limiters.written,
        )

    def records(self, topic: str) -> list[Record]:
        """Return the committed records of a topic."""
        return committed(self.kafka, topic, self.upkeep.gone)

    @property
    def trace(self) -> list[str]:
        """Return what happened, a line each."""
        return self.weather.trace

    def run(self) -> None:
        """Let anything happen, then heal everything and wait until what is due is delivered."""
        self._start()
        self._outside.spawn("transactions", self.chaos.watch_transactions)
        self._outside.spawn("users", self.users.run)
        if self.rules_version >= STEADY_RULES:
            chance = Random(f"{self.seed}: doubts")
            self._outside.spawn("doubts", lambda: self.users.doubt(chance))
        if self._moves:
            whims = Random(f"{self.seed}: moves")
            self._outside.spawn("moves", lambda: self.users.move(whims))
        if self._debounces:
            nerves = Random(f"{self.seed}: debounces")
            self._outside.spawn("debounces", lambda: self.users.debounce(nerves))
        self._outside.spawn("chaos", self.chaos.run)
        if self._zombies:
            luck = Random(f"{self.seed}: zombies")
            self._outside.spawn("zombies", lambda: self.chaos.make_zombies(luck))
        if self._hangs:
            parts = self.kernel, self.weather, self.kafka, self.chaos
            moods = Random(f"{self.seed}: hangs")
            self._outside.spawn("hangs", lambda: hang_leaders(*parts, moods))
        if self._full_disks:
            filling = Random(f"{self.seed}: full disks")
            self._outside.spawn("full disks", lambda: self.chaos.fill_disks(filling))
        if self._loses_etcd:
            ways = self.kernel, self.weather, self.etcd, self.machines, self.chaos, self.witness
            losing, keeps = Random(f"{self.seed}: etcd"), self.guarantee == AT_LEAST_ONCE
            self._outside.spawn("etcd", lambda: lose_etcd(*ways, losing, may_be_emptied=not keeps))
        if self._replaces_disks:
            there = self.kernel, self.weather, self.machines, self.newest_step
            disks = ReplacedDisks(*there, self.differences.planted)
            of_disks = Random(f"{self.seed}: disks")
            self._outside.spawn("disks", lambda: disks.run(of_disks))
        if self._plants_differences:
            self.users.far_share = 0.2
            planting = Random(f"{self.seed}: differences")
            self._outside.spawn("differences", lambda: self.differences.run(planting))
        if self._switches:
            self._outside.spawn("switchers", self.switchers.run)
        if self._reshards:
            self._outside.spawn("resharders", self.resharders.run)
        if self._pauses:
            self._outside.spawn("pausers", self.pausers.run)
        if self._quotas:
            self._outside.spawn("limiters", self.limiters.run)
        if self.days:
            Years(self).pass_days(self.days)
        else:
            self.let_pass(FAULTS_US)
        self.settle()
        if self._switches:
            self._check_switched()
        self._end()
        if self._plants_differences:
            self.differences.check(may_lack_room=self._full_disks)

    def pass_until(self, condition: Callable[[], bool]) -> None:
        """Run the nodes alone, without users or faults, for five minutes at most; not `run`."""
        self._start()
        while not condition():
            assert self.kernel.now_us < ALONE_US_MAX, "it does not come true"
            self.let_pass(SECOND_US // 10)

    def newest_step(self) -> Step:
        """Return the last committed frontier, of all shards."""
        records = in_order(committed(self.kafka, "delayd-frontier"))
        steps = [step_of_fields(json.loads(record.value or b"")) for record in records]
        return joint_steps(steps)[-1][1]

    def close(self) -> None:
        """End every process."""
        for process in (*(machine.process for machine in self.machines), self._outside):
            if isinstance(process, Process):
                self.kernel.kill(process)

    def _start(self) -> None:
        for machine in self.machines:
            self._outside.spawn(machine.name, self._supervisor(machine))

    def let_pass(self, us: int) -> None:
        """Let everything happen for a while; raise what is a bug of a node."""
        self.kernel.run(self.kernel.now_us + us)
        for machine in self.machines:
            if machine.bug is not None:
                raise machine.bug

    def settle(self) -> None:
        """End the faults, and let time pass until nothing is left to do."""
        self.weather.note("quiet")
        self.weather.is_quiet = True
        self.users.is_done = True
        self.chaos.heal_all()
        self.let_pass(3 * SECOND_US)  # A user may still end a transaction.
        self.chaos.heal_all()
        self.switchers.is_done = True
        self.pausers.is_done = self.limiters.is_done = self.resharders.is_done = True
        if self._switches:
            self._outside.spawn("last switch", self.switchers.finish)
        until_us = self.kernel.now_us + SETTLE_US_MAX
        lives: list[int] = []
        # A node that was frozen when it was told to end does so later, and comes back.
        while lives != [machine.lives for machine in self.machines]:
            while not self.is_settled():
                assert self.kernel.now_us < until_us, "what is due is not delivered"
                self.let_pass(SECOND_US // 2)
            lives = [machine.lives for machine in self.machines]
            # All read what was written last, and what may be forgotten is forgotten: a node that
            # has just begun remembers no frontier from before, and an idle master seldom writes
            # one.
            hold_ms = min(3_000, self.habits.export_hold_ms)
            self.let_pass((hold_ms + self.forget_ms) * 1_000)
            if not all(machine.is_up for machine in self.machines):
                lives = []

    def _check_switched(self) -> None:
        """Check that people who repeat a switch complete it, whoever was killed before."""
        switched = {
            partition for (partition, _), is_true in self.switchers.written.items() if is_true
        }
        assert switched == set(range(self.habits.partitions)), f"only {switched} are switched"

    @property
    def forget_ms(self) -> int:
        """Return how long after `export_hold` a covered slot may still be there."""
        return 2 * self.habits.idle_step_ms + self.habits.checkpoint_ms + 3_000

    def is_settled(self) -> bool:
        """Return whether the committed frontier has passed all that is due in the buffer."""
        # A node whose call was stuck may be about to end; one that was frozen forgets late.
        still_until_us = max(self.weather.stuck_until_us, self.weather.frozen_until_us)
        is_at_rest = self.kernel.now_us > still_until_us + REST_US
        if not is_at_rest or not all(machine.is_up or machine.is_held for machine in self.machines):
            return False
        frontier = self.newest_step()
        last = self.backlog.last_offsets()
        if any(offset >= frontier.offsets[number] for number, offset in last.items()):
            return False
        if self._switches and self.switchers.left:
            return False
        if self._reshards and not self.resharders.is_settled:
            return False
        if self._plants_differences and not self.differences.is_over():
            return False
        if frontier.fields.get("holds"):
            return False
        return min(frontier.cursors)[0] > self.last_due_ms()

    def last_due_ms(self) -> int:
        """Return the latest due time except those that are far away."""
        return self.backlog.last_due_ms(self.kafka.clock.wall_ms() + self.soon_ms)

    def _end(self) -> None:
        """Send SIGTERM to all; each exits with FINE."""
        self.weather.note("end")
        self._is_ending = True
        for machine in self.machines:
            assert machine.loop is not None, "every node was started"
            machine.exits.clear()
            machine.loop.deliver(signal.SIGTERM)
        until_us = self.kernel.now_us + END_US_MAX
        while any(machine.is_up for machine in self.machines):
            assert self.kernel.now_us < until_us, "a node does not end"
            self.let_pass(SECOND_US)
        exits = [machine.exits for machine in self.machines]
        assert exits == [[ExitCode.FINE]] * NODES, exits

    def _supervisor(self, machine: Machine) -> Any:
        chance = Random(f"{self.seed}: {machine.name}")

        def supervise() -> None:
            self.kernel.sleep(chance.randrange(500_000))
            while not self._is_ending:
                if machine.is_held:
                    self.kernel.sleep(SECOND_US)
                    continue
                machine.start().wait()
                if self.days and machine.has_refused:
                    machine.is_held = True
                self.kernel.sleep(int(100_000 * 50 ** chance.random()))

        return supervise

    def _clock(self, chance: Random, skew_ms_max: int) -> MachineClock:
        return MachineClock(
            self.kernel,
            skew_ms=chance.randint(-skew_ms_max, skew_ms_max),
            drift_ppm=chance.randint(-DRIFT_PPM_MAX, DRIFT_PPM_MAX),
            up_us=chance.randrange(10**12),
            phase_us=chance.randrange(1_000),
        )

    def _config(self, number: int, directory: Path) -> NodeConfig:
        habits = self.habits
        return NodeConfig(
            cluster=CLUSTER,
            node=f"node-{number}",
            admin_advertised=f"node-{number}:{PORT}",
            bootstrap="simulated:9092",
            etcd=("http://simulated:2379",),
            cluster_key=SecretStr(CLUSTER_KEY),
            data_dir=directory / str(number),
            export_hold_s=habits.export_hold_ms / 1_000,
            checkpoint_interval_ms=habits.checkpoint_ms,
            idle_step_interval_ms=habits.idle_step_ms,
            step_records_max=habits.step_records_max,
            rate_max=self.rates,
            disk_free_min_bytes=FREE_MIN_BYTES,
            connect_timeout_s=5,
        )
