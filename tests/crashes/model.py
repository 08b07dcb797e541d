"""The content that a wheel must have after so many records of the log, in dictionaries."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from wheel_disks import hour_frames
from wheel_reading import entries_in

from crashes.fed_log import KEEP_MS, PARTITIONS, Fed, FedLog, answers_before, number_of
from delayd.wheel import Frame, FrameKind
from delayd.wheel.kills import Kill
from delayd.wheel.layout import HOUR_SLOTS
from delayd.wheel.storage import Wheel
from replication.ids import NOTHING, IdState
from replication.rank import SLOT_MS, Rank

Source = tuple[int, int]


@dataclass(slots=True)
class Wrong:
    """The differences of a wheel from the model."""

    lost: list[Source] = field(default_factory=list)
    doubled: list[Source] = field(default_factory=list)
    """Held twice, after they were forgotten, or before they were ingested."""
    altered: list[Source] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    """Differences in pending replies, ids, kills and counts."""

    def __bool__(self) -> bool:
        return bool(self.lost or self.doubled or self.altered or self.others)


class Model:
    """The model. It only goes forward: a durable record stays durable."""

    def __init__(self, log: FedLog) -> None:
        self._log = log
        self.count = 0
        self._slots: dict[int, dict[Source, Frame]] = {}
        self._replies: set[Source] = set()
        self._ids: dict[tuple[int, bytes], IdState] = {}
        self._kills: dict[Rank, Kill] = {}
        self._floor_ms = 0

    def go_to(self, count: int) -> None:
        """Ingest all records up to this number."""
        assert count >= self.count, f"{count} records, though {self.count} were durable before"
        for number in range(self.count, count):
            self._take(self._log.record(number))
        self.count = count

    def _take(self, fed: Fed) -> None:
        if fed.forgets_before_ms is not None:
            self._forget_before(fed.forgets_before_ms)
        frame = fed.frame
        source = (frame.partition, frame.offset)
        self._slots.setdefault(frame.due_ms // SLOT_MS, {})[source] = frame
        if frame.kind != FrameKind.MESSAGE:
            self._replies.add(source)
        if fed.name is not None:
            self._ids[frame.partition, fed.name] = fed.state
        if fed.killed is not None:
            self._kills[fed.killed] = fed.kill

    def _forget_before(self, floor_ms: int) -> None:
        self._floor_ms = floor_ms
        below = answers_before(floor_ms)
        self._replies = {r for r in self._replies if r[1] >= below[r[0]]}
        for slot in [slot for slot in self._slots if slot < floor_ms // SLOT_MS]:
            del self._slots[slot]

    def compare(self, wheel: Wheel) -> Wrong:
        """Read all of an open wheel; return the differences. Raise CorruptionError."""
        wrong = Wrong()
        count = self._compare_frames(frames_of(wheel), wrong)
        if wheel.stats().frames != count:
            wrong.others.append(f"{wheel.stats().frames} frames are counted, of {count}")
        replies = wheel.pending_replies([0] * PARTITIONS)
        held = [(entry.partition, entry.offset) for entry in replies]
        if held != sorted(self._replies):
            wrong.others.append(f"{len(held)} replies wait, not {len(self._replies)}")
        wheel.read(replies)
        # The wheel forgets only ids that are in LevelDB, which depends on checkpoints.
        for (partition, name), state in self._ids.items():
            found = wheel.ids.state(partition, name)
            may_be_gone = state.last_due_ms + KEEP_MS < self._floor_ms
            if found != state and not (may_be_gone and found == NOTHING):
                wrong.others.append(f"of id {name!r} it knows {found}")
        for rank, kill in self._kills.items():
            known = wheel.ids.kill(rank)
            if known != kill and not (rank.due_ms < self._floor_ms and known is None):
                wrong.others.append(f"of the kill of {rank} it knows {known}")
        self._prune(wheel)
        return wrong

    def _prune(self, wheel: Wheel) -> None:
        """Drop ids and kills that the wheel has forgotten: they never come back."""
        self._ids = {key: s for key, s in self._ids.items() if wheel.ids.state(*key) != NOTHING}
        self._kills = {r: k for r, k in self._kills.items() if wheel.ids.kill(r) is not None}

    def _compare_frames(self, held: Iterable[Frame], wrong: Wrong) -> int:
        """Compare all frames; return their number."""
        missing = {source: f for frames in self._slots.values() for source, f in frames.items()}
        seen: set[Source] = set()
        count = 0
        for frame in held:
            count += 1
            source = (frame.partition, frame.offset)
            wanted = missing.pop(source, None) or self._not_yet_split(frame)
            if wanted is None or source in seen:
                wrong.doubled.append(source)
            elif wanted != frame:
                wrong.altered.append(source)
            seen.add(source)
        wrong.lost += missing
        return count

    def _not_yet_split(self, frame: Frame) -> Frame | None:
        """Return the frame of the log if it may still lie in the file of its hour: a frame that was
        there when its slot was forgotten goes with the hour, or after the split."""
        number = number_of(frame.partition, frame.offset)
        is_forgotten = frame.due_ms < self._floor_ms and number < self.count
        return self._log.record(number).frame if is_forgotten else None


def frames_of(wheel: Wheel) -> Iterable[Frame]:
    """Yield all frames of a wheel: slot by slot, in rank order, then those of hours that are not
    whole, in the order of their files."""
    for slot in wheel.slots():
        yield from wheel.read(entries_in(wheel, slot))
    whole_below = wheel.whole_below
    for hour in wheel.hours():
        if whole_below is not None and hour * HOUR_SLOTS >= whole_below:
            yield from hour_frames(wheel, hour)
