"""The frontiers that a stopped wheel's checkpoint remembers."""

from delayd.errors import ConfigError
from delayd.wheel.stopped import StoppedWheel
from replication.frontier import Frontier
from replication.record import FrontierFormatError, FrontierRecord, decode


def record_of(wheel: StoppedWheel, value: bytes) -> FrontierRecord:
    """Return the frontier record with these bytes. Raise ConfigError if its version is unknown."""
    try:
        return decode(value)
    except FrontierFormatError as error:
        raise ConfigError(
            f"the checkpoint in {wheel.layout.root} names a frontier that this version does not "
            f"know: {error}",
            remedy="run the version of delayd that the node runs",
        ) from error


def frontier_if_known(value: bytes) -> Frontier | None:
    """Return the frontier of this record; None if there is none, or of an unknown version."""
    try:
        return decode(value).frontier if value else None
    except FrontierFormatError:
        return None
