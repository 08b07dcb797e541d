"""Series on a whole node: each occurrence once, the next one in the same step.

Source: docs/design/series.md.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from manual_clock import START_MS
from one_node import Maker, OneNode, nodes_in

from delayd.bus.murmur2 import partition_of
from delayd.node.delivery import series_step
from delayd.node.delivery.step_writer import StepWriter
from delayd.request import Series
from delayd.request.recurrence import series as recurrence
from delayd.wheel import Frame
from replication.settings import SERIES_RULES, WISHES_RULES

MINUTE_MS = 60_000
FIRST_MS = START_MS // MINUTE_MS * MINUTE_MS + MINUTE_MS
EACH_MINUTE = "* * * * *"


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Maker]:
    with nodes_in(tmp_path) as make_node:

        def make_newer(*targets: str, **options: Any) -> OneNode:
            return make_node(*targets, **{"rules_version": SERIES_RULES, **options})

        yield make_newer


def recur(
    node: OneNode,
    cron: str = EACH_MINUTE,
    *,
    topic: str = "orders",
    id: str | None = None,
    op: str | None = None,
    more: Sequence[tuple[str, bytes | None]] = (),
) -> None:
    """Send a series."""
    headers = [("delayd-topic", topic.encode()), ("delayd-cron", cron.encode()), *more]
    key = None if id is None else id.encode()
    if id is not None:
        headers.append(("delayd-id", id.encode()))
    if op is not None:
        headers.append(("delayd-op", op.encode()))
    partition = 0 if key is None else partition_of(key, node.settings.partitions)
    node.kafka.append("delayd-buffer", partition, key, b"v", headers)


def go_to(node: OneNode, at_ms: int) -> None:
    """Let the clock be `at_ms`, and the master do what is to be done by then."""
    node.clock.now_ms = at_ms
    settle(node)


def settle(node: OneNode) -> None:
    for _ in range(4):
        node.ingest()
        node.step()


def headers_of(node: OneNode, topic: str) -> list[dict[str, bytes | None]]:
    return [dict(record.headers) for record in node.read(topic)]


def arrived(node: OneNode, topic: str = "orders") -> list[tuple[int, int]]:
    """Of each delivery: its occurrence, and when that was due, from the first one on."""
    return [
        (int(each["delayd-occurrence"] or 0), int(each["delayd-due"] or 0) - FIRST_MS)
        for each in headers_of(node, topic)
    ]


def receipts(node: OneNode) -> list[dict[str, Any]]:
    return [json.loads(record.value or b"") for record in node.read("delayd-receipts")]


def verdicts(node: OneNode) -> list[str]:
    return [each["verdict"] for each in receipts(node)]


def counts(node: OneNode, name: str) -> int:
    steps = [json.loads(record.value or b"") for record in node.read("delayd-frontier")]
    return sum(step["counts"][name] for step in steps)


def test_each_occurrence_is_delivered_once_and_the_next_one_is_in_the_buffer(make: Maker) -> None:
    """Rules: series-go-on"""
    node = make("orders")
    recur(node)
    go_to(node, START_MS)
    assert arrived(node) == []
    for number in range(4):
        go_to(node, FIRST_MS + number * MINUTE_MS)
    assert arrived(node) == [(n + 1, n * MINUTE_MS) for n in range(4)]
    [first, *others] = headers_of(node, "orders")
    assert {each["delayd-origin"] for each in (first, *others)} == {b"0/0"}
    assert len({each["delayd-source"] for each in (first, *others)}) == 4
    assert "delayd-attempt" not in first
    assert (counts(node, "delivered"), counts(node, "retried")) == (4, 1)


def test_the_continuations_tell_what_became_of_what_they_continue(make: Maker) -> None:
    node = make("orders")
    recur(node, more=[("delayd-until", b"%d" % (FIRST_MS + MINUTE_MS))])
    go_to(node, START_MS)
    go_to(node, FIRST_MS)
    go_to(node, FIRST_MS + MINUTE_MS)
    records = headers_of(node, "delayd-buffer")
    said = [
        tuple(each.get(f"delayd-{name}") for name in ("occurrence", "series", "follows"))
        for each in records
    ]
    assert said == [
        (None, None, None),
        (b"1", b"on", None),
        (b"2", b"last", b"yes"),
    ]


def test_a_successor_goes_on_from_the_log(make: Maker) -> None:
    """Rules: series-go-on"""
    node = make("orders")
    recur(node, id="a")
    go_to(node, FIRST_MS)
    go_to(node, FIRST_MS + MINUTE_MS)
    node.stop_leading()
    go_to(node, FIRST_MS + 2 * MINUTE_MS)
    assert arrived(node) == [(n + 1, n * MINUTE_MS) for n in range(3)]


def test_r_covers_the_next_occurrence(make: Maker) -> None:
    """A frontier whose R lacks it lets a successor judge cancels before it has read that record."""
    node = make("orders")
    recur(node)
    go_to(node, START_MS)
    go_to(node, FIRST_MS)
    steps = [json.loads(record.value or b"") for record in node.read("delayd-frontier")]
    delivering = next(step for step in steps if step["counts"]["delivered"])
    written = [record.offset for record in node.read("delayd-buffer")]
    assert delivering["own_writes"] == [written[-1]]


def test_it_ends_with_its_last_occurrence_and_says_so(make: Maker) -> None:
    """Rules: series-end"""
    node = make("orders")
    until = b"%d" % (FIRST_MS + 2 * MINUTE_MS)
    recur(node, id="a", more=[("delayd-until", until), ("delayd-receipt", b"yes")])
    for number in range(6):
        go_to(node, FIRST_MS + number * MINUTE_MS)
    assert arrived(node) == [(n + 1, n * MINUTE_MS) for n in range(3)]
    assert verdicts(node) == ["scheduled", *["delivered"] * 3, "ended"]
    assert {each["source"] for each in receipts(node)} == {"0/0"}
    told = [each["due_ms"] - FIRST_MS for each in receipts(node) if each["verdict"] != "scheduled"]
    assert told == [0, MINUTE_MS, 2 * MINUTE_MS, 2 * MINUTE_MS]
    recur(node, id="a")
    settle(node)
    go_to(node, FIRST_MS + 7 * MINUTE_MS)
    assert arrived(node)[3:] == [(1, 7 * MINUTE_MS)]


def test_one_with_an_id_says_that_it_has_ended_whatever_the_setting(make: Maker) -> None:
    node = make("orders")
    recur(node, id="a", more=[("delayd-until", b"%d" % FIRST_MS)])
    go_to(node, FIRST_MS)
    assert verdicts(node) == ["ended"]


@pytest.mark.parametrize("at_ms", [START_MS, FIRST_MS + 1, FIRST_MS + 10 * MINUTE_MS])
def test_the_same_series_again_is_a_duplicate_at_any_time_while_it_goes_on(
    make: Maker, at_ms: int
) -> None:
    """Rules: series-pending"""
    node = make("orders")
    recur(node, id="a")
    recur(node, id="a")
    go_to(node, at_ms)
    recur(node, id="a")
    recur(node, "*/2 * * * *", id="a")
    settle(node)
    assert verdicts(node) == ["duplicate", "duplicate", "conflict"]
    # An outage: what is pending was due long ago, and no step has come to it.
    node.stop_leading()
    node.clock.now_ms = at_ms + 3 * 24 * 60 * MINUTE_MS
    recur(node, id="a")
    settle(node)
    assert verdicts(node)[3:] == ["duplicate"]


def test_a_cancel_ends_it_between_two_occurrences(make: Maker) -> None:
    """Rules: series-killed"""
    node = make("orders")
    recur(node, id="a")
    go_to(node, FIRST_MS)
    node.send("orders", id="a", op="cancel")
    settle(node)
    go_to(node, FIRST_MS + 3 * MINUTE_MS)
    node.send("orders", id="a", op="cancel")
    settle(node)
    assert arrived(node) == [(1, 0)]
    assert [(each["verdict"], each["killed"]) for each in receipts(node)] == [
        ("cancelled", ["0/0"]),
        ("cancelled", ["0/0"]),
    ]


def test_a_cancel_behind_a_delivered_occurrence_refuses_the_next_one(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules: series-killed. The step that delivers does not know the cancel yet; its continuation
    comes behind it."""
    node = make("orders")
    recur(node, id="a")
    go_to(node, START_MS)
    node.clock.now_ms = FIRST_MS
    go_on = StepWriter._go_on

    def go_on_behind_a_cancel(self: StepWriter, frame: Frame, series: Series) -> None:
        node.send("orders", id="a", op="cancel")
        go_on(self, frame, series)

    monkeypatch.setattr(StepWriter, "_go_on", go_on_behind_a_cancel)
    settle(node)
    go_to(node, FIRST_MS + 2 * MINUTE_MS)
    assert arrived(node) == [(1, 0)]
    assert [(each["verdict"], each["killed"]) for each in receipts(node)] == [
        ("cancelled", ["0/0"])
    ]


