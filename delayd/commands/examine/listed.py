"""The files that a catalogue lists: those of slots and of hours, in one order."""

from collections.abc import Iterator
from heapq import merge
from typing import NamedTuple

from delayd.wheel import SlotInfo
from delayd.wheel.catalogue import Catalogue, Totals
from delayd.wheel.layout import SegmentName


class ListedFile(NamedTuple):
    """What the catalogue says of a slot's or of an hour's file."""

    name: SegmentName
    info: SlotInfo
    start: int
    """Frames before it have been moved to their slots."""


def listed_files(catalogue: Catalogue, first_slot: int = 0) -> Iterator[ListedFile]:
    """Return all hours and the slots from this one on, by hour. Raise CorruptionError."""
    slots = (
        ListedFile(SegmentName(False, number, line.generation), line.info, 0)
        for number, line in catalogue.slot_lines(first_slot)
    )
    hours = (
        ListedFile(SegmentName(True, number, line.generation), line.info, line.start)
        for number, line in catalogue.hour_lines()
    )
    return merge(hours, slots, key=lambda file: file.name.hour)


def all_listed_files(catalogue: Catalogue) -> Iterator[ListedFile]:
    """Return all files. Raise CorruptionError, also at the end if the last checkpoint counted
    others."""
    hours = slots = frames = 0
    for file in listed_files(catalogue):
        hours += file.name.is_hour
        slots += not file.name.is_hour
        frames += file.info.count
        yield file
    catalogue.require_totals(Totals(hours, slots, frames))
