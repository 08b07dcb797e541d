"""Request cases on a real cluster: all at once, each step as soon as its state is there.

Not here: whether the outcomes are right (request_judge.py).
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from datetime import datetime, timedelta, timezone
from typing import NamedTuple
from zoneinfo import ZoneInfo

from clusters import TestCluster
from nodes import CLOCK, HANGS_S, NodeProcess, master_of
from outcomes_read import OutcomesRead
from raw_records import RawHeaders, RawWriter, Written
from request_cases.case import (
    PARTITIONS,
    TARGET_PARTITIONS,
    After,
    Case,
    Content,
    Dead,
    Delivered,
    Moment,
    Recurs,
    Refused,
    Step,
)

from delayd.bus.murmur2 import partition_of

"""Retried twice, tried thrice, by states that begin when others are dead: about 25 s."""

TARGETS: dict[str, tuple[int, dict[str, str]]] = {
    "orders": (TARGET_PARTITIONS, {}),
    "Orders_2.eu-west": (1, {}),
    "compacted": (1, {"cleanup.policy": "compact"}),
    "small": (1, {"max.message.bytes": "2000"}),
    "t" * 249: (1, {}),
}
"""The targets that cases name, with their partitions and settings."""


class Sent(NamedTuple):
    """A step as it was written."""

    at: Written
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    """As a reader sees them, if their names can be read."""
    written_ms: int
    due_ms: int
    """What the step's Moment came to; -1 if it has none."""


