"""All scenarios. The first sentence of each is what a reader of the report sees.

`outage` is how long nobody can deliver, or may; on top of it comes TAKEOVER_MS.
"""

import random
from typing import Final

from chaos.faults import Fault, Kind, Victim
from chaos.network import BOTH, CUT, DEAF, ETCD, KAFKA, MUTE, Weather
from chaos.scenario import Load, Scenario, Strike

LEASE_MS: Final = 3_000
TAKEOVER_MS: Final = 8_000
"""From the death of a master until all is on time again: 0.1 s where nothing else runs. The rest is
for two slow cores that carry brokers, nodes, clients and judges. The bound tells who recovers at
once from who waits for a lease and more; how fast delayd is, benchmarks say."""

UNNOTICED_MS: Final = 4_000
"""How late messages may be where nobody who delivers is struck: so long a busy machine stalls."""

SUSPICION_MS: Final = 1_000
"""How long a master that is silent to most followers is waited for."""

REPLACED_MS: Final = 10_000
"""Until controllers have replaced a broker whose session (6 s) has to end first."""

CUT_OFF_MS: Final = 8_000
"""How soon a node that Kafka answers delivers in place of one that it does not: 4 s where nothing
else runs."""

FROZEN_MS: Final = 2 * LEASE_MS
RESHARDING_MS: Final = 40_000
"""How long nobody may deliver: until masters have come to rest, or a node has ended what was left
half-way."""
LOSSY: Final = Weather(delay_ms=20, stall_chance=0.05, stall_ms=300)

TWICE: Final = (0.25, 0.6)
"""Shares of the spread at which it is struck."""

ONCE: Final = (0.35,)
SOON: Final = (0.2,)
AT_ONCE: Final = (0.0,)


def _row(
    name: str,
    what: str,
    fault: Fault,
    at: tuple[float, ...] = ONCE,
    *,
    outage_ms: int = 0,
    failovers: int = 0,
) -> Scenario:
    strikes = tuple(Strike(share, fault) for share in at)
    return Scenario(name, what, strikes, outage_ms + TAKEOVER_MS, failovers)


def _unnoticed(name: str, what: str, fault: Fault, at: tuple[float, ...] = ONCE) -> Scenario:
    return Scenario(name, what, tuple(Strike(share, fault) for share in at), UNNOTICED_MS)


def _kill(victim: Victim, away_ms: int = 1_000) -> Fault:
    return Fault(Kind.KILL, victim, away_ms)


def _freeze(victim: Victim, for_ms: int = FROZEN_MS) -> Fault:
    return Fault(Kind.FREEZE, victim, for_ms)


def _master(weather: Weather, to: tuple[str, ...], for_ms: int) -> Fault:
    return Fault(Kind.WEATHER, Victim.MASTER, for_ms, weather, to)


def _cut_off(name: str, what: str, weather: Weather) -> Scenario:
    strike = Strike(ONCE[0], _master(weather, (KAFKA,), 12_000))
    return Scenario(name, what, (strike,), CUT_OFF_MS, failovers_min=1)


def _clock(for_ms: int, offset_ms: int = 0, drift_ppm: int = 0) -> Fault:
    return Fault(Kind.CLOCK, Victim.MASTER, for_ms, offset_ms=offset_ms, drift_ppm=drift_ppm)


VARIED_LOAD: Final = Load(spread_ms=80_000, small_spread_ms=60_000)
"""A kill each six seconds: a node is back before the next one."""

