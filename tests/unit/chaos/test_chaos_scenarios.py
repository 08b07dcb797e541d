"""Scenarios: a seed makes the same of them again; what they strike is what they say.

Source: chaos/scenario.py, chaos/catalogue.py, chaos/faults.py.
"""

import signal
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from chaos import faults
from chaos.__main__ import main
from chaos.backend import Backend, BackendError
from chaos.catalogue import COMBINED, SMOKE, TABLE, combination, scenarios
from chaos.faults import Fault, Kind, Striker, Victim
from chaos.history import now_ms
from chaos.network import CUT, ETCD, FAIR, Weather
from chaos.processes.clocked_node import write_clock, wrong_ms
from chaos.scenario import DOCKER, PROCESSES, Load, lacking, timed, with_shards
from chaos.stage_run import staged
from chaos.traffic import divided
from chaos.workload import CHAOS_SHARES, EXPECT, Planned, PlannedTransaction, Scene, mixture

SEED = 11


@dataclass
class Struck:
    """A backend that writes down what is done to it."""

    calls: list[str] = field(default_factory=list)
    nodes: tuple[str, ...] = ("node-1", "node-2", "node-3")
    brokers: tuple[str, ...] = ("broker-1",)
    etcd: tuple[str, ...] = ("etcd",)
    ends: bool = True
    leads: Mapping[str, list[int]] = field(default_factory=dict)
    """The shards of each node."""
    away: int = 0
    """How often a replica is not in sync yet."""

    def are_in_sync(self) -> bool:
        self.away -= 1
        return self.away < 0

    def master(self) -> str | None:
        return "node-2"

    def status(self, node: str) -> dict[str, list[int]]:
        return {"shards_led": self.leads.get(node, [])}

    def coordinator(self) -> str:
        return "broker-1"

    def etcd_leader(self) -> str:
        return "etcd-2"

    def is_running(self, part: str) -> bool:
        return not self.ends

    def fail_fsyncs(self, node: str, timeout_s: float) -> bool:
        self.calls.append(f"fail_fsyncs {node}")
        return self.ends

    def start_twin(self, node: str) -> str:
        self.calls.append(f"start_twin {node}")
        return "node-4"

    def start(self, part: str, *, wait: bool = True) -> None:
        self.calls.append(f"start {part}")

    def start_resharding(self, shards: int) -> Callable[[float], int]:
        self.calls.append(f"shards set {shards}")
        return lambda _timeout_s: 0

    def start_rules_switch(self, barriers_max: int | None = None) -> Callable[[float], int]:
        self.calls.append("switch" if barriers_max is None else f"switch {barriers_max}")
        died = -signal.SIGKILL if barriers_max is not None else 0
        return lambda _timeout_s: died if self.ends else 1

    def weather(self, weather: Weather, nodes: Collection[str], to: Collection[str]) -> None:
        name = {CUT: "cut", FAIR: "fair"}[weather]
        self.calls.append(f"{name} {'+'.join(nodes)} {'+'.join(to)}")

    @property
    def topics(self) -> "Struck":
        return self

    def create(self, topic: str, partitions: int) -> None:
        self.calls.append(f"create {topic}")

    def set_clock(self, node: str, offset_ms: int, drift_ppm: int) -> None:
        self.calls.append(f"set_clock {node} {offset_ms} {drift_ppm}")

    def __getattr__(self, name: str) -> Any:
        def call(part: str) -> None:
            self.calls.append(f"{name} {part}")

        return call


def struck(fault: Fault, backend: Struck | None = None) -> list[str]:
    backend = backend or Struck()
    Striker(cast(Backend, backend), "t", lambda parts: sorted(parts)[0]).strike(fault)
    return backend.calls


@pytest.mark.parametrize(
    ("kind", "victim", "calls"),
    [
        (Kind.KILL, Victim.MASTER, ["kill node-2", "start node-2"]),
        (Kind.KILL, Victim.COORDINATOR, ["kill broker-1", "start broker-1"]),
        (Kind.TERMINATE, Victim.FOLLOWER, ["terminate node-1", "start node-1"]),
        (Kind.FREEZE, Victim.ETCD, ["freeze etcd", "thaw etcd"]),
        (Kind.WIPE, Victim.ETCD, ["kill etcd", "lose_data etcd", "start etcd"]),
        (Kind.CORRUPT, Victim.MASTER, ["corrupt_slot node-2", "lose_data node-2", "start node-2"]),
        (Kind.FILL_DISK, Victim.MASTER, ["fill_disk node-2", "free_disk node-2"]),
        (Kind.FAIL_FSYNC, Victim.MASTER, ["fail_fsyncs node-2", "start node-2"]),
        (Kind.TWIN, Victim.MASTER, ["start_twin node-2", "remove_twin node-4"]),
        (Kind.RECREATE_TARGET, Victim.NOBODY, ["delete t", "create t"]),
        (Kind.CUT_SWITCH, Victim.MASTER, ["switch 1", "kill node-2", "start node-2"]),
        (
            *(Kind.SWITCH_RULES, Victim.MASTER),
            ["switch", "switch", "kill node-2", "start node-2", "switch"],
        ),
        (Kind.RESHARD, Victim.MASTER, ["shards set 1", "kill node-2", "start node-2"]),
        (Kind.CUT_RESHARDING, Victim.MASTER, ["shards set 1", "kill node-2", "start node-2"]),
    ],
    ids=lambda each: each.value if isinstance(each, Kind) else None,
)
def test_a_fault_is_done_and_undone(kind: Kind, victim: Victim, calls: list[str]) -> None:
    assert struck(Fault(kind, victim, for_ms=0)) == calls


