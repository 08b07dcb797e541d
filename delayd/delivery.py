"""The delivery thread: follows the frontier, and delivers while this node holds a grant.

It reports to the control loop in past-tense facts and never decides who is master. A failed step
ends the mastership; as long as the grant is valid the next one begins with a takeover.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import structlog

from delayd.bus import Bus
from delayd.clock import Clock
from delayd.errors import FencedError, KafkaUnreachableError, ProducerError
from delayd.failing_targets import FailingTarget
from delayd.frontier_log import FrontierLog
from delayd.mastership import (
    GIVE_WAY_MS,
    BehindError,
    ClockDriftError,
    Grant,
    HigherTermError,
    Mastership,
)
from delayd.pace import Pace
from delayd.replica import Replica
from delayd.suspects import Suspects
from delayd.targets import Targets

log = structlog.get_logger()

FOLLOW_POLL_MS = 100
RETRY_FIRST_MS = 50
RETRY_MAX_MS = 2_000
METADATA_TIMEOUT_MS = 5_000


class Ended(Enum):
    """Why the delivery thread stopped delivering."""

    ASKED = "asked"
    """The grant was withdrawn or ran out."""
    FENCED = "fenced"
    HIGHER_TERM = "higher-term"
    CLOCK_DRIFT = "clock-drift"
    FAILED = "failed"
    """Nothing could be committed for GIVE_WAY_MS: another node may try."""


@dataclass(frozen=True, slots=True)
class DeliveryEnded:
    """The thread is at rest: it will not write under that grant any more."""

    grant: Grant
    ended: Ended


@dataclass(frozen=True, slots=True)
class ThreadFailed:
    """A thread met an error that the node must not survive."""

    error: BaseException


Report = Callable[[DeliveryEnded | ThreadFailed], None]


class Delivery:
    """The delivery thread's state. `give` and `stop` may be called from other threads."""

    def __init__(
        self,
        bus: Bus,
        replica: Replica,
        frontier_log: FrontierLog,
        clock: Clock,
        pace: Pace,
        report: Report,
        *,
        idle_interval_ms: int,
        clock_drift_max_ms: int,
        unreplicated_targets: bool = False,
    ) -> None:
        self._bus = bus
        self._replica = replica
        self._log = frontier_log
        self._clock = clock
        self._pace = pace
        self._report = report
        self._idle_interval_ms = idle_interval_ms
        self._clock_drift_max_ms = clock_drift_max_ms
        self._cluster = bus.cluster()
        self._targets = Targets(
            self._cluster,
            clock,
            METADATA_TIMEOUT_MS,
            anchor=replica.settings.buffer.name,
            unreplicated=unreplicated_targets,
        )
        self._suspects = Suspects()
        self._grant: Grant | None = None
        self._stopping = threading.Event()
        self._delivered_before = 0
        self._mastership: Mastership | None = None
        self.progressed_ms = clock.monotonic_ms()
        """Monotonic time of the last sign of life."""
        self._thread = threading.Thread(target=self._run, name="delivery", daemon=True)

    @property
    def is_delivering(self) -> bool:
        """Has this node taken over and not ended since?"""
        mastership = self._mastership
        return mastership is not None and mastership.is_delivering

    @property
    def delivered_count(self) -> int:
        """Messages delivered by this process."""
        mastership = self._mastership
        return self._delivered_before + (mastership.delivered_count if mastership else 0)

    @property
    def failing_targets(self) -> list[FailingTarget]:
        """Targets that turned messages away and are not known to be well again."""
        return self._targets.failing()

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def give(self, grant: Grant) -> None:
        """Be master under this grant, as soon as the last one has ended."""
        self._grant = grant

    def wake(self) -> None:
        """Look at the grant again."""
        with self._replica.changed:
            self._replica.changed.notify_all()

    def stop(self, timeout_s: float) -> None:
        """End the thread; it finishes or abandons its step."""
        self._stopping.set()
        if (grant := self._grant) is not None:
            grant.withdrawn = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._note_progress()
                grant = self._grant
                if grant is None:
                    self._follow(FOLLOW_POLL_MS)
                    continue
                ended = self._deliver(grant)
                self._grant = None
                self._report(DeliveryEnded(grant, ended))
        except BaseException as error:
            self._report(ThreadFailed(error))
        finally:
            self._log.close()
            self._cluster.close()

    def _follow(self, timeout_ms: int) -> None:
        for seen in self._log.poll(timeout_ms):
            self._replica.observe(seen)

    def _deliver(self, grant: Grant) -> Ended:
        """Be master until the grant ends; take over again after failures that may pass."""
        retry_ms = RETRY_FIRST_MS
        failing_since_ms = self._clock.monotonic_ms()
        while grant.is_valid(self._clock.monotonic_ms()) and not self._stopping.is_set():
            self._mastership = Mastership(
                self._bus,
                self._replica,
                self._log,
                self._targets,
                self._suspects,
                self._clock,
                grant,
                self._pace,
                self._note_progress,
                idle_interval_ms=self._idle_interval_ms,
                clock_drift_max_ms=self._clock_drift_max_ms,
            )
            mastership = self._mastership
            try:
                mastership.run()
            except FencedError as error:
                log.warning("mastership_fenced", error=str(error))
                return Ended.FENCED
            except HigherTermError as error:
                log.warning("mastership_superseded", error=str(error))
                return Ended.HIGHER_TERM
            except ClockDriftError as error:
                log.error("mastership_refused", code=error.code, error=str(error))
                return Ended.CLOCK_DRIFT
            except BehindError as error:
                log.warning("mastership_given_way", code=error.code, error=str(error))
                return Ended.FAILED
            except (ProducerError, KafkaUnreachableError) as error:
                log.warning("step_failed", code=error.code, error=str(error), retry_ms=retry_ms)
            finally:
                self._end_mastership()
            self._targets.forget()
            self._note_progress()
            if mastership.has_stepped:
                retry_ms = RETRY_FIRST_MS
                failing_since_ms = self._clock.monotonic_ms()
            if mastership.has_learnt:
                continue  # Nothing passes by waiting: the next step is another one.
            if self._clock.monotonic_ms() - failing_since_ms > GIVE_WAY_MS:
                return Ended.FAILED
            self._stopping.wait(retry_ms / 1000)
            retry_ms = min(RETRY_MAX_MS, retry_ms * 2)
        return Ended.ASKED

    def _end_mastership(self) -> None:
        mastership = self._mastership
        assert mastership is not None, "a mastership ends once"
        self._delivered_before += mastership.delivered_count
        self._mastership = None
        mastership.close()

    def _note_progress(self) -> None:
        self.progressed_ms = self._clock.monotonic_ms()