def test_a_replace_puts_another_in_its_place(make: Maker) -> None:
    """Rules: series-killed"""
    node = make("orders")
    recur(node, id="a")
    go_to(node, FIRST_MS)
    recur(node, "*/5 * * * *", id="a", op="replace")
    settle(node)
    for number in range(1, 12):
        go_to(node, FIRST_MS + number * MINUTE_MS)
    dues_ms = [due_ms for _, due_ms in arrived(node)]
    assert len(dues_ms) >= 3 and all((FIRST_MS + due) % 300_000 == 0 for due in dues_ms[1:])
    assert verdicts(node) == ["replaced"]


def test_a_cancel_after_the_end_is_too_late(make: Maker) -> None:
    node = make("orders")
    recur(node, id="a", more=[("delayd-until", b"%d" % FIRST_MS)])
    go_to(node, FIRST_MS)
    node.send("orders", id="a", op="cancel")
    settle(node)
    assert verdicts(node) == ["ended", "too-late"]


def test_after_an_outage_the_latest_missed_one_is_delivered_and_then_the_next(make: Maker) -> None:
    """Rules: series-caught-up"""
    node = make("orders")
    recur(node)
    go_to(node, FIRST_MS)
    go_to(node, FIRST_MS + 30 * MINUTE_MS + 500)
    go_to(node, FIRST_MS + 31 * MINUTE_MS)
    assert arrived(node) == [(1, 0), (2, 30 * MINUTE_MS), (3, 31 * MINUTE_MS)]
    assert counts(node, "retried") == 2


