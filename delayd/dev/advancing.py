"""Moving the clock of a virtual cluster, so that each message is delivered when it is due.

The clock goes from one second in which something is due to the next one, as the clock of
`delayd.testing` does; so a series has all its occurrences, and nothing expires that would not have
expired. At each stop the cluster is at rest before the clock moves on:
1. A node has read and stored all that was in the buffer when the clock stood, and what the steps
   wrote since.
2. A step that covers all of that, made by the time of the stop, is committed, and none is left to
   do.

Not here: how a moved clock becomes known (`delayd.runtime.virtual_time`).
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from delayd.bus import Cluster
from delayd.cluster.admin_client import get
from delayd.cluster.connect import open_bus
from delayd.cluster.topics import topic_names
from delayd.dev.nodes import read_status
from delayd.dev.parts import Kind, LocalClusterError, State
from delayd.errors import KafkaUnreachableError
from delayd.runtime.clock import SystemClock
from delayd.runtime.virtual_time import VirtualTime
from replication.rank import SLOT_MS

ADVANCE_TIMEOUT_S: Final = 120.0
POLL_S: Final = 0.02
QUIET_MS: Final = 1_000
"""Where a target is paused its lanes stand still: the cluster is at rest after so long without
work."""
KAFKA_TIMEOUT_MS: Final = 5_000
PREFIX: Final = "delayd-"
HOUR_MS: Final = 3_600_000
PAGE: Final = 1_000
GOAL_MS_MAX: Final = 253_370_764_800_000
"""The year 9999 begins: no goal lies in it, so that all times have the form of a date."""

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Advanced:
    """What came of it."""

    now_ms: int
    """What time it is in the cluster, Unix ms."""
    stops: int
    """How many times the clock was moved."""


def advance(
    state: State,
    virtual: VirtualTime,
    by_ms: int,
    *,
    at_once: bool = False,
    timeout_s: float = ADVANCE_TIMEOUT_S,
    command: Callable[[str], str] = "delayd dev {}".format,
    progress: Callable[[str], None] = lambda _: None,
) -> Advanced:
    """Let so much time pass, and return when the cluster is at rest. `at_once`: at one stroke, so
    that what is due on the way is delivered late. `command`: the `delayd dev` command of these
    words, for this cluster.

    Raises LocalClusterError if one stop takes longer than `timeout_s`; the clock stays where it is
    then. That, and a KeyboardInterrupt, say how to go on.
    """
    goal_ms = goal_of(virtual.now_ms(), by_ms)

    def so_far() -> str:
        return f"it is {text_of(virtual.now_ms())} in the cluster, and is to be {text_of(goal_ms)}"

    def going_on() -> str:
        left_s = max(1, -((virtual.now_ms() - goal_ms) // 1000))
        return command(f"advance {left_s}s{' --at-once' if at_once else ''}")

    try:
        with closing(open_bus(state.bootstrap).cluster()) as kafka:
            rest = _Rest(state, virtual, kafka, timeout_s)
            stops = 0
            if at_once:
                rest.wait()
            while not at_once and (due_ms := rest.next_due_ms(goal_ms)) is not None:
                virtual.advance_to(end_of_second(due_ms, goal_ms))
                stops += 1
                progress(f"advancing: {text_of(virtual.now_ms())} / {text_of(goal_ms)}")
            virtual.advance_to(goal_ms)
            rest.wait()
    except LocalClusterError as error:
        raise LocalClusterError(
            f"{error.message}; {so_far()}",
            remedy=f"see `{command('status')}`, and go on with `{going_on()}`, and a longer "
            "--timeout; or with --at-once, if very much is due at different times",
        ) from error
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{so_far()}; go on with `{going_on()}`") from None
    return Advanced(virtual.now_ms(), stops + 1)


def goal_of(now_ms: int, by_ms: int) -> int:
    """Return what time it will be, Unix ms. Raises LocalClusterError if no date can say that: time
    does not step back, so the cluster would be lost."""
    if now_ms + by_ms >= GOAL_MS_MAX:
        raise LocalClusterError(
            f"it is {text_of(now_ms)} in the cluster, and time goes to the year 9998 only",
            remedy="advance by less",
        )
    return now_ms + by_ms


def end_of_second(due_ms: int, goal_ms: int) -> int:
    """Return where the clock stops for something due then: all of its second goes out together."""
    return min(goal_ms, due_ms - due_ms % SLOT_MS + SLOT_MS - 1)


def text_of(at_ms: int) -> str:
    """Return a time as people read it, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


