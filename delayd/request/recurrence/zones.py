"""Time zones by the tzdata package: one source, whatever the host has installed."""

from functools import lru_cache
from importlib import import_module, resources
from typing import Final
from zoneinfo import ZoneInfo

TZDATA_VERSION: Final[str] = import_module("tzdata").IANA_VERSION
"""Version of the rules of time zones, as IANA names it: `2026a`."""

UTC: Final = "UTC"
"""The zone of a series that names none."""

ZONES_REMEMBERED: Final = 1_024
"""More than there are."""


class UnknownZoneError(ValueError):
    """Raised for a name that the tzdata package does not have."""


@lru_cache(1)
def names() -> frozenset[str]:
    """Return the names of all zones."""
    listed = resources.files("tzdata").joinpath("zones").read_text(encoding="utf-8")
    return frozenset(listed.split())


def is_zone(name: str) -> bool:
    """Return whether there is a zone of this name."""
    return name in names()


@lru_cache(ZONES_REMEMBERED)
def zone_of(name: str) -> ZoneInfo:
    """Return a zone by its name; raises UnknownZoneError."""
    if not is_zone(name):
        raise UnknownZoneError(name)
    place = resources.files("tzdata").joinpath("zoneinfo", *name.split("/"))
    with place.open("rb") as file:
        return ZoneInfo.from_file(file, key=name)
