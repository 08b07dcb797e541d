"""People who switch the rules of a running cluster: half-way, twice, two at once; and others who
write barriers that prove nothing."""

from contextlib import suppress
from functools import partial
from random import Random

from kernel import SECOND_US, Kernel

from delayd.bus import Headers
from delayd.bus.memory import MemoryKafka, Refused, Silence
from delayd.cluster.rules_switch import barriers_for, left_to_switch
from delayd.request.internal import BufferRecord
from replication.record import FrontierRecord, decode, record_key
from simulated.weather import Weather

BUFFER, FRONTIER = "delayd-buffer", "delayd-frontier"
EVERY_US = 4 * SECOND_US
SEND_US_MAX = 400_000
LIFE_US_MAX = 600_000
"""Of a person who is killed: most of them are half-way."""
SWITCH = "rules switch"


class Switchers:
    """They act by a stream of their own: seeds without them stay as they are."""

    def __init__(
        self,
        kernel: Kernel,
        weather: Weather,
        chance: Random,
        kafka: MemoryKafka,
        cluster_key: str,
        version: int,
    ) -> None:
        self._kernel = kernel
        self._weather = weather
        self._chance = chance
        self._kafka = kafka
        self._cluster_key = cluster_key
        self._version = version
        self._people = 0
        self.is_done = False
        self.written: dict[tuple[int, int], bool] = {}
        """By partition and offset: is it a barrier, or does it only look like one?"""

    def run(self) -> None:
        """Act now and then, until told to stop; as a task."""
        while not self.is_done:
            self._kernel.sleep(self._chance.randrange(EVERY_US))
            if not self.is_done:
                self._chance.choice([self._forge, self._send_people])()

    def finish(self) -> None:
        """Switch what is left, as often as it takes; as a task."""
        while self.left:
            self._switch()
            self._kernel.sleep(SECOND_US)

    @property
    def left(self) -> list[int]:
        """Return the partitions that no frontier shows to be switched."""
        return left_to_switch(self._newest(), self._version)

    def _newest(self) -> FrontierRecord:
        records = self._kafka.log(FRONTIER, 0).read(0, 10**9)[0]
        return decode([r.value or b"" for r in records if r.key == record_key(0)][-1])

    def _send_people(self) -> None:
        for _ in range(self._chance.choice([1, 2])):
            self._people += 1
            person = self._kernel.process(f"person-{self._people}")
            self._weather.inject(SWITCH, person.name)
            person.spawn("switch", self._switch)
            if self._chance.random() < 0.7:
                life_us = self._chance.randrange(LIFE_US_MAX)
                end = partial(self._kernel.kill, person)
                self._weather.at_brokers(f"end of {person.name}", life_us, end)

    def _switch(self) -> None:
        """What `delayd upgrade rules` does, with pauses between its records."""
        settings, left = self._newest().settings, self.left
        for barrier in barriers_for(settings, left, self._version, self._cluster_key):
            self._kernel.sleep(self._chance.randrange(SEND_US_MAX))
            self._append(barrier.partition, barrier, is_barrier=True)

    def _forge(self) -> None:
        """Write a barrier without a proof, with a wrong one, or with that of another partition."""
        record = self._newest()
        partitions = list(range(record.settings.partitions))
        partition, other = self._chance.choice(partitions), self._chance.choice(partitions)
        [true] = barriers_for(record.settings, [other], self._version, self._cluster_key)
        [(name, said), (proof, _)] = true.headers
        forms: list[Headers] = [[(name, said)], [(name, said), (proof, b"0" * 64)], true.headers]
        headers = self._chance.choice(forms if other != partition else forms[:2])
        self._weather.inject("forged barrier", f"buffer/{partition}, {len(headers)} headers")
        self._append(partition, true._replace(headers=headers), is_barrier=False)

    def _append(self, partition: int, record: BufferRecord, *, is_barrier: bool) -> None:
        with suppress(Refused, Silence):  # No leader, or one that hangs; this person gives up.
            ack = self._kafka.append(BUFFER, partition, record.key, record.value, record.headers)
            self.written[partition, ack.offset] = is_barrier
            if is_barrier:
                self._weather.note(f"barrier at {partition}/{ack.offset}")