# fmt: off
TABLE: Final = (
    _row("kill-master", "The master is killed (SIGKILL), twice.",
         _kill(Victim.MASTER), TWICE, failovers=2),
    _row("terminate-master", "The master is asked to end (SIGTERM), twice.",
         Fault(Kind.TERMINATE, Victim.MASTER), TWICE, failovers=2),
    _row("freeze-master", "The master is frozen for two leases and wakes, twice.",
         _freeze(Victim.MASTER), TWICE, outage_ms=SUSPICION_MS, failovers=2),
    _unnoticed("kill-follower", "A follower is killed, twice: nobody notices.",
               _kill(Victim.FOLLOWER), TWICE),
    _unnoticed("freeze-follower", "A follower is frozen for two leases, twice: nobody notices.",
               _freeze(Victim.FOLLOWER), TWICE),
    _row("kill-all-nodes", "All nodes are killed at once.",
         _kill(Victim.NODES), outage_ms=20_000, failovers=1),
    _row("freeze-all-nodes", "All nodes are frozen for two leases.",
         _freeze(Victim.NODES), outage_ms=FROZEN_MS),
    _row("roll", "All nodes are restarted, one after the other.",
         Fault(Kind.ROLL, Victim.NODES), SOON, failovers=1),
    _unnoticed("kill-etcd", "etcd is killed and comes back after 8 s.",
               _kill(Victim.ETCD, 8_000)),
    _unnoticed("freeze-etcd", "etcd answers nothing for 60 s, as without a majority.",
               _freeze(Victim.ETCD, 60_000), SOON),
    _unnoticed("kill-etcd-leader", "The leader of etcd's three members is killed, back after 8 s.",
               _kill(Victim.ETCD_LEADER, 8_000)),
    _unnoticed("etcd-minority", "Two of etcd's three members, its leader too, are frozen for 60 s.",
               _freeze(Victim.ETCD_MAJORITY, 60_000), SOON),
    _unnoticed("wipe-etcd", "etcd loses all it has stored.",
               Fault(Kind.WIPE, Victim.ETCD)),
    _row("kill-coordinator", "The broker that coordinates the transactions is killed, of three.",
         _kill(Victim.COORDINATOR, 4_000), (0.25,), outage_ms=REPLACED_MS),
    _row("bounce-brokers", "One of three brokers is killed, and then another.",
         _kill(Victim.BROKER, 3_000), (0.15, 0.75), outage_ms=REPLACED_MS),
    _row("freeze-broker", "A broker, of three, is frozen for 30 s.",
         _freeze(Victim.BROKER, 30_000), SOON, outage_ms=REPLACED_MS),
    _row("move-brokers", "Three brokers are restarted in turn, each under another address.",
         Fault(Kind.MOVE, Victim.BROKERS, 2_000), SOON, outage_ms=REPLACED_MS),
    _row("cut-etcd", "The master cannot reach etcd for 8 s.",
         _master(CUT, (ETCD,), 8_000)),
    _cut_off("cut-kafka", "The master cannot reach Kafka for 12 s.", CUT),
    _row("cut-both", "The master can reach neither Kafka nor etcd for 12 s.",
         _master(CUT, BOTH, 12_000), outage_ms=LEASE_MS),
    _cut_off("deaf-to-kafka", "The master is heard by Kafka and hears nothing for 12 s.", DEAF),
    _cut_off("mute-to-kafka", "The master hears Kafka and is not heard for 12 s.", MUTE),
    _row("deaf-to-etcd", "The master is heard by etcd and hears nothing for 8 s.",
         _master(DEAF, (ETCD,), 8_000)),
    _row("flapping", "The master loses Kafka and etcd now and then, for 20 s.",
         Fault(Kind.FLAP, Victim.MASTER, 20_000, CUT), SOON, outage_ms=20_000),
    _row("lossy", "All wires of all nodes are slow and lossy for 15 s.",
         Fault(Kind.WEATHER, Victim.NODES, 15_000, LOSSY), SOON, outage_ms=15_000),
    _row("clock-ahead", "The master's clock jumps 30 s ahead, and back.",
         _clock(10_000, offset_ms=30_000)),
    _row("clock-behind", "The master's clock jumps 30 s back, and ahead again.",
         _clock(10_000, offset_ms=-30_000)),
    _row("clock-drift", "The master's clock runs 2 % slow for 20 s.",
         _clock(20_000, drift_ppm=-20_000), SOON, outage_ms=20_000),
    _row("full-disk", "All disks are short of room for 12 s: nodes deliver what they have.",
         Fault(Kind.FILL_DISK, Victim.NODES, 12_000), outage_ms=12_000),
    _row("fsync-error", "The master's disk fails to sync.",
         Fault(Kind.FAIL_FSYNC, Victim.MASTER), failovers=1),
    _row("corrupt-slot", "A byte flips in a slot that the master is about to deliver.",
         Fault(Kind.CORRUPT, Victim.MASTER), outage_ms=5_000, failovers=1),
    _unnoticed("lose-follower", "A follower is killed and its disk lost: it reads all again.",
               Fault(Kind.WIPE, Victim.FOLLOWER)),
    _row("recreate-target", "A target is deleted before anything for it is due, and made again.",
         Fault(Kind.RECREATE_TARGET, for_ms=18_000), AT_ONCE),
    Scenario("rules-switch", "The rules are switched: half-way, then by three people at once.",
             (Strike(TWICE[0], Fault(Kind.CUT_SWITCH, Victim.MASTER)),
              Strike(TWICE[1], Fault(Kind.SWITCH_RULES, Victim.MASTER))),
             recovery_ms=TAKEOVER_MS, failovers_min=2),
    Scenario("kill-shard-leader", "A node that leads some of four shards is killed, twice.",
             tuple(Strike(share, _kill(Victim.MASTER)) for share in TWICE),
             recovery_ms=TAKEOVER_MS, failovers_min=2, shards=4),
    Scenario("kill-shard-leaders", "All that lead some of four shards, but one, are killed, twice.",
             tuple(Strike(share, _kill(Victim.LEADERS)) for share in TWICE),
             recovery_ms=TAKEOVER_MS, failovers_min=2, shards=4),
    Scenario("reshard", "Four shards become two, half-way; then four, and one, under fire.",
             (Strike(0.1, Fault(Kind.CUT_RESHARDING, Victim.MASTER, shards=2)),
              Strike(0.45, Fault(Kind.RESHARD, Victim.LEADERS, shards=4)),
              Strike(0.75, Fault(Kind.RESHARD, Victim.MASTER, shards=1))),
             recovery_ms=RESHARDING_MS + TAKEOVER_MS, shards=4),
    Scenario("everything", "Series, windows, pauses, limits, events; ten masters are killed.",
             tuple(Strike(0.05 + 0.09 * number, _kill(Victim.MASTER)) for number in range(10)),
             recovery_ms=TAKEOVER_MS, failovers_min=5, is_varied=True, load=VARIED_LOAD),
    _row("twin", "A second node starts under the master's name.",
         Fault(Kind.TWIN, Victim.MASTER, 12_000)),
)
# fmt: on

