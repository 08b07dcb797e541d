"""Local times on a whole node: delivered once, at the moment that the clock of the zone shows them.

Source: docs/design/local-times.md.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from manual_clock import START_MS
from one_node import Maker, OneNode, nodes_in

from delayd.bus import Headers
from delayd.bus.murmur2 import partition_of
from delayd.request.recurrence import zones
from replication.settings import LOCAL_TIME_RULES

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
BERLIN = "Europe/Berlin"
SOON_MS = START_MS + HOUR_MS
LATER_MS = START_MS + 5 * DAY_MS
Moved = dict[str, str]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Maker]:
    with nodes_in(tmp_path) as make_node:

        def make_newer(*targets: str, **options: Any) -> OneNode:
            return make_node(*targets, **{"rules_version": LOCAL_TIME_RULES, **options})

        yield make_newer


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> Moved:
    """Zones that are as others in the tzdata of today: what is put in here changes it."""
    instead: Moved = {}
    known = zones.zone_of

    def zone_of(name: str) -> ZoneInfo:
        if instead.get(name) == "":
            raise zones.UnknownZoneError(name)
        return known(instead.get(name, name))

    is_known = zones.is_zone
    monkeypatch.setattr(zones, "zone_of", zone_of)
    monkeypatch.setattr(zones, "is_zone", lambda name: is_known(name) and instead.get(name) != "")
    return instead


def clock(at_ms: int, zone: str = BERLIN) -> bytes:
    """Return what the clock of a zone shows."""
    moment = datetime.fromtimestamp(at_ms / 1000, ZoneInfo(zone))
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds").encode()


def send(
    node: OneNode,
    due: bytes,
    *more: tuple[str, bytes | None],
    id: str | None = None,
    zone: str = BERLIN,
) -> None:
    """Send a message with a local time."""
    headers: Headers = [("delayd-topic", b"orders"), ("delayd-due", due)]
    headers += [("delayd-zone", zone.encode()), *more]
    write(node, headers, id, b"v")


def ask(node: OneNode, op: str, id: str = "a", **when: str | int) -> None:
    headers: Headers = [("delayd-op", op.encode())]
    headers += [(f"delayd-{name}", str(text).encode()) for name, text in when.items()]
    write(node, headers, id, None)


def write(node: OneNode, headers: Headers, id: str | None, value: bytes | None) -> None:
    key = None if id is None else id.encode()
    named: Headers = [] if key is None else [("delayd-id", key)]
    partition = 0 if key is None else partition_of(key, node.settings.partitions)
    node.kafka.append("delayd-buffer", partition, key, value, [*headers, *named])


def turn(node: OneNode, times: int = 4) -> None:
    for _ in range(times):
        node.ingest()
        node.step()


def go_to(node: OneNode, at_ms: int) -> None:
    node.clock.now_ms = at_ms
    turn(node)


def arrived(node: OneNode, topic: str = "orders") -> list[dict[str, bytes | None]]:
    return [dict(record.headers) for record in node.read(topic)]


def dues(node: OneNode) -> list[int]:
    return [int(each["delayd-due"] or 0) for each in arrived(node)]


def receipts(node: OneNode) -> list[dict[str, Any]]:
    return [json.loads(record.value or b"") for record in node.read("delayd-receipts")]


def verdicts(node: OneNode) -> list[str]:
    return [each["verdict"] for each in receipts(node)]


def resolved(node: OneNode) -> list[tuple[bytes | None, int, int]]:
    """Of what the master wrote: its state, when it is due, and when it is looked at."""
    found = (dict(record.headers) for record in node.read("delayd-buffer"))
    return [
        (each["delayd-resolved"], int(each["delayd-due"] or 0), int(each["delayd-next-due"] or 0))
        for each in found
        if "delayd-resolved" in each
    ]


def test_it_is_delivered_once_when_the_clock_shows_it(make: Maker) -> None:
    """Rules: local-times"""
    node = make("orders")
    send(node, clock(SOON_MS))
    go_to(node, START_MS)
    assert resolved(node) == [(b"final", SOON_MS, SOON_MS)]
    go_to(node, SOON_MS - 1)
    assert arrived(node) == []
    go_to(node, SOON_MS)
    go_to(node, SOON_MS + DAY_MS)
    [found] = arrived(node)
    assert found["delayd-due"] == b"%d" % SOON_MS
    assert found["delayd-local"] == clock(SOON_MS) + b"[Europe/Berlin]"
    assert found["delayd-origin"] == b"0/0"
    assert "delayd-attempt" not in found and "delayd-zone" not in found


def test_a_far_one_is_resolved_again_a_day_before(make: Maker) -> None:
    """Rules: local-times"""
    node = make("orders")
    send(node, clock(LATER_MS), id="a")
    go_to(node, START_MS)
    assert resolved(node) == [(b"expected", LATER_MS, LATER_MS - DAY_MS)]
    go_to(node, LATER_MS - DAY_MS - 1)
    assert len(resolved(node)) == 1
    go_to(node, LATER_MS - DAY_MS)
    assert resolved(node)[1:] == [(b"final", LATER_MS, LATER_MS)]
    go_to(node, LATER_MS - 1)
    assert arrived(node) == []
    go_to(node, LATER_MS)
    assert dues(node) == [LATER_MS]


@pytest.mark.parametrize(
    ("zone", "moved_ms"), [("Europe/London", HOUR_MS), ("Europe/Athens", -HOUR_MS)]
)
def test_a_change_of_time_zones_moves_it(
    make: Maker, moved: Moved, zone: str, moved_ms: int
) -> None:
    """Rules: local-times"""
    node = make("orders")
    send(node, clock(LATER_MS))
    go_to(node, START_MS)
    moved[BERLIN] = zone
    go_to(node, LATER_MS - DAY_MS)
    go_to(node, LATER_MS + min(moved_ms, 0) - 1)
    assert arrived(node) == []
    go_to(node, LATER_MS + moved_ms - 1)
    assert arrived(node) == []
    go_to(node, LATER_MS + moved_ms)
    assert dues(node) == [LATER_MS + moved_ms]
    go_to(node, LATER_MS + 2 * HOUR_MS)
    assert len(arrived(node)) == 1


def test_a_change_that_puts_it_off_by_days_is_followed_again(make: Maker, moved: Moved) -> None:
    node = make("orders")
    send(node, clock(LATER_MS, "Pacific/Kiritimati"), zone="Pacific/Kiritimati")
    go_to(node, START_MS)
    moved["Pacific/Kiritimati"] = "Pacific/Pago_Pago"
    put_off_ms = LATER_MS + 25 * HOUR_MS
    go_to(node, LATER_MS - DAY_MS)
    assert resolved(node)[1:] == [(b"expected", put_off_ms, put_off_ms - DAY_MS)]
    go_to(node, put_off_ms - DAY_MS)
    go_to(node, put_off_ms)
    assert dues(node) == [put_off_ms]


@pytest.mark.parametrize("due", [b"1970-01-01T00:00", clock(START_MS - 1), clock(START_MS)])
def test_what_is_past_is_delivered_at_once(make: Maker, due: bytes) -> None:
    node = make("orders")
    send(node, due)
    go_to(node, START_MS)
    assert len(arrived(node)) == 1


def test_a_successor_resolves_what_its_predecessor_left(make: Maker) -> None:
    node = make("orders")
    send(node, clock(LATER_MS))
    go_to(node, START_MS)
    node.stop_leading()
    go_to(node, LATER_MS - DAY_MS)
    node.stop_leading()
    go_to(node, LATER_MS)
    assert dues(node) == [LATER_MS]


def test_no_zone_of_that_name_is_a_dead_letter_as_it_was_sent(make: Maker) -> None:
    node = make("orders")
    due = clock(LATER_MS)
    send(node, due, ("delayd-receipt", b"yes"), zone="Europe/Atlantis", id="a")
    go_to(node, START_MS)
    [letter] = arrived(node, "delayd-dead")
    asked = (letter["delayd-due"], letter["delayd-zone"], letter["delayd-reason"])
    assert asked == (due, b"Europe/Atlantis", b"no-occurrence")
    assert b"Europe/Atlantis" in (letter["delayd-detail"] or b"")
    assert verdicts(node) == ["scheduled", "dead"]
    send(node, due, id="a")
    turn(node)
    assert verdicts(node) == ["scheduled", "dead"], "the id is free again"


def test_a_node_that_does_not_know_a_zone_that_another_did_waits(make: Maker, moved: Moved) -> None:
    node = make("orders")
    send(node, clock(LATER_MS))
    go_to(node, START_MS)
    moved[BERLIN] = ""
    go_to(node, LATER_MS - DAY_MS)
    go_to(node, LATER_MS - HOUR_MS)
    assert arrived(node) == arrived(node, "delayd-dead") == []
    moved[BERLIN] = "Europe/London"
    for _ in range(4):
        go_to(node, node.clock.now_ms + 60_000)
    assert arrived(node) == [], "it knows a zone again, whose clock is an hour behind"
    go_to(node, LATER_MS + HOUR_MS)
    assert dues(node) == [LATER_MS + HOUR_MS]


def test_a_zone_that_nobody_knows_any_more_holds_nothing_up(make: Maker, moved: Moved) -> None:
    """The message goes out when it was due by what was known last."""
    node = make("orders")
    send(node, clock(LATER_MS))
    go_to(node, START_MS)
    moved[BERLIN] = ""
    go_to(node, LATER_MS - DAY_MS)
    go_to(node, LATER_MS - 1)
    assert arrived(node) == []
    for _ in range(4):
        go_to(node, node.clock.now_ms + 60_000)
    assert dues(node) == [LATER_MS] and arrived(node, "delayd-dead") == []


@pytest.mark.parametrize("at_ms", [START_MS - 1, START_MS, LATER_MS - DAY_MS, LATER_MS - 1])
def test_the_id_is_taken_until_it_is_due(make: Maker, at_ms: int) -> None:
    """Rules: local-time-ids"""
    node = make("orders")
    send(node, clock(LATER_MS), id="a")
    if at_ms >= START_MS:
        go_to(node, START_MS)
        node.clock.now_ms = at_ms
    if at_ms > LATER_MS - DAY_MS:
        go_to(node, LATER_MS - DAY_MS)
        node.clock.now_ms = at_ms
    send(node, clock(LATER_MS), id="a")
    send(node, clock(LATER_MS + 1), id="a")
    turn(node)
    assert verdicts(node) == ["duplicate", "conflict"]
    go_to(node, max(at_ms, LATER_MS - DAY_MS))
    go_to(node, LATER_MS)
    assert dues(node) == [LATER_MS]


@pytest.mark.parametrize("turns", [0, 1, 4])
@pytest.mark.parametrize("at_ms", [START_MS, LATER_MS - DAY_MS])
def test_a_cancel_kills_it_at_any_time(make: Maker, turns: int, at_ms: int) -> None:
    node = make("orders")
    send(node, clock(LATER_MS), id="a")
    if at_ms > START_MS:
        go_to(node, START_MS)
        node.clock.now_ms = at_ms
    turn(node, turns)
    ask(node, "cancel")
    turn(node)
    go_to(node, LATER_MS - DAY_MS)
    go_to(node, LATER_MS + DAY_MS)
    assert verdicts(node) == ["cancelled"] and arrived(node) == []
    assert receipts(node)[0]["killed"] == [f"{partition_of(b'a', node.settings.partitions)}/0"]


def test_a_cancel_that_comes_between_refuses_the_continuation(make: Maker) -> None:
    node = make("orders")
    send(node, clock(LATER_MS), id="a")
    node.ingest()
    ask(node, "cancel")  # the step resolves the message, and does not know the marker
    node.step()
    turn(node)
    go_to(node, LATER_MS - DAY_MS)
    go_to(node, LATER_MS)
    assert verdicts(node) == ["cancelled"] and arrived(node) == []


@pytest.mark.parametrize("turns", [0, 4])
def test_a_replace_takes_its_place(make: Maker, turns: int) -> None:
    node = make("orders")
    send(node, clock(LATER_MS), id="a")
    turn(node, turns)
    send(node, clock(SOON_MS), ("delayd-op", b"replace"), id="a")
    turn(node)
    for at_ms in (SOON_MS, LATER_MS - DAY_MS, LATER_MS):
        go_to(node, at_ms)
    assert verdicts(node) == ["replaced"] and dues(node) == [SOON_MS]


@pytest.mark.parametrize("turns", [0, 4])
@pytest.mark.parametrize(
    ("op", "when", "due_ms"),
    [
        ("fire", {}, START_MS),
        ("reschedule", {"due": SOON_MS}, SOON_MS),
        ("reschedule", {"delay": "1h"}, SOON_MS),
    ],
)
def test_it_is_moved_and_fired(
    make: Maker, turns: int, op: str, when: dict[str, str | int], due_ms: int
) -> None:
    node = make("orders")
    send(node, clock(LATER_MS), id="a")
    turn(node, turns)
    ask(node, op, **when)  # type: ignore[arg-type]
    turn(node)
    for at_ms in (SOON_MS, LATER_MS - DAY_MS, LATER_MS):
        go_to(node, at_ms)
    assert verdicts(node) == ["rescheduled"] and dues(node) == [due_ms]
    assert "delayd-local" not in arrived(node)[0]


def test_by_needs_a_due_time_that_is_certain(make: Maker) -> None:
    """Rules: local-time-by"""
    node = make("orders")
    send(node, clock(LATER_MS), id="a")
    ask(node, "reschedule", by="+1h")
    go_to(node, START_MS)
    ask(node, "reschedule", by="+1h")
    turn(node)
    assert verdicts(node) == ["rejected", "rejected"]
    assert {each["delayd-reason"] for each in arrived(node, "delayd-dead")} == {b"unmovable"}
    go_to(node, LATER_MS - DAY_MS)
    ask(node, "reschedule", by="+1h")
    turn(node)
    assert verdicts(node)[2:] == ["rescheduled"]
    go_to(node, LATER_MS + HOUR_MS - 1)
    assert arrived(node) == []
    go_to(node, LATER_MS + HOUR_MS)
    assert dues(node) == [LATER_MS + HOUR_MS]


def test_it_is_worth_delivering_so_long_after_it_is_due(make: Maker) -> None:
    node = make("orders")
    late = ("delayd-late", b"10m")
    for minutes in (9, 11):
        send(node, clock(SOON_MS - minutes * 60_000), late)
    go_to(node, START_MS)
    node.clock.now_ms = SOON_MS
    turn(node)
    assert dues(node) == [SOON_MS - 540_000]
    [letter] = arrived(node, "delayd-dead")
    assert letter["delayd-reason"] == b"expired"
    assert letter["delayd-due"] == b"%d" % (SOON_MS - 660_000) and "delayd-zone" not in letter


def test_with_a_window_it_goes_out_somewhere_in_it(make: Maker) -> None:
    node = make("orders")
    send(node, clock(LATER_MS), ("delayd-window", b"1h"), id="a")
    go_to(node, START_MS)
    go_to(node, LATER_MS - DAY_MS)
    [_, (_, due_ms, planned_ms)] = resolved(node)
    assert due_ms == LATER_MS and LATER_MS < planned_ms < LATER_MS + HOUR_MS
    go_to(node, planned_ms - 1)
    assert arrived(node) == []
    go_to(node, planned_ms)
    [found] = arrived(node)
    assert found["delayd-planned"] == b"%d" % planned_ms and dues(node) == [LATER_MS]


def test_one_that_cannot_be_delivered_is_tried_again(make: Maker) -> None:
    node = make()
    send(node, clock(SOON_MS))
    go_to(node, START_MS)
    go_to(node, SOON_MS)
    node.kafka.create_topic("orders", 1)
    for _ in range(3):
        go_to(node, node.clock.now_ms + 60_000)
    [found] = arrived(node)
    assert found["delayd-attempt"] == b"1" and dues(node) == [SOON_MS]
    assert found["delayd-local"] == clock(SOON_MS) + b"[Europe/Berlin]"


def test_where_the_longest_delay_is_short_it_is_written_again_on_its_way(make: Maker) -> None:
    node = make("orders", max_delay_ms=2 * HOUR_MS)
    due_ms = START_MS + 5 * HOUR_MS
    send(node, clock(due_ms, "UTC"), zone="UTC")
    for hours in range(7):
        go_to(node, START_MS + hours * HOUR_MS)
    assert [state for state, *_ in resolved(node)] == [b"expected", b"expected", b"final"]
    assert dues(node) == [due_ms]
    assert datetime.fromtimestamp(due_ms / 1000, UTC).year > 2000


def test_what_is_too_far_in_any_zone_is_refused(make: Maker) -> None:
    node = make("orders", max_delay_ms=2 * HOUR_MS)
    send(node, clock(START_MS + 16 * HOUR_MS + 1, "UTC"), zone="UTC", id="a")
    turn(node)
    [letter] = arrived(node, "delayd-dead")
    assert letter["delayd-reason"] == b"too-far" and verdicts(node) == ["rejected"]
