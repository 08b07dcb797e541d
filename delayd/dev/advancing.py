"""Moving the clock of a virtual cluster, so that each message is delivered when it is due.

The clock goes from one second in which something is due to the next one, as the clock of
`delayd.testing` does; so a series has all its occurrences, and nothing expires that would not have
expired. At each stop the cluster is at rest before the clock moves on:
1. A node has read and stored all that is in the buffer.
2. A step that covers all of that, made by the time of the stop, is committed, and none is left to
   do.

Not here: how a moved clock becomes known (`delayd.runtime.virtual_time`).
"""

import threading
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
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

ADVANCE_TIMEOUT_S: Final = 120.0
POLL_S: Final = 0.02
QUIET_MS: Final = 1_000
"""Where a target is paused its lanes stand still: the cluster is at rest after so long without
work."""
KAFKA_TIMEOUT_MS: Final = 5_000
PREFIX: Final = "delayd-"
SECOND_MS: Final = 1_000
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
) -> Advanced:
    """Let so much time pass, and return when the cluster is at rest. `at_once`: at one stroke, so
    that what is due on the way is delivered late.

    Raises LocalClusterError if that takes longer than `timeout_s`; the clock stays where it is
    then.
    """
    goal_ms = goal_of(virtual.now_ms(), by_ms)
    with closing(open_bus(state.bootstrap).cluster()) as kafka:
        rest = _Rest(state, virtual, kafka, timeout_s)
        stops = 0
        node = rest.wait()
        while not at_once and (due_ms := next_due_ms(node, virtual.now_ms(), goal_ms)) is not None:
            virtual.advance_to(end_of_second(due_ms, goal_ms))
            stops += 1
            node = rest.wait()
        virtual.advance_to(goal_ms)
        rest.wait()
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
    return min(goal_ms, due_ms - due_ms % SECOND_MS + SECOND_MS - 1)


def text_of(at_ms: int) -> str:
    """Return a time as people read it, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


def next_due_ms(node: str, now_ms: int, goal_ms: int) -> int | None:
    """Return when the next pending message after now is due, if that is by the goal (Unix ms);
    `node` is the URL of its admin port. Raises LocalClusterError if it does not say."""
    counts = _answer(node, "/v1/pending/counts")
    hours = sorted(each["from_ms"] for each in counts["hours"])
    for hour_ms in hours:
        if hour_ms > goal_ms:
            return None
        if hour_ms + HOUR_MS > now_ms:
            dues_ms = [due_ms for due_ms in _dues_ms(node, hour_ms) if now_ms < due_ms <= goal_ms]
            if dues_ms:
                return min(dues_ms)
    return None


def _dues_ms(node: str, hour_ms: int) -> Iterable[int]:
    """Yield when each message that is pending in an hour is due."""
    cursor: str | None = ""
    while cursor is not None:
        more = f"&cursor={cursor}" if cursor else ""
        page = _answer(
            node,
            f"/v1/pending?from_ms={hour_ms}&until_ms={hour_ms + HOUR_MS}&limit={PAGE}{more}",
        )
        yield from (message["due_ms"] for message in page["messages"])
        cursor = page["next"]


def _answer(node: str, path: str) -> Fields:
    answer = get(f"{node}{path}")
    fields = None if answer is None else answer.fields()
    if fields is None:
        raise LocalClusterError(
            f"the node at {node} does not say what is pending",
            remedy="see `delayd dev status`, and advance again: what has passed has passed",
        )
    return fields


class _Rest:
    """When the cluster has done all that is due by now."""

    def __init__(
        self, state: State, virtual: VirtualTime, kafka: Cluster, timeout_s: float
    ) -> None:
        self._nodes = [node for node in state.of(Kind.NODE) if node.alive()]
        self._virtual = virtual
        self._kafka = kafka
        self._clock = SystemClock()
        self._timeout_s = timeout_s
        self._end_ms = self._clock.monotonic_ms() + int(timeout_s * 1000)

    def wait(self) -> str:
        """Wait until it is at rest, and return the URL of a node that says so. Raises
        LocalClusterError."""
        now_ms = self._virtual.now_ms()
        lack = "no node answers"
        while self._clock.monotonic_ms() < self._end_ms:
            ends = self._ends()
            for node in self._nodes:
                if ends is None:
                    lack = "Kafka does not answer"
                    break
                told = self._settle(node.address, ends, now_ms)
                if told is None:
                    if self._ends() == ends:
                        return node.address
                    break  # Requests came meanwhile, or retries of what was due.
                lack = told
            threading.Event().wait(POLL_S)
        raise LocalClusterError(
            f"the cluster was not at rest within {self._timeout_s:.0f} s: {lack}; it is "
            f"{text_of(self._virtual.now_ms())} in it",
            remedy="see `delayd dev status`, and advance again by what is left, with a longer "
            "--timeout; or with --at-once, if very much is due at different times",
        )

    def _settle(self, node: str, ends: Mapping[int, int], now_ms: int) -> str | None:
        """Wait as long as a node makes progress; return what it lacks, None if nothing."""
        read_ms: int | None = None
        idle_ms: int | None = None
        lack = "no node answers"
        while self._clock.monotonic_ms() < self._end_ms:
            at_ms = self._clock.monotonic_ms()
            said = read_status(node)
            if said is None:
                return lack
            if said.get("frontier") is None or any(
                reached < ends.get(n, 0) for n, reached in enumerate(said["reached"])
            ):
                lack = f"{said['node']} has not read all of the buffer"
                read_ms = None
            elif read_ms is None:
                read_ms = at_ms
            elif said["checkpoint_age_ms"] >= self._clock.monotonic_ms() - read_ms:
                lack = f"{said['node']} has made no checkpoint"
            else:
                state = work_left(said["frontier"], said["ingested"], now_ms)
                if state == NOTHING:
                    return None
                lack = f"the master has not done all that is due ({said['node']} says)"
                if state == SOME:
                    idle_ms = None
                elif idle_ms is None:
                    idle_ms = at_ms
                elif at_ms - idle_ms >= QUIET_MS:
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


NOTHING: Final = "nothing"
HELD: Final = "held"
SOME: Final = "some"


def work_left(frontier: Mapping[str, Any], ingested: Iterable[int], now_ms: int) -> str:
    """Return what the newest step has left: NOTHING of what was ingested and due by `now_ms`; HELD,
    if only lanes that stand still have something; or SOME."""
    covers = all(o >= read for o, read in zip(frontier["offsets"], ingested, strict=True))
    if not covers or frontier["now_ms"] < now_ms:
        return SOME
    if frontier["cursor_ms"] >= now_ms:
        return NOTHING
    return SOME if any(frontier["counts"].values()) else HELD