SMOKE: Final = (
    *("kill-master", "freeze-master", "kill-etcd", "cut-both", "clock-ahead", "combination"),
    "kill-shard-leaders",
)
"""Those that matter most: death, a zombie, etcd away, a partition, a wrong clock, a mixture, and
the death of several shards' masters at once."""

ON_DOCKER: Final = (
    *("kill-master", "terminate-master", "freeze-master", "kill-all-nodes", "roll"),
    *("kill-coordinator", "bounce-brokers", "kill-etcd-leader", "etcd-minority", "wipe-etcd"),
    *("cut-kafka", "cut-etcd", "cut-both", "mute-to-kafka"),
)
"""Those that `make chaos-docker` runs: what three brokers, three members of etcd and networks of
their own add, and the deaths of nodes. Processes run the others sooner."""

COMBINED: Final = (
    Fault(Kind.KILL, Victim.MASTER),
    Fault(Kind.KILL, Victim.FOLLOWER),
    Fault(Kind.TERMINATE, Victim.MASTER),
    Fault(Kind.FREEZE, Victim.MASTER, FROZEN_MS),
    Fault(Kind.FREEZE, Victim.ETCD, LEASE_MS),
    Fault(Kind.KILL, Victim.ETCD, 2_000),
    Fault(Kind.WEATHER, Victim.MASTER, 5_000, CUT, (KAFKA,)),
    Fault(Kind.WEATHER, Victim.MASTER, 5_000, CUT, (ETCD,)),
    Fault(Kind.WEATHER, Victim.FOLLOWER, 5_000, CUT, BOTH),
    Fault(Kind.WEATHER, Victim.MASTER, 5_000, DEAF, (KAFKA,)),
    Fault(Kind.WEATHER, Victim.NODES, 5_000, LOSSY, BOTH),
    Fault(Kind.CLOCK, Victim.MASTER, 4_000, offset_ms=-30_000),
    Fault(Kind.CLOCK, Victim.MASTER, 4_000, offset_ms=30_000),
)
COMBINATION_LOAD: Final = Load(spread_ms=60_000, small_spread_ms=30_000)


def combination(seed: int) -> Scenario:
    """Five faults of a seed's choice, one after the other."""
    chance = random.Random(f"{seed}: combination")
    faults = chance.sample(COMBINED, 5)
    return Scenario(
        "combination",
        f"{'; '.join(map(str, faults))}.",
        tuple(Strike(0.1 + number * 0.17, fault) for number, fault in enumerate(faults)),
        recovery_ms=FROZEN_MS + 2 * TAKEOVER_MS,
        load=COMBINATION_LOAD,
    )


def scenarios(seed: int) -> dict[str, Scenario]:
    """All of them by name; one is of the seed's making."""
    return {each.name: each for each in (*TABLE, combination(seed))}
