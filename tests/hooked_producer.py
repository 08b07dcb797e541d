"""The producer of Kafka in memory with a hook around each of its calls, for whoever stages a play.

class Told(HookedProducer):
    @contextmanager
    def around(self, call: Call) -> Iterator[None]:
        print(call.name)        # before the call is carried out
        yield
        ...                     # after it; not reached if it has failed
"""

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

from delayd.bus import Ack, Headers
from delayd.bus.memory.producer import MemoryProducer


class Call(NamedTuple):
    """One call of a producer."""

    name: str
    """"init_transactions", "begin", "send", "flush" or "commit"."""
    topic: str = ""
    """Of what is sent; so are the rest."""
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class HookedProducer(MemoryProducer):
    """See the port; `close` has no hook."""

    _is_committing = False

    @abstractmethod
    def around(self, call: Call) -> AbstractContextManager[None]:
        """What happens before and after a call."""

    def init_transactions(self, timeout_ms: int) -> None:
        """See the port."""
        with self.around(Call("init_transactions")):
            super().init_transactions(timeout_ms)

    def begin(self) -> None:
        """See the port."""
        with self.around(Call("begin")):
            super().begin()

    def send(
        self,
        topic: str,
        *,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        partition: int | None = None,
        on_ack: Callable[[Ack], None] | None = None,
    ) -> None:
        """See the port."""
        with self.around(Call("send", topic, value, tuple(headers))):
            super().send(
                topic, key=key, value=value, headers=headers, partition=partition, on_ack=on_ack
            )

    def flush(self, timeout_ms: int) -> None:
        """See the port. The one that the twin's `commit` calls by itself has no hook."""
        if self._is_committing:
            super().flush(timeout_ms)
            return
        with self.around(Call("flush")):
            super().flush(timeout_ms)

    def commit(self, timeout_ms: int) -> None:
        """See the port."""
        self._is_committing = True
        with self.around(Call("commit")):
            super().commit(timeout_ms)
        self._is_committing = False
