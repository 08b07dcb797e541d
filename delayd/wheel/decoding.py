"""The two hot paths of reading: a stretch of a slot into places, and entries into frames.

Both are one loop each, without a call per frame that could be avoided: of half a million frames of
300 bytes, due all over one second, 1.1 million a second were scanned and 340,000 decoded, where a
call of `decode` for each gave 300,000 (CPU time on a busy machine; a call of `pread` is a third of
it). What a frame is stands in `frame.py`.
"""

from collections.abc import Callable, MutableMapping, Sequence
from typing import NamedTuple

from crc32c import crc32c

from delayd.runtime import native
from delayd.wheel import Entry, Frame
from delayd.wheel.frame import (
    FORM_OF,
    FORMS,
    FRAME_BYTES_MAX,
    HEADER_BYTES,
    MESSAGE_FORM,
    BrokenFrameError,
    read_forms,
    unknown_form,
    unpack_body,
)
from delayd.wheel.place import OFFSET_BITS, OFFSETS_MAX, PLACE, POSITION_BITS, POSITIONS_MAX

STRETCH_BYTES_MAX = 1024 * 1024
"""The longest stretch of a file that is read at once for several frames."""
GAP_BYTES_MAX = 4 * 1024
"""Frames of which the next begins within so many bytes are read in one go: copying the gap costs
less than another call, which is half a microsecond when the file is in the page cache."""

_new_tuple = tuple.__new__


class Scanned(NamedTuple):
    """What a scan went over."""

    bytes: int
    """What the whole frames take."""
    count: int  # type: ignore[assignment]  # hides tuple.count, which nothing needs
    crcs: int
    """Sum of the frames' CRCs."""


def scan(data: bytes, position: int, places: MutableMapping[int, bytearray]) -> Scanned:
    """Add a place for every message of `data`, whose first byte lay at `position`, to those of its
    due time (see `place.py`); `places` makes an empty one where there is none.

    Pending replies are only verified and counted. The bytes after the last whole frame are the
    beginning of one that goes on after `data`. Every CRC is verified: a place with a flipped due
    time or lane would be passed over silently, and never be read. BrokenFrameError, with some
    places added.
    """
    assert position + len(data) <= POSITIONS_MAX, f"a slot's file of {position} bytes and more"
    if native.library is not None and (found := native.library.scan(data, position)) is not None:
        for due_ms, packed in found.places:
            places[due_ms] += packed
        return Scanned(found.bytes, found.count, found.crcs)
    return scan_in_python(data, position, places)


def scan_in_python(data: bytes, position: int, places: MutableMapping[int, bytearray]) -> Scanned:
    """Do what `scan` says, where the native library does not."""
    view = memoryview(data)
    end = len(data)
    last_header = end - HEADER_BYTES
    read, crc_of_bytes, pack_place = read_forms, crc32c, PLACE.pack
    at = count = crcs = 0
    while at <= last_header:
        length, crc, form, lane, partition, offset, _, due_ms = read(data, at)
        after = at + length
        if not HEADER_BYTES < length <= FRAME_BYTES_MAX:
            why = f"says it is {length} bytes long"
            raise BrokenFrameError(position + at, HEADER_BYTES, why, count)
        if after > end:
            break
        if crc_of_bytes(view[at + 8 : after]) != crc:
            raise BrokenFrameError(position + at, length, "has a wrong CRC", count)
        if form == MESSAGE_FORM and offset < OFFSETS_MAX:
            places[due_ms] += pack_place(
                partition << OFFSET_BITS | offset, lane << POSITION_BITS | position + at, length
            )
        elif form not in FORMS or offset >= OFFSETS_MAX:
            raise BrokenFrameError(position + at, length, unknown_form(form, offset), count)
        count += 1
        crcs += crc
        at = after
    return Scanned(at, count, crcs)


def decode_all(entries: Sequence[Entry], fetch: Callable[[int, int], bytes]) -> list[Frame]:
    """The frames of these entries of one slot, in the order given, every CRC verified.

    `fetch` gives so many bytes of the slot from a position on, or fewer if there are fewer.
    Entries that follow each other in their file are fetched in one go. They are not sorted by
    position for that: those of a crowded millisecond follow each other in rank order too, and
    those that are spread over a large file would not be nearer to each other.
    BrokenFrameError if a frame is damaged, or is not the entry's.
    """
    frames: list[Frame] = []
    read, crc_of_bytes, unpack, new = read_forms, crc32c, unpack_body, _new_tuple
    form_of = FORM_OF
    data = b""
    start = end = 0
    next_positions = [entry[5] for entry in entries[1:]]
    next_positions.append(-1)
    for index, (entry, next_position) in enumerate(zip(entries, next_positions, strict=False)):
        due_ms, partition, offset, lane, kind, position, length = entry
        if position < start or position + length > end:
            start, end = position, position + length
            if 0 <= next_position - end <= GAP_BYTES_MAX:
                end = _end_of_stretch(entries, index)
            data = fetch(end - start, start)
        at = position - start
        after = at + length
        if length < HEADER_BYTES or after > len(data):
            raise BrokenFrameError(position, length, "is cut off")
        found_length, crc, form, found_lane, found_partition, found_offset, append_ms, found_ms = (
            read(data, at)
        )
        if found_length != length:
            raise BrokenFrameError(position, length, f"says it is {found_length} bytes long")
        if crc_of_bytes(data[at + 8 : after]) != crc:
            raise BrokenFrameError(position, length, "has a wrong CRC")
        if (
            found_ms != due_ms
            or found_offset != offset
            or found_partition != partition
            or found_lane != lane
            or form != form_of.get(kind)
        ):
            is_known = form in FORMS
            why = "is another frame" if is_known else unknown_form(form, found_offset)
            raise BrokenFrameError(position, length, why)
        body = unpack(data[at + HEADER_BYTES : after], use_list=False, strict_map_key=False)
        frames.append(new(Frame, (due_ms, partition, offset, lane, kind, append_ms, body)))
    return frames


def _end_of_stretch(entries: Sequence[Entry], first: int) -> int:
    """Where the stretch of neighbours ends that begins with this entry."""
    start = entries[first].position
    end = start + entries[first].length
    for index in range(first + 1, len(entries)):
        _, _, _, _, _, position, length = entries[index]
        if not 0 <= position - end <= GAP_BYTES_MAX or end - start > STRETCH_BYTES_MAX:
            break
        end = position + length
    return end
