"""`make sim`: run seeds, a line each, and say what was done to the cluster all in all.

    run_seeds.py --seeds 1000          the seeds 0 to 999, on all cores
    run_seeds.py --fresh 50            seeds that nobody has seen
    run_seeds.py --of-commit 8         seeds drawn by the commit: others each time, yet repeatable
    run_seeds.py --seed 17             one seed, with everything that happened
    run_seeds.py --guarantee at-least-once      ... of clusters without transactions
    run_seeds.py --zombies             ... where partition leaders become zombies too
    run_seeds.py --hangs               ... where leaders of target partitions hang
    run_seeds.py --full-disks          ... where disks are short of room
    run_seeds.py --etcd-away           ... where etcd is away for long, or comes back empty
    run_seeds.py --replaced-disks      ... where disks are lost, and replaced by empty ones
    run_seeds.py --differences         ... where wheels are changed, and nodes repair them
    run_seeds.py --pulses              ... where nodes listen to their master, and hear lies too
    run_seeds.py --rules 3             clusters that were made with older rules
    run_seeds.py --days 200            months in virtual time, of which most is leapt over
    run_seeds.py --switch              ... and are switched to the newest meanwhile
    run_seeds.py --pauses              people pause targets and resume them
    run_seeds.py --quotas              people limit what is pending for targets

Exit code 1 if a seed is red: its problem, and the commit to replay it on, stand below its line.
"""

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from random import Random
from secrets import randbelow

sys.path[:0] = [str(Path(__file__).parents[n]) for n in range(3)]

from checked_out import commit, revision  # noqa: E402 - it is found only now
from simulated.run import Run, simulate  # noqa: E402

from replication.settings import (  # noqa: E402
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    RULES_KNOWN,
    RULES_VERSION,
)

GUARANTEES = (EXACTLY_ONCE, AT_LEAST_ONCE)

TRACE_LINES = 60
"""How much of its end is shown of a red run among many; `--seed` shows all."""


def main(arguments: list[str] | None = None) -> int:
    """Return the exit code."""
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--seeds", type=int, default=50, help="how many, counted from --first")
    asked.add_argument("--first", type=int, default=0)
    asked.add_argument("--fresh", type=int, default=0, help="so many random seeds besides")
    asked.add_argument("--of-commit", type=int, default=0, help="so many drawn by the commit")
    asked.add_argument("--seed", type=int, help="this one only, with its trace")
    asked.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    asked.add_argument("--guarantee", choices=GUARANTEES, default=EXACTLY_ONCE)
    asked.add_argument("--hangs", action="store_true", help="leaders of targets hang")
    asked.add_argument(
        "--zombies", action="store_true", help="leaders are cut off, still read from"
    )
    asked.add_argument("--full-disks", action="store_true", help="disks are short of room")
    asked.add_argument("--replaced-disks", action="store_true", help="disks are lost")
    asked.add_argument("--differences", action="store_true", help="wheels come to differ")
    asked.add_argument("--pulses", action="store_true", help="nodes listen to their master")
    asked.add_argument("--etcd-away", action="store_true", help="etcd is away, or emptied")
    asked.add_argument("--days", type=int, default=0, help="play so many days instead of seconds")
    asked.add_argument("--pauses", action="store_true", help="people pause targets meanwhile")
    asked.add_argument("--quotas", action="store_true", help="people limit targets meanwhile")
    asked.add_argument("--shards", type=int, default=1, help="of the cluster")
    asked.add_argument("--reshard", action="store_true", help="people change that meanwhile")
    asked.add_argument("--switch", action="store_true", help="the rules are switched meanwhile")
    asked.add_argument("--rules", type=int, choices=RULES_KNOWN[1:], default=RULES_VERSION)
    chosen = asked.parse_args(arguments)
    one = partial(
        simulate,
        guarantee=chosen.guarantee,
        zombies=chosen.zombies,
        hangs=chosen.hangs,
        full_disks=chosen.full_disks,
        replaced_disks=chosen.replaced_disks,
        pulses=chosen.pulses,
        etcd_away=chosen.etcd_away,
        rules_version=chosen.rules,
        days=chosen.days,
        switches=chosen.switch,
        pauses=chosen.pauses,
        quotas=chosen.quotas,
        shards=chosen.shards,
        reshards=chosen.reshard,
        differences=chosen.differences,
    )
    if chosen.seed is not None:
        run = one(chosen.seed)
        print(*run.trace, sep="\n")
        show(run, 0)
        return 1 if run.problem else 0
    seeds = [*range(chosen.first, chosen.first + chosen.seeds)]
    seeds += [randbelow(10**9) for _ in range(chosen.fresh)]
    drawn = Random(f"{revision()}: {sys.argv[1:]}")
    seeds += [drawn.randrange(10**9) for _ in range(chosen.of_commit)]
    started = time.perf_counter()
    runs = []
    with ProcessPoolExecutor(chosen.jobs, mp_context=get_context("fork")) as pool:
        for run in pool.map(one, seeds):
            show(run, TRACE_LINES)
            runs.append(run)
    total(runs, time.perf_counter() - started)
    return 1 if any(run.problem for run in runs) else 0


def show(run: Run, trace_lines: int) -> None:
    """Print one run's line, and what is wrong with it."""
    colour = "red" if run.problem else "green"
    print(
        f"seed {run.seed:>9}  {colour:<5}  {run.wall_s:5.2f} s  {run.digest}  "
        f"{run.delivered} delivered  {run.faults.total()} faults",
        flush=True,
    )
    if run.problem:
        print(*run.trace[-trace_lines:] if trace_lines else (), sep="\n")
        print(f"{run.problem}\nseed {run.seed} at commit {commit()}", flush=True)


def total(runs: list[Run], wall_s: float) -> None:
    """Print the sums over all runs."""
    faults: Counter[str] = sum((run.faults for run in runs), Counter())
    red = [run.seed for run in runs if run.problem]
    hours = sum(run.simulated_s for run in runs) / 3_600
    print(f"\n{len(runs) - len(red)} green, {len(red)} red {red or ''}")
    print(f"wall time         {wall_s:.1f} s, {len(runs) / wall_s:.2f} seeds per second")
    print(f"simulated         {hours:.2f} hours")
    print(f"requests          {sum(run.sent for run in runs)}")
    print(f"delivered         {sum(run.delivered for run in runs)}")
    print(f"written anew      {sum(run.requeued for run in runs)}")
    print(f"smoothed          {sum(run.smoothed for run in runs)}")
    if doubled := sum(run.doubled for run in runs):
        print(f"delivered again   {doubled}")
    print(f"failovers         {sum(run.failovers for run in runs)}")
    print(f"faults            {faults.total()}")
    for kind, count in sorted(faults.items()):
        print(f"  {kind:<32}{count}")


if __name__ == "__main__":
    sys.exit(main())