def test_etcd_loses_its_leader_its_majority_or_all_of_it() -> None:
    members = ("etcd-1", "etcd-2", "etcd-3")

    def killed(victim: Victim) -> list[str]:
        calls = struck(Fault(Kind.KILL, victim, for_ms=0), Struck(etcd=members))
        return [call for call in calls if call.startswith("kill")]

    assert killed(Victim.ETCD_LEADER) == ["kill etcd-2"]
    assert killed(Victim.ETCD_MAJORITY) == ["kill etcd-2", "kill etcd-1"]
    assert killed(Victim.ETCD) == ["kill etcd-1", "kill etcd-2", "kill etcd-3"]


@pytest.mark.parametrize(
    ("leads", "killed"),
    [
        ({"node-2": [0, 1, 2, 3]}, ["node-2"]),
        ({"node-1": [0, 3], "node-3": [1, 2]}, ["node-1", "node-3"]),
        ({"node-1": [0], "node-2": [1, 2], "node-3": [3]}, ["node-2", "node-3"]),
    ],
)
def test_who_leads_shards_is_struck_but_one_is_left(
    leads: dict[str, list[int]], killed: list[str]
) -> None:
    calls = struck(Fault(Kind.KILL, Victim.LEADERS, for_ms=0), Struck(leads=leads))
    assert [call for call in calls if call.startswith("kill")] == [f"kill {n}" for n in killed]


def test_without_a_leader_of_a_shard_nothing_is_struck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "MASTER_TIMEOUT_S", 0.0)
    with pytest.raises(BackendError, match="led a shard"):
        struck(Fault(Kind.KILL, Victim.LEADERS, for_ms=0))


def test_clusters_begin_with_as_many_shards_as_are_asked_for_unless_these_are_changed() -> None:
    known = scenarios(SEED)
    assert with_shards(known["kill-master"], 4).needs.shards == 4
    assert with_shards(known["kill-shard-leader"], 2).needs.shards == 2
    assert with_shards(known["reshard"], 2) == known["reshard"]


def test_what_is_varied_has_a_bridge_and_a_cluster_of_its_own() -> None:
    known = scenarios(SEED)
    assert known["everything"].needs.has_bridge and not known["kill-master"].needs.has_bridge
    assert lacking(known["everything"], DOCKER) and not lacking(known["everything"], PROCESSES)
    assert len(staged([known["everything"], known["kill-master"]])) == 2


def test_a_cut_and_a_wrong_clock_are_mended() -> None:
    cut = Fault(Kind.WEATHER, Victim.MASTER, 0, CUT, (ETCD,))
    assert struck(cut) == ["cut node-2 etcd", "fair node-2 etcd"]
    flap = Fault(Kind.FLAP, Victim.MASTER, 1, CUT, (ETCD,))
    assert struck(flap) == ["cut node-2 etcd", "fair node-2 etcd"]
    clock = Fault(Kind.CLOCK, Victim.MASTER, 0, offset_ms=-5, drift_ppm=3)
    assert struck(clock) == ["set_clock node-2 -5 3", "set_clock node-2 0 0"]


def test_each_broker_moves_while_it_is_away_and_is_a_strike_of_its_own() -> None:
    backend = Struck(brokers=("broker-1", "broker-2"))
    striker = Striker(cast(Backend, backend), "t", lambda parts: sorted(parts)[0])
    striker.strike(Fault(Kind.MOVE, Victim.BROKERS, for_ms=0))
    each = ("terminate", "move", "start")
    assert backend.calls == [f"{call} broker-{n}" for n in (1, 2) for call in each]
    assert len(striker.struck) == 2 and "(broker-2)" in striker.struck[1][0]


def test_a_broker_is_struck_once_the_others_have_recovered(monkeypatch: pytest.MonkeyPatch) -> None:
    for victim in (Victim.BROKER, Victim.COORDINATOR, Victim.BROKERS):
        backend = Struck(away=2)
        assert struck(Fault(Kind.KILL, victim, for_ms=0), backend)[0] == "kill broker-1"
        assert backend.away < 0
    monkeypatch.setattr(faults, "REPLICAS_TIMEOUT_S", 0.0)
    backend = Struck(away=2)
    with pytest.raises(BackendError, match="in sync"):
        struck(Fault(Kind.KILL, Victim.BROKER, for_ms=0), backend)
    assert not backend.calls


def test_nodes_are_restarted_one_after_the_other() -> None:
    calls = struck(Fault(Kind.ROLL, Victim.NODES))
    assert calls[:3] == ["terminate node-1", "start node-1", "terminate node-2"]


