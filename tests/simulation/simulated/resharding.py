"""People who give a running cluster more shards, or fewer: half-way, twice, two at once."""

from contextlib import suppress
from functools import partial
from random import Random
from typing import Final

from kernel import SECOND_US, Kernel, Process

from delayd.bus.memory import MemoryKafka
from delayd.bus.memory.link import Link
from delayd.cluster.resharding import Resharding
from delayd.errors import DelaydError
from delayd.runtime.clock import Clock
from replication.record import FrontierRecord, decode, record_key
from simulated.bus import SimulatedBus, SimulatedProducer
from simulated.history import History
from simulated.weather import Weather, Wire

FRONTIER: Final = "delayd-frontier"
EVERY_US: Final = 6 * SECOND_US
LIFE_US_MAX: Final = 4 * SECOND_US
"""Of a person who is killed."""
TIMEOUT_MS: Final = 5_000
REST_TIMEOUT_MS: Final = 10_000
RESHARDING: Final = "resharding"


class PersonsBus(SimulatedBus):
    """Of a person: no marker of what they write gets lost, which only `recover marker` mends."""

    def transactional_producer(self, transactional_id: str) -> SimulatedProducer:
        """See the port."""
        return _PersonsProducer(
            *(self._wire, self._weather, self._kafka, self.link, self._clock),
            transactional_id,
            self._record_bytes_max,
        )


class _PersonsProducer(SimulatedProducer):
    def _lose_frontier_marker(self) -> None:
        raise AssertionError("no marker is lost")

    def _draw_outcome(self) -> bool:
        if self._weather.strikes(self._weather.habits.lost_answer):
            self._kafka.fail_next_commit(self._id, applied=self._weather.chance.random() < 0.5)
        return False


class Resharders:
    """They act by a stream of their own: seeds without them stay as they are."""

    def __init__(
        self,
        kernel: Kernel,
        weather: Weather,
        chance: Random,
        kafka: MemoryKafka,
        clock: Clock,
        history: History,
        numbers: tuple[int, ...],
    ) -> None:
        """`numbers`: of shards that the cluster may get."""
        self._kernel = kernel
        self._weather = weather
        self._chance = chance
        self._kafka = kafka
        self._clock = clock
        self._history = history
        self._numbers = numbers
        self._people = 0
        self.is_done = False
        self.changed = 0
        """Runs that have come to their end."""

    def run(self) -> None:
        """Act now and then, until told to stop; as a task."""
        while not self.is_done:
            self._kernel.sleep(self._chance.randrange(EVERY_US))
            if not self.is_done:
                for _ in range(self._chance.choice([1, 1, 1, 2])):
                    self._send_person()

    @property
    def is_settled(self) -> bool:
        """Return whether no shard is closed, or at rest."""
        newest = [self._newest(shard) for shard in range(self._newest(0).settings.shards)]
        return not any(record.rest_ms or record.resharding for record in newest)

    def _newest(self, shard: int) -> FrontierRecord:
        records = self._kafka.log(FRONTIER, shard).read(0, 10**9)[0]
        return decode([r.value or b"" for r in records if r.key == record_key(shard)][-1])

    def _send_person(self) -> None:
        self._people += 1
        person = self._kernel.process(f"resharder-{self._people}")
        shards = self._chance.choice(self._numbers)
        self._weather.inject(RESHARDING, f"{person.name} to {shards}")
        person.spawn("reshard", partial(self._reshard, person, shards))
        if self._chance.random() < 0.5:
            life_us = self._chance.randrange(LIFE_US_MAX)
            end = partial(self._kernel.kill, person)
            self._weather.at_brokers(f"end of {person.name}", life_us, end)

    def _reshard(self, person: Process, shards: int) -> None:
        bus = PersonsBus(
            *(self._kafka, Link(), self._clock, Wire(self._weather, person)),
            *(self._weather, self._history, None),
        )
        run = Resharding(
            bus,
            self._newest(0).settings,
            self._clock,
            TIMEOUT_MS,
            REST_TIMEOUT_MS,
            wait=lambda s: self._kernel.sleep(int(s * SECOND_US)),
            chance=Random(person.name),
        )
        with suppress(DelaydError):
            try:
                run.to(shards)
            except DelaydError as error:
                self._weather.note(f"{person.name} gives up: {error}")
                raise
            self.changed += 1
            self._weather.note(f"{person.name} has made {shards} shards")
