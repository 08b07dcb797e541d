"""One node asks Kafka for several shards at once: as their master, and for its watches."""

import threading
from typing import Any

from delayd.node.election.kafka_contact import KafkaContact
from delayd.runtime.clock import SystemClock

WAIT_S = 60


def test_a_watch_that_asks_leaves_the_question_of_the_master_alone() -> None:
    asked, goes_on = threading.Event(), threading.Event()
    made: list[Any] = []

    class Client:
        is_open = True

        def broker_count(self, _timeout_ms: int) -> int:
            if self is made[0]:
                asked.set()
                assert goes_on.wait(WAIT_S)
            assert self.is_open, "it is closed while it is asked"
            return 1

        def close(self) -> None:
            self.is_open = False

    class Bus:
        def cluster(self) -> Client:
            made.append(Client())
            return made[-1]  # type: ignore[no-any-return]

    bus: Any = Bus()
    contact = KafkaContact(bus, SystemClock(), lambda: 0)
    answers: list[bool] = []
    master = threading.Thread(target=lambda: answers.append(contact.ask()))
    master.start()
    assert asked.wait(WAIT_S)
    assert contact.is_there()
    goes_on.set()
    master.join(WAIT_S)
    assert answers == [True]
