"""An operator: limits and pauses targets while a scenario runs, by the commands.

A command that fails, because nobody delivers just then, is given again.

Invariant: a pause is noted for as long as it was surely in force: from the end of the command that
began it to the begin of the one that ends it.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Final, Self

from chaos.backend import Backend, BackendError
from chaos.faults import pause
from chaos.history import now_ms
from chaos.records import Logged
from chaos.workload import LIMIT, Scene

PAUSES: Final = ((0.1, 0.35), (0.5, 0.75))
"""Shares of the spread."""
UNLIMITED_AT: Final = 0.9
RATE: Final = 500
"""Records a second of what has waited."""
ATTEMPTS_MAX: Final = 10
AGAIN_MS: Final = 500
JOIN_TIMEOUT_S: Final = 300.0


class Operator:
    """At work inside its context."""

    def __init__(self, backend: Backend, scene: Scene, tell: Callable[[str], None]) -> None:
        self._backend = backend
        self._scene = scene
        self._tell = tell
        self.pauses: list[tuple[int, int]] = []
        """Unix ms."""
        self.troubles: list[str] = []
        self._thread = threading.Thread(target=self._work, name="operator", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._thread.join(JOIN_TIMEOUT_S)
        if self._thread.is_alive():
            self.troubles.append("the operator has not ended")

    def _work(self) -> None:
        scene = self._scene
        try:
            self._order("limits", "set", scene.limited, "--max-pending", str(LIMIT))
            for begin, end in PAUSES:
                self._wait(begin)
                self._order("pause", scene.held, "--for", "10m", "--rate", str(RATE))
                begun_ms = now_ms()
                self._wait(end)
                self.pauses.append((begun_ms, now_ms()))
                self._order("resume", scene.held)
            self._wait(UNLIMITED_AT)
            self._order("limits", "clear", scene.limited)
        except BackendError as error:
            self.troubles.append(str(error))

    def _wait(self, share: float) -> None:
        scene = self._scene
        pause(scene.first_due_ms + int(scene.spread_ms * share) - now_ms())

    def _order(self, *command: str) -> None:
        self._tell(" ".join(command))
        for _ in range(ATTEMPTS_MAX):
            if self._backend.command(*command) == 0:
                return
            pause(AGAIN_MS)
        raise BackendError(f"not obeyed in {ATTEMPTS_MAX} attempts: {' '.join(command)}")


def pause_faults(pauses: Iterable[tuple[int, int]], delivered: Iterable[Logged]) -> list[str]:
    """Return a sentence for each delivery to a target while it was paused, and for each pause in
    which nothing waited. `delivered`: to that target."""
    delivered, pauses = list(delivered), list(pauses)
    due_ms = [int(record.fields.get("due", "0")) for record in delivered]
    faults = [
        f"{record.topic} {record.place}: delivered at {record.append_ms}, paused until {end_ms}"
        for begin_ms, end_ms in pauses
        for record in delivered
        if begin_ms < record.append_ms < end_ms
    ]
    faults += [
        f"nothing waited from {begin_ms} to {end_ms}"
        for begin_ms, end_ms in pauses
        if not any(begin_ms < due < end_ms for due in due_ms)
    ]
    return faults
