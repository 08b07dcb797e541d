"""The faults of a run: one after the other, each ended after a while.

`KINDS` names them; a run uses some of them only (`Habits.kinds`). Each is counted by its name.
"""

import signal
from collections import Counter
from collections.abc import Callable
from random import Random

from kernel import Kernel, MachineClock

from delayd.bus import Headers
from delayd.bus.memory import MemoryKafka
from delayd.coordination.memory import MemoryEtcd, Outcome
from simulated.bus import BATCH_BYTES_MAX, FRONTIER
from simulated.disk import FREE_BYTES
from simulated.machine import Machine
from simulated.users import TARGETS, USER
from simulated.weather import WITHIN_CALLS, Weather
from simulated.witness import Witness

DRIFT_MAX_MS = 500
HOUR_MS = 3_600_000
LEAP_US_MAX = 1_500_000
HEALED_SKEW_MS_MAX = 200
"""So that no two clocks are too far apart when faults are over."""
OWN_TOPICS = ("delayd-buffer", FRONTIER, "delayd-dead", "delayd-receipts")
TRANSACTION_CHECK_US = 1_000_000
ZOMBIES_EVERY_US = 2_000_000
ZOMBIES_US_MAX = 8_000_000
"""How long a broker may be cut off from the controller before it hears of it."""

