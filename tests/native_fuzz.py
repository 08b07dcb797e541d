"""`make native-fuzz`: random and damaged frames, records and messages, read by the native library
and by Python.

    python tests/native_fuzz.py --inputs 10000000 [--seed 7] [--only frames]

A third of the inputs are records (`native_record_fuzz.py`), a third messages that are delivered
(`native_message_fuzz.py`). Each of the others is a stretch of a slot's file: frames of all kinds
and of any second, whole, or with bytes flipped, lost, doubled or cut off, some with a right CRC
again. The two must say the same of each: places, sums, or that they are broken, where and why. Ends
with exit code 1 at the first difference, and prints the input. A run says how many inputs the
library took.
"""

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable, MutableMapping
from random import Random
from typing import Any, Final

from crc32c import crc32c
from native_message_fuzz import fuzz_messages
from native_record_fuzz import Report, fuzz_records

from delayd.runtime import native
from delayd.wheel.decoding import Scanned, scan, scan_in_python
from delayd.wheel.frame import HEADER_BYTES, BrokenFrameError, encode_fields
from delayd.wheel.place import IN_HOUR

TOLD_EVERY: Final = 1_000_000
SECOND_MS: Final = 1_700_000_000_000
Scan = Callable[[bytes, int, MutableMapping[int, bytearray]], Scanned]


def fuzz(library: native.Library, random: Random, inputs: int) -> Report:
    """Compare so many inputs; end at the first difference."""
    report = Report()
    while report.inputs < inputs:
        data, position = stretch(random), random.choice((0, 4_096, IN_HOUR + 7))
        report.inputs += 1
        wanted = outcome(scan_in_python, data, position)
        report.taken += library.scan(data, position) is not None
        report.broken += isinstance(wanted[0], str)
        if outcome(scan, data, position) != wanted:
            report.difference = data
            break
        if report.inputs % TOLD_EVERY == 0:
            print(f"{report.inputs:,} inputs", flush=True)
    return report


def outcome(scan: Scan, data: bytes, position: int) -> tuple[Any, ...]:
    """Return all that a scan says."""
    places: defaultdict[int, bytearray] = defaultdict(bytearray)
    try:
        found = scan(data, position, places)
    except BrokenFrameError as error:
        return error.why, error.position, error.length, error.passed
    return (*found, {due_ms: bytes(packed) for due_ms, packed in places.items()})


def stretch(random: Random) -> bytes:
    """Return some frames, harmed or not."""
    pieces = [a_frame(random) for _ in range(random.randrange(5))]
    data = bytearray().join(pieces)
    for _ in range(random.choice((0, 0, 0, 1, 1, 3))):
        harm(random, data)
    if pieces and random.random() < 0.2:
        data += pieces[-1][: random.randrange(len(pieces[-1]))]
    if random.random() < 0.3:
        mend_crc(data, random)
    return bytes(data)


def a_frame(random: Random) -> bytearray:
    """Return a frame, mostly of one second and usual."""
    due_ms = SECOND_MS + random.randrange(1_000)
    if random.random() < 0.05:
        due_ms = random.choice((0, 999, SECOND_MS - 1, SECOND_MS + 1_000, 2**64 - 1))
    form = random.choice((1, 1, 1, 1, 1, 0x101, 0x201))
    if random.random() < 0.05:
        form = random.choice((0, 2, 0x301, 0x10001, 0xFFFFFFFF, random.getrandbits(32)))
    offset = random.getrandbits(random.choice((1, 20, 48, 48, 49 if random.random() < 0.1 else 8)))
    body = (random.randbytes(random.choice((0, 1, 9, 300 if random.random() < 0.1 else 20))),)
    lane, partition = random.getrandbits(16), random.getrandbits(16)
    data = bytearray(encode_fields(form, lane, partition, offset, SECOND_MS, due_ms, body)[0])
    return without_body(data) if random.random() < 0.02 else data


def without_body(frame: bytearray) -> bytearray:
    """Return the header of a frame as one of its own, with a right CRC: no frame is so short."""
    fields = bytes(frame[8:HEADER_BYTES])
    return (
        bytearray(HEADER_BYTES.to_bytes(4, "little") + crc32c(fields).to_bytes(4, "little"))
        + fields
    )


def harm(random: Random, data: bytearray) -> None:
    """Change something of it."""
    if not data:
        return
    at = random.randrange(len(data))
    kind = random.randrange(5)
    if kind == 0:
        data[at] ^= 1 << random.randrange(8)
    elif kind == 1:
        del data[at : at + random.randrange(60)]
    elif kind == 2:
        data[at:at] = data[at : at + random.randrange(60)]
    elif kind == 3:
        del data[at:]
    else:  # a length
        data[0:4] = random.choice((0, 39, 40, 41, len(data), 2**28, 2**28 + 1, 2**32 - 1)).to_bytes(
            4, "little"
        )


def mend_crc(data: bytearray, random: Random) -> None:
    """Make the first frame right again as far as its CRC goes, with a field that is changed."""
    length = int.from_bytes(data[:4], "little")
    if 40 < length <= len(data):
        data[random.randrange(8, 40)] ^= 1 << random.randrange(8)
        data[4:8] = crc32c(bytes(data[8:length])).to_bytes(4, "little")


def main() -> int:
    """Run as the command line says."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--inputs", type=int, default=1_000_000)
    asked.add_argument("--seed", type=int, default=None)
    asked.add_argument("--only", choices=("frames", "records", "messages"))
    options = asked.parse_args()
    if native.library is None:
        print(f"nothing to compare: {native.described}", file=sys.stderr)
        return 2
    seed = options.seed if options.seed is not None else time.time_ns() % 10**6
    fuzzers = {"frames": fuzz, "records": fuzz_records, "messages": fuzz_messages}
    chosen = [options.only] if options.only else list(fuzzers)
    for what in chosen:
        report = fuzzers[what](native.library, Random(seed), options.inputs // len(chosen))
        print(
            f"seed {seed}, {what}: {report.inputs:,} inputs, {report.taken:,} taken by the "
            f"library, {report.broken:,} broken"
            + (f", {report.about_ids:,} records about ids" if report.about_ids else "")
        )
        if report.difference is not None:
            print(f"a difference: {report.difference.hex()}")
            return 1
    print("no difference")
    return 0


if __name__ == "__main__":
    sys.exit(main())