class _Rest:
    """When the cluster has done all that is due by now, and what is due next."""

    def __init__(
        self, state: State, virtual: VirtualTime, kafka: Cluster, timeout_s: float
    ) -> None:
        self._nodes = [node.address for node in state.of(Kind.NODE) if node.alive()]
        self._virtual = virtual
        self._kafka = kafka
        self._clock = SystemClock()
        self._timeout_s = timeout_s
        self._end_ms = 0
        self._lack = "no node answers"

    def wait(self) -> None:
        """Wait until it is at rest. Raises LocalClusterError after the time-out."""
        self._begin()
        self._settled()

    def next_due_ms(self, goal_ms: int) -> int | None:
        """Wait until it is at rest, and return when the next pending message is due, if that is by
        the goal (Unix ms). Raises LocalClusterError after the time-out."""
        self._begin()
        while True:
            node, now_ms = self._settled()
            try:
                return self._next_due_ms(node, now_ms, goal_ms)
            except _SilentError:
                self._lack = f"the node at {node} does not say what is pending"
                self._nodes.sort(key=lambda each: each == node)  # The others may.

    def _begin(self) -> None:
        self._end_ms = self._clock.monotonic_ms() + int(self._timeout_s * 1000)
        self._lack = "no node answers"

    def _is_over(self) -> bool:
        return self._clock.monotonic_ms() >= self._end_ms

    def _next_due_ms(self, node: str, now_ms: int, goal_ms: int) -> int | None:
        """Return when the next message after now is due, if that is by the goal; by this node."""
        counts = self._answer(node, "/v1/pending/counts")
        for hour_ms in sorted(each["from_ms"] for each in counts["hours"]):
            if hour_ms > goal_ms:
                return None
            first_ms, until_ms = max(hour_ms, now_ms + 1), min(hour_ms + HOUR_MS, goal_ms + 1)
            if first_ms < until_ms:
                dues_ms = list(self._dues_ms(node, first_ms, until_ms))
                if dues_ms:
                    return min(dues_ms)
        return None

    def _dues_ms(self, node: str, from_ms: int, until_ms: int) -> Iterable[int]:
        """Yield when each message is due that is pending for that time."""
        cursor: str | None = ""
        asked = f"/v1/pending?from_ms={from_ms}&until_ms={until_ms}&limit={PAGE}"
        while cursor is not None:
            page = self._answer(node, f"{asked}&cursor={cursor}" if cursor else asked)
            yield from (message["due_ms"] for message in page["messages"])
            cursor = page["next"]

    def _answer(self, node: str, path: str) -> Fields:
        answer = None if self._is_over() else get(f"{node}{path}")
        fields = None if answer is None else answer.fields()
        if fields is None:
            raise _SilentError
        return fields

    def _settled(self) -> tuple[str, int]:
        """Wait until it is at rest: with all requests that are in the buffer now, whatever comes
        meanwhile. Return the URL of a node that says so, and as of when in the cluster."""
        now_ms = self._virtual.now_ms()
        ends: Mapping[int, int] | None = None
        while not self._is_over():
            ends = self._ends() if ends is None else ends
            if ends is None:
                self._lack = "Kafka does not answer"
            else:
                for node in self._nodes:
                    lack = self._settle(node, ends, now_ms)
                    if lack is None:
                        return node, now_ms
                    self._lack = lack
            threading.Event().wait(POLL_S)
        raise LocalClusterError(
            f"the cluster was not at rest within {self._timeout_s:.0f} s: {self._lack}"
        )

    def _settle(self, node: str, ends: Mapping[int, int], now_ms: int) -> str | None:
        """Wait as long as a node makes progress; return what it lacks, None if nothing."""
        progress = Progress(ends, now_ms)
        lack: str | None = self._lack
        while not self._is_over():
            asked_ms = self._clock.monotonic_ms()
            said = read_status(node)
            if said is None:
                return f"the node at {node} does not answer"
            lack = progress.lack(said, asked_ms, self._clock.monotonic_ms())
            if lack is None:
                return None
            threading.Event().wait(POLL_S)
        return lack

    def _ends(self) -> Mapping[int, int] | None:
        try:
            return self._kafka.end_offsets(
                topic_names(PREFIX).buffer, KAFKA_TIMEOUT_MS, committed=True
            )
        except KafkaUnreachableError:
            return None


