"""What chaos judges of series, windows, events, pauses and limits: each can go red.

Source: chaos/ticks.py, chaos/bridges.py, chaos/gates.py, chaos/operating.py, chaos/asked.py.
"""

import json
from collections.abc import Callable, Mapping
from typing import cast

import pytest
from test_chaos_judge import DUE_MS, World

from chaos.asked import read_asked, spread_ms
from chaos.backend import Backend
from chaos.bridges import bridge_faults, unanswered
from chaos.gates import Gates
from chaos.operating import ATTEMPTS_MAX, PAUSES, Operator, pause_faults
from chaos.order import order_faults
from chaos.records import Logged
from chaos.recovery import recoveries
from chaos.ticks import tick_faults
from chaos.workload import VARIED_SHARES, Planned, Scene, mixture
from delayd.request.spreading import planned_ms_of

SCENE = Scene("run", ("a", "b"), "late", "never", 10_000, 10_000, held="held", limited="limited")


def record(offset: int, append_ms: int = 0, **asks: object) -> Logged:
    headers = tuple(
        (f"delayd-{name.replace('_', '-')}", str(said).encode()) for name, said in asks.items()
    )
    return Logged("buffer", 0, offset, append_ms, b"k", b"v", headers)


# --- Series


def series(*dues_ms: int, catchup: str = "all", **asks: object) -> list[Logged]:
    """Each two seconds from 1000 on, until 9000."""
    said = {"cron": "*/2 * * * * *", "until": 9_000, "catchup": catchup, **asks}
    found = [record(0, 1_000, **said)]
    for number, due_ms in enumerate(dues_ms, 1):
        found.append(record(number, due_ms, **said, origin="0/0", occurrence=number, due=due_ms))
    return found


def test_a_series_that_comes_when_it_should_is_well() -> None:
    assert tick_faults(series(2_000, 4_000, 6_000, 8_000)) == []
    assert tick_faults(series(2_000, 6_000, 8_000, catchup="once")) == []
    again = record(9, 9_000, cron="*/2 * * * * *", origin="0/0", occurrence=2, due=6_000)
    assert tick_faults([*series(2_000, 4_000, 8_000, catchup="once"), again]) == [], "it caught up"


def test_one_that_is_cancelled_may_end_early() -> None:
    cancel = record(9, 5_000, op="cancel", id="x")
    assert tick_faults([*series(2_000, 4_000, id="x"), cancel]) == []
    assert tick_faults([*series(2_000, 6_000, id="x"), cancel]) != []


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (series(2_000, 6_000, 8_000), "and not"),
        (series(2_000, 4_000, 6_000), "and not"),
        (series(2_000, 4_000, 6_000, catchup="once"), "ends with"),
        (series(2_000, 4_000, 4_000, 8_000), "forward"),
        (series(2_000, 5_000, 8_000, catchup="once"), "not due"),
        (series(2_000, 4_000, 6_000, 8_000, 10_000), "not due"),
        (series(2_000, 4_000, 6_000, 8_000)[:2] + series(2, 4, 6_000, 8_000)[3:], "occurrences"),
        (series(), "and not"),
    ],
)
def test_an_occurrence_that_is_left_out_or_invented_is_found(asked: list[Logged], why: str) -> None:
    [fault] = tick_faults(asked)
    assert why in fault


# --- Windows


def test_the_judge_plans_as_delayd_does() -> None:
    for name in ("order-17", "1/4711"):
        assert spread_ms(5_000, 60_000, name) == planned_ms_of(5_000, 60_000, name)
    asked = read_asked(record(7, due=5_000, window="1m"), 5_000)
    assert asked.rank == (planned_ms_of(5_000, 60_000, "0/7"), 0, 7)


def test_a_delivery_before_its_planned_time_is_early() -> None:
    for early_ms, faults in ((0, 0), (1, 1)):
        world = World()
        message = world.message(window="10s")
        planned_ms = spread_ms(DUE_MS, 10_000, "id")
        said = world.deliver(message)
        planned = ("delayd-planned", b"%d" % planned_ms)
        fired = [(n, b"%d" % planned_ms if n == "delayd-fired" else c) for n, c in said.headers]
        world.delivered[-1] = said._replace(
            append_ms=planned_ms - early_ms, headers=(*fired, planned)
        )
        assert len(world.judge().faults) == faults


def test_order_and_lateness_are_by_the_planned_time() -> None:
    asked = [record(number, due=1_000 - number, window="100s", topic="t") for number in range(2)]
    planned = [read_asked(each, 1_000 - each.offset).rank for each in asked]
    first, second = sorted(asked, key=lambda each: planned[each.offset])

    def came(each: Logged, offset: int) -> Logged:
        at_ms = planned[each.offset][0] + 7
        return Logged("t", 0, offset, at_ms, b"", b"", (("delayd-source", each.place.encode()),))

    said = {"step": 1, "cursor": [0, 0, 0], "lanes": {}, "offsets": [0], "shard": 0}
    told = json.dumps({**said, "settings": {"lanes": 1}}).encode()
    frontiers = [Logged("frontier", 0, 0, 0, b"shard-0", told, ())]
    right = [came(first, 0), came(second, 1)]
    assert order_faults(asked, right, frontiers) == []
    assert len(order_faults(asked, [came(second, 0), came(first, 1)], frontiers)) == 1
    [recovery] = recoveries([("struck", 0)], asked, right)
    assert recovery.lateness_max_ms == 7


# --- Events


