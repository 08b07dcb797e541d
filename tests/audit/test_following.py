"""The delivery audit that is kept running, batch by batch, without Kafka: what raises an alarm.

Source: delayd/audit/following; docs/reference/audit.md, "Following".
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from cluster_settings import LANES
from cluster_settings import SETTINGS as CLUSTER
from pyspark.sql import SparkSession
from record_rows import row_of

from delayd.audit.errors import FollowFailedError
from delayd.audit.following import batch
from delayd.audit.following.alarm_log import AlarmLog
from delayd.audit.following.batch import Batches
from delayd.audit.following.batch_context import GRACE_MS
from delayd.audit.following.batch_header import header_of
from delayd.audit.judging.columns import table_of
from delayd.audit.reading.positions import Positions
from delayd.audit.tables import RECORDS
from delayd.runtime.clock import SystemClock
from replication.frontier import Frontier
from replication.rank import Rank
from replication.record import FrontierRecord, StepCounts, encode
from replication.settings import SMOOTHING_RULES, Settings, Topic

T = 1_700_000_000_000
SETTINGS = replace(
    CLUSTER,
    partitions=1,
    max_delay_ms=10**9,
    prefix="d-",
    retry_delays_ms=(1_000,),
    buffer=Topic("d-buffer", "1"),
    frontier=Topic("d-frontier", "2"),
    receipts=Topic("d-receipts", "3"),
    dead=Topic("d-dead", "4"),
)
Headers = list[tuple[str, bytes | None]]
ROLES = {"d-buffer": "buffer", "d-frontier": "frontier", "d-receipts": "receipts"}


@dataclass
class Log:
    """Everything that a cluster has in its topics, and what of it one batch brings."""

    next: dict[str, int] = field(default_factory=dict)
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    watch: str = ""
    end: dict[str, Any] | None = None
    """Where the last batch ended."""
    settings: Settings = SETTINGS

    def append(self, topic: str, at_ms: int, **parts: Any) -> int:
        offset = self.next.get(topic, 0)
        self.next[topic] = offset + 1
        self.rows.append(
            row_of(
                ROLES.get(topic, "target"),
                topic,
                0,
                offset,
                at_ms,
                parts.get("key"),
                parts.get("value"),
                parts.get("headers", []),
                log_ms=at_ms,
            )
        )
        return offset

    def ask(self, due_ms: int, *, at_ms: int = T - 9_000, **more: Any) -> int:
        """A request; its offset is its source."""
        id: str | None = more.get("id")
        headers: Headers = [("trace", b"1"), ("trace", None)]
        headers += [("delayd-topic", more.get("topic", "t").encode())]
        headers += [("delayd-due", str(due_ms).encode())]
        headers += [] if id is None else [("delayd-id", id.encode())]
        headers += more.get("headers", [])
        key = None if id is None else id.encode()
        return self.append("d-buffer", at_ms, key=key, value=b"v", headers=headers)

    def cancel(self, id: str, *, at_ms: int = T - 9_000) -> int:
        headers = [("delayd-op", b"cancel"), ("delayd-id", id.encode())]
        return self.append("d-buffer", at_ms, key=id.encode(), headers=headers)

    def deliver(self, source: int | str, due_ms: int, *, late_ms: int = 5, **more: Any) -> None:
        id: str | None = more.get("id")
        fired_ms = due_ms + late_ms
        headers: Headers = [("trace", b"1"), ("trace", None)]
        headers += [] if id is None else [("delayd-id", id.encode())]
        headers += [
            ("delayd-due", str(due_ms).encode()),
            ("delayd-fired", str(fired_ms).encode()),
            ("delayd-source", (source if isinstance(source, str) else f"0/{source}").encode()),
            *more.get("headers", []),
        ]
        self.append(
            more.get("topic", "t"),
            more.get("at_ms", fired_ms),
            key=None if id is None else id.encode(),
            value=more.get("value", b"v"),
            headers=headers,
        )

    def answer(self, id: str, verdict: str, source: int, killed: Sequence[int], at_ms: int) -> None:
        said = {
            "id": id,
            "verdict": verdict,
            "op": "cancel",
            "source": f"0/{source}",
            "killed": [f"0/{each}" for each in killed],
            "due_ms": None,
            "at_ms": at_ms,
            "detail": "",
        }
        headers = [("delayd-source", f"0/{source}".encode())]
        value = json.dumps(said).encode()
        self.append("d-receipts", at_ms, key=id.encode(), value=value, headers=headers)

    def begin(self, reached: int) -> None:
        """The frontier at which watching begins: what is due before T is done."""
        self.watch = self.frontier_of(reached, T).decode()

    def step(self, reached: int, cursor_ms: int, *, at_ms: int) -> None:
        """A frontier record: O and K."""
        value = self.frontier_of(reached, cursor_ms)
        self.append("d-frontier", at_ms, key=b"shard-0", value=value)

    def frontier_of(self, reached: int, cursor_ms: int) -> bytes:
        frontier = Frontier(
            shard=0,
            cursors=(Rank(cursor_ms, 0, 0),) * LANES,
            offsets=(reached,),
            own_writes=(-1,),
            term=1,
            step=self.next.get("d-frontier", 0),
        )
        return encode(FrontierRecord(frontier, "n/1", cursor_ms, StepCounts(), 0, self.settings))

    def batch(
        self,
        at_ms: int,
        settled: Mapping[str, int] | None = None,
        unread: Mapping[str, Sequence[int]] | None = None,
    ) -> list[tuple[Any, ...]]:
        """What has come since the last one."""
        next_offsets = {topic: (offset,) for topic, offset in self.next.items()} | {
            "d-buffer": (self.next["d-buffer"],)
        }
        return self.batch_to(at_ms, next_offsets, (0,), settled, unread)

    def batch_to(
        self,
        at_ms: int,
        next_offsets: Mapping[str, tuple[int, ...]],
        buffer_starts: tuple[int, ...],
        settled: Mapping[str, int] | None = None,
        unread: Mapping[str, Sequence[int]] | None = None,
    ) -> list[tuple[Any, ...]]:
        """What has come up to these offsets."""
        topics = ("t", "d-receipts", "d-dead", "d-buffer")
        end = Positions(
            at_ms=at_ms,
            watch=self.watch,
            watch_ms=T,
            buffer_starts=buffer_starts,
            next=next_offsets,
            settled_ms=dict.fromkeys(topics, at_ms) if settled is None else settled,
            behind={},
        )
        rows, self.rows = self.rows, []
        said = {"start": self.end or end.to_json(), "end": end.to_json(), "unread": unread or {}}
        self.end = end.to_json()
        return [*rows, row_of("target", "", 0, 0, 0, None, json.dumps(said).encode(), [])]


class Follower:
    """What judges batches; a new one on the same folder is one that was started again."""

    def __init__(self, spark: SparkSession, work: Path, log: Log) -> None:
        self.spark = spark
        self.work = work
        self.log = log
        self.first: list[tuple[Any, ...]] = []
        """Its first batch."""
        self.told: list[tuple[str, str | None]] = []
        self.start()

    def start(self) -> None:
        alarm_log = AlarmLog(
            self.work, lambda alarm: self.told.append((alarm["fault"], alarm["source"]))
        )
        metrics = self.work / "metrics"
        self.batches = Batches(
            self.spark, self.log.settings, self.work, metrics, alarm_log, SystemClock()
        )
        self.batches.resume()

    def judge(self, number: int, rows: list[tuple[Any, ...]]) -> list[tuple[str, str | None]]:
        """The alarms that the batch raises."""
        before = len(self.told)
        self.batches.judge(table_of(self.spark, RECORDS, rows).coalesce(1), number)
        return sorted(self.told[before:])

    def metric(self, name: str) -> float:
        lines = (self.work / "metrics").read_text().splitlines()
        [value] = [line.split(" ")[1] for line in lines if line.startswith(f"{name} ")]
        return float(value)


@pytest.fixture(scope="module")
def judged_once(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Follower:
    """A follower that has judged one batch, of one request."""
    log = Log()
    log.ask(T + 1_000)
    log.begin(log.next["d-buffer"])
    follower = Follower(spark, tmp_path_factory.mktemp("judged-once"), log)
    follower.first = log.batch(T + 100)
    with pytest.raises(FollowFailedError, match="whose last is none"):
        follower.judge(1, follower.first)
    assert follower.judge(0, follower.first) == []
    return follower


@pytest.fixture
def follower(judged_once: Follower, tmp_path: Path) -> Follower:
    """The same, on files of its own."""
    shutil.copytree(judged_once.work, tmp_path / "work")
    own = Follower(judged_once.spark, tmp_path / "work", deepcopy(judged_once.log))
    own.first = judged_once.first
    return own


@pytest.mark.rehearsal
def test_each_request_is_judged_by_the_rules_of_its_place_over_a_switch(
    spark: SparkSession, tmp_path: Path
) -> None:
    """By rules 4 a due time in seconds is refused, by rules 3 it is long past. Neither a frontier
    nor a start tells the follower of the barrier.

    Rules: rules-by-place
    """
    log = Log(settings=replace(SETTINGS, rules_version=SMOOTHING_RULES))
    log.begin(0)
    follower = Follower(spark, tmp_path, log)
    before = log.ask(T // 1_000)
    switch = [("delayd-rules", b"4/0.2.0"), ("delayd-proof", b"0" * 64)]
    log.append("d-buffer", T - 9_000, headers=switch)
    log.ask(T // 1_000)
    assert follower.judge(0, log.batch(T + 100)) == []
    follower.start()
    log.ask(T // 1_000)
    log.step(log.next["d-buffer"], T + 200, at_ms=T + 200)
    follower.judge(1, log.batch(T + 300))
    log.step(log.next["d-buffer"], T + 2 * GRACE_MS, at_ms=T + 2 * GRACE_MS)
    assert follower.judge(2, log.batch(T + 3 * GRACE_MS)) == [("lost", f"0/{before}")]


def test_each_violation_raises_one_alarm_and_nothing_else_does(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = Log()
    over = log.ask(T - 5_000)
    right, lost, altered, again, later = (log.ask(T + 1_000) for _ in range(5))
    early = log.ask(T + 90_000)
    killed, kill = log.ask(T + 1_000, id="k"), log.cancel("k")
    too_late = log.ask(T + 1_000, id="l")
    stored, same = log.ask(T + 1_000, id="s"), log.ask(T + 1_000, id="s")
    tried, elsewhere = log.ask(T + 1_000), log.ask(T + 1_000, topic="gone")
    log.append("d-buffer", T - 9_000, headers=[("delayd-due", b"1")])  # a reject
    log.begin(log.next["d-buffer"])
    follower = Follower(spark, tmp_path, log)
    assert follower.judge(0, log.batch(T + 100)) == []
    assert follower.metric("delayd_audit_pending") == 10

    # The first half of a step's evidence, before the rest of it can be read.
    log.deliver(over, T - 5_000)
    log.deliver(right, T + 1_000)
    log.deliver(altered, T + 1_000, value=b"w")
    log.deliver(again, T + 1_000)
    log.deliver(again, T + 1_000)
    log.deliver(later, T + 1_000)
    log.deliver(early, T + 90_000, late_ms=-89_000)
    log.deliver(too_late, T + 1_000, id="l")
    log.deliver("0/999", T)
    log.deliver("nonsense", T)
    log.append("t", T, value=b"of another producer", headers=[("theirs", b"1")])
    cancelled_late = log.cancel("l", at_ms=T + 2_000)
    continued = log.ask(
        T + 1_000,
        at_ms=T + 1_010,
        headers=[
            ("delayd-origin", b"0/%d" % tried),
            ("delayd-attempt", b"1"),
            ("delayd-continues-due", b"%d" % (T + 1_000)),
            ("delayd-continues", b"%d" % tried),
            ("delayd-next-due", b"%d" % (T + 2_010)),
            ("delayd-proof", b"believed"),
        ],
    )
    log.step(log.next["d-buffer"], T + 2_000, at_ms=T + 2_000)
    assert follower.judge(1, log.batch(T + 2_100)) == [
        ("altered", f"0/{altered}"),
        ("duplicate", f"0/{again}"),
        ("early", f"0/{early}"),
        ("unknown", "0/999"),
        ("unknown", "nonsense"),
    ]

    log.deliver(stored, T + 1_000, id="s")
    log.deliver(
        continued,
        T + 1_000,
        headers=[("delayd-origin", b"0/%d" % tried), ("delayd-attempt", b"1")],
    )
    log.deliver(later, T + 1_000, at_ms=T + 3_000)
    log.deliver(over, T - 5_000, at_ms=T + 3_000)
    log.deliver(killed, T + 1_000, id="k")
    log.deliver(same, T + 1_000, id="s")
    log.answer("k", "cancelled", kill, [killed], T - 100)
    log.answer("l", "cancelled", cancelled_late, [too_late], T + 2_500)
    log.step(log.next["d-buffer"], T + 3_000, at_ms=T + 3_000)
    third = log.batch(T + 3_100)
    expected = [
        ("duplicate", f"0/{over}"),
        ("duplicate", f"0/{later}"),
        ("ghost", f"0/{same}"),
        ("ghost", f"0/{killed}"),
        ("verdict-false", f"0/{too_late}"),
    ]
    assert follower.judge(2, third) == sorted(expected)
    assert follower.judge(2, third) == [], "the same batch again"

    # Time alone makes it certain; but not for a target of which nothing can be read.
    almost = log.batch(T + 2_000 + GRACE_MS - 1)
    assert follower.judge(3, almost) == []
    follower.start()
    assert follower.judge(4, log.batch(T + 2_000 + GRACE_MS)) == [("lost", f"0/{lost}")]
    assert follower.metric("delayd_audit_pending") == 1
    assert elsewhere
    lines = [json.loads(line) for line in (tmp_path / "alarms.jsonl").read_text().splitlines()]
    assert [(line["fault"], line["source"]) for line in lines] == follower.told


def test_what_may_be_in_what_is_never_read_is_not_lost(spark: SparkSession, tmp_path: Path) -> None:
    """docs/reference/audit.md, "Targets that cannot be read"."""
    log = Log()
    log.ask(T + 1_000)
    lost, later = log.ask(T + 1_000, topic="u"), log.ask(T + 200_000)
    log.begin(log.next["d-buffer"])
    follower = Follower(spark, tmp_path, log)
    assert follower.judge(0, log.batch(T + 100)) == []
    log.step(log.next["d-buffer"], T + 2_000, at_ms=T + 2_000)
    assert follower.judge(1, log.batch(T + 2_100, unread={"t": [4]})) == []

    settled = dict.fromkeys(("t", "u", "d-dead", "d-buffer"), T + 2_100 + GRACE_MS)
    follower.start()
    raised = follower.judge(2, log.batch(T + 2_100 + GRACE_MS, settled))
    assert raised == [("lost", f"0/{lost}")]

    # What was covered after the gap is judged again.
    covered_ms = T + 2_100 + GRACE_MS + 1
    log.step(log.next["d-buffer"], T + 300_000, at_ms=covered_ms)
    settled = dict.fromkeys(settled, covered_ms + GRACE_MS)
    assert follower.judge(3, log.batch(covered_ms + GRACE_MS, settled)) == [("lost", f"0/{later}")]


def test_requests_that_were_deleted_before_they_were_read_make_no_alarm(
    follower: Follower,
) -> None:
    """docs/reference/audit.md, "Targets that cannot be read"."""
    log = follower.log
    log.next["d-buffer"] += 2
    lost = log.ask(T + 1_000)
    log.deliver("0/2", T + 1_000)
    log.deliver("0/9", T + 1_000)
    log.step(log.next["d-buffer"], T + 2_000, at_ms=T + 2_000)
    raised = follower.judge(1, log.batch(T + 2_100, unread={"d-buffer": [lost]}))
    assert raised == [("unknown", "0/9")]
    follower.start()
    raised = follower.judge(2, log.batch(T + 2_000 + GRACE_MS))
    assert raised == [("lost", f"0/{lost}")], "a cancel of the first one may be gone"


def test_a_stray_in_the_frontier_topic_is_no_frontier(spark: "SparkSession") -> None:
    """docs/design/frontier.md, Strays: not even one that could be read as one."""
    log = Log()
    log.ask(T + 1_000)
    log.begin(1)
    log.step(1, T, at_ms=T + 1)
    log.append("d-frontier", T + 2, key=b"another-key", value=log.frontier_of(10, T + 100_000))
    _, frontiers = header_of(table_of(spark, RECORDS, log.batch(T + 200)), SETTINGS)
    assert [each.append_ms for each in frontiers] == [T + 1]


def test_batches_that_do_not_follow_each_other_are_not_judged(follower: Follower) -> None:
    """As after a loss of power, or when somebody removed a part of the folder."""
    log, first = follower.log, follower.first
    log.append("t", T, value=b"of another producer", headers=[("theirs", b"1")])
    end = log.end
    second = log.batch(T + 200)
    log.end = end
    otherwise = log.batch(T + 300)
    follower.judge(1, second)
    follower.judge(1, second)
    wrong = [(1, otherwise, "another end"), (0, first, "an earlier one"), (2, second, "a start")]
    wrong += [(3, log.batch(T + 400), "one is missing")]
    follower.start()
    for number, rows, _ in wrong:
        with pytest.raises(FollowFailedError, match="an empty --work"):
            follower.judge(number, rows)


def test_more_targets_than_can_be_followed_are_an_error(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch has named one."""
    monkeypatch.setattr(batch, "TARGETS_MAX", 2)
    for topic in ("a", "b"):
        follower.log.ask(T + 1_000, topic=topic)
    with pytest.raises(FollowFailedError, match="more than 2 targets"):
        follower.judge(1, follower.log.batch(T + 200))