@dataclass(slots=True)
class Progress:
    """How far one node is on its way to rest, by one answer after the other."""

    ends: Mapping[int, int]
    """Where the partitions of the buffer ended when the wait began."""
    now_ms: int
    """What is due by then is to be done; Unix ms in the cluster."""
    _read: list[int] | None = None
    """Up to where it has read all that there is."""
    _read_ms: int = 0
    """Since when it has, at the latest; monotonic."""
    _ingested: list[int] = field(default_factory=list)
    _idle_ms: int | None = None
    """Since when only lanes that stand still have something; monotonic."""

    def lack(self, said: Fields, asked_ms: int, answered_ms: int) -> str | None:
        """Return what it lacks by its status, None if nothing. The status is from between these two
        times (monotonic)."""
        frontier = said["frontier"]
        wanted = None if frontier is None else wanted_offsets(frontier, self.ends)
        if wanted is None or any(
            reached < end for reached, end in zip(said["reached"], wanted, strict=True)
        ):
            self._read = None
            return f"{said['node']} has not read all of the buffer"
        if self._read != wanted:
            # Behind the last record a marker may stand, which no step covers.
            self._read, self._read_ms, self._ingested = wanted, answered_ms, said["ingested"]
        if said["checkpoint_age_ms"] > asked_ms - self._read_ms:
            return f"{said['node']} has made no checkpoint"
        state = work_left(frontier, self._ingested, self.now_ms)
        if state == HELD:
            self._idle_ms = asked_ms if self._idle_ms is None else self._idle_ms
        else:
            self._idle_ms = None
        is_quiet = self._idle_ms is not None and answered_ms - self._idle_ms >= QUIET_MS
        if state == NOTHING or is_quiet:
            return None
        return f"the master has not done all that is due ({said['node']} says)"


class _SilentError(Exception):
    """A node does not say what is pending."""


NOTHING: Final = "nothing"
HELD: Final = "held"
SOME: Final = "some"


def wanted_offsets(frontier: Mapping[str, Any], ends: Mapping[int, int]) -> list[int]:
    """Return by partition how far the buffer must be read: the `ends`, and what the steps wrote
    themselves, which are retries, and series that go on."""
    return [max(ends.get(n, 0), own + 1) for n, own in enumerate(frontier["own_writes"])]


def work_left(frontier: Mapping[str, Any], ingested: Iterable[int], now_ms: int) -> str:
    """Return what the newest step has left: NOTHING of what was ingested up to these offsets and is
    due by `now_ms`; HELD, if only lanes that stand still have something; or SOME."""
    covers = all(o >= read for o, read in zip(frontier["offsets"], ingested, strict=True))
    if not covers or frontier["now_ms"] < now_ms:
        return SOME
    if frontier["cursor_ms"] >= now_ms:
        return NOTHING
    return SOME if any(frontier["counts"].values()) else HELD