FREE_MIN_BYTES = 8 << 20
"""The nodes' `disk_free_min_bytes`."""
FREE_LEVELS = tuple(FREE_MIN_BYTES * part // 16 for part in (18, 15, 6, 3, 1, 0))
"""Of a disk that is short: one for each thing that a node does not do any more."""
FULL_EVERY_US = 2_000_000
FULL_US_MAX = 8_000_000


class Chaos:
    """A task that breaks things, and what it has broken."""

    def __init__(
        self,
        kernel: Kernel,
        weather: Weather,
        chance: Random,
        machines: list[Machine],
        kafka: MemoryKafka,
        etcd: MemoryEtcd,
        broker_clock: MachineClock,
        witness: Witness,
        burst: Callable[[], None],
        *,
        leaps: bool = False,
    ) -> None:
        """`leaps`: the clock of a broker that leads a part of the buffer may be hours ahead."""
        self._leaps = leaps
        self._kernel = kernel
        self._weather = weather
        self._chance = chance
        self._machines = machines
        self._kafka = kafka
        self._etcd = etcd
        self._broker_clock = broker_clock
        self._witness = witness
        self._burst = burst
        """Users send what is due soon."""
        weather.mend = lambda: self._mend(FRONTIER)
        self._broken: dict[int, Callable[[], None]] = {}
        self._count = 0
        self.is_done = False
        self.refused: set[str] = set()
        """Targets that did not take records at any time."""
        self.stepped_back_ms: Counter[MachineClock] = Counter()
        """By how much each clock was set back, all in all."""
        self.lives_taken: set[str] = set()

    def run(self) -> None:
        """Break something now and then, until told to stop; as a task."""
        weather = self._weather
        kinds = [kind for kind in weather.habits.kinds if kind not in WITHIN_CALLS]
        while not self.is_done:
            mean_us = weather.habits.fault_every_ms * 1_000
            self._kernel.sleep(self._chance.randrange(2 * mean_us))
            if kinds and not self._weather.is_quiet:
                FAULTS[self._chance.choice(kinds)](self)

    def watch_transactions(self) -> None:
        """Abort transactions that are open for too long, as brokers do; as a task."""
        while True:
            self._kernel.sleep(TRANSACTION_CHECK_US)
            for name in self._kafka.expire_transactions():
                self._weather.inject("transaction expired", name)

    def make_zombies(self, chance: Random) -> None:
        """Cut one broker after the other off from the controller, with what it leads; as a task.

        By a stream of its own: seeds without zombies stay as they are.
        """
        while not self.is_done:
            self._kernel.sleep(chance.randrange(2 * ZOMBIES_EVERY_US))
            if self.is_done:
                return
            if self._weather.is_quiet:
                continue
            led = [
                (topic, log.number)
                for topic in (*TARGETS, *OWN_TOPICS)
                for log in self._kafka.topics[topic].partitions
                if chance.random() < (0.8 if topic == FRONTIER else 0.3)
            ]
            for topic, number in led:
                self._kafka.isolate_leader(topic, number)
            for machine in self._machines:
                machine.link.meets_zombies = chance.random() < 0.3
            self._weather.inject("zombie leader", " ".join(f"{topic}/{n}" for topic, n in led))
            self._kernel.sleep(chance.randrange(ZOMBIES_US_MAX))
            self._end_zombies()

    def _end_zombies(self) -> None:
        for machine in self._machines:
            machine.link.meets_zombies = False
        self._kafka.end_zombies()

    def fill_disks(self, chance: Random) -> None:
        """Let the disks of all machines, or of one, be short of room for a while; as a task.

        By a stream of its own, as zombies are.
        """
        while not self.is_done:
            self._kernel.sleep(chance.randrange(2 * FULL_EVERY_US))
            if self.is_done:
                return
            if self._weather.is_quiet:
                continue
            machines = self._machines if chance.random() < 0.6 else [chance.choice(self._machines)]
            free_bytes = chance.choice(FREE_LEVELS)
            for machine in machines:
                machine.platter.free_bytes = free_bytes
            names = " ".join(machine.name for machine in machines)
            self._weather.inject("disk short of room", f"{names}: {free_bytes} bytes are free")
            self._kernel.sleep(chance.randrange(FULL_US_MAX))
            self._empty_disks()

    def _empty_disks(self) -> None:
        for machine in self._machines:
            machine.platter.free_bytes = FREE_BYTES

    def heal_all(self) -> None:
        """End every fault that lasts, and begin no other one."""
        self.is_done = True
        self.heal()

    def heal(self) -> None:
        """End every fault that lasts."""
        self._empty_disks()
        self._end_zombies()
        self._kafka.end_hangs()
        self._etcd.resume()
        for number in list(self._broken):
            self._heal(number)
        self._kafka.coordinator.flush_faults.clear()
        self._kafka.coordinator.commit_faults.clear()
        self._kafka.coordinator.lost_markers.clear()
        self._etcd.apply_late()
        for machine in self._machines:
            machine.platter.syncs_to_fail = 0
            machine.deafen_to_etcd(False)
            machine.cut_from_etcd(False)
        for clock in (self._broker_clock, *(machine.clock for machine in self._machines)):
            self._set(clock, max(-HEALED_SKEW_MS_MAX, min(HEALED_SKEW_MS_MAX, clock.skew_ms)))
        self._mend("delayd-buffer")

    def _mend(self, topic: str) -> None:
        """Write the markers that were lost, as a person does with Kafka's tools."""
        holders = self._kafka.coordinator.holders.values()
        touched = {(h.producer_id, where) for h in holders for where in h.touched}
        for log in self._kafka.topics[topic].partitions:
            for producer_id in list(log.open):
                if (producer_id, (topic, log.number)) not in touched:
                    log.write_marker(producer_id, commit=True)
        with self._kafka.changed:
            self._kafka.changed.notify_all()

    def _last(self, heal: Callable[[], None], longest_us: int) -> None:
        """Let what was just broken last for a while."""
        self._count += 1
        number = self._count
        self._broken[number] = heal
        lasts_us = int(longest_us * self._chance.random() ** 2)
        self._weather.at_brokers(f"heal-{number}", lasts_us, lambda: self._heal(number))

    def _heal(self, number: int) -> None:
        heal = self._broken.pop(number, None)
        if heal is not None:
            heal()

    def _machine(self) -> Machine:
        # A master that is stuck is left alone: it must let its lease go by itself.
        stuck = self._weather.stuck if self._weather.is_stuck else None
        return self._chance.choice(
            [m for m in self._machines if m.process is not stuck or stuck is None]
        )

    # Processes and machines.

    def kill(self) -> None:
        machine = self._machine()
        if machine.process is not None and machine.is_up:
            self._weather.inject("kill", machine.name)
            self._kernel.kill(machine.process)

    def power(self) -> None:
        machine = self._machine()
        if machine.process is not None and machine.is_up:
            # Only after the process was buried: its files are closed then.
            platter, weather = machine.platter, self._weather
            machine.process.at_death.append(
                lambda: weather.note(f"{platter.lose_power(self._chance)} files changed")
            )
            weather.inject("power loss", machine.name)
            machine.is_dark = True
            self._kernel.kill(machine.process)

    def terminate(self) -> None:
        machine = self._machine()
        if machine.loop is not None and machine.is_up:
            self._weather.inject("SIGTERM", machine.name)
            machine.loop.deliver(signal.SIGTERM)

    def freeze(self) -> None:
        machine = self._machine()
        if machine.process is not None and machine.is_up:
            us = int(50_000 * 120 ** self._chance.random())
            self._weather.inject("SIGSTOP", f"{machine.name} for {us // 1_000} ms")
            self._kernel.pause(machine.process, us)

    def fill_disk(self) -> None:
        platter = self._machine().platter
        self._weather.inject("ENOSPC", "")
        platter.free_bytes = 0
        self._last(lambda: setattr(platter, "free_bytes", FREE_BYTES), 3_000_000)

    def fail_sync(self) -> None:
        self._weather.inject("EIO", "")
        self._machine().platter.syncs_to_fail = 1

    # Clocks.

    def jump(self) -> None:
        machine = self._machine()
        self._jump(machine.clock, machine.name, "clock jump")

    def lose_time(self, machine: Machine, by_ms: int) -> None:
        """Let the wall clock of a machine be off by days, for a while."""
        self._set(machine.clock, by_ms)
        self._weather.inject("clock days off", f"{machine.name}: {by_ms} ms")
        self._last(lambda: self._set(machine.clock, 0), 3_000_000)

    def jump_brokers(self) -> None:
        if self._leaps and self._chance.random() < 0.5:
            self._leap()
            return
        self._jump(self._broker_clock, "brokers", "broker clock jump")

    def _leap(self) -> None:
        """Let one partition of the buffer be stamped hours to a day ahead, for a while. What is
        overdue by that clock is due when it comes, which is after the run."""
        log = self._chance.choice(self._kafka.topics["delayd-buffer"].partitions)
        log.ahead_ms = self._chance.choice([1, 3, 24]) * HOUR_MS
        self._weather.inject("broker clock leap", f"buffer/{log.number}: {log.ahead_ms} ms ahead")
        self._last(lambda: setattr(log, "ahead_ms", 0), LEAP_US_MAX)

    def _jump(self, clock: MachineClock, whose: str, kind: str) -> None:
        before_ms = clock.skew_ms
        self._set(clock, self._chance.choice([-1_500, -450, -200, 0, 200, 450, 1_500]))
        self._weather.inject(kind, f"{whose}: {before_ms} to {clock.skew_ms} ms")
        if abs(clock.skew_ms) > DRIFT_MAX_MS:
            self._last(lambda: self._set(clock, 0), 3_000_000)
        elif clock.skew_ms < before_ms:
            # What has been reached already comes again: then something should arrive.
            for _ in range(2):
                us = self._chance.randrange(before_ms - clock.skew_ms) * 1_000
                self._weather.at_brokers("burst", us, self._burst)

    def _set(self, clock: MachineClock, skew_ms: int) -> None:
        self.stepped_back_ms[clock] += max(0, clock.skew_ms - skew_ms)
        clock.skew_ms = skew_ms

    # etcd.

    def cut_etcd(self) -> None:
        machine = self._machine()
        self._weather.inject("etcd partition", machine.name)
        machine.cut_from_etcd(True)
        self._last(lambda: machine.cut_from_etcd(False), 8_000_000)

    def pause_etcd(self) -> None:
        self._weather.inject("etcd paused", "")
        self._etcd.pause()
        self._last(self._etcd.resume, 6_000_000)

    def change_etcd_leader(self) -> None:
        self._weather.inject("etcd leader change", "")
        self._etcd.change_leader()
        self._witness.note_extended()

    def split_etcd(self) -> None:
        """Let several nodes be master at once, and go on being so: only the fence is left."""
        machine = self._machine()
        self._weather.inject("etcd split", machine.name)
        machine.split_from_etcd(True)
        self._last(lambda: self._join_etcd(machine), 9_000_000)

    def _join_etcd(self, machine: Machine) -> None:
        machine.split_from_etcd(False)
        self._witness.excuse()

    def end_leases(self) -> None:
        """Let two nodes be master at once for a while: etcd is no fence."""
        if self._weather.is_stuck:
            return
        self._weather.inject("leases ended", "")
        self._etcd.end_leases()
        self._witness.excuse()

    def lose_etcd_answers(self) -> None:
        machine = self._machine()
        outcome = self._chance.choice(list(Outcome))
        self._weather.inject(f"etcd answer lost, {outcome.value}", machine.name)
        if machine.coordination is not None:
            machine.coordination.fail_next(outcome, self._chance.choice([1, 1, 4]))
        if outcome is Outcome.LATE:
            self._last(self._etcd.apply_late, 4_000_000)

    # Kafka.

    def cut_kafka(self) -> None:
        machine = self._machine()
        self._weather.inject("Kafka partition", machine.name)
        machine.link.up = False
        self._last(lambda: setattr(machine.link, "up", True), 5_000_000)

    def refuse(self) -> None:
        topic = self._chance.choice(list(TARGETS))
        code = self._chance.choice(["TOPIC_AUTHORIZATION_FAILED", "INVALID_RECORD"])
        self._weather.inject("target refused", f"{topic}: {code}")
        self._kafka.refuse(topic, code)
        self.refused.add(topic)
        self._last(lambda: self._kafka.refuse(topic, None), 3_000_000)

    def lose_leader(self) -> None:
        topic = self._chance.choice([*TARGETS, *OWN_TOPICS])
        log = self._chance.choice(self._kafka.topics[topic].partitions)
        self._weather.inject("no leader", f"{topic}/{log.number}")
        log.leader = None
        self.refused.add(topic)

        def elect() -> None:
            log.leader = 1
            log.elect()

        self._last(elect, 3_000_000)

    def elect(self) -> None:
        topic = self._chance.choice([*TARGETS, *OWN_TOPICS])
        log = self._chance.choice(self._kafka.topics[topic].partitions)
        self._weather.inject("leader change", f"{topic}/{log.number}")
        log.elect()

    def hold_markers(self) -> None:
        self._weather.inject("slow markers", "")
        self._kafka.hold_markers()
        self._last(self._kafka.release_markers, 2_000_000)

    def lose_marker(self) -> None:
        """Lose a user's transaction marker: it hides what is behind it in the buffer until the
        user writes again."""
        self._weather.inject("lost marker", "")
        partitions = len(self._kafka.topics["delayd-buffer"].partitions)
        self._kafka.lose_next_marker("delayd-buffer", self._chance.randrange(partitions), USER)

    def write_stray(self) -> None:
        """Write a record to the frontier topic that is no frontier by its key, though it may be by
        its value."""
        log = self._kafka.log(FRONTIER, 0)
        forged = self._chance.choice(log.read(0, 10**9)[0]).value
        key = self._chance.choice([b"orders-17", b"shard-1", b""])
        if log.leader is not None and not log.hangs:
            offset = self._kafka.append(FRONTIER, 0, key, self._chance.choice([b"", forged]))[1]
            self._weather.inject(STRAY, f"{FRONTIER}/0 {offset}")

    def write_heavy_batch(self) -> None:
        """Write requests to the buffer in a batch that no node may read: librdkafka refuses some
        of them, and hands out what is in the others."""
        log = self._chance.choice(self._kafka.topics["delayd-buffer"].partitions)
        if log.leader is None:
            return
        # Somebody alters the topic. Nodes that run read on as before, later lives read carefully.
        self._kafka.topics["delayd-buffer"].config.pop("compression.type", None)
        count = self._chance.choice([1, 2, 5, 40])
        value = bytes(HEAVY_BYTES // count)
        headers: Headers = [("delayd-topic", b"orders"), ("delayd-delay", b"100ms")]
        batch = self._kafka.append_heavy(
            "delayd-buffer",
            log.number,
            [(value, headers)] * count,
            is_refused=self._chance.random() < 0.5,
        )
        self._weather.inject(HEAVY_BATCH, (batch.value or b"").decode())


STRAY = "stray frontier record"
HEAVY_BATCH = "unreadable batch"
HEAVY_BYTES = 2 * BATCH_BYTES_MAX
NOT_IN_EVERY_SEED = (STRAY, HEAVY_BATCH)
FAULTS: dict[str, Callable[[Chaos], None]] = {
    "kill": Chaos.kill,
    "power loss": Chaos.power,
    "SIGTERM": Chaos.terminate,
    "SIGSTOP": Chaos.freeze,
    "ENOSPC": Chaos.fill_disk,
    "EIO": Chaos.fail_sync,
    "clock jump": Chaos.jump,
    "broker clock jump": Chaos.jump_brokers,
    "etcd partition": Chaos.cut_etcd,
    "etcd paused": Chaos.pause_etcd,
    "etcd leader change": Chaos.change_etcd_leader,
    "leases ended": Chaos.end_leases,
    "etcd split": Chaos.split_etcd,
    "etcd answer lost": Chaos.lose_etcd_answers,
    "Kafka partition": Chaos.cut_kafka,
    "target refused": Chaos.refuse,
    "no leader": Chaos.lose_leader,
    "leader change": Chaos.elect,
    "slow markers": Chaos.hold_markers,
    "lost marker": Chaos.lose_marker,
    STRAY: Chaos.write_stray,
    HEAVY_BATCH: Chaos.write_heavy_batch,
}
KINDS = (*(kind for kind in FAULTS if kind not in NOT_IN_EVERY_SEED), *WITHIN_CALLS)
"""The faults of every seed."""
OF_TRANSACTIONS = ("etcd split", "stuck call", "lost frontier marker")
KINDS_WITHOUT_FENCE = tuple(kind for kind in KINDS if kind not in OF_TRANSACTIONS)
"""Without a fence etcd has to be one, as its own promise is; and there are no markers."""
