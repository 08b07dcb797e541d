"""One run of traffic through the cluster, beside which something is done to it."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from k8s_cluster import Cluster, now_ms, wait_for

RATE: Final = 500
BEGUN: Final = 200
"""So many deliveries, and all is under way."""

SECONDS_MAX: Final = 1_200
END_TIMEOUT_S: Final = 400
FAULTS: Final = ("lost", "doubled", "early", "altered", "wrong_verdict", "unanswered", "unknown")


class Run:
    """A Job of the component chaos: under way inside of `with`, and judged after it."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._name = f"{name}-{now_ms()}"
        self.marks: list[tuple[str, int, float]] = []
        """What was done, when, and how many seconds it took to be ready again."""
        self.report: dict[str, Any] = {}

    def __enter__(self) -> "Run":
        variables = {"TRAFFIC_SECONDS": str(SECONDS_MAX), "TRAFFIC_RATE": str(RATE)}
        self._cluster.start_job("delayd-chaos", self._name, variables)
        wait_for("deliveries", lambda: self._last().get("delivered", 0) > BEGUN, 120)
        return self

    def __exit__(self, kind: object, _error: object, _traceback: object) -> None:
        stop = "import os, signal; os.kill(1, signal.SIGTERM)"
        self._cluster.inside("exec", f"job/{self._name}", "--", "python", "-c", stop)
        if kind is None:
            self._cluster.wait_job(self._name, END_TIMEOUT_S)
            self.report = self._last()

    @contextmanager
    def mark(self, what: str) -> Iterator[None]:
        """What is done inside is timed."""
        at_ms, since = now_ms(), time.monotonic()
        yield
        self.marks.append((what, at_ms, time.monotonic() - since))

    def gap_ms(self, number: int) -> int:
        """The longest pause of deliveries from a mark to the next one."""
        begin_ms = self.marks[number][1]
        later = [at_ms for _, at_ms, _ in self.marks[number + 1 :]]
        end_ms = min(later, default=1 << 62)
        within = (
            gap["for_ms"]
            for gap in self.report["gaps"]
            if gap["from_ms"] + gap["for_ms"] > begin_ms and gap["from_ms"] < end_ms
        )
        return max(within, default=0)

    def rows(self) -> list[str]:
        """A line of the table for each mark."""
        wrong = " ".join(str(self.report.get(fault, "?")) for fault in FAULTS)
        late, sent = self.report["late_ms"], self.report["sent"]
        return [
            f"| {what} | {self.gap_ms(number)} ms | {ready_s:.1f} s | {sent} | {wrong} |"
            f" {late['p99']} / {late['max']} ms |"
            for number, (what, _, ready_s) in enumerate(self.marks)
        ]

    def _last(self) -> dict[str, Any]:
        lines = [line for line in self._cluster.log(self._name) if line.startswith("{")]
        return json.loads(lines[-1]) if lines else {}


HEAD: Final = (
    "| what | longest pause | ready again | sent | "
    + " ".join(FAULTS)
    + " | late p99 / max |\n|---|---|---|---|---|---|"
)