class Play:
    """One cluster's share of the cases. Also the place where their outcomes are looked up."""

    def __init__(
        self, cluster: TestCluster, nodes: list[NodeProcess], cases: Iterable[Case]
    ) -> None:
        self.cluster = cluster
        self.nodes = nodes
        self.cases = list(cases)
        self.sent: dict[int, list[Sent]] = {id(case): [] for case in self.cases}
        self.topic_of = {b"delayd-buffer": cluster.buffer, b"delayd-orders": f"{cluster.name}-x"}
        named = {
            content for case in self.cases for step in case.steps for _, content in step.headers
        }
        for name, (partitions, config) in TARGETS.items():
            if name.encode() not in named:
                continue
            if len(name) == 249:
                cluster.create_topic(name, partitions, config)
                self.topic_of[name.encode()] = name
            else:
                self.topic_of[name.encode()] = cluster.target(name, partitions, config)
        targets = [topic for name, topic in self.topic_of.items() if name.decode() in TARGETS]
        self.seen = OutcomesRead(cluster, targets, PARTITIONS)
        self._writer = RawWriter(cluster.bootstrap, cluster.buffer)
        self._fences: set[str] = set()
        self._cursor_ms: int | None = None

    def run(self) -> None:
        """Write all cases, and read until all that is expected was found, or the time is over."""
        deadline_ms = CLOCK.monotonic_ms() + HANGS_S * 1000
        while CLOCK.monotonic_ms() < deadline_ms:
            self._cursor_ms = None
            self._write([case for case in self.cases if self._is_ready(case)])
            self.seen.read()
            if all(self._is_done(case) for case in self.cases):
                break
        self._fence()
        self.seen.read_to_the_ends()

    def close(self) -> None:
        """End the connections."""
        self._writer.close()
        self.seen.close()

    def sources(self) -> set[str]:
        """Of all that was written."""
        steps = {each.at.source for steps in self.sent.values() for each in steps}
        return steps | self._fences

    def answered(self, step: Step, sent: Sent) -> bool:
        """Return whether all outcomes of the step were found."""
        source = sent.at.source
        if len(self.seen.receipts[source]) < len(step.told):
            return False
        if isinstance(step.fate, Delivered):
            return bool(self.seen.delivered[source])
        if isinstance(step.fate, Refused | Dead):
            return bool(self.seen.letters[source])
        if isinstance(step.fate, Recurs):
            due_ms = step.fate.every_ms * (sent.due_ms // step.fate.every_ms)
            last = b"%d" % due_ms
            found = self.seen.delivered[source]
            return any(("delayd-due", last) in each.headers for each in found)
        return True

    def _is_done(self, case: Case) -> bool:
        sent = self.sent[id(case)]
        return len(sent) == len(case.steps) and all(map(self.answered, case.steps, sent))

    def _is_ready(self, case: Case) -> bool:
        """Return whether the next step may be written."""
        sent = self.sent[id(case)]
        if len(sent) == len(case.steps):
            return False
        if not sent:
            return True
        match case.steps[len(sent)].after:
            case After.SENT:
                return True
            case After.ANSWERED:
                return self.answered(case.steps[len(sent) - 1], sent[-1])
            case After.RETRIED:
                return sent[0].at.source in self.seen.origin_of.values()
            case After.PASSED:
                [delay] = [c for name, c in case.steps[0].headers if name == "delayd-delay"]
                assert isinstance(delay, bytes), "the cases say it in seconds"
                due_ms = sent[0].at.append_ms + 1_000 * int(delay.removesuffix(b"s"))
                return CLOCK.wall_ms() > due_ms and self._cursor() > due_ms

    def _cursor(self) -> int:
        """How far steps have come; asked for once in a round, because many cases wait for it."""
        if self._cursor_ms is None:
            frontier = master_of(self.nodes).status().get("frontier")
            self._cursor_ms = 0 if frontier is None else int(frontier["cursor_ms"])
        return self._cursor_ms

    def _write(self, cases: Sequence[Case]) -> None:
        """Write the next step of each of these cases, and wait for the acknowledgements."""
        written: list[tuple[Case, Future[Written], Sent]] = []
        for case in cases:
            step = case.steps[len(self.sent[id(case)])]
            now_ms = CLOCK.wall_ms()
            due_ms = -1
            headers: RawHeaders = []
            for name, content in step.headers:
                if isinstance(content, Moment):
                    due_ms = now_ms + content.in_ms
                headers.append((name, self._content(name, content, now_ms)))
            value = step.value if step.size_bytes is None else filled(step, headers)
            partition = step.partition
            if partition is None:
                partition = 0 if step.key is None else partition_of(step.key, PARTITIONS)
            future = self._writer.send(partition, step.key, value, headers)
            at = Written(partition, -1, -1)
            written.append(
                (case, future, Sent(at, step.key, value, readable(headers), now_ms, due_ms))
            )
        self._writer.flush()
        for case, future, sent in written:
            self.sent[id(case)].append(sent._replace(at=future.result(0)))

    def _content(self, name: str | bytes, content: Content, now_ms: int) -> bytes | None:
        if isinstance(content, Moment):
            return moment_text(now_ms + content.in_ms, content.form).encode()
        if name == "delayd-topic" and content in self.topic_of:
            return self.topic_of[content].encode()
        return content

    def _fence(self) -> None:
        """Whatever was written before these has had its outcome when they have had theirs."""
        topic = self.topic_of[b"orders"].encode()
        fences: list[Future[Written]] = []
        for partition in range(PARTITIONS):
            good: RawHeaders = [("delayd-topic", topic), ("delayd-due", b"0")]
            fences.append(self._writer.send(partition, b"fence", b"fence", good))
            fences.append(self._writer.send(partition, b"fence", b"fence", []))
        self._writer.flush()
        sources = [future.result(0).source for future in fences]
        self._fences = set(sources)
        found = self.seen.read_until(
            lambda: all(
                (self.seen.letters if n % 2 else self.seen.delivered)[source]
                for n, source in enumerate(sources)
            ),
            30,
        )
        assert found, "a partition of the buffer stands still"


def readable(headers: RawHeaders) -> list[tuple[str, bytes | None]]:
    """What a reader sees: a name ends at its first NUL."""
    return [
        (name if isinstance(name, str) else name.partition(b"\0")[0].decode(errors="replace"), c)
        for name, c in headers
    ]


def filled(step: Step, headers: RawHeaders) -> bytes:
    """A value with which the record counts `size_bytes` as docs/reference/topics.md counts."""
    assert step.size_bytes is not None, "only such a step is filled up"
    return b"x" * (step.size_bytes - counted(step.key, None, headers))


def counted(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str | bytes, bytes | None]]
) -> int:
    """Return the size that the record limit counts, in bytes."""
    size = 128 + len(key or b"") + len(value or b"")
    return size + sum(10 + len(name) + len(content or b"") for name, content in headers)


def moment_text(at_ms: int, form: str) -> str:
    """A moment as `delayd-due` may have it."""
    if form == "ms":
        return str(at_ms)
    if form == "UTC" or "/" in form:
        at = datetime.fromtimestamp(at_ms // 1000, ZoneInfo(form)).replace(tzinfo=None)
        return f"{at.isoformat()}.{at_ms % 1000:03}"
    minutes = 0 if form == "Z" else int(form[:3]) * 60 + int(form[0] + form[4:])
    zone = timezone(timedelta(minutes=minutes))
    at = datetime.fromtimestamp(at_ms // 1000, zone).replace(tzinfo=None)
    return f"{at.isoformat()}.{at_ms % 1000:03}{form}"
