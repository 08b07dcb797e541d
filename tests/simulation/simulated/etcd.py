"""One node's way to etcd: the twin, with time-outs and answers that get lost."""

import json
from collections.abc import Callable
from typing import TypeVar

from delayd.coordination import Leadership, StoredProgress
from delayd.coordination.keys import leader_key, settings_key
from delayd.coordination.memory import MemoryCoordination, MemoryEtcd, Outcome
from delayd.errors import CoordinationError
from simulated.history import History
from simulated.weather import Weather, Wire

TIMEOUT_US = 1_000_000

T = TypeVar("T")


class SimulatedCoordination(MemoryCoordination):
    """Made anew by each life of a node. What takes longer than the time-out has failed, applied."""

    def __init__(
        self,
        etcd: MemoryEtcd,
        cluster: str,
        wire: Wire,
        weather: Weather,
        history: History,
        after_call: Callable[[], None],
    ) -> None:
        super().__init__(etcd, cluster)
        self._history = history
        self._wire = wire
        self._after_call = after_call
        self._weather = weather

    def settings(self) -> str | None:
        """See the port. No way: seeds from before a node asked stay as they were."""
        found = self._etcd.get(settings_key(self._realm))
        return found[0] if found else None

    def revoke(self, lease_id: int) -> None:
        """See the port. A node that ends another one's leadership deposes it."""
        found = self._etcd.get(leader_key(self._realm, 0))
        owner = json.loads(found[0]) if found else {"lease": None}
        own = self._wire.process.name.partition(".")[0]
        if owner["lease"] == lease_id and owner["node"] != own:
            self._weather.inject("deposed", f"{owner['node']} by {own}")
            self._weather.at_deposition()
        super().revoke(lease_id)

    def progress(self, shard: int, leadership: Leadership) -> StoredProgress | None:
        """See the port."""
        found = super().progress(shard, leadership)
        if found is not None:
            self._history.learnt(self._wire.process.name, found.revision)
        return found

    def put_progress(
        self, shard: int, leadership: Leadership, value: bytes, *, after: int
    ) -> int | None:
        """See the port. An answer may get lost, and the write be carried out, or not, or later."""
        weather = self._weather
        if weather.strikes(weather.habits.lost_answer):
            outcome = weather.chance.choice(list(Outcome))
            weather.inject("lost answer", f"{self._wire.process.name}: progress {outcome.value}")
            self.fail_next(outcome)
            if outcome is Outcome.LATE:
                self._carry_out_late()
        revision = super().put_progress(shard, leadership, value, after=after)
        if revision is not None:
            self._history.learnt(self._wire.process.name, revision)
        return revision

    def _call(self, operation: Callable[[], T]) -> T:
        took_us = self._wire.travel("etcd", limit_us=3 * TIMEOUT_US)
        try:
            answer = super()._call(operation)
        except CoordinationError:
            self._wire.wait(max(1_000, TIMEOUT_US - took_us) if self._is_cut else 1_000)
            raise
        finally:
            self._after_call()
        took_us += self._wire.travel("etcd's answer", limit_us=TIMEOUT_US)
        if took_us > TIMEOUT_US:
            raise CoordinationError("etcd answered too late", remedy="check that etcd runs")
        return answer

    def _carry_out_late(self) -> None:
        """Have the server do in its own time what it has not answered."""
        kernel, etcd = self._wire.process.kernel, self._etcd
        delay_us = int(5_000 * 600 ** self._weather.chance.random())

        def apply() -> None:
            kernel.sleep(delay_us)
            etcd.apply_late()

        brokers = self._weather.brokers
        assert brokers is not None, "the world is up"
        brokers.spawn("late progress", apply)

    def ask(self, etcd: MemoryEtcd) -> None:
        """Let another server answer from now on."""
        self._etcd = etcd

    @property
    def _is_cut(self) -> bool:
        return self._partitioned or self._deaf or self._etcd.is_paused
