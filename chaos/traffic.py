"""Several clients that send one plan together: two with confluent-kafka, one with kafka-python.

Requests with the same key go to the same client, so that those about one id keep their order. All
transactions are one client's, who sends nothing else, so that slow ones hold up no other request.
"""

import threading
from collections.abc import Callable
from typing import Final, Self
from zlib import crc32

from chaos.history import History
from chaos.player import Player
from chaos.second_player import SecondPlayer
from chaos.workload import Plan, PlannedTransaction

CLIENTS: Final = ("confluent-1", "confluent-2", "kafka-python")
TRANSACTIONAL: Final = "transactional"
JOIN_TIMEOUT_S: Final = 180.0


class Traffic:
    """A plan on its way. As a context manager it has been sent, or has failed, at the end."""

    def __init__(self, bootstrap: str, buffer: str, plan: Plan, history: History) -> None:
        parts = divided(plan)
        self._failures: list[str] = []
        self._players: list[Player | SecondPlayer] = []
        self._threads: list[threading.Thread] = []
        for client, part in parts.items():
            player: Player | SecondPlayer
            if client == "kafka-python":
                player = SecondPlayer(bootstrap, buffer, client, history)
            else:
                player = Player(bootstrap, buffer, client, history)
            self._players.append(player)
            play = self._playing(client, player.play, part)
            self._threads.append(threading.Thread(target=play, name=client, daemon=True))

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
        return sum(player.sent for player in self._players)

    @property
    def behind_ms(self) -> int:
        """How far behind its plan the slowest request was."""
        return max((late for player in self._players for late in player.behind_ms), default=0)

    def _playing(self, client: str, play: Callable[[Plan], None], part: Plan) -> Callable[[], None]:
        def run() -> None:
            try:
                play(part)
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
