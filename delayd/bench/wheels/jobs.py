"""What is measured, each in a process of its own, so that its memory and its bytes are its own.

Each says a word where whoever started it may want to look, and returns its result. Times in it are
of the wheel's calls and of making the messages, not of starting.
"""

import threading
from pathlib import Path
from typing import Any, Final

from delayd.bench.process_costs import cpu_s, forget_caches, memory_of, written_bytes
from delayd.bench.wheels.wheel_driver import ID_MEMORY_MS, DrivenWheel, Load
from delayd.dev.job import say
from delayd.runtime.clock import SystemClock
from delayd.wheel.disk import SystemDisk
from delayd.wheel.frame import encode

BATCH_MESSAGES: Final = 2_000
CHECKPOINT_MS: Final = 1_000
STAY_S_MAX: Final = 600
"""After this a job ends by itself if nobody kills it."""
DRAIN_STEP_MS: Final = 1_800_000
"""How much time passes between two checkpoints while a wheel is drained. A node makes one a second;
what is written of each slot is the same."""
DRAIN_ROUNDS_MAX: Final = 10_000
"""Checkpoints after the last slot, until all files are unlinked."""
READ_BYTES: Final = 1024 * 1024

Result = dict[str, Any]


class _Ingest:
    """Stores a load, with a checkpoint a second."""

    def __init__(self, wheel: DrivenWheel, span_ms: int, base_ms: int) -> None:
        self._clock = SystemClock()
        self._wheel = wheel
        self._base_ms = base_ms
        self._load = Load(wheel.stored, first_due_ms=base_ms, span_ms=span_ms)
        self._started_ms = self._checkpointed_ms = self._clock.monotonic_ms()
        self.message_bytes = 0
        self.anon_peak_bytes = 0

    @property
    def elapsed_ms(self) -> int:
        """Return the time since it was made; 1 at least."""
        return max(1, self._clock.monotonic_ms() - self._started_ms)

    def store(self, messages: int) -> None:
        """Store so many more, with the checkpoints that are due meanwhile."""
        while messages > 0:
            batch = self._load.take(min(messages, BATCH_MESSAGES))
            self._wheel.store(batch, self._load.offsets)
            self.message_bytes += batch.message_bytes
            messages -= len(batch.frames)
            if self._clock.monotonic_ms() - self._checkpointed_ms >= CHECKPOINT_MS:
                self.checkpoint()

    def checkpoint(self) -> None:
        """Make a checkpoint now."""
        self.anon_peak_bytes = max(self.anon_peak_bytes, memory_of().anon)
        self._wheel.pass_time(self._base_ms + self.elapsed_ms)
        self._wheel.checkpoint()
        self._checkpointed_ms = self._clock.monotonic_ms()


def ingest(directory: str, messages: int, span_ms: int, base_ms: int, *, stay: bool) -> Result:
    """Measure rate, memory and written bytes of ingest. With `stay`, then store a batch after
    the last checkpoint, say "on", and wait to be killed. Nothing else is written meanwhile: the
    next opening would cut it off, and it would count as that much less written."""
    wheel = DrivenWheel(Path(directory), base_ms)
    work = _Ingest(wheel, span_ms, base_ms)
    begun_s = cpu_s()
    work.store(messages)
    work.checkpoint()
    seconds = work.elapsed_ms / 1000
    memory = memory_of()
    result = {
        "seconds": seconds,
        "cpu_us": (cpu_s() - begun_s) * 1_000_000 / messages,
        "message_bytes": work.message_bytes,
        "written_bytes": written_bytes(),
        "frame_bytes": wheel.stats.bytes,
        "anon_bytes": memory.anon,
        "anon_peak_bytes": max(memory.anon, work.anon_peak_bytes),
        "file_bytes": memory.file,
    }
    if stay:
        say(result)
        work.store(BATCH_MESSAGES)
        say("on")
        threading.Event().wait(STAY_S_MAX)
    wheel.close()
    return result


