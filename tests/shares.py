"""Which tests that take long a run leaves to others, and which the inner loop leaves out.

Each guarantee is tested by something that every run does. What is named here repeats it in more
detail, on more parts or for longer, and all of it together would take an hour on two processors. So
it is dealt into shares that take about equally long, of which each commit draws one.
`make test SHARES=1` runs all.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

HEAVY: Final[Mapping[str, Mapping[str, int]]] = {
    "spark": {
        "test_judging_quotas": 200,
        "test_following": 150,
        "test_following_shards": 70,
        "test_judging_local_times": 70,
        "test_judging_debounces": 65,
        "test_judging_pauses": 60,
        "test_judging_frontier": 45,
        "test_judging_moves": 45,
        "test_judging_defects": 40,
        "test_judging_world": 40,
        "test_audit_reading": 35,
        "test_judging_deleted": 30,
        "test_judging_ids": 30,
        "test_judging_shards": 30,
        "test_judging_retention": 25,
        "test_judging_requests": 20,
    },
    "real": {
        "test_chaos_runs": 210,
        "test_demo": 174,
        "test_clients": 108,
        "test_outbox": 86,
        "test_importing": 85,
        "test_audit": 80,
        "test_guides": 80,
        "test_guarded_nodes": 78,
        "test_published_audits": 70,
        "test_quotas_on_kafka": 64,
        "test_quota_shards_on_kafka": 64,
        "test_shards_set": 64,
        "test_virtual_cluster": 60,
        "test_broken_targets": 60,
        "test_pauses_on_kafka": 54,
        "test_bus_brokers": 52,
        "test_heavy_batches": 51,
        "test_dev_cluster": 49,
        "test_recover_moved": 45,
        "test_shards_on_kafka": 42,
        "test_console": 41,
        "test_client": 40,
        "test_fetch": 40,
        "test_audit_session": 37,
        "test_bus_unreadable": 36,
        "test_doctor": 30,
        "test_async_client": 29,
        "test_audit_page": 29,
        "test_full_disk": 27,
        "test_version_change": 27,
        "test_comparing": 23,
        "test_group_jobs": 23,
        "test_trimmed_buffer": 22,
        "test_export": 21,
        "test_random_requests": 20,
        "test_readme": 20,
        "test_surgery": 20,
        "test_importing_rabbit": 17,
        "test_dead_letters": 16,
        "test_doctor_brokers": 16,
        "test_backup": 15,
        "test_bus_security": 15,
        "test_etcd_frozen": 15,
        "test_client_cancels": 14,
        "test_deaf_reader": 11,
        "test_cancel_on_event": 10,
        "test_neighbours": 10,
        "test_pulse_on_processes": 10,
    },
    "long": {
        "test_cluster": 150,
        "test_debounces": 70,
        "test_resharded": 60,
        "test_row_ingest": 40,
        "test_wheel_crashes": 30,
        "test_api_schema": 25,
        "test_years": 25,
        "test_pauses": 20,
        "test_damage": 20,
        "test_figures": 18,
        "test_reschedules": 18,
        "test_request_fuzz": 17,
        "test_at_least_once": 14,
    },
}
"""Files of tests, and roughly how many seconds of one processor each takes: those that share a
Spark, those with other real parts, and of others the tests that are marked as long."""

OTHERS_S: Final = 5
"""Of a file with long tests that is not named."""

SLOW_TESTS: Final = Path(__file__).with_name("slow_tests.txt")
"""Tests that take nearly half a second of a processor and more: `make test` runs them all, the
inner loop does without. A line without indent is a file, the others are the tests in it."""


def slow_tests() -> frozenset[str]:
    """Return what the file names, each as pytest does."""
    return frozenset(_named(SLOW_TESTS.read_text().splitlines()))


def _named(lines: Iterable[str]) -> Iterator[str]:
    file = ""
    for line in lines:
        if line.startswith(" "):
            yield f"{file}::{line.strip()}"
        else:
            file = line


def dealt(weights: Mapping[str, int], shares: int) -> list[set[str]]:
    """Return the files of each share: the heaviest first, each to the share that has least."""
    taken: list[set[str]] = [set() for _ in range(shares)]
    loads = [0] * shares
    for name, weight in sorted(weights.items(), key=lambda each: (-each[1], each[0])):
        least = loads.index(min(loads))
        taken[least].add(name)
        loads[least] += weight
    return taken


def left_out(long: Iterable[str], shares: int, commit: str) -> tuple[set[str], set[str]]:
    """Return the files that this commit leaves out, and those whose long tests it leaves out, of
    which `long` are the names."""
    drawn = int(commit[:8], 16) % shares if commit != "unknown" else 0
    of_long = {name: HEAVY["long"].get(name, OTHERS_S) for name in long}
    named = HEAVY["spark"].keys() | HEAVY["real"].keys()
    for kind in ("spark", "real"):
        named -= dealt(HEAVY[kind], shares)[drawn]
    return named, of_long.keys() - dealt(of_long, shares)[drawn]
