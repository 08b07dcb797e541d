"""A scenario: what traffic goes through a cluster, what is struck when, what must hold.

Invariant: a scenario and a seed make the same traffic and the same strikes, also
among equal victims. The cluster itself is not deterministic.
"""

import random
from dataclasses import astuple, dataclass, replace
from typing import Final, Self

from chaos.faults import Fault, Kind, Victim

PROCESSES: Final = "processes"
DOCKER: Final = "docker"
"""The backends."""

JITTER: Final = 0.04
"""Of the spread: how far from its share a strike may be."""

SMALL_REQUESTS: Final = 1_300
"""Each strike meets messages of every kind, about 170 requests a second. Six times as many are
little for an audit (LITTLE_MAX in delayd/audit/run.py): half the time."""


@dataclass(frozen=True, slots=True)
class Load:
    """`requests` are planned over `spread_ms` of due times; many kinds are two requests."""

    requests: int = 16_700
    """So many are 20,000 messages and a few more; the rest of them are cancels."""
    spread_ms: int = 40_000
    slow_ms: int = 400
    """How long some of the users' transactions are open."""
    small_spread_ms: int = 16_000

    def small(self) -> Self:
        """For smoke runs, and for finding one's way."""
        return replace(self, requests=SMALL_REQUESTS, spread_ms=self.small_spread_ms)


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault at a share of the load's spread, or as soon as the one before is over."""

    share: float
    fault: Fault


@dataclass(frozen=True, slots=True)
class Needs:
    """What a cluster must have for what is struck there. Each wish makes it slower."""

    brokers: int = 1
    etcd_members: int = 1
    is_wired: bool = False
    """Wires that can be cut."""
    is_clocked: bool = False
    """Clocks that can go wrong."""
    has_small_disks: bool = False
    has_moving_brokers: bool = False
    """Found by name, at addresses that change."""
    shards: int = 1
    has_older_rules: bool = False
    """Made with the rules version before the newest, and switched by what is struck."""
    has_bridge: bool = False
    """Nodes read events that cancel messages."""

    def __or__(self, other: "Needs") -> "Needs":
        """What is enough for both."""
        return Needs(*map(max, astuple(self), astuple(other)))


@dataclass(frozen=True, slots=True)
class Scenario:
    """`recovery_ms` bounds how long after a strike deliveries may be late, the time in which
    nobody could have delivered included. `failovers_min`: the strikes must have cost so many."""

    name: str
    what: str
    strikes: tuple[Strike, ...]
    recovery_ms: int
    failovers_min: int = 0
    load: Load = Load()
    shards: int = 1
    """Of the cluster that it begins with."""
    is_varied: bool = False
    """Its traffic has series, windows, events, and targets that are paused and limited."""
    settle_ms: int = 90_000
    """How long after the last due time all may take to have an outcome, and to come to rest."""

    @property
    def needs(self) -> Needs:
        """By what is struck."""
        kinds = {strike.fault.kind for strike in self.strikes}
        victims = {strike.fault.victim for strike in self.strikes}
        return Needs(
            brokers=3 if victims & {Victim.COORDINATOR, Victim.BROKER, Victim.BROKERS} else 1,
            etcd_members=3 if victims & {Victim.ETCD_LEADER, Victim.ETCD_MAJORITY} else 1,
            is_wired=bool(kinds & {Kind.WEATHER, Kind.FLAP}),
            is_clocked=Kind.CLOCK in kinds,
            has_small_disks=Kind.FILL_DISK in kinds,
            has_moving_brokers=Kind.MOVE in kinds,
            has_older_rules=Kind.SWITCH_RULES in kinds,
            shards=self.shards,
            has_bridge=self.is_varied,
        )


def with_shards(scenario: Scenario, shards: int) -> Scenario:
    """Return the scenario on a cluster that begins with so many; as it is if it changes them."""
    kinds = {strike.fault.kind for strike in scenario.strikes}
    if kinds & {Kind.CUT_RESHARDING, Kind.RESHARD}:
        return scenario
    return replace(scenario, shards=shards)


def timed(scenario: Scenario, seed: int) -> tuple[Strike, ...]:
    """The strikes at their times for this seed, in order."""
    chance = random.Random(f"{seed}: {scenario.name}: strikes")
    shaken = [
        replace(strike, share=min(1.0, max(0.0, strike.share + chance.uniform(-JITTER, JITTER))))
        for strike in scenario.strikes
    ]
    return tuple(sorted(shaken, key=lambda strike: strike.share))


def lacking(scenario: Scenario, backend: str) -> str | None:
    """Return why the backend of that name cannot run it; None if it can."""
    weathers = [strike.fault.weather for strike in scenario.strikes]
    if backend == PROCESSES:
        return "processes have one etcd" if scenario.needs.etcd_members > 1 else None
    if any(weather.delay_ms or weather.stall_chance for weather in weathers):
        return "containers' networks are cut, not slow or lossy"
    if scenario.needs.has_moving_brokers:
        return "containers keep their addresses"
    if scenario.needs.has_bridge:
        return "nodes in containers read no events, and nobody gives them orders"
    if scenario.needs.has_older_rules:
        return "clusters of containers are made with the newest rules"
    return None
