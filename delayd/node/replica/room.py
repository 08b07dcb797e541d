"""The room on the disk of the wheel: what a node may still do, by the bytes that are free.

    free bytes
    1.25 limit   what is delivered is forgotten at once; a node that was short takes in all again
    limit        SHORT: it takes in only what the newest frontier took into account
    limit / 4    FULL: it takes in nothing, and splits no hour
    limit / 8    it makes no checkpoint, which could not be finished

It delivers what it has in every state: that takes no room, and gives some back. What it does not
take in stays in the buffer.

Source: docs/design/storage.md, "Short of room".
"""

from enum import Enum

import structlog

log = structlog.get_logger()


class RoomState(Enum):
    """What may be taken in."""

    ENOUGH = "enough"
    SHORT = "short"
    FULL = "full"


class Room:
    """Used by the ingest thread; others read its attributes."""

    def __init__(self, limit_bytes: int) -> None:
        """`limit_bytes`: `disk_free_min_bytes`; 0 switches all limits off."""
        self.limit_bytes = limit_bytes
        self.free_bytes: int | None = None
        """What was free at the last look; None before the first one."""
        self.state = RoomState.ENOUGH

    def look(self, free_bytes: int, *, is_refused: bool) -> None:
        """Note what is free; `is_refused`: a write has met a full disk, whatever is free."""
        self.free_bytes = free_bytes
        before, self.state = self.state, self._state_at(free_bytes, is_refused)
        figures = {"free_bytes": free_bytes, "disk_free_min_bytes": self.limit_bytes}
        if before is RoomState.ENOUGH and self.state is not RoomState.ENOUGH:
            log.warning("disk_short", state=self.state.value, **figures)
        elif before is not RoomState.ENOUGH and self.state is RoomState.ENOUGH:
            log.info("disk_has_room", **figures)

    def _state_at(self, free_bytes: int, is_refused: bool) -> RoomState:
        full_bytes, short_bytes = self.limit_bytes // 4, self.limit_bytes
        # A quarter more, so that a node does not turn from one to the other with each batch.
        if self.state is RoomState.FULL:
            full_bytes += full_bytes // 4
        if self.state is not RoomState.ENOUGH:
            short_bytes += short_bytes // 4
        if is_refused or free_bytes < full_bytes:
            return RoomState.FULL
        return RoomState.SHORT if free_bytes < short_bytes else RoomState.ENOUGH

    @property
    def is_low(self) -> bool:
        """True if delivered messages must not take room any more."""
        return self.state is not RoomState.ENOUGH or self._is_below(
            self.limit_bytes + self.limit_bytes // 4
        )

    @property
    def may_split(self) -> bool:
        """True if hours may be split: their frames are on the disk twice for a moment."""
        return self.state is not RoomState.FULL

    @property
    def may_checkpoint(self) -> bool:
        """True if there is room for what LevelDB writes on its own."""
        return not self._is_below(self.limit_bytes // 8)

    def _is_below(self, bytes: int) -> bool:
        return self.free_bytes is not None and self.free_bytes < bytes
