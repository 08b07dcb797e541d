"""The runs of `delayd bench wheel`, and the figures that come of them.

Each run makes its wheels anew in a folder of its own, and leaves nothing behind. The large wheel of
a run holds all messages over 30 days; it is killed, opened, added to and drained in turn.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from delayd.bench.errors import BenchError
from delayd.bench.figures import Figure, Measured
from delayd.bench.job import run, started
from delayd.bench.process_costs import anon_peak
from delayd.bench.wheels import jobs
from delayd.dev.job import Job
from delayd.runtime.clock import SystemClock
from replication.rank import SLOT_MS

SPREADS_MS: Final = {"60s": 60_000, "2h": 7_200_000, "30d": 30 * 24 * 3_600_000}
FAR_MS: Final = SPREADS_MS["30d"]
LEAD_MS: Final = 10_000
"""Nothing is due before this has passed since the beginning of a run."""
SECOND_SHARE: Final = 20
"""The due second that is read holds one of so many messages: 500,000 of 10 million."""
FEW_SHARE: Final = 100
"""The wheel that the large one's cost is compared with holds one of so many messages: 100,000."""
TENTH: Final = 10
MIB: Final = 2**20

Tell = Callable[[str], None]


def bench_wheel(messages: int, runs: int, directory: Path | None, tell: Tell) -> list[Figure]:
    """Return all figures. `directory` is on the disk to be measured, and made if there is none.

    `tell` gets each task as it begins. Raises BenchError.
    """
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
    measured = Measured()
    for number in range(1, runs + 1):

        def heard(what: str, number: int = number) -> None:
            tell(f"run {number}: {what}")

        one = _Run(messages, directory, measured, heard)
        one.ingest_near()
        one.read_seconds()
        one.hold_far()
    return measured.figures()


class _Run:
    """One run of everything."""

    def __init__(
        self, messages: int, directory: Path | None, measured: Measured, tell: Tell
    ) -> None:
        self._messages = messages
        self._directory = directory
        self._measured = measured
        self._tell = tell
        now_ms = SystemClock().wall_ms() + LEAD_MS
        self._base_ms = now_ms - now_ms % SLOT_MS
        self._few = max(1, messages // FEW_SHARE)

    def ingest_near(self) -> None:
        """Measure ingest with due times over 60 s and over 2 h."""
        for name in ("60s", "2h"):
            with self._folder() as folder:
                self._tell(f"ingest over {name}")
                found = self._ingest(folder, self._messages, SPREADS_MS[name])
            self._ingested(name, found)

    def read_seconds(self) -> None:
        """Measure reading a full due second, in rank order."""
        messages = max(1, self._messages // SECOND_SHARE)
        slot = self._base_ms // SLOT_MS
        for name, span_ms in (("uniform", SLOT_MS), ("one-ms", 1)):
            with self._folder() as folder:
                self._tell(f"reading a second, {name}")
                self._ingest(folder, messages, span_ms)
                plain = run(jobs.read_plainly, directory=folder)
                where = {"directory": folder, "base_ms": self._base_ms}
                with started(jobs.read, slot=slot, **where) as job:
                    _expect(job, "begin")
                    with anon_peak(job.pid) as anon:
                        _expect(job, "end")
                    found = job.next()
            if found["frames"] != messages:
                raise BenchError(f"of {messages} messages {found['frames']} were read")
            against = "bare read of the same file"
            rate, bare = messages / found["seconds"], messages / plain["seconds"]
            self._measured.add(f"read-{name}", "messages/s", rate, against, bare)
            above = max(0, anon.peak_bytes - found["baseline_bytes"])
            self._measured.add(f"read-{name}-memory", "MiB", above / MIB)

    def hold_far(self) -> None:
        """Measure a wheel with due times over 30 days."""
        with self._folder() as folder:
            self._tell("ingest into little that is pending")
            self._ingest(folder, self._few, FAR_MS)
            few = run(jobs.cost, messages=self._few, **self._where(folder))
        with self._folder() as folder:
            self._tell("ingest of a tenth over 30d")
            tenth = self._ingest(folder, max(1, self._messages // TENTH), FAR_MS)
        with self._folder() as folder:
            self._tell("ingest over 30d")
            large, opened = self._kill(folder)
            self._tell("ingest into what is pending")
            more = run(jobs.cost, messages=self._few, **self._where(folder))
            self._tell("draining")
            drained = run(jobs.drain, **self._where(folder))
        self._ingested("30d", large)
        add = self._measured.add
        held = ("anon_bytes", "anon_peak_bytes", "file_bytes")
        for name, key in zip(("anon", "anon-peak", "file"), held, strict=True):
            of_tenth = f"{max(1, self._messages // TENTH):,} pending"
            add(f"pending-{name}", "MiB", large[key] / MIB, of_tenth, tenth[key] / MIB)
        add("open-after-kill", "ms", opened["seconds"] * 1000)
        add("opened-anon", "MiB", opened["anon_bytes"] / MIB)
        add("cost", "us/message", more["us"], f"{self._few:,} pending, {more['cold']}", few["us"])
        message_bytes = large["message_bytes"] + more["message_bytes"]
        written = sum(job["written_bytes"] for job in (large, opened, more, drained))
        add("written", "bytes/byte", written / message_bytes)
        add("written-at-ingest", "bytes/byte", large["written_bytes"] / large["message_bytes"])
        add("frame-size", "bytes/byte", large["frame_bytes"] / large["message_bytes"])

    def _kill(self, folder: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Ingest over 30 days, kill the process behind a checkpoint, and open the wheel again."""
        where = self._where(folder)
        with started(jobs.ingest, messages=self._messages, stay=True, **where) as job:
            large = job.next()
            _expect(job, "on")
            job.kill()
        self._tell("opening what was killed")
        opened = run(jobs.open_again, directory=folder, base_ms=self._base_ms)
        if opened["frames"] < self._messages:
            raise BenchError(
                f"of {self._messages} messages {opened['frames']} are there after a kill"
            )
        return large, opened

    def _ingest(self, folder: str, messages: int, span_ms: int) -> dict[str, Any]:
        where = self._where(folder, span_ms)
        found: dict[str, Any] = run(jobs.ingest, messages=messages, stay=False, **where)
        return found

    def _where(self, folder: str, span_ms: int = FAR_MS) -> dict[str, Any]:
        return {"directory": folder, "span_ms": span_ms, "base_ms": self._base_ms}

    def _ingested(self, name: str, found: dict[str, Any]) -> None:
        with self._folder() as folder:
            self._tell(f"plain append, beside {name}")
            where = self._where(folder, SPREADS_MS[name])
            bare = run(jobs.append, messages=self._messages, **where)
        self._measured.add(
            f"ingest-{name}",
            "messages/s",
            self._messages / found["seconds"],
            "plain append of the same bytes, synced as often",
            self._messages / bare["seconds"],
        )
        self._measured.add(f"ingest-{name}-cpu", "us/message", found["cpu_us"])

    @contextmanager
    def _folder(self) -> Iterator[str]:
        with tempfile.TemporaryDirectory(prefix="delayd-bench-", dir=self._directory) as folder:
            yield folder


def _expect(job: Job, word: str) -> None:
    said = job.next()
    assert said == word, f"{said} where {word} was to be told"
