"""Several clients that send one plan together: two with confluent-kafka, one with kafka-python.

Requests with the same key go to the same client, so that those about one id keep their order. All
transactions go to one client, which sends nothing else, so that slow ones delay no other request.
"""

import threading
from collections.abc import Callable
from typing import Final, Self
from zlib import crc32

from chaos.confluent_sender import ConfluentSender
from chaos.history import History
from chaos.kafka_python_sender import KafkaPythonSender
from chaos.workload import Plan, PlannedTransaction

CLIENTS: Final = ("confluent-1", "confluent-2", "kafka-python")
TRANSACTIONAL: Final = "transactional"
JOIN_TIMEOUT_S: Final = 180.0


class Traffic:
    """A plan on its way. As a context manager it has been sent, or has failed, at the end."""

    def __init__(self, bootstrap: str, buffer: str, plan: Plan, history: History) -> None:
        parts = divided(plan)
        self._failures: list[str] = []
        self._senders: list[ConfluentSender | KafkaPythonSender] = []
        self._threads: list[threading.Thread] = []
        for client, part in parts.items():
            sender: ConfluentSender | KafkaPythonSender
            if client == "kafka-python":
                sender = KafkaPythonSender(bootstrap, buffer, client, history)
            else:
                sender = ConfluentSender(bootstrap, buffer, client, history)
            self._senders.append(sender)
            send = self._sending(client, sender.send, part)
            self._threads.append(threading.Thread(target=send, name=client, daemon=True))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        for thread in self._threads:
            thread.join(JOIN_TIMEOUT_S)
            if thread.is_alive():
                self._failures.append(f"{thread.name} has not ended")

    @property
    def failures(self) -> tuple[str, ...]:
        """Of clients as such; what became of single requests is in the history."""
        return tuple(self._failures)

    @property
    def sent(self) -> int:
        """Requests so far."""
        return sum(sender.sent for sender in self._senders)

    @property
    def behind_ms(self) -> int:
        """How far behind its plan the slowest request was."""
        return max((late for sender in self._senders for late in sender.behind_ms), default=0)

    def _sending(self, client: str, send: Callable[[Plan], None], part: Plan) -> Callable[[], None]:
        def run() -> None:
            try:
                send(part)
            except Exception as error:
                self._failures.append(f"{client}: {error!r}")

        return run


def divided(plan: Plan) -> dict[str, Plan]:
    """Each client's part of it."""
    parts: dict[str, Plan] = {client: [] for client in (*CLIENTS, TRANSACTIONAL)}
    for planned in plan:
        if isinstance(planned, PlannedTransaction):
            parts[TRANSACTIONAL].append(planned)
        else:
            parts[CLIENTS[crc32(planned.key or b"") % len(CLIENTS)]].append(planned)
    return parts