def append(directory: str, messages: int, span_ms: int, base_ms: int) -> Result:
    """Append the same frames, made before, to one file, and sync as often: the limit of the
    disk, without any order or accounting."""
    load = Load(0, first_due_ms=base_ms, span_ms=span_ms)
    frames = load.take(min(messages, BATCH_MESSAGES)).frames
    data = b"".join(encode(frame)[0] for frame in frames)
    clock = SystemClock()
    disk = SystemDisk()
    file = disk.open(f"{directory}/appended", create=True)
    started_ms = synced_ms = clock.monotonic_ms()
    left = messages
    while left > 0:
        disk.append(file, data)
        left -= BATCH_MESSAGES
        if clock.monotonic_ms() - synced_ms >= CHECKPOINT_MS:
            disk.fdatasync(file)
            synced_ms = clock.monotonic_ms()
    disk.fdatasync(file)
    seconds = max(1, clock.monotonic_ms() - started_ms) / 1000
    disk.close(file)
    return {"seconds": seconds}


def open_again(directory: str, base_ms: int) -> Result:
    """Measure recovery."""
    clock = SystemClock()
    started_ms = clock.monotonic_ms()
    wheel = DrivenWheel(Path(directory), base_ms)
    seconds = (clock.monotonic_ms() - started_ms) / 1000
    memory = memory_of()
    result = {
        "seconds": seconds,
        "frames": wheel.stats.frames,
        "anon_bytes": memory.anon,
        "written_bytes": written_bytes(),
    }
    wheel.close()
    return result


def cost(directory: str, messages: int, span_ms: int, base_ms: int) -> Result:
    """Measure more ingest into a wheel that holds something, after the caches were dropped, up
    to and with the checkpoint at its end."""
    wheel = DrivenWheel(Path(directory), base_ms)
    # Only now: opening reads the catalogue and the files' inodes.
    cold = forget_caches(Path(directory))
    work = _Ingest(wheel, span_ms, base_ms)
    work.store(messages)
    work.checkpoint()
    us = work.elapsed_ms * 1000 / messages
    wheel.close()
    return {
        "us": us,
        "cold": cold,
        "message_bytes": work.message_bytes,
        "written_bytes": written_bytes(),
    }


def drain(directory: str, span_ms: int, base_ms: int) -> Result:
    """Let all that is pending become due; forget and unlink it, and forget its ids."""
    wheel = DrivenWheel(Path(directory), base_ms)
    end_ms = base_ms + span_ms + ID_MEMORY_MS + DRAIN_STEP_MS
    rounds = 0
    now_ms = base_ms
    while now_ms < end_ms or wheel.stats.frames or wheel.stats.files_to_unlink:
        now_ms = min(now_ms + DRAIN_STEP_MS, end_ms)
        wheel.pass_time(now_ms)
        wheel.forget_due()
        wheel.checkpoint()
        rounds += now_ms == end_ms
        assert rounds < DRAIN_ROUNDS_MAX, f"after all is due there is still {wheel.stats}"
    wheel.close()
    left = sum(path.is_file() for path in Path(directory, "slots").rglob("*"))
    assert left == 0, f"{left} files are left of a wheel that holds nothing"
    return {"written_bytes": written_bytes()}


def read(directory: str, slot: int, base_ms: int) -> Result:
    """Read a slot in rank order, to decoded frames. Say "begin" when only that is left to do."""
    wheel = DrivenWheel(Path(directory), base_ms)
    clock = SystemClock()
    baseline = memory_of().anon
    say("begin")
    started_ns = clock.monotonic_ns()
    spent_ns = 0
    frames = 0
    last: tuple[int, ...] = ()
    for run in wheel.read_slot(slot):
        spent_ns += clock.monotonic_ns() - started_ns
        for frame in run:
            assert last < frame[:3], "frames come out of order"
            last = frame[:3]
        frames += len(run)
        del run  # whoever delivers it would not keep it
        started_ns = clock.monotonic_ns()
    spent_ns += clock.monotonic_ns() - started_ns
    say("end")
    wheel.close()
    return {"seconds": spent_ns / 10**9, "frames": frames, "baseline_bytes": baseline}


def read_plainly(directory: str) -> Result:
    """Read all slot files of a wheel from front to end, and do nothing with them."""
    clock = SystemClock()
    started_ns = clock.monotonic_ns()
    for path in Path(directory, "slots").rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.read(READ_BYTES):
                    pass
    return {"seconds": (clock.monotonic_ns() - started_ns) / 10**9}
