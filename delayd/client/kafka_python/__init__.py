"""The client's port over kafka-python.

Slower than librdkafka (a tenth), pure Python, and with traps (docs/guides/python-client.md,
"Drivers"); the way around each stands beside it here.

| file | what it holds |
|---|---|
| `library.py` | the one import of kafka-python; making its objects, and what their failures mean |
| `settings.py` | properties: what is fixed, what a user may set |
| `sending.py` | the sender, and the user's own producer |

Invariants: what the wire contract fixes cannot be overridden; nothing is connected before the first
request (the library connects when its objects are made); an unknown property is a ConfigError when
the driver is made, a value that the library refuses one at the first request.
"""

from delayd.bus.kafka_python.cluster import KafkaPythonCluster
from delayd.bus.kafka_python.consumer import KafkaPythonConsumer
from delayd.bus.kafka_python.log import hide_requests
from delayd.client.driver import Overrides, PlainRecord, Role
from delayd.client.kafka_python.library import made
from delayd.client.kafka_python.sending import KafkaPythonSender, refusal_of
from delayd.client.kafka_python.settings import Settings


class KafkaPythonDriver:
    """See the port `Driver`."""

    def __init__(self, bootstrap: str, overrides: Overrides, ack_timeout_ms: int) -> None:
        hide_requests()
        self._settings = Settings.checked(bootstrap, overrides, ack_timeout_ms)

    def sender(self) -> KafkaPythonSender:
        return KafkaPythonSender(self._settings)

    def cluster(self, role: Role) -> KafkaPythonCluster:
        settings = self._settings
        of_role = settings.producer if role == "producer" else settings.consumer
        return made(KafkaPythonCluster, of_role)

    def consumer(self, topic: str) -> KafkaPythonConsumer:
        return KafkaPythonConsumer(topic, self._settings.consumer)

    def refusal(self, record: PlainRecord) -> str | None:
        return refusal_of(record)