def test_one_that_is_always_behind_is_delivered_all_the_same(make: Maker) -> None:
    """Rules: series-caught-up"""
    node = make("orders")
    recur(node, "* * * * * *")
    settle(node)
    for number in range(1, 9):
        node.clock.now_ms = START_MS + number * 2_500
        node.ingest()
        node.step()
    assert len(arrived(node)) >= 3


def test_each_missed_one_is_delivered_if_it_asks_for_that(make: Maker) -> None:
    """Rules: series-caught-up"""
    node = make("orders")
    recur(node, more=[("delayd-catchup", b"all")])
    go_to(node, FIRST_MS)
    node.clock.now_ms = FIRST_MS + 5 * MINUTE_MS
    for _ in range(3):
        settle(node)
    assert arrived(node) == [(n + 1, n * MINUTE_MS) for n in range(6)]


def test_no_more_than_a_day_of_them(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrence, "CATCHUP_MS_MAX", 3 * MINUTE_MS)
    node = make("orders")
    recur(node, more=[("delayd-catchup", b"all")])
    go_to(node, FIRST_MS)
    node.clock.now_ms = FIRST_MS + 50 * MINUTE_MS
    for _ in range(3):
        settle(node)
    assert arrived(node) == [(1, 0), *((n - 45, n * MINUTE_MS) for n in range(47, 51))]


