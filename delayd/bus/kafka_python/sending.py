"""kafka-python's sender thread and its batches, with what a promise of the port needs put around.

Not here: what is sent, and when it is waited for.
"""

import contextlib
from threading import Lock
from typing import Any

from delayd.bus.kafka_python.connections import give_back
from delayd.bus.kafka_python.library import Sender
from delayd.bus.kafka_python.losses import Losses


class GuardedSender(Sender):  # type: ignore[misc]  # kafka-python has no types
    """The sender thread, which notes whose records a broker refused.

    kafka-python fails all records of the transaction with the first refusal, so that the guilty
    cannot be told from the innocent afterwards.
    """

    def __init__(self, *arguments: Any, losses: Losses, **properties: Any) -> None:
        super().__init__(*arguments, **properties)
        self.daemon = True
        self._losses = losses
        self._answering = Lock()

    def await_noted(self) -> None:
        """Wait until an answer that is being read is noted as a whole: its first refusal wakes the
        caller, who would miss the others."""
        with self._answering:
            pass

    def stop(self, wait_s: float) -> None:
        """End the thread without sending anything more, or never let it start.

        kafka-python's own close flushes first, and leaves the thread running if that takes too
        long. Closing the connections under the thread ends whatever it waits for.
        """
        if self.is_alive():
            self.force_close()
            with contextlib.suppress(RuntimeError):  # the thread has ended by itself
                self._client._net.call_soon_threadsafe(self._client._manager.close)
            self.join(wait_s)
        elif not self._client._manager.closed:
            self._client.close()
        if not self.is_alive():
            give_back(self._client)

    def _handle_produce_response(self, *answer: Any) -> None:
        with self._answering:
            super()._handle_produce_response(*answer)

    def _dispatch_error(self, batch: Any, exception: Any, partition_response: Any) -> None:
        super()._dispatch_error(batch, exception, partition_response)
        if batch.final_state is not None:  # else it is tried again
            self._losses.note_refusal(batch.topic_partition.topic, exception)


class Uncounted(list[tuple[str, bytes | None]]):
    """Headers that kafka-python does not count the bytes of: it cannot count a null value.

    It counts only what is not empty, for a report that nobody reads; the record is built from the
    length and the items, as of any list.
    """

    def __bool__(self) -> bool:
        return False
