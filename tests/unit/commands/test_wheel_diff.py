"""`delayd wheel diff`: alike is alike, whenever the two were stopped; and each difference is named.

Source: docs/design/storage.md, "Comparing two wheels".
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

import pytest
from comparing_nodes import HOUR_MS, PARTITIONS, due_of, spread
from exporting_node import (
    BEGIN_MS,
    SETTINGS,
    cancel,
    cut,
    limits,
    schedule,
)
from one_node import open_replica
from test_wheel_verify import files_in

from delayd.bus import Record
from delayd.commands.examine import diffing
from delayd.commands.examine.diffing import Comparison, Where, diff
from delayd.commands.examine.showing import (
    DIFFERENCES_SHOWN,
    comparison_json,
    comparison_lines,
)
from delayd.node.replica.replica import Replica
from delayd.request import parse
from delayd.request.bodies import message_body
from delayd.request.request import Request
from delayd.wheel import Frame, FrameKind
from delayd.wheel.kills import kill_key
from delayd.wheel.layout import hour_of
from replication.frontier import Frontier
from replication.rank import Rank, lane_of
from replication.settings import Settings

Edit = Callable[[Replica], None]


def node(
    folder: Path,
    *records: Record,
    settings: Settings = SETTINGS,
    hold_ms: int = 60_000,
) -> Replica:
    """A node that has taken in these records; `stop` it."""
    replica = open_replica(folder, settings, export_hold_ms=hold_ms)
    replica.take(sorted(records, key=lambda record: (record.partition, record.offset)))
    return replica


def stop(replica: Replica) -> Path:
    """With a last checkpoint."""
    replica.checkpoint()
    replica.close()
    return Path(replica.wheel.root)


def compared(a: Path, b: Path) -> Comparison:
    return diff(a, b, lambda done, total: None)


def found(comparison: Comparison) -> set[tuple[str, str, Where]]:
    return {(d.what, f"{d.partition}/{d.offset}", d.where) for d in comparison.differences}


def hour_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("slots/*/hour.*"))


# --- Alike


def test_two_that_took_in_the_same_are_alike_without_a_look_into_their_files(
    tmp_path: Path,
) -> None:
    a, b = (stop(node(tmp_path / name, *spread(300))) for name in "ab")
    assert len(hour_files(a)) > 15
    before = files_in(a)
    comparison = compared(a, b)
    assert comparison.is_alike and comparison.read_bytes == 0 and comparison.exchanges == 1
    assert files_in(a) == before


def test_the_order_in_which_partitions_came_does_not_matter(tmp_path: Path) -> None:
    records = spread(200)
    a = stop(node(tmp_path / "a", *records))
    other = node(tmp_path / "b")
    other.take([record for record in records if record.partition == 1])
    other.take([record for record in records if record.partition == 0])
    assert compared(a, stop(other)).read_bytes == 0


def test_one_that_has_taken_in_more_is_alike(tmp_path: Path) -> None:
    a = stop(node(tmp_path / "a", *spread(300), *spread(250, first=300, seed=2)))
    b = stop(node(tmp_path / "b", *spread(300)))
    for comparison in (compared(a, b), compared(b, a)):
        assert comparison.is_alike and comparison.read_bytes > 0
        assert comparison.frames_exchanges == 0, "their digests tell"


def split(replica: Replica, to_ms: int, pieces: int | None = None) -> None:
    """Split the hours up to this time; all of them, or so many pieces."""
    while replica.split_some(to_ms) and pieces != 0:
        pieces = None if pieces is None else pieces - 1


@pytest.mark.usefixtures("dense_hours")
@pytest.mark.parametrize("pieces", [None, 2, 5])
def test_an_hour_that_one_has_split_is_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: int | None
) -> None:
    monkeypatch.setattr("delayd.wheel.near_hours.SPLIT_BYTES", 2_000)
    records = spread(600)
    a = stop(node(tmp_path / "a", *records))
    other = node(tmp_path / "b", *records)
    split(other, BEGIN_MS + 8 * HOUR_MS, pieces)
    b = stop(other)
    assert len(hour_files(b)) < len(hour_files(a)) or pieces is not None
    assert {p.name for p in b.glob("slots/*/*")} > {p.name for p in a.glob("slots/*/*")} - {"hour"}
    comparison = compared(a, b)
    assert comparison.is_alike and comparison.exchanges == 1, "moved frames are the same frames"


@pytest.mark.usefixtures("dense_hours")
def test_a_difference_is_found_where_one_has_split_the_hour(tmp_path: Path) -> None:
    records = spread(600)
    far = [r for r in records if due_of(r) > BEGIN_MS + 4 * HOUR_MS]
    a = stop(node(tmp_path / "a", *records))
    other = node(tmp_path / "b", *(record for record in records if record is not far[0]))
    split(other, BEGIN_MS + 24 * HOUR_MS)
    b = stop(other)
    assert not hour_files(b) and len(hour_files(a)) > 15
    missing = f"{far[0].partition}/{far[0].offset}"
    assert found(compared(a, b)) == {("message", missing, Where.ONLY_A)}
    assert found(compared(b, a)) == {("message", missing, Where.ONLY_B)}


@pytest.mark.usefixtures("dense_hours")
def test_only_what_lies_below_nodes_that_differ_is_looked_at(tmp_path: Path) -> None:
    records = spread(600)
    lost = sorted(records, key=due_of)[450]
    directories = []
    for name, held in (("a", records), ("b", [r for r in records if r is not lost])):
        replica = node(tmp_path / name, *held)
        split(replica, BEGIN_MS + 24 * HOUR_MS)
        directories.append(stop(replica))
    comparison = compared(*directories)
    [missing] = comparison.differences
    assert missing.due_ms == due_of(lost)
    slot = due_of(lost) // 1000
    files = [path for directory in directories for path in directory.glob(f"slots/*/{slot}.*")]
    assert comparison.read_bytes == sum(path.stat().st_size for path in files)
    of_the_hour = len(list(directories[0].glob(f"slots/{hour_of(slot)}/*")))
    assert comparison.nodes == 1 + 24 + 1 + of_the_hour and comparison.frames_exchanges == 1


def test_what_one_has_forgotten_is_no_difference_but_late_arrivals_are(tmp_path: Path) -> None:
    """docs/design/storage.md, "Forgetting": the frontier of the one that forgot more counts."""
    records = spread(400)
    late = [schedule(1_000 + n, BEGIN_MS + 500 * n, partition=n % 2) for n in range(40)]
    passed = cut(3, (400, 400), cursor_ms=BEGIN_MS + 30_000)
    later = cut(4, (400, 400), cursor_ms=BEGIN_MS + 31_000)
    a, b, c = (
        node(tmp_path / "a", *records, *late, hold_ms=0),
        node(tmp_path / "b", *records, *late),
        node(tmp_path / "c", *records, *late[1:], hold_ms=0),
    )
    a.observe(passed)
    b.observe(cut(2, append_ms=0))
    b.observe(passed)
    c.observe(later)
    directories = [stop(each) for each in (a, b, c)]
    kept = [len(list(directory.glob("slots/*/*"))) for directory in directories]
    assert kept[0] < kept[1]
    for comparison in (compared(*directories[:2]), compared(directories[1], directories[0])):
        assert comparison.is_alike and comparison.frames_exchanges == 0
    missing = {("message", "0/1000", Where.ONLY_A)}
    assert found(compared(directories[0], directories[2])) == missing
    assert found(compared(directories[1], directories[2])) == missing


def test_what_a_rebuilt_node_did_not_store_is_no_difference(tmp_path: Path) -> None:
    """docs/design/frontier.md, "Forgetting": what an old frontier covers is not stored."""
    records = [*spread(400), *rejects(400, 20)]
    passed = cut(3, (420, 420), cursor_ms=BEGIN_MS + 30_000)
    a = node(tmp_path / "a", *records)
    a.observe(passed)
    rebuilt = node(tmp_path / "b", hold_ms=0)
    rebuilt.observe(passed)
    rebuilt.checkpoint()
    rebuilt.take(sorted(records, key=lambda record: (record.partition, record.offset)))
    assert 0 < rebuilt.wheel.stats().frames < a.wheel.stats().frames
    directories = stop(a), stop(rebuilt)
    assert compared(*directories).is_alike and compared(*reversed(directories)).is_alike


def rejects(first: int, count: int) -> list[Record]:
    """Replies to rejected requests wait in the slot of their append time."""
    return [
        Record(n % 2, n, 0, BEGIN_MS + 50_000, None, b"v", [("delayd-due", b"soon")])
        for n in range(first, first + count)
    ]


def test_an_answer_that_waits_on_one_side_only_is_a_difference(tmp_path: Path) -> None:
    records = [*spread(100), *rejects(100, 20)]
    a = stop(node(tmp_path / "a", *records))
    b = stop(node(tmp_path / "b", *(r for r in records if r.offset != 117)))
    assert found(compared(a, b)) == {("answer", "1/117", Where.ONLY_A)}


def test_a_mark_may_name_what_the_other_has_forgotten_of_its_id(tmp_path: Path) -> None:
    """docs/design/frontier.md, "Verdicts": others may have dropped what was due so long ago."""
    asked = schedule(0, BEGIN_MS + 1_000, id="a")
    partition = asked.partition
    later_ms = BEGIN_MS + 2 * HOUR_MS
    pulses = [  # log time does not follow a leap
        schedule(n, later_ms + HOUR_MS, partition=partition, append_ms=BEGIN_MS + n * HOUR_MS // 6)
        for n in range(1, 13)
    ]
    mark = cancel(13, "a", append_ms=later_ms)
    offsets = tuple(13 if p == partition else 0 for p in range(PARTITIONS))
    replicas = [node(tmp_path / name, asked, *pulses, hold_ms=0) for name in "ab"]
    replicas[0].observe(cut(3, offsets, cursor_ms=BEGIN_MS + HOUR_MS))
    replicas[0].checkpoint()
    replicas[0].checkpoint()
    killed = []
    for replica in replicas:
        replica.take([mark])
        frames = replica.wheel.read(replica.wheel.pending_replies((0,) * PARTITIONS))
        killed.append(frames[-1].body[3])
    assert killed[0] == () and len(killed[1]) == 1
    directories = [stop(replica) for replica in replicas]
    assert compared(directories[0], directories[1]).is_alike


def test_a_mark_that_kills_something_else_is_a_difference(tmp_path: Path) -> None:
    young = schedule(0, BEGIN_MS + 9_000, id="a")
    mark = cancel(2, "a")
    a = stop(node(tmp_path / "a", young, mark))
    b = stop(node(tmp_path / "b", young._replace(offset=1), mark))
    named = f"{young.partition}/"
    assert found(compared(a, b)) >= {("mark", f"{named}2", Where.ALTERED)}


# --- Different


def altered(record: Record) -> Record:
    return record._replace(value=b"something else")


def test_each_difference_is_named(tmp_path: Path) -> None:
    records = spread(400)
    near = [r for r in records if due_of(r) < BEGIN_MS + 60_000]
    far = [r for r in records if due_of(r) > BEGIN_MS + 5 * HOUR_MS]
    lost = [near[0], far[0], far[1]]
    changed = [near[5], far[5]]
    extra = [near[9], far[9]]
    a = stop(node(tmp_path / "a", *(r for r in records if r not in extra)))
    other = node(
        tmp_path / "b", *(altered(r) if r in changed else r for r in records if r not in lost)
    )
    b = stop(other)
    comparison = compared(a, b)
    expected = {
        *named(lost, Where.ONLY_A),
        *named(extra, Where.ONLY_B),
        *named(changed, Where.ALTERED),
    }
    assert found(comparison) == expected
    assert {(d.partition, d.offset): d.due_ms for d in comparison.differences} == {
        (r.partition, r.offset): due_of(r) for r in lost + changed + extra
    }
    assert comparison.counts[Where.ONLY_A] == 3 and comparison.counts[Where.ALTERED] == 2
    assert not comparison.is_alike


def named(records: Iterable[Record], where: Where) -> set[tuple[str, str, Where]]:
    return {("message", f"{r.partition}/{r.offset}", where) for r in records}


@pytest.mark.parametrize("due_ms", [BEGIN_MS + 5_000, BEGIN_MS + 9 * HOUR_MS])
def test_a_message_that_one_holds_twice_is_a_difference(tmp_path: Path, due_ms: int) -> None:
    records = [*spread(50), schedule(90, due_ms)]
    a = stop(node(tmp_path / "a", *records))
    other = node(tmp_path / "b", *records)
    request = parse(records[-1], limits())
    assert isinstance(request, Request)
    lane = lane_of("orders", SETTINGS.lanes)
    body = message_body(request)
    other.wheel.append([Frame(due_ms, 0, 90, lane, FrameKind.MESSAGE, BEGIN_MS, body)])
    b = stop(other)
    assert found(compared(a, b)) == {("message", "0/90", Where.TWICE_B)}
    assert found(compared(b, a)) == {("message", "0/90", Where.TWICE_A)}


def test_a_kill_that_one_has_lost_is_a_difference(tmp_path: Path) -> None:
    asked = [schedule(n, BEGIN_MS + 9 * HOUR_MS, id=f"i{n}") for n in range(6)]
    marks = [cancel(10 + n, f"i{n}") for n in range(6)]
    a = stop(node(tmp_path / "a", *asked, *marks))
    b = node(tmp_path / "b", *asked, *marks)
    rank = Rank(BEGIN_MS + 9 * HOUR_MS, asked[3].partition, 3)
    b.checkpoint()
    b.wheel.ids._layers.put(kill_key(rank), None)
    kill = ("kill", f"{asked[3].partition}/3", Where.ONLY_A)
    assert found(compared(a, stop(b))) == {kill}


def test_a_long_list_is_cut_short_and_counted_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diffing, "DIFFERENCES_MAX", DIFFERENCES_SHOWN + 10)
    records = spread(300)
    a = stop(node(tmp_path / "a", *records))
    last = max(r.offset for r in records)
    b = stop(node(tmp_path / "b", *(r for r in records if r.offset >= last - 1)))
    comparison = compared(a, b)
    assert comparison.counts[Where.ONLY_A] == 298
    assert len(comparison.differences) == DIFFERENCES_SHOWN + 10
    lines = list(comparison_lines(comparison))
    assert sum(line.startswith("DIFFERENT") for line in lines) == DIFFERENCES_SHOWN + 1
    assert f"and {298 - DIFFERENCES_SHOWN} more" in "\n".join(lines)
    assert comparison_json(comparison)["different"] == 298


@pytest.mark.parametrize("at_once", [1, 7, 1_000])
def test_an_hour_that_differs_in_much_is_compared_in_several_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(diffing, "FRAMES_AT_ONCE", at_once)
    records = [schedule(n, BEGIN_MS + 5_000 + n % 900) for n in range(61)]
    lost = [r for r in records if r.offset % 7 == 3]
    a = stop(node(tmp_path / "a", *records))
    b = stop(node(tmp_path / "b", *(r for r in records if r not in lost)))
    assert found(compared(a, b)) == named(lost, Where.ONLY_A)


# --- At random, against the log


@pytest.mark.parametrize("seed", range(12))
def test_whenever_they_stop_and_whatever_they_forget_exactly_the_differences_are_found(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayd.wheel.near_hours.SPLIT_BYTES", 3_000)
    random = Random(seed)
    log = [*spread(300, seed=seed), *rejects(300, 10), *spread(200, first=310, seed=seed + 99)]
    frontiers = [
        cut(step, (stop_at, stop_at), cursor_ms=BEGIN_MS + 1_700 * step)
        for step, stop_at in enumerate((120, 260, 305, 420), start=1)
    ]
    lost = [r for r in log if random.random() < 0.1]
    changed = [r for r in log if r not in lost and r.value != b"v" and random.random() < 0.05]
    ends = [random.randrange(425, len(log) + 10) for _ in "ab"]
    forgotten: list[Frontier | None] = []
    directories = []
    for name, end in zip("ab", ends, strict=True):
        taken = [r for r in log if r.offset < end]
        if name == "b":
            taken = [altered(r) if r in changed else r for r in taken if r not in lost]
        replica = node(tmp_path / name, hold_ms=0 if random.random() < 0.8 else 10**9)
        chunks = [*sorted(random.sample(range(end), 3)), end]
        for begin, chunk in zip([0, *chunks], chunks, strict=False):
            batch = [r for r in taken if begin <= r.offset < chunk]
            replica.take(sorted(batch, key=lambda r: (r.partition, r.offset)))
            for seen in frontiers:
                if max(seen.record.frontier.offsets) <= chunk and random.random() < 0.6:
                    replica.observe(seen)
            split(replica, BEGIN_MS + random.randrange(20) * HOUR_MS, random.randrange(6))
            replica.checkpoint()
        oldest = replica.retention.forgotten
        forgotten.append(None if oldest is None else oldest.record.frontier)
        directories.append(stop(replica))
    comparison = compared(*directories)

    def must_hold(record: Record) -> bool:
        covering = [frontier for frontier in forgotten if frontier is not None]
        if record.offset >= comparison.cut.offsets[record.partition]:
            return False
        if dict(record.headers).get("delayd-due") == b"soon":
            return all(record.offset >= f.offsets[record.partition] for f in covering)
        rank = Rank(max(due_of(record), BEGIN_MS), record.partition, record.offset)
        lane = lane_of("orders", SETTINGS.lanes)
        return not any(frontier.covers(lane, rank) for frontier in covering)

    expected = {
        *((r.partition, r.offset, Where.ONLY_A) for r in lost if must_hold(r)),
        *((r.partition, r.offset, Where.ALTERED) for r in changed if must_hold(r)),
    }
    assert {(d.partition, d.offset, d.where) for d in comparison.differences} == expected, seed
    assert len(expected) > 10
