"""Requests and frontiers as the log has them, and the rules for ids that follow. Pure.

Read anew from docs/design/frontier.md: nothing here is shared with the nodes.
"""

import json
from collections import defaultdict
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any
from zlib import crc32

LANES = 64
LIVE_MAX = 64
REDRIVE_MEMORY_MS = 30 * 24 * 3_600_000
REPEAT_MEMORY_MS = 3_600_000
MOVES = ("reschedule", "fire")


def span_ms(text: str) -> int:
    """Return the milliseconds that `2s` and the like stand for."""
    units = {"ms": 1, "s": 1_000, "h": 3_600_000}
    return int(text.rstrip("msh")) * units[text.lstrip("0123456789")]


def planned_of(headers: dict[str, str], source: str) -> int:
    """Return when a message with these headers of delayd's is to be delivered; 0 with a local time,
    which a step resolves as soon as it can."""
    if "delayd-zone" in headers and "delayd-due" in headers and "delayd-continues" not in headers:
        return 0
    name = headers.get("delayd-id") or headers.get("delayd-origin") or source
    share = int(sha256(name.encode()).hexdigest()[:8], 16)
    window_ms = span_ms(headers.get("delayd-window", "0ms"))
    return int(headers.get("delayd-due", "0")) + window_ms * share // 2**32


@dataclass(frozen=True, slots=True)
class Request:
    """A committed record of the buffer."""

    partition: int
    offset: int
    op: str
    """"schedule", "cancel", "replace", "redrive", "continue", "switch", or "settle": a master notes
    what came of cancels."""
    id: str | None
    topic: str
    due_ms: int
    asked: str
    """The due time as it was written."""
    append_ms: int
    continues: int | None
    redrive: str | None
    """The source that it sends again."""
    expects: str
    """"delivered", "dead" or "answer"."""
    value: bytes | None
    turn: str | None
    """Of a continuation: smoothing deferred it."""
    trace: str | None = None
    """What a tracing agent wrote."""
    is_told: bool = False
    """It asks for all its receipts."""
    late: str = ""
    """How much later than planned it is still worth delivering, as it was written."""
    window: str = ""
    """How far its due time is spread, as it was written."""
    group: str = ""
    """A name that it shares with others."""
    planned_ms: int = 0
    """Where in the window it is to be delivered; else as asked."""
    series: str = ""
    """Of a series: expression, zone, end and catch-up, as they were written."""
    occurrence: int = 0
    """Of a series: 0 as its user sent it."""
    state: str = ""
    """Of an occurrence: on, last or over."""
    follows: bool = False
    """What it continues was delivered or has died."""
    by: str = ""
    """Of a reschedule: how much later, as it was written."""
    moved_by: int = -1
    """Of a continuation: offset of the reschedule that it carries out."""
    moved: str = ""
    """Of an occurrence that was fired: its place in the series."""
    local: str = ""
    """Of a local time: as it was written, and its zone. `state`: no, expected, final, over."""
    order: str = ""
    """To pause a topic, or to resume it, as it was written."""
    max_wait: str = ""
    """Of a debounce, as it was written; `asked` is its delay."""
    is_deferred: bool = False
    """Of a continuation: nothing was tried."""

    @property
    def goes_on(self) -> bool:
        """Whether another record of its series, or of its local time, must follow."""
        return self.is_open or (self.series != "" and self.state in ("", "on"))

    @property
    def is_open(self) -> bool:
        """Whether its local time is not final."""
        return self.local != "" and self.state in ("no", "expected")

    @property
    def has_wishes(self) -> bool:
        return self.is_told or self.late != "" or self.window != ""

    @property
    def worth_until_ms(self) -> float:
        """Until when it is worth delivering."""
        if not self.late:
            return float("inf")
        return self.planned_ms + span_ms(self.late)

    @property
    def source(self) -> str:
        return f"{self.partition}/{self.offset}"

    @property
    def rank(self) -> tuple[int, int, int]:
        return (self.due_ms, self.partition, self.offset)

    @property
    def lane(self) -> int:
        return crc32(self.topic.encode()) % LANES


