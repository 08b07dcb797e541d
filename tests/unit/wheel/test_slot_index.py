"""An index of a slot against sorted(entries): any slot, any runs, appended to in between."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from wheel_disks import flip
from wheel_reading import checkpoint

from delayd.errors import CorruptionError
from delayd.wheel import Entry, Frame, FrameKind, slot_index
from delayd.wheel.slot_index import SlotIndex
from delayd.wheel.storage import Wheel
from replication.rank import Rank

SLOT = 5
BEGIN, END = Rank(5_000, 0, 0), Rank(6_000, 0, 0)
PARTITIONS, LANES = 3, 4
SMALL: list[tuple[str, int]] = [
    ("LEAF_PLACES_MAX", 4),
    ("SLICE_BYTES_MIN", 100),
    ("WALK_FACTOR", 3),
]

ranks = st.builds(
    Rank,
    st.sampled_from([5_000, 5_001, 5_500, 5_999]),
    st.integers(0, PARTITIONS),
    st.integers(0, 99),
)
batches = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 0, 1, 500, 999]),
        st.integers(0, PARTITIONS - 1),
        st.integers(0, 60),
        st.integers(0, LANES - 1),
        st.sampled_from([FrameKind.MESSAGE, FrameKind.MESSAGE, FrameKind.CANCEL_MARKER]),
        st.sampled_from([0, 30, 400]),
    ),
    min_size=1,
    max_size=12,
)


def complete(index: SlotIndex, frames_max: int = 1_000) -> None:
    while not index.is_complete:
        assert index.advance(frames_max) > 0
    assert index.advance(frames_max) == 0


class IndexMachine(RuleBasedStateMachine):
    """One slot, one index of it, and the entries of its messages in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        for name, value in SMALL:
            self.patch.setattr(slot_index, name, value)
        self.folder = tempfile.TemporaryDirectory(prefix="index-model-")
        self.wheel = Wheel.open(Path(self.folder.name), partitions=PARTITIONS)
        self.entries: list[Entry] = []
        self.known: set[tuple[Any, ...]] = set()
        self.append([(0, 0, 0, 0, FrameKind.MESSAGE, 0)])
        index = self.wheel.index(SLOT)
        assert index is not None
        self.index = index

    @rule(batch=batches)
    def append(self, batch: list[tuple[int, int, int, int, FrameKind, int]]) -> None:
        """In any order: a split hour and a repair keep none."""
        frames = []
        for ms, partition, offset, lane, kind, size in batch:
            if (ms, partition, offset, kind) not in self.known:
                self.known.add((ms, partition, offset, kind))
                body = (b"v" * size,)
                frames.append(Frame(5_000 + ms, partition, offset, lane, kind, 1, body))
        stored = self.wheel.append(frames)
        self.entries += [entry for entry in stored if entry.kind == FrameKind.MESSAGE]

    @rule()
    def write_out(self) -> None:
        checkpoint(self.wheel)

    @rule(frames_max=st.integers(1, 10))
    def advance(self, frames_max: int) -> None:
        self.index.advance(frames_max)

    @rule(frames_max=st.integers(1, 10))
    def begin_again(self, frames_max: int) -> None:
        """A new index of what is there: nobody has the one before any more."""
        del self.index
        index = self.wheel.index(SLOT)
        assert index is not None
        self.index = index
        complete(index, frames_max)

    @rule(
        since=ranks,
        most=st.integers(1, 9),
        lanes=st.none() | st.sets(st.integers(0, LANES - 1)),
        partitions=st.none() | st.sets(st.integers(0, PARTITIONS - 1)),
    )
    def run(
        self, since: Rank, most: int, lanes: set[int] | None, partitions: set[int] | None
    ) -> None:
        """One run from any rank on: all that it says it has, and some progress."""
        complete(self.index)
        found = self.index.run(since, most, lanes, partitions)
        assert since < found.until <= END
        assert found.entries == self.expected(since, found.until, lanes, partitions)
        assert len(found.entries) < most + slot_index.LEAF_PLACES_MAX

    @rule(most=st.integers(1, 9), batch=batches)
    def run_to_the_end_while_it_grows(
        self, most: int, batch: list[tuple[int, int, int, int, FrameKind, int]]
    ) -> None:
        """What is appended behind a run comes with a later one; nothing comes twice."""
        since, expected, found = BEGIN, [], []
        while since < END:
            complete(self.index)
            run = self.index.run(since, most)
            expected += self.expected(since, run.until)
            found += run.entries
            since = run.until
            if batch:
                self.append([batch.pop()])
        assert found == expected == sorted(set(found))

    def expected(
        self,
        since: Rank,
        until: Rank,
        lanes: set[int] | None = None,
        partitions: set[int] | None = None,
    ) -> list[Entry]:
        return sorted(
            entry
            for entry in self.entries
            if since <= entry < until
            and (lanes is None or entry.lane in lanes)
            and (partitions is None or entry.partition in partitions)
        )

    @precondition(lambda self: self.index.is_complete)
    @invariant()
    def leaves_are_bounded(self) -> None:
        for shelf in self.index._shelves.values():
            sizes = [len(leaf) // 20 for leaf in shelf.leaves]
            assert max(sizes) <= slot_index.LEAF_PLACES_MAX

    def teardown(self) -> None:
        self.wheel.close()
        self.folder.cleanup()
        self.patch.undo()


TestIndexAgainstAList = pytest.mark.long(IndexMachine.TestCase)
TestIndexAgainstAList.settings = settings(
    max_examples=100, stateful_step_count=25, deadline=None, print_blob=True
)


def messages(count: int, *, due_ms: int = 5_000, first: int = 0) -> list[Frame]:
    return [
        Frame(due_ms, 0, first + n, n % LANES, FrameKind.MESSAGE, 1, (b"v" * 100,))
        for n in range(count)
    ]


def index_of(wheel: Wheel) -> SlotIndex:
    index = wheel.index(SLOT)
    assert index is not None
    return index


def test_a_slot_that_holds_nothing_has_no_index(wheel: Wheel) -> None:
    assert wheel.index(SLOT) is None


def test_an_index_of_a_forgotten_slot_is_not_current(wheel: Wheel) -> None:
    wheel.append(messages(1))
    index = index_of(wheel)
    assert wheel.is_current(index)
    wheel.forget([SLOT])
    assert not wheel.is_current(index)
    wheel.append(messages(1))
    assert not wheel.is_current(index)


@pytest.mark.usefixtures("either_path")
def test_a_slice_is_bounded_and_a_crowded_millisecond_is_given_in_runs(wheel: Wheel) -> None:
    """docs/design/storage.md, Reading a slot: a second of any size costs a slice at a time."""
    entries = wheel.append(messages(40_000))
    index = index_of(wheel)
    assert 900 <= index.advance(1_000) <= 1_100
    complete(index, 5_000)
    found, since, runs = [], BEGIN, 0
    while since < END:
        run = index.run(since, 5_000)
        assert len(run.entries) <= 5_000 + slot_index.LEAF_PLACES_MAX
        found += run.entries
        since, runs = run.until, runs + 1
    assert found == entries
    assert 5 <= runs <= 8


@pytest.mark.usefixtures("either_path")
def test_a_run_is_not_given_by_an_index_that_lacks_something(wheel: Wheel) -> None:
    wheel.append(messages(3))
    index = index_of(wheel)
    complete(index)
    wheel.append(messages(1, first=3))
    with pytest.raises(AssertionError, match="has grown"):
        index.run(BEGIN, 10)


@pytest.mark.usefixtures("either_path")
def test_a_run_of_few_lanes_ends_though_it_found_nothing(
    wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/design/frontier.md, Full steps: a lane that lags costs the others a bounded time."""
    monkeypatch.setattr(slot_index, "LEAF_PLACES_MAX", 10)
    wheel.append(messages(400))
    index = index_of(wheel)
    complete(index)
    run = index.run(BEGIN, 5, {LANES})
    assert run == ([], Rank(5_000, 0, 20), 5)


@pytest.mark.parametrize("is_saved", [True, False])
@pytest.mark.parametrize("frames_max", [1, 3, 1_000])
@pytest.mark.usefixtures("either_path")
def test_damage_is_told_with_slot_bytes_and_count(
    wheel: Wheel, tmp_path: Path, frames_max: int, is_saved: bool
) -> None:
    """docs/design/storage.md, Frames: reported with slot, byte range and count."""
    entries = wheel.append(messages(9))
    checkpoint(wheel)
    broken = entries[4]
    path = next(path for path in (tmp_path / "slots").rglob("*") if path.is_file())
    flip(path, broken.position + 60, 2)
    if not is_saved:
        wheel.append(messages(1, first=9))
    end = broken.position + broken.length
    unread = len(entries) - 4 + (not is_saved)
    with pytest.raises(
        CorruptionError,
        match=f"slot 5: the frame at bytes {broken.position} to {end} has a wrong CRC; "
        f"frames that cannot be read: {unread}",
    ):
        complete(index_of(wheel), frames_max)


@pytest.mark.usefixtures("either_path")
def test_a_frame_that_is_there_twice_is_not_what_the_line_says(
    wheel: Wheel, tmp_path: Path
) -> None:
    """docs/design/storage.md, Frames: per slot the count and the sum of the CRCs."""
    first, _ = wheel.append(messages(2))
    checkpoint(wheel)
    path = next(path for path in (tmp_path / "slots").rglob("*") if path.is_file())
    data = path.read_bytes()
    path.write_bytes(data[: first.length] * 2)
    with pytest.raises(
        CorruptionError, match=r"slot 5: bytes 0 to \d+ hold 2 frames, which are not"
    ):
        complete(index_of(wheel))
