"""How `delayd dev advance` goes from stop to stop: over nodes that say what a test lets them."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from delayd.cluster.admin_client import Answer
from delayd.dev import advancing
from delayd.dev.advancing import HOUR_MS, Advanced, advance
from delayd.dev.parts import Kind, LocalClusterError, Part, State
from delayd.runtime.virtual_time import VirtualTime

MINUTE_MS = 60_000
ASKED_MS = 300
"""How long a node takes to say its status."""


@dataclass
class Dev:
    """A cluster of two nodes, whose steps always keep up with the clock, and its monotonic time."""

    virtual: VirtualTime
    dues_ms: list[int] = field(default_factory=list)
    monotonic: int = 0
    status: dict[str, Any] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=lambda: {0: 3})
    grows_by: int = 0
    """How many requests come between two looks at the buffer."""
    silent: str = ""
    """The URL of the node that does not say what is pending."""
    asked: list[str] = field(default_factory=list)
    interrupted_at: int = -1
    progress: list[str] = field(default_factory=list)

    def advance(self, by_ms: int, timeout_s: float = 10) -> Advanced:
        where = Path("data")
        nodes = [
            Part(Kind.NODE, f"node-{n}", ("true",), {}, f"http://n{n}", where, where)
            for n in (1, 2)
        ]
        told = self.progress.append
        return advance(State(tuple(nodes)), self.virtual, by_ms, timeout_s=timeout_s, progress=told)

    # Of Kafka.
    def cluster(self) -> "Dev":
        return self

    def close(self) -> None: ...

    def end_offsets(self, topic: str, timeout_ms: int, *, committed: bool) -> dict[int, int]:
        ends = dict(self.ends)
        self.ends[0] += self.grows_by
        return ends

    # Of this process.
    def monotonic_ms(self) -> int:
        return self.monotonic

    # Of a node.
    def said(self, node: str) -> dict[str, Any]:
        self.monotonic += ASKED_MS
        now_ms = self.virtual.now_ms()
        frontier: dict[str, Any] = {"offsets": (4,), "own_writes": (-1,), "counts": {}}
        frontier |= {"now_ms": now_ms, "cursor_ms": now_ms}
        said = {"node": node, "reached": (3,), "ingested": (3,), "checkpoint_age_ms": 0}
        return {**said, "frontier": frontier, **self.status}

    def get(self, url: str) -> Answer | None:
        if len(self.asked) == self.interrupted_at:
            raise KeyboardInterrupt
        self.asked.append(url)
        if self.silent and url.startswith(self.silent):
            return None
        if url.endswith("counts"):
            hours = sorted({due_ms - due_ms % HOUR_MS for due_ms in self.dues_ms})
            body: dict[str, Any] = {"hours": [{"from_ms": hour_ms} for hour_ms in hours]}
        else:
            asked = {key: int(value) for key, [value] in parse_qs(urlsplit(url).query).items()}
            found = [d for d in self.dues_ms if asked["from_ms"] <= d < asked["until_ms"]]
            body = {"messages": [{"due_ms": due_ms} for due_ms in found], "next": None}
        return Answer(200, json.dumps(body).encode())


@pytest.fixture
def dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dev:
    """Three messages are pending, at different minutes."""
    made = Dev(VirtualTime.create(tmp_path / "time"))
    now_ms = made.virtual.now_ms()
    made.dues_ms = [now_ms + n * MINUTE_MS for n in (1, 2, 3)]
    monkeypatch.setattr(advancing, "open_bus", lambda _: made)
    monkeypatch.setattr(advancing, "SystemClock", lambda: made)
    monkeypatch.setattr(advancing, "read_status", made.said)
    monkeypatch.setattr(advancing, "get", made.get)
    monkeypatch.setattr(State, "bootstrap", "nowhere:1")
    monkeypatch.setattr(Part, "alive", lambda _: True)
    return made


def test_the_time_out_counts_for_each_stop_and_progress_names_the_goal(dev: Dev) -> None:
    stop_s = 3 * ASKED_MS / 1000
    done = dev.advance(5 * MINUTE_MS, timeout_s=stop_s)
    assert done.stops == 4 and dev.monotonic > 2 * stop_s * 1000
    assert len(dev.progress) == 3 and all(" / " in told for told in dev.progress)


def test_who_gives_up_says_where_the_clock_stands_and_how_to_go_on(dev: Dev) -> None:
    dev.status = {"reached": (2,)}
    with pytest.raises(LocalClusterError) as given_up:
        dev.advance(HOUR_MS)
    told = str(given_up.value)
    assert "has not read all of the buffer" in told and " is to be " in told
    assert "`delayd dev advance 3600s`" in told or "`delayd dev advance 3599s`" in told


def test_who_is_interrupted_learns_how_to_go_on(dev: Dev) -> None:
    dev.interrupted_at = 2
    with pytest.raises(KeyboardInterrupt, match=r"is to be .* go on with `delayd dev advance 35\d"):
        dev.advance(HOUR_MS)


def test_requests_that_keep_coming_keep_no_clock_waiting(dev: Dev) -> None:
    dev.grows_by = 1
    dev.dues_ms = []
    dev.status = {"reached": (4,), "ingested": (4,)}  # One look at the buffer for each wait.
    dev.advance(MINUTE_MS)
    assert dev.ends[0] == 5


def test_a_marker_behind_the_last_record_is_waited_for_by_no_step(dev: Dev) -> None:
    """The buffer ends with the marker of a transaction: no step covers that."""
    dev.ends = {0: 6}
    dev.status = {"reached": (6,), "ingested": (4,)}
    assert dev.advance(5 * MINUTE_MS).stops == 4


def test_it_waits_for_what_the_steps_wrote_themselves(dev: Dev) -> None:
    """A series goes on in such a record, and the clock would leap over its next occurrence."""
    now_ms = dev.virtual.now_ms() + HOUR_MS
    frontier = {"offsets": (4,), "own_writes": (3,), "counts": {}}
    dev.status = {"frontier": {**frontier, "now_ms": now_ms, "cursor_ms": now_ms}}
    with pytest.raises(LocalClusterError, match="has not read all of the buffer"):
        dev.advance(1)


def test_a_node_that_does_not_say_what_is_pending_gives_way_to_another(dev: Dev) -> None:
    dev.silent = "http://n1"
    assert dev.advance(5 * MINUTE_MS).stops == 4
    assert [url.startswith("http://n1") for url in dev.asked].count(True) == 1


def test_if_no_node_says_what_is_pending_the_time_out_ends_it(dev: Dev) -> None:
    dev.silent = "http://n"
    with pytest.raises(LocalClusterError, match="does not say what is pending"):
        dev.advance(5 * MINUTE_MS)


def test_what_has_passed_is_not_asked_for(dev: Dev) -> None:
    begun_ms = dev.virtual.now_ms()
    dev.advance(5 * MINUTE_MS)
    froms_ms = [
        int(parse_qs(urlsplit(url).query)["from_ms"][0]) for url in dev.asked if "from_ms" in url
    ]
    assert min(froms_ms) > begun_ms
