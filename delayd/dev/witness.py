"""The witness: watches the targets of a batch with another Kafka client, in a process of its own.

It shares no code with delayd's data plane (kafka-python here, librdkafka there) and no interpreter
with the scheduling process, so neither a fault of delayd nor the parent's load is in its figures.
Its conclusions, and how it recognises a successor's records, are in ledger.py.

    with Witness(bootstrap, batch, log=directory / "witness.log") as witness:
        ...schedule the batch...
        witness.wait_until(batch.count, timeout_ms=60_000)
        verdict = witness.stop()

Invariants: the child (watch.py) ends when its parent does, and ignores the terminal's Ctrl-C.
"""

import contextlib
import threading
from pathlib import Path
from typing import Final, Self

from delayd.dev.batch import Batch
from delayd.dev.job import started
from delayd.dev.ledger import Kill
from delayd.dev.parts import last_words
from delayd.dev.verdict import Counts, Progress, Verdict
from delayd.dev.watch import STOP, watch
from delayd.errors import DelaydError

READY_TIMEOUT_MS: Final = 30_000  # an interpreter, kafka-python and a few questions: about 1 s
STOP_TIMEOUT_MS: Final = 30_000


class WitnessError(DelaydError):
    """The witness could not watch, or did not finish: nothing is proven."""

    code = "witness"


class Witness:
    """The witness's process, as its parent holds it. `log` gets its complaints.

    With `receipts`, their topic, the batch is one of orders that have payments (batch.py).
    """

    def __init__(
        self, bootstrap: str, batch: Batch, *, log: Path, receipts: str | None = None
    ) -> None:
        self._log = log
        self._started = started(
            log, lambda _code: self._failure("it ended"), watch, bootstrap, batch, receipts
        )
        self._changed = threading.Condition()
        self._progress = Progress()
        self._is_ready = False
        self._has_ended = False
        self._verdict: Verdict | None = None

    def __enter__(self) -> Self:
        """Begin to watch; the topics must exist. Raises WitnessError if it cannot."""
        self._job = self._started.__enter__()
        self._reader = threading.Thread(target=self._read, name="witness", daemon=True)
        self._reader.start()
        try:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._is_ready or self._has_ended, READY_TIMEOUT_MS / 1000
                )
                if not self._is_ready:
                    raise self._failure("it did not begin to watch")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._job.kill()
        self._reader.join()
        self._started.__exit__(None, None, None)

    def note_kill(self, kill: Kill) -> None:
        """Tell it that a master was killed, so that it measures the failover."""
        self._job.tell(kill)

    def snapshot(self) -> Progress:
        """Return what it has seen, at most a quarter of a second old. Raises WitnessError if it
        ended."""
        with self._changed:
            if self._has_ended and self._verdict is None:
                raise self._failure("it ended")
            return self._progress

    def wait_until(self, count: int, timeout_ms: int, *, answers: int = 0) -> bool:
        """Wait until so many messages were delivered or cancelled, and so many payments got
        their verdict. Return False if they did not in time."""

        def has_seen(counts: Counts) -> bool:
            return counts.over >= count and counts.answered >= answers

        with self._changed:
            self._changed.wait_for(
                lambda: has_seen(self._progress.counts) or self._has_ended, timeout_ms / 1000
            )
        return has_seen(self.snapshot().counts)

    def stop(self) -> Verdict:
        """Let it read to the end of what is visible now, and end. Raises WitnessError without a
        verdict.

        Messages still in delayd are lost by this verdict: call it when all are delivered, or
        overdue.
        """
        self._job.tell(STOP)
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended, STOP_TIMEOUT_MS / 1000)
            if self._verdict is None:
                raise self._failure("it gave no verdict")
            return self._verdict

    def _read(self) -> None:
        with contextlib.suppress(WitnessError):  # it has ended
            while True:
                said = self._job.next()
                with self._changed:
                    if isinstance(said, Progress):
                        self._progress = said
                    elif isinstance(said, Verdict):
                        self._verdict = said
                    self._is_ready = True
                    self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _failure(self, what: str) -> WitnessError:
        return WitnessError(f"the witness: {what}: {last_words(self._log)}", remedy=f"{self._log}")
