"""Requests and frontiers as the log has them, and the rules for ids that follow. Pure.

Read anew from docs/design/frontier.md: nothing here is shared with the nodes.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any
from zlib import crc32

LANES = 64


@dataclass(frozen=True, slots=True)
class Request:
    """A committed record of the buffer."""

    partition: int
    offset: int
    op: str
    """"schedule", "cancel", "replace", "redrive" or "continue"."""
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

    @property
    def source(self) -> str:
        return f"{self.partition}/{self.offset}"

    @property
    def rank(self) -> tuple[int, int, int]:
        return (self.due_ms, self.partition, self.offset)

    @property
    def lane(self) -> int:
        return crc32(self.topic.encode()) % LANES


@dataclass(frozen=True, slots=True)
class Step:
    """A committed frontier record."""

    cursors: list[tuple[int, int, int]]
    offsets: list[int]
    fields: dict[str, Any]

    def is_done(self, request: Request) -> bool:
        return (
            request.rank < self.cursors[request.lane]
            and request.offset < self.offsets[request.partition]
        )


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
        """`ignores_repeats`: a record that continues a message a second time is ignored."""
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
        """By source: the continuation that was accepted."""
        self.redriven: set[str] = set()
        self.origins: dict[str, str] = {}
        """By source of a continuation: the source of the user's own request."""
        self.by_source: dict[str, Request] = {}
        self.live: dict[tuple[int, str], list[Request]] = {}
        """By partition and id: what a cancel marker would kill."""
        self.last_killed: dict[tuple[int, str], list[Request]] = {}
        """By partition and id: what its cancel markers killed last."""
        self.refused: set[str] = set()
        """Sources of killed messages whose continuation came after the cancel marker."""
        trail_ms = id_memory_ms // 6
        self.times: defaultdict[int, Times] = defaultdict(
            (lambda: SteadyTimes(trail_ms)) if rules_version >= 4 else Times
        )
        """By partition."""
        for request in requests:
            self.by_source[request.source] = request
            self._take(request, self.times[request.partition].judged_ms(request.append_ms))

    def origin_of(self, source: str) -> str:
        """Return the source of the user's own request for a message."""
        return self.origins.get(source, source)

    def _place(self, request: Request) -> tuple[int, str]:
        assert request.id is not None, "only ids have a place"
        return request.partition, request.id

    def _take(self, request: Request, as_of_ms: int) -> None:
        # What has no id is live alone, and nothing finds it.
        live = [] if request.id is None else self.live.setdefault(self._place(request), [])
        if request.op == "continue":
            continued = f"{request.partition}/{request.continues}"
            if continued in self.killed_by:
                self.refused.add(continued)
                return
            if self._ignores_repeats and continued in self.continued_by:
                return
            assert continued not in self.continued_by, f"{continued} was continued twice"
            self.continued_by[continued] = request
            self.origins[request.source] = self.origin_of(continued)
            live[:] = [m for m in live if m.source != continued]
        elif request.expects == "answer" and request.op in ("schedule", "redrive"):
            self.answers.append(request)
            return
        elif request.op == "redrive":
            assert request.redrive is not None
            self.answers.append(request)
            if request.redrive in self.redriven:
                self.refusals[request.source] = "duplicate"
                return
            self.redriven.add(request.redrive)
        elif request.op in ("cancel", "replace"):
            self.answers.append(request)
            self.as_of_ms[request.source] = as_of_ms
            self.targets_of[request.source] = list(live)
            self.killed_by |= {message.source: request for message in live}
            if any(message.due_ms + self.id_memory_ms >= as_of_ms for message in live):
                self.last_killed[self._place(request)] = list(live)
            else:
                # Due long ago, so that others may not know of them: they displace nothing.
                self.last_killed.setdefault(self._place(request), []).extend(live)
            live.clear()
            if request.op == "cancel":
                return
        elif request.id is not None:
            taken = [m for m in live if m.due_ms > as_of_ms]
            if taken:
                same = any(
                    (m.topic, m.value, m.asked) == (request.topic, request.value, request.asked)
                    for m in taken
                )
                self.refusals[request.source] = "duplicate" if same else "conflict"
                self.answers.append(request)
                return
        live.append(request)
        self.messages.append(request)


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


def step_of_fields(fields: dict[str, Any]) -> Step:
    """Return a frontier record, read."""
    cursors = [tuple(fields["lanes"].get(str(n), fields["cursor"])) for n in range(LANES)]
    return Step(cursors, fields["offsets"], fields)