@dataclass
class Reservation:
    """What a reschedule has killed, while nobody has said what came of that."""

    marker: Request
    held: list[tuple[Request, int]]
    """With the time at which each is to be due."""

    def place_of(self, source: str) -> int | None:
        """Return where the message with this source is held."""
        found = [n for n, (message, _) in enumerate(self.held) if message.source == source]
        return found[0] if found else None


@dataclass(frozen=True, slots=True)
class Step:
    """A committed frontier record; of several shards, what all of them have come to by it."""

    cursors: list[tuple[int, int, int]]
    """By lane, and before that by shard."""
    offsets: list[int]
    fields: dict[str, Any]
    """Of the record."""

    @property
    def shards(self) -> int:
        """Return how many the cluster has."""
        return int(self.fields["settings"].get("shards", 1))

    def is_done(self, request: Request) -> bool:
        return (
            request.rank < self.cursor_of(request.lane, request.partition)
            and request.offset < self.offsets[request.partition]
        )

    def cursor_of(self, lane: int, partition: int) -> tuple[int, int, int]:
        """Return K for a message."""
        shards = len(self.cursors) // LANES
        return self.cursors[lane + partition % shards * LANES]


class Times:
    """The times as of which a partition's records are judged, by rules 2 and 3: the largest so
    far."""

    def __init__(self) -> None:
        self.floor_ms = 0

    def judged_ms(self, append_ms: int) -> int:
        """Return that of the next record."""
        self.floor_ms = max(self.floor_ms, append_ms)
        return self.floor_ms


class SteadyTimes(Times):
    """By rules 4: each record by its own time, unless that is far behind the others."""

    def __init__(self, trail_ms: int) -> None:
        super().__init__()
        self._trail_ms = trail_ms
        self.leap: list[int] = []
        """Times of the records in a row that are too far ahead; none is before the first."""

    def judged_ms(self, append_ms: int) -> int:
        if append_ms <= self.floor_ms + 2 * self._trail_ms:
            self.leap = []
            self.floor_ms = max(self.floor_ms, append_ms - self._trail_ms)
        elif not self.leap or append_ms < self.leap[0]:
            self.leap = [append_ms]
        elif append_ms > self.leap[0] + 13 * self._trail_ms:
            self.floor_ms = self.leap[0] - self._trail_ms
            self.leap = [append_ms]
        elif append_ms >= self.leap[0] + 12 * self._trail_ms:
            self.floor_ms = append_ms - self._trail_ms
            self.leap = []
        return max(append_ms, self.floor_ms)


