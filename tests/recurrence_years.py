"""Series over years: every occurrence, against the second reading that the audit has.

    PYTHONPATH=tests/unit/recurrence python tests/recurrence_years.py [--series 5000] [--years 10]

Random expressions in zones whose clocks change in any way, from a random second on. Of one that
comes more often than daily it compares stretches, with leaps between them. It prints how many
occurrences agreed, tells meanwhile how far it is, and ends with 1 at the first that does not.
"""

import argparse
import sys
import time
from datetime import UTC, datetime
from itertools import islice
from multiprocessing import Pool
from random import Random

from random_series import ZONES, random_cron

from delayd.audit.judging.cron_times import times_after
from delayd.request.recurrence.expressions import next_after

YEAR_MS = 365 * 86_400_000
STRETCH = 40
"""Occurrences in a row."""
DENSE_MS = (STRETCH - 1) * 86_400_000
TOLD_EVERY = 250
LEAP_MS = 40 * 86_400_000
START_MS = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1000


def compare(job: tuple[int, int]) -> tuple[int, str]:
    """Return how many occurrences of a series agreed, and what did not."""
    seed, years = job
    random = Random(seed)
    cron, zone = random_cron(random), ZONES[seed % len(ZONES)]
    begin_ms = after_ms = START_MS + random.randrange(YEAR_MS)
    end_ms = after_ms + years * YEAR_MS
    agreed = 0
    while after_ms < end_ms:
        stretch_ms = after_ms
        for due_ms in islice(times_after(cron, zone, after_ms), STRETCH):
            found_ms = next_after(cron, zone, after_ms)
            if found_ms != due_ms:
                problem = f"{cron} in {zone} after {after_ms}: {found_ms}, and not {due_ms}"
                return agreed, problem
            after_ms = due_ms
            agreed += 1
        if after_ms - stretch_ms < DENSE_MS:
            after_ms += random.randrange(LEAP_MS)
    assert agreed and after_ms > begin_ms, "there is always another one"
    return agreed, ""


def main() -> int:
    """Compare them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=5_000)
    parser.add_argument("--years", type=int, default=10)
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    begun_s, occurrences = time.monotonic(), 0
    with Pool(asked.processes) as pool:
        jobs = ((seed, asked.years) for seed in range(asked.series))
        found = pool.imap_unordered(compare, jobs, chunksize=8)
        for count, (agreed, problem) in enumerate(found, 1):
            occurrences += agreed
            if count % TOLD_EVERY == 0:
                print(f"{count:,} series: {occurrences:,} occurrences", file=sys.stderr, flush=True)
            if problem:
                print(problem, file=sys.stderr)
                return 1
    took_s = time.monotonic() - begun_s
    print(
        f"{asked.series:,} series over {asked.years} years: {occurrences:,} occurrences agree"
        f" ({took_s:.0f} s)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