def event(offset: int, id: str, status: str = "paid") -> Logged:
    value = json.dumps({"order": {"id": id}, "status": status}).encode()
    return Logged("events", 0, offset, 0, id.encode(), value, ())


def answer(offset: int, id: str, cause: str, op: str = "cancel") -> Logged:
    asked = record(offset, op=op, id=id)
    return asked._replace(headers=(*asked.headers, ("cancelled-by", cause.encode())))


EVENTS = [event(0, "x"), event(1, "y", "open")]


def test_each_event_that_counts_has_one_cancel() -> None:
    assert unanswered(EVENTS, []) == ["event events/0/0: no cancel of x"]
    right = [answer(0, "x", "events/0/0")]
    assert unanswered(EVENTS, right) == bridge_faults(EVENTS, right) == []


@pytest.mark.parametrize(
    "wrong",
    [
        [answer(0, "z", "events/0/0")],
        [answer(0, "x", "events/0/0", op="fire")],
        [answer(0, "y", "events/0/1")],
        [answer(0, "x", "events/0/7")],
        [answer(0, "x", "events/0/0"), answer(1, "x", "events/0/0")],
    ],
)
def test_a_cancel_of_another_id_or_for_no_event_or_twice_is_found(wrong: list[Logged]) -> None:
    assert len(bridge_faults(EVENTS, wrong)) == len(wrong)


# --- Limits


def gate(offset: int, text: str) -> Logged:
    return record(offset, quota=text, proof="x")


def test_what_stands_between_the_gates_is_refused() -> None:
    gates = Gates()

    def refused(asked: Logged) -> bool:
        return gates.refuses(asked)

    assert not refused(record(0, topic="t", due=1))
    assert not refused(gate(1, "full/9/10/10/0/0/t"))
    assert refused(record(2, topic="t", due=1))
    assert not refused(record(3, topic="other", due=1))
    assert not refused(record(4, op="cancel", id="x"))
    assert not refused(record(5, topic="t", due=1, origin="0/0")), "taken before"
    assert not refused(record(6, topic="t", due=1)._replace(partition=1))
    assert not refused(gate(7, "open/9/9/10/0/0/t"))
    assert not refused(record(8, topic="t", due=1))


@pytest.mark.parametrize(("is_shut", "faults"), [(True, 0), (False, 1)])
def test_the_judge_wants_a_dead_letter_of_what_is_over_the_limit_and_of_nothing_else(
    is_shut: bool, faults: int
) -> None:
    world = World()
    if is_shut:
        world.ask(500, quota="full/9/10/10/0/0/target", proof="x")
    refused = world.ask(1_000, topic="target", due=DUE_MS)
    world.bury(refused, "over-quota")
    found = world.judge()
    assert len(found.faults) == faults and found.ok is is_shut


# --- Pauses


def delivered(append_ms: int, due_ms: int) -> Logged:
    return record(0, append_ms, due=due_ms)


def test_nothing_may_be_delivered_in_a_pause_and_something_must_wait() -> None:
    pauses = [(1_000, 2_000)]
    assert pause_faults(pauses, [delivered(900, 800), delivered(2_100, 1_500)]) == []
    assert len(pause_faults(pauses, [delivered(1_100, 1_050)])) == 1
    assert "nothing waited" in pause_faults(pauses, [delivered(900, 800)])[0]


class Commanded:
    """A backend whose commands fail so many times."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.commands: list[str] = []

    def command(self, *arguments: str) -> int:
        self.failures -= 1
        if self.failures < 0:
            self.commands.append(" ".join(arguments))
        return int(self.failures >= 0)


@pytest.mark.parametrize(("failures", "is_well"), [(2, True), (ATTEMPTS_MAX, False)])
def test_an_operator_gives_an_order_until_it_is_obeyed(
    failures: int, is_well: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.operating.pause", lambda _for_ms: None)
    backend = Commanded(failures)
    with Operator(cast(Backend, backend), SCENE, lambda _sentence: None) as operator:
        pass
    assert (operator.troubles == []) is is_well
    assert len(operator.pauses) == (len(PAUSES) if is_well else 0)
    if is_well:
        kinds = [command.split()[0] for command in backend.commands]
        assert kinds == ["limits", *["pause", "resume"] * len(PAUSES), "limits"]


# --- Traffic


@pytest.mark.parametrize(
    ("kind", "is_it"),
    [
        ("recurring", lambda asks: "cron" in asks),
        ("in_window", lambda asks: "window" in asks and "group" in asks),
        ("held", lambda asks: asks.get("topic") == "held"),
        ("limited", lambda asks: asks.get("topic") == "limited"),
    ],
)
def test_varied_traffic_has_each_kind(
    kind: str, is_it: Callable[[Mapping[str, str]], bool]
) -> None:
    assert kind in VARIED_SHARES
    plan = mixture(SCENE, count=1_300, seed=7, shares=VARIED_SHARES)
    asked = [
        Logged("buffer", 0, 0, 0, each.key, each.value, each.headers).fields
        for each in plan
        if isinstance(each, Planned)
    ]
    assert sum(map(is_it, asked)) > 10


def test_some_of_it_is_cancelled_by_events() -> None:
    scene = Scene("run", ("a", "b"), "late", "never", 10_000, 10_000, events="events")
    plan = mixture(scene, count=1_300, seed=7, shares=VARIED_SHARES)
    events = [each for each in plan if isinstance(each, Planned) and each.topic]
    assert len(events) > 50 and {each.topic for each in events} == {"events"}
    assert {json.loads(each.value or b"")["status"] for each in events} == {"paid", "open"}
