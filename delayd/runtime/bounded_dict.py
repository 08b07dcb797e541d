"""A dictionary that forgets: for what is remembered of names and files that others bring."""

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(OrderedDict[K, V]):
    """At most `limit` entries: those written or moved to the end last, the latest at the end."""

    def __init__(self, limit: int, on_evict: Callable[[K, V], None] | None = None) -> None:
        """`on_evict` is called with an entry that had to go."""
        super().__init__()
        self.limit = limit
        self._on_evict = on_evict

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        while len(self) > self.limit:
            oldest = self.popitem(last=False)
            if self._on_evict is not None:
                self._on_evict(*oldest)
