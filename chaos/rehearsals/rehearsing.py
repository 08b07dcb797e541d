"""Disasters one after the other, each with other seeds; a line of JSON for each.

Invariant: the clusters of a rehearsal are taken down, whatever happens.
"""

import json
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any, Final

from chaos.rehearsals.course import CANCELLED, Course, lost_of, made, wait_for
from chaos.rehearsals.disasters import DISASTERS
from delayd.dev.demo_audit import audit
from delayd.dev.processes import processes_of

RESULTS: Final = "rehearsals.jsonl"


def rehearse(
    names: Collection[str],
    seed: int,
    times: int,
    out: Path,
    tell: Callable[[str], None],
    *,
    shards: int = 1,
    with_audit: bool = True,
) -> int:
    """Return how many failed. Clusters begin with so many `shards`; `out` gets the results, and the
    logs of what failed."""
    out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for number in range(times):
        for name in names:
            result = _rehearsed(name, seed + number, shards, out, tell, with_audit=with_audit)
            failed += not result["ok"]
            print(json.dumps(result), flush=True)
            with (out / RESULTS).open("a") as file:
                file.write(f"{json.dumps(result)}\n")
    return failed


def _rehearsed(
    name: str, seed: int, shards: int, out: Path, tell: Callable[[str], None], *, with_audit: bool
) -> dict[str, Any]:
    begun_s = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix="delayd-rehearsal-"))
    result: dict[str, Any] = {"disaster": name, "seed": seed, "shards": shards, "ok": False}
    tell(f"{name}, seed {seed}")
    try:
        with ExitStack() as stack:
            result |= _played(name, seed, shards, directory, tell, stack, with_audit=with_audit)
        if left := [each for part in directory.iterdir() for each in processes_of(part)]:
            result |= {"ok": False, "problem": f"left running: {left}"}
    except Exception as error:
        result["problem"] = f"{type(error).__name__}: {error}"
    if not result["ok"]:
        kept = out / f"{name}-{seed}"
        shutil.rmtree(kept, ignore_errors=True)
        for logs in directory.glob("*/logs"):
            shutil.copytree(logs, kept / logs.parent.name)
    shutil.rmtree(directory, ignore_errors=True)
    return result | {"took_s": round(time.monotonic() - begun_s)}


def _played(
    name: str,
    seed: int,
    shards: int,
    directory: Path,
    tell: Callable[[str], None],
    stack: ExitStack,
    *,
    with_audit: bool,
) -> dict[str, Any]:
    cluster = made(directory / "cluster", stack, shards)
    course = Course(directory, cluster, stack, Random(f"{name} {seed}"), tell, shards)
    course.make_targets()
    after = DISASTERS[name](course)
    before = course.counted() if after.cluster is not cluster else Counter[str]()
    with suppress(TimeoutError):
        wait_for(lambda: not lost_of(after.sent, after.counted() + before), "all has come")
    counts = after.counted() + before
    found: dict[str, int] | None = None
    if with_audit:
        folder = after.cluster.directory
        log = folder / "logs" / "audit.log"
        report = audit(folder, folder / "logs" / "audit.html", log=log, tell=tell).report
        found = report["found"]
    return judged(after.sent, counts, found) | {"commands": [_counts(each) for each in after.told]}


def judged(
    sent: Collection[str], counts: Counter[str], found: Mapping[str, int] | None
) -> dict[str, Any]:
    """Return the verdict on what was sent and what came, by value, and on what an audit found; None
    without an audit."""
    lost = lost_of(sent, counts)
    doubled = sorted(value for value, count in counts.items() if count > 1)
    unknown = sorted(counts.keys() - set(sent))
    return {
        "ok": not (lost or doubled or unknown or found),
        "sent": len(sent),
        "came": len(counts),
        "cancelled_in_time": sum(value not in counts for value in CANCELLED),
        "lost": lost,
        "doubled": doubled,
        "unknown": unknown,
        "audit": found,
    }


def _counts(told: dict[str, Any]) -> dict[str, Any]:
    """The figures of a command's answer."""
    return {name: each for name, each in told.items() if isinstance(each, int | bool)}