class Rules:
    """The rules for ids, message by message: what is stored, what is answered, what kills what."""

    def __init__(
        self,
        requests: list[Request],
        id_memory_ms: int,
        *,
        rules_version: int,
        ignores_repeats: bool = False,
    ) -> None:
        """`ignores_repeats`: a record that continues a message a second time is ignored, within an
        hour of the first one."""
        self._ignores_repeats = ignores_repeats
        self.id_memory_ms = id_memory_ms
        self.messages: list[Request] = []
        self.answers: list[Request] = []
        self.refusals: dict[str, str] = {}
        """By source: "duplicate" or "conflict"."""
        self.killed_by: dict[str, Request] = {}
        self.targets_of: dict[str, list[Request]] = {}
        """By source of a cancel marker: what it kills."""
        self.as_of_ms: dict[str, int] = {}
        """By source of a cancel marker: the time as of which it is judged."""
        self.continued_by: dict[str, Request] = {}
        """By source: the continuation that was accepted, the latest one."""
        self._continued_ms: dict[str, int] = {}
        """By source: the time as of which that one was judged."""
        self.redriven: dict[str, int] = {}
        """By source of a dead letter: the time as of which it was redriven last."""
        self.origins: dict[str, str] = {}
        """By source of a continuation: the source of the user's own request."""
        self.by_source: dict[str, Request] = {}
        self.live: dict[tuple[int, str], list[Request]] = {}
        """By partition and id: what a cancel marker would kill."""
        self.last_killed: dict[tuple[int, str], list[Request]] = {}
        """By partition and id: what its cancel markers killed last."""
        self.replaced: dict[tuple[int, str], Request] = {}
        """By partition and id: the last replace, if rules 4 rule it."""
        self.repeats: dict[str, Request] = {}
        """By source of a replace that was sent before, word for word: the first one."""
        self.refused: set[str] = set()
        """Sources of killed messages whose continuation came after the cancel marker."""
        self.reserved: dict[tuple[int, str], Reservation] = {}
        """By partition and id."""
        self.held_as: dict[str, str] = {}
        """By source of a killed message: its continuation, which a reschedule holds."""
        self.escaped: set[str] = set()
        """Sources of killed messages that came out: their series has gone on."""
        self.runs_ms: dict[str, int] = {}
        """By source of a debounce: when the first one of its run was appended."""
        self.dues_ms: dict[str, list[int]] = {}
        """By source of a reschedule: when each of its targets is to be due."""
        self._trail_ms = min(id_memory_ms // 6, 600_000)
        is_steady = rules_version >= 4
        self.times: defaultdict[int, Times] = defaultdict(
            (lambda: SteadyTimes(self._trail_ms)) if is_steady else Times
        )
        """By partition."""
        self.orders: list[Request] = []
        """To pause topics, and to resume them."""
        self.barriers: list[tuple[int, int]] = []
        """Partition and offset of what switched a partition to the newest rules."""
        self._sent: dict[str, tuple[object, ...]] = {}
        """By source: what must be the same for two requests to be."""
        for request in requests:
            if (
                (request.has_wishes and not self._knows(5, request, rules_version))
                or (request.series and not self._knows(6, request, rules_version))
                or (request.group and not self._knows(7, request, rules_version))
            ):
                request = replace(request, op="schedule", expects="answer", is_told=False)
                request = replace(request, late="", window="", series="", group="")
            if (request.op in (*MOVES, "debounce") or request.local) and not self._knows(
                7, request, rules_version
            ):
                request = replace(request, op="schedule", expects="answer", local="")
            if request.is_deferred and not self._knows(7, request, rules_version):
                request = replace(request, is_deferred=False)  # older rules note nothing of it
            self.by_source[request.source] = request
            as_of_ms = self.times[request.partition].judged_ms(request.append_ms)
            if request.op == "switch":
                self._switch(request)
                continue
            if request.op == "quota":
                continue
            if request.op == "hold":
                self.orders.append(request)
                continue
            sent = (
                *(request.topic, request.value, request.asked, request.late, request.window),
                *(("", "") if request.op == "continue" else (request.series, request.local)),
                *(request.group, request.max_wait),
            )
            is_steady = isinstance(self.times[request.partition], SteadyTimes)
            self._sent[request.source] = sent if is_steady else (*sent, request.trace)
            self._take(request, as_of_ms)

    def _switch(self, barrier: Request) -> None:
        """Rule by versions 4 and later what comes behind the first barrier of a partition."""
        before = self.times[barrier.partition]
        if not isinstance(before, SteadyTimes):
            self.barriers.append((barrier.partition, barrier.offset))
            self.times[barrier.partition] = SteadyTimes(self._trail_ms)
            self.times[barrier.partition].floor_ms = before.floor_ms

    def _knows(self, version: int, request: Request, rules_version: int) -> bool:
        """Return whether a record has this version or a later one. Barriers switch to the last."""
        is_switched = any(partition == request.partition for partition, _ in self.barriers)
        return rules_version >= version or is_switched

    def origin_of(self, source: str) -> str:
        """Return the source of the user's own request for a message."""
        return self.origins.get(source, source)

    def counts_as_redriven(self, source: str, as_of_ms: int) -> bool:
        """Return whether a dead letter was redriven within the 30 days before."""
        return self.redriven.get(source, -REDRIVE_MEMORY_MS) + REDRIVE_MEMORY_MS >= as_of_ms

    def _sent_as(self, message: Request) -> tuple[object, ...]:
        """Return what a message was sent as: a continuation keeps the user's digest."""
        return self._sent[self.origin_of(message.source)]

    def _repeated(self, request: Request, live: list[Request], as_of_ms: int) -> Request | None:
        """Return the replace that this one repeats: nothing killed since what that one stored, and
        it is remembered."""
        first = self.replaced.get(self._place(request))
        if request.op != "replace" or first is None:
            return None
        is_same = self._sent[first.source] == self._sent[request.source]
        latest = sorted(live, key=lambda m: (m.due_ms, m.offset))[-LIVE_MAX:]
        of_first = [m for m in latest if self.origin_of(m.source) == first.source]
        is_recent = request.planned_ms + self.id_memory_ms >= as_of_ms
        is_known = any(
            m.due_ms + self.id_memory_ms >= as_of_ms and (is_recent or m.source == first.source)
            for m in of_first
        )
        return first if is_same and is_known else None

    def _place(self, request: Request) -> tuple[int, str]:
        assert request.id is not None, "only ids have a place"
        return request.partition, request.id

    def _take(self, request: Request, as_of_ms: int) -> None:
        if request.op == "settle":
            self._settled(request)
            return
        # What has no id is live alone, and nothing finds it.
        live = [] if request.id is None else self.live.setdefault(self._place(request), [])
        if request.op == "continue":
            continued = f"{request.partition}/{request.continues}"
            is_steady = isinstance(self.times[request.partition], SteadyTimes)
            is_recent = self.by_source[continued].due_ms + self.id_memory_ms >= as_of_ms
            reserved = self.reserved.get(self._place(request)) if request.id else None
            at = None if reserved is None else reserved.place_of(continued)
            if continued in self.killed_by and (is_recent or not is_steady):
                if reserved is None or at is None:
                    self.refused.add(continued)
                    return
                if request.moved_by != reserved.marker.offset and not request.follows:
                    self._hold(request, reserved, at, continued)
                    return
            if reserved is not None and at is not None:
                del reserved.held[at]
            if continued in self.killed_by and not (is_recent and request.moved_by >= 0):
                self.escaped.add(continued)
            if continued in self.continued_by:
                assert self._ignores_repeats, f"{continued} was continued twice"
                if self._continued_ms[continued] + REPEAT_MEMORY_MS >= as_of_ms:
                    return
            self.continued_by[continued] = request
            self._continued_ms[continued] = as_of_ms
            self.origins[request.source] = self.origin_of(continued)
            live[:] = [m for m in live if m.source != continued]
        elif request.expects == "answer" and request.op in ("schedule", "redrive"):
            self.answers.append(request)
            return
        elif request.op == "redrive":
            assert request.redrive is not None
            self.answers.append(request)
            if self.counts_as_redriven(request.redrive, as_of_ms):
                self.refusals[request.source] = "duplicate"
                return
            self.redriven[request.redrive] = as_of_ms
        elif request.op in MOVES:
            self._move(request, live, as_of_ms)
            return
        elif request.op == "debounce":
            self._debounce(request, live, as_of_ms)
            return
        elif request.op in ("cancel", "replace"):
            self.answers.append(request)
            self.as_of_ms[request.source] = as_of_ms
            if first := self._repeated(request, live, as_of_ms):
                self.repeats[request.source] = first
                return
            reserved = self.reserved.pop(self._place(request), None)
            self.killed_by |= {message.source: request for message in live}
            if reserved is not None:
                live[:0] = [message for message, _ in reserved.held]
            self.targets_of[request.source] = list(live)
            if any(message.due_ms + self.id_memory_ms >= as_of_ms for message in live):
                self.last_killed[self._place(request)] = list(live)
            else:
                # Due long ago, so that others may not know of them: they displace nothing.
                self._add_killed(self._place(request), live)
            live.clear()
            self.replaced.pop(self._place(request), None)
            if request.op == "cancel":
                return
            # One for a series, or with a local time, gives no due time.
            is_timed = not request.series and not request.local
            if isinstance(self.times[request.partition], SteadyTimes) and is_timed:
                self.replaced[self._place(request)] = request
        elif request.id is not None:
            taken = [m for m in live if m.due_ms > as_of_ms or m.goes_on]
            reserved = self.reserved.get(self._place(request))
            if reserved is not None:
                taken += self._counting(reserved, as_of_ms)
            if taken:
                same = any(self._sent_as(m) == self._sent[request.source] for m in taken)
                self.refusals[request.source] = "duplicate" if same else "conflict"
                self.answers.append(request)
                return
        if request.op == "schedule" and request.is_told:
            self.answers.append(request)
        live.append(request)
        self.messages.append(request)

    def _hold(self, request: Request, reserved: Reservation, at: int, continued: str) -> None:
        """Note a retry of what a reschedule has killed: that is what it moves."""
        self.refused.add(continued)
        self.held_as[continued] = request.source
        self.origins[request.source] = self.origin_of(continued)
        self.killed_by[request.source] = reserved.marker
        reserved.held[at] = request, reserved.held[at][1]
        self.messages.append(request)

    def _debounce(self, request: Request, live: list[Request], as_of_ms: int) -> None:
        """Decide a debounce: what is due goes out, all else gives way to it."""
        place, append_ms = self._place(request), request.append_ms
        reserved = self.reserved.get(place)
        held: list[Request] = []
        counting = (
            []
            if reserved is None
            else [
                (message, new_ms)
                for message, new_ms in reserved.held
                if message.due_ms + self.id_memory_ms >= as_of_ms
            ]
        )
        if any(new_ms > as_of_ms for _, new_ms in counting):
            del self.reserved[place]
            held = [message for message, _ in counting]
        runs = [self.runs_ms[m.source] for m in live if m.op == "debounce" and m.due_ms > as_of_ms]
        run_ms = self.runs_ms[request.source] = min([append_ms, *runs])
        due_ms = min(append_ms + span_ms(request.asked), run_ms + span_ms(request.max_wait))
        due_ms = max(due_ms, append_ms)
        request = replace(request, due_ms=due_ms, planned_ms=due_ms)
        self.by_source[request.source] = request
        gone = [m for m in live if (m.due_ms > as_of_ms or m.goes_on) and not self._waits(m)]
        self.killed_by |= {message.source: request for message in gone}
        live[:] = [message for message in live if message not in gone]
        killed = [*held, *gone]
        if any(message.due_ms + self.id_memory_ms >= as_of_ms for message in killed):
            self.last_killed[place] = list(killed)
        else:
            self._add_killed(place, killed)
        self.targets_of[request.source] = killed
        self.as_of_ms[request.source] = as_of_ms
        if request.is_told or held or any(message.op != "debounce" for message in gone):
            self.answers.append(request)
        live.append(request)
        self.messages.append(request)

    def _add_killed(self, place: tuple[int, str], killed: list[Request]) -> None:
        self.last_killed[place] = [*self.last_killed.get(place, ()), *killed][-LIVE_MAX:]

    def _move(self, request: Request, live: list[Request], as_of_ms: int) -> None:
        """Decide a reschedule or a fire."""
        self.answers.append(request)
        self.as_of_ms[request.source] = as_of_ms
        place = self._place(request)
        reserved = self.reserved.get(place)
        held = [] if reserved is None else reserved.held
        counting = [] if reserved is None else self._counting(reserved, as_of_ms)
        is_bound = any(m.series and m.goes_on for m in (*live, *counting))
        is_bound |= request.by != "" and any(m.is_open for m in live)
        if request.op == "reschedule" and is_bound:
            self.refusals[request.source] = "rejected"
            return
        found = [*held, *((message, message.due_ms) for message in live)]
        moved = [(message, self._new_due_ms(request, old_ms)) for message, old_ms in found]
        self.targets_of[request.source] = [message for message, _ in moved]
        self.dues_ms[request.source] = [due_ms for _, due_ms in moved]
        self.killed_by |= {message.source: request for message in live}
        self.replaced.pop(place, None)
        live.clear()
        self.reserved[place] = Reservation(request, moved)

    def _counting(self, reserved: Reservation, as_of_ms: int) -> list[Request]:
        """Return what takes the id."""
        held = (message for message, _ in reserved.held)
        return [message for message in held if message.due_ms + self.id_memory_ms >= as_of_ms]

    def _new_due_ms(self, request: Request, old_ms: int) -> int:
        if request.op == "fire":
            return request.append_ms
        if request.by:
            return max(request.append_ms, old_ms + by_ms(request.by))
        return int(request.asked)

    def _settled(self, request: Request) -> None:
        """Note what a master says of markers: what a reschedule holds is free, if it is done."""
        for id, marker_offset, *_ in json.loads(request.value or b""):
            reserved = self.reserved.get((request.partition, id))
            if reserved is not None and reserved.marker.offset == marker_offset:
                del self.reserved[request.partition, id]

    def _waits(self, request: Request) -> bool:
        """Return whether a message was due, and waits for its turn."""
        is_single = not request.series and not request.local and request.moved_by < 0
        return is_single and request.op == "continue" and request.is_deferred


def by_ms(text: str) -> int:
    """Return the milliseconds that `+2s` or `-300ms` stands for."""
    return span_ms(text[1:]) * (1 if text[0] == "+" else -1)


def joint_steps(steps: list[Step]) -> list[tuple[int, Step]]:
    """Return what all shards have come to by each of these, which are in the order in which they
    were written, and its index; wherever each shard has one. There may come to be others."""
    newest: dict[int, Step] = {}
    shards = 0
    found = []
    for index, step in enumerate(steps):
        if step.shards != shards:
            newest, shards = {}, step.shards
        if step.fields["shard"] >= shards:  # Of a partition that has no shard any more.
            continue
        newest[step.fields["shard"]] = step
        if len(newest) == shards:
            cursors = [cursor for shard in range(shards) for cursor in newest[shard].cursors]
            offsets = [newest[p % shards].offsets[p] for p in range(len(step.offsets))]
            found.append((index, Step(cursors, offsets, step.fields)))
    return found


def check_follows(before: Step, after: Step) -> None:
    """Check a step: forward only. Check its term: never back, and its first step moves nothing
    else."""
    old, new = before.fields, after.fields
    where = f"step {new['step']} of {new['owner']}"
    assert new["step"] == old["step"] + 1, f"{where} follows step {old['step']}"
    assert all(a <= b for a, b in zip(before.cursors, after.cursors, strict=True)), where
    assert all(a <= b for a, b in zip(before.offsets, after.offsets, strict=True)), where
    if new["term"] == old["term"]:
        assert new["owner"] == old["owner"], f"{where} shares a term"
    else:
        assert new["term"] == old["term"] + 1, f"{where}: term after {old['term']}"
        assert (after.cursors, after.offsets) == (before.cursors, before.offsets), where


def check_resharded(before: Step, after: Step) -> None:
    """Check the first record of a shard behind the last one that its partition has of other shards,
    which nobody goes on from: no number falls, and it claims to have done nothing."""
    old, new = before.fields, after.fields
    where = f"step {new['step']} of {new['owner']}"
    assert new["step"] > old["step"] and new["term"] > old["term"], where
    is_over = old["shard"] >= before.shards
    assert is_over or old.get("resharding"), f"{where}: the shard was not closed"
    assert not any(new["counts"].values()) and new["digest"] == 0, where
    assert not new.keys() & {"rest_ms", "resharding"}, where


def check_stands_still(before: Step, after: Step) -> None:
    """Check that other shards have done what those before had done, no more and no less."""
    where = f"step {after.fields['step']} of {after.fields['owner']}"
    assert before.offsets == after.offsets, where
    for partition in range(len(after.offsets)):
        for lane in range(LANES):
            same = before.cursor_of(lane, partition) == after.cursor_of(lane, partition)
            assert same, f"{where}: lane {lane} of partition {partition}"


def step_of_fields(fields: dict[str, Any]) -> Step:
    """Return a frontier record, read."""
    cursors = [tuple(fields["cursor"])] * LANES
    for lane, cursor in fields["lanes"].items():
        cursors[int(lane)] = tuple(cursor)
    return Step(cursors, fields["offsets"], fields)