def test_of_those_that_are_all_older_than_a_day_the_latest_is_delivered(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each costs a step."""
    monkeypatch.setattr(recurrence, "CATCHUP_MS_MAX", 3 * MINUTE_MS)
    node = make("orders")
    until = b"%d" % (FIRST_MS + 20 * MINUTE_MS)
    recur(node, more=[("delayd-catchup", b"all"), ("delayd-until", until)])
    go_to(node, FIRST_MS)
    node.clock.now_ms = FIRST_MS + 50 * MINUTE_MS
    for _ in range(3):
        settle(node)
    assert arrived(node) == [(1, 0), (2, 20 * MINUTE_MS)]


def test_a_step_that_has_looked_for_long_enough_leaves_series_to_later_ones(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And delivers everything else."""
    monkeypatch.setattr(series_step, "SPENT_MS_MAX", -1)
    node = make("orders")
    for number in range(5):
        recur(node, id=f"s-{number}")
    node.send("orders", START_MS)
    go_to(node, START_MS)
    assert len(node.read("orders")) == 1 and node.failures == {}
    monkeypatch.setattr(series_step, "SPENT_MS_MAX", 10_000)
    go_to(node, START_MS + 20_000)
    go_to(node, FIRST_MS)
    assert len(node.read("orders")) == 6


def test_a_series_in_a_zone_that_this_node_lacks_waits_for_one_that_has_it(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make("orders")
    recur(node, more=[("delayd-zone", b"Europe/Berlin")])
    go_to(node, START_MS)
    monkeypatch.setattr(series_step, "is_zone", lambda name: False)
    go_to(node, FIRST_MS)
    assert arrived(node) == [] and node.read("delayd-dead") == []
    monkeypatch.undo()
    go_to(node, FIRST_MS + 20_000)
    assert arrived(node) == [(1, 0)]


def test_an_occurrence_expires_and_the_series_goes_on(make: Maker) -> None:
    """Rules: series-go-on"""
    node = make("orders")
    recur(node, "0 * * * *", id="a", more=[("delayd-late", b"10s")])
    go_to(node, START_MS)
    hour_ms = int(headers_of(node, "delayd-buffer")[1]["delayd-due"] or 0)
    go_to(node, hour_ms + 20_000)
    go_to(node, hour_ms + 60 * MINUTE_MS)
    assert [(n, due + FIRST_MS) for n, due in arrived(node)] == [(2, hour_ms + 60 * MINUTE_MS)]
    assert verdicts(node) == ["expired"]
    [letter] = headers_of(node, "delayd-dead")
    assert letter["delayd-reason"] == b"expired" and letter["delayd-occurrence"] == b"1"
    assert "delayd-cron" not in letter and letter["delayd-due"] == b"%d" % hour_ms


def test_a_retry_holds_the_series_and_a_dead_occurrence_does_not_end_it(make: Maker) -> None:
    """Rules: series-go-on"""
    node = make("orders", retry_delays_ms=(90_000,))
    recur(node, topic="nowhere", id="a")
    for number in range(40):
        go_to(node, FIRST_MS + number * 15_000)
    letters = headers_of(node, "delayd-dead")
    assert [each["delayd-occurrence"] for each in letters[:3]] == [b"1", b"2", b"3"]
    assert {each["delayd-attempt"] for each in letters} == {b"2"}
    dues_ms = [int(each["delayd-due"] or 0) - FIRST_MS for each in letters[:3]]
    assert dues_ms == [0, MINUTE_MS, 3 * MINUTE_MS]
    assert set(verdicts(node)) == {"dead"}
    node.kafka.create_topic("nowhere", 1, {"message.timestamp.type": "LogAppendTime"})
    node.targets.forget()
    for number in range(40, 60):
        go_to(node, FIRST_MS + number * 15_000)
        node.targets.forget()
    numbers = [number for number, _ in arrived(node, "nowhere")]
    assert numbers == list(range(len(letters) + 1, len(letters) + 1 + len(numbers))) and numbers


@pytest.mark.parametrize(
    ("cron", "more", "detail"),
    [
        ("0 0 30 2 *", (), b"no meaning"),
        ("99 * * * *", (), b"no meaning"),
        ("0 0 */31 2 MON#5", (), b"never comes"),
        (EACH_MINUTE, (("delayd-zone", b"Europe/Bielefeld"),), b"not in tzdata"),
        (EACH_MINUTE, (("delayd-until", b"1699999999000"),), b"after the end"),
    ],
)
def test_one_without_any_occurrence_is_a_dead_letter_as_it_was_asked_for(
    make: Maker, cron: str, more: Sequence[tuple[str, bytes]], detail: bytes
) -> None:
    """Rules: series-over"""
    node = make("orders")
    recur(node, cron, id="a", more=more)
    settle(node)
    [letter] = headers_of(node, "delayd-dead")
    assert letter["delayd-reason"] == b"no-occurrence" and letter["delayd-cron"] == cron.encode()
    assert detail in (letter["delayd-detail"] or b"") and "delayd-due" not in letter
    assert letter["delayd-origin"] == b"0/0" and letter["delayd-occurrence"] == b"0"
    assert verdicts(node) == ["dead"] and counts(node, "dead") == 1
    node.clock.now_ms += 1
    recur(node, id="a")  # its id is free again
    settle(node)
    assert verdicts(node) == ["dead"]


def test_one_that_the_libraries_no_longer_know_dies_in_words(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules: series-over"""
    node = make("orders")
    recur(node, id="a")
    go_to(node, START_MS)
    monkeypatch.setattr(recurrence, "next_after", _nothing)
    go_to(node, FIRST_MS)
    node.clock.now_ms += 1
    settle(node)
    assert arrived(node) == [(1, 0)] and verdicts(node) == ["dead"]
    [letter] = headers_of(node, "delayd-dead")
    assert letter["delayd-occurrence"] == b"2" and letter["delayd-cron"] == EACH_MINUTE.encode()


def _nothing(*_: object) -> None:
    return None


def test_one_that_is_far_away_is_written_again_before_kafka_deletes_it(make: Maker) -> None:
    """Rules: series-waypoints"""
    node = make("orders")
    recur(node, "@yearly", id="a")
    go_to(node, START_MS)
    longest_ms = node.settings.max_delay_ms
    said = headers_of(node, "delayd-buffer")[-1]
    due_ms = int(said["delayd-due"] or 0)
    assert int(said["delayd-next-due"] or 0) == min(due_ms, START_MS + longest_ms) < due_ms
    for _ in range(due_ms // longest_ms + 1):
        if node.clock.now_ms >= due_ms - longest_ms:
            break
        go_to(node, node.clock.now_ms + longest_ms)
    assert arrived(node) == []
    go_to(node, due_ms)
    assert [(number, due + FIRST_MS) for number, due in arrived(node)] == [(1, due_ms)]


@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Kolkata"])
def test_the_zone_decides_when(make: Maker, zone: str | None) -> None:
    node = make("orders")
    recur(node, "30 9 * * *", more=[] if zone is None else [("delayd-zone", zone.encode())])
    go_to(node, START_MS)
    due_ms = int(headers_of(node, "delayd-buffer")[-1]["delayd-due"] or 0)
    minutes = due_ms // MINUTE_MS % (24 * 60)
    assert minutes == (4 * 60 if zone == "Asia/Kolkata" else 9 * 60 + 30)


def test_older_rules_refuse_it_as_before(make: Maker) -> None:
    node = make("orders", rules_version=WISHES_RULES)
    recur(node, id="a")
    settle(node)
    [letter] = headers_of(node, "delayd-dead")
    assert letter["delayd-reason"] == b"not-supported"
    assert b"rules version 5" in (letter["delayd-detail"] or b"")


def test_smoothing_and_a_rate_keep_the_occurrence(make: Maker) -> None:
    node = make("orders", rates={"orders": 1})
    for number in range(4):
        recur(node, id=f"a{number}")
    for number in range(200):
        go_to(node, FIRST_MS + number * 250)
    assert sorted(arrived(node)) == [(1, 0)] * 4