@pytest.mark.parametrize("kind", [Kind.CORRUPT, Kind.FAIL_FSYNC])
def test_a_node_that_goes_on_where_it_must_end_is_told(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "ENDS_TIMEOUT_S", 0.0)
    with pytest.raises(BackendError, match="went on"):
        struck(Fault(kind, Victim.MASTER, for_ms=0), Struck(ends=False))


@pytest.mark.parametrize("kind", [Kind.CUT_SWITCH, Kind.SWITCH_RULES])
def test_a_switch_that_ends_otherwise_than_it_must_is_told(kind: Kind) -> None:
    with pytest.raises(BackendError, match="who switched the rules ended with"):
        struck(Fault(kind, Victim.MASTER, for_ms=0), Struck(ends=False))


def test_what_was_struck_is_told_with_its_time() -> None:
    striker = Striker(cast(Backend, Struck()), "t", lambda parts: sorted(parts)[0])
    before_ms = now_ms()
    striker.strike(Fault(Kind.KILL, Victim.FOLLOWER, for_ms=0))
    [(what, at_ms)] = striker.struck
    assert what == "kill a follower for 0 s (node-1)" and before_ms <= at_ms <= now_ms()


def test_a_seed_makes_the_same_strikes_and_the_same_traffic_again() -> None:
    for name, scenario in scenarios(SEED).items():
        again = scenarios(SEED)[name]
        assert scenario == again and timed(scenario, SEED) == timed(again, SEED)
    assert len({combination(seed).strikes for seed in range(20)}) > 15
    scene = Scene("r", ("a",), "l", "n", 0, 4_000, hot=(0.5,), hot_share=0.2, slow_ms=100)
    plans = [mixture(scene, count=500, seed=SEED, shares=CHAOS_SHARES) for _ in range(2)]
    assert plans[0] == plans[1]


def test_the_catalogue_is_as_large_as_it_is_said_to_be() -> None:
    known = scenarios(SEED)
    assert len(known) >= 24
    assert len(SMOKE) == 7 and set(SMOKE) <= known.keys()
    assert len(known) == len(TABLE) + 1, "names are not used twice"
    kinds = {strike.fault.kind for each in known.values() for strike in each.strikes}
    assert kinds == set(Kind)
    assert len(set(map(str, COMBINED))) == len(COMBINED)


def test_a_hot_second_is_hot_and_slow_transactions_are_slow() -> None:
    scene = Scene("r", ("a",), "l", "n", 0, 10_000, hot=(0.5,), hot_share=0.3, slow_ms=100)
    plan = mixture(scene, count=2_000, seed=SEED, shares=CHAOS_SHARES)
    dues = [
        int(content)
        for each in plan
        if not isinstance(each, PlannedTransaction)
        for name, content in each.headers
        if name == "delayd-due" and content.isdigit()
    ]
    hot = sum(5_000 <= due < 6_000 for due in dues)
    assert hot > 0.25 * sum(due < 10_000 for due in dues)
    assert sum(due > 3_000_000 for due in dues) > 20, "some are pending at the end"
    opened = [each.open_ms for each in plan if isinstance(each, PlannedTransaction)]
    assert 0 < opened.count(100) < len(opened)


def is_request(planned: Planned) -> bool:
    """As an audit counts: all but cancels that are well."""
    headers = dict(planned.headers)
    return headers.get("delayd-op") != b"cancel" or EXPECT in headers


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_full_load_has_as_many_messages_as_it_is_said_to_have(seed: int) -> None:
    scene = Scene("r", ("a",), "l", "n", 0, Load().spread_ms)
    plan = mixture(scene, count=Load().requests, seed=seed, shares=CHAOS_SHARES)
    taken = [each for each in plan if not isinstance(each, PlannedTransaction) or each.commits]
    requests = [
        request
        for each in taken
        for request in (each.requests if isinstance(each, PlannedTransaction) else [each])
    ]
    assert 20_000 < sum(map(is_request, requests)) < 21_000


def test_requests_about_one_key_are_one_clients() -> None:
    plan = mixture(Scene("r", ("a",), "l", "n", 0, 4_000), count=500, seed=SEED)
    parts = divided(plan)
    assert sum(map(len, parts.values())) == len(plan)
    assert min(map(len, parts.values())) > 10
    client_of: dict[bytes | None, str] = {}
    for client, part in parts.items():
        for each in part:
            if not isinstance(each, PlannedTransaction):
                assert client_of.setdefault(each.key, client) == client


def test_a_clock_jumps_and_drifts(tmp_path: Path) -> None:
    file = tmp_path / "clock"
    write_clock(file, 30_000, -20_000)
    setting = file.read_bytes()
    since_ms = int.from_bytes(setting[16:24], "little")
    assert wrong_ms(setting, since_ms) == 30_000
    assert wrong_ms(setting, since_ms + 10_000) == 29_800


def test_the_command_lists_scenarios_and_refuses_unknown_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["list"]) == 0
    assert "kill-master" in capsys.readouterr().out
    assert main(["run", "nonsense"]) == 2
