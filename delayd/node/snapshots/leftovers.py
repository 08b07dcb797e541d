"""What a fetch leaves in the data directory: a copy that nobody goes on with, a wheel kept aside.

Neither is needed once the node has opened its wheel. What cannot be removed is told once, and tried
again at the next start.
"""

from pathlib import Path
from typing import Final

import structlog

from delayd.errors import DiskError
from delayd.wheel.draft import kept_aside_bytes, remove_abandoned, remove_replaced

log = structlog.get_logger()

REMEDY: Final = "it is tried again at the next start; or remove it by hand"


class Leftovers:
    """Those of one data directory, in one life of its node."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._has_failed = False

    def tidy(self) -> None:
        """Remove a copy that was begun, and tell what is kept aside. The wheel is open."""
        try:
            if remove_abandoned(self._directory):
                log.info("abandoned_copy_removed", directory=str(self._directory))
            if (kept_bytes := kept_aside_bytes(self._directory)) is not None:
                log.info("replaced_wheel_kept", directory=str(self._directory), bytes=kept_bytes)
        except DiskError as error:
            log.warning("leftover_not_removed", problem=str(error), remedy=REMEDY)

    def give_way(self) -> None:
        """Remove the wheel that was kept aside: the disk is short."""
        if self._has_failed:
            return
        try:
            remove_replaced(self._directory)
        except DiskError as error:
            self._has_failed = True
            log.warning("leftover_not_removed", problem=str(error), remedy=REMEDY)
