"""A consumer that reads along while things break."""

import threading
from typing import Final, Self

from chaos.evidence import Evidence

PAUSE_S: Final = 0.5
JOIN_TIMEOUT_S: Final = 60.0


class Observer:
    """Reads from `__enter__` to `__exit__`, whatever becomes of brokers, in a thread of its own."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._observe, name="consumer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._is_over.set()
        self._thread.join(JOIN_TIMEOUT_S)

    def _observe(self) -> None:
        while not self._is_over.is_set():
            try:
                self._evidence.glance()
            except Exception:  # kafka-python raises what it likes while brokers are away
                self._is_over.wait(PAUSE_S)
        self._evidence.close()
