"""The client's port over kafka-python.

Slower than librdkafka (a tenth), pure Python, and with traps (docs/guides/python-client.md,
"Drivers"); the way around each stands beside it here.

| file | what it holds |
|---|---|
| `library.py` | the one import of kafka-python; making its objects, and what their failures mean |
| `settings.py` | properties: what is fixed, what a user may set |
| `sending.py` | the sender, and the user's own producer |
| `awaited.py` | records that the library has not reported on |
| `reading.py` | the reader of receipts |

Invariants: what the wire contract fixes cannot be overridden; nothing is connected before the first
request (the library connects when its objects are made); an unknown property is a ConfigError when
the driver is made, a value that the library refuses one at the first request.
"""

from delayd.bus.request_lines import hide_requests
from delayd.client.driver import Overrides, PlainRecord
from delayd.client.kafka_python.reading import KafkaPythonReader
from delayd.client.kafka_python.sending import KafkaPythonSender, refusal_of
from delayd.client.kafka_python.settings import Settings


class KafkaPythonDriver:
    """See the port `Driver`."""

    def __init__(self, bootstrap: str, overrides: Overrides, ack_timeout_ms: int) -> None:
        hide_requests()
        self._settings = Settings.checked(bootstrap, overrides, ack_timeout_ms)

    def sender(self) -> KafkaPythonSender:
        """See the port."""
        return KafkaPythonSender(self._settings)

    def reader(self, topic: str) -> KafkaPythonReader:
        """See the port."""
        return KafkaPythonReader(topic, self._settings.consumer)

    def refusal(self, record: PlainRecord) -> str | None:
        """See the port."""
        return refusal_of(record)
