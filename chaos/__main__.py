"""`python -m chaos`: runs scenarios and reports. See chaos/README.md.

    python -m chaos list
    python -m chaos run kill-master cut-kafka --seed 7
    python -m chaos smoke
    python -m chaos matrix
    python -m chaos matrix --backend docker --base my-debian:1
    python -m chaos checks
    python -m chaos rehearse lost-marker --times 10 --seed 7
    python -m chaos run kill-master cut-kafka --shards 4

Exit codes: 0 all is well, 1 a run failed, 2 usage.
"""

import argparse
import os
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from chaos.backend import Backend, BackendError
from chaos.catalogue import ON_DOCKER, SMOKE, scenarios
from chaos.checks import CHECKS, checked, missed
from chaos.processes.cluster import ProcessCluster
from chaos.rehearsals.disasters import DISASTERS
from chaos.rehearsals.rehearsing import rehearse
from chaos.report import PAGE, line_of, note
from chaos.scenario import DOCKER, PROCESSES, SMALL_REQUESTS, Needs, Scenario, lacking, with_shards
from chaos.stage_run import Run, results
from delayd.dev.interrupts import interrupts_raised

SEED_MAX: Final = 1_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Return the exit code."""
    options = _parser().parse_args(arguments)
    seed = options.seed if options.seed is not None else secrets.randbelow(SEED_MAX)
    known = scenarios(seed)
    if options.command == "rehearse":
        return _rehearse(seed, options)
    if options.command == "list":
        for scenario in known.values():
            smoke = " (smoke)" if scenario.name in SMOKE else ""
            print(f"{scenario.name:18} {scenario.what}{smoke}")
        return 0
    matrix = ON_DOCKER if options.backend == DOCKER else tuple(known)
    names = {"smoke": SMOKE, "matrix": matrix}.get(options.command, options.names)
    if unknown := [name for name in names if name not in known]:
        print(f"chaos: there is no scenario {unknown[0]!r}; see `list`", file=sys.stderr)
        return 2
    with interrupts_raised():
        if options.command == "checks":
            return _check(seed, options)
        return _run([_loaded(known[name], options) for name in names], seed, options)


def _loaded(scenario: Scenario, options: argparse.Namespace) -> Scenario:
    is_small = options.small or options.command == "smoke"
    load = scenario.load.small() if is_small else scenario.load
    if options.requests is not None:
        load = replace(load, requests=options.requests)
    if options.shards is not None:
        scenario = with_shards(scenario, options.shards)
    return replace(scenario, load=load, recovery_ms=round(scenario.recovery_ms * options.patience))


def _run(wanted: Sequence[Scenario], seed: int, options: argparse.Namespace) -> int:
    on_docker = options.backend == DOCKER
    chosen = []
    for scenario in wanted:
        if (why := lacking(scenario, options.backend)) is not None:
            print(f"chaos: {scenario.name} cannot run on {options.backend}: {why}", flush=True)
        else:
            chosen.append(scenario)
    print(f"chaos: {len(chosen)} scenarios, SEED={seed}", flush=True)
    begun_s = time.monotonic()
    try:
        make = _docker(options) if on_docker else ProcessCluster
    except BackendError as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 1
    with_audit = not options.witness_only
    run = Run(seed, options.out, make, _tell, with_audit=with_audit, by_brokers=not on_docker)
    failed = []
    for result in results(run, chosen):
        note(result, options.out)
        print(line_of(result), flush=True)
        failed += [] if result.ok else [result.scenario]
    told = f"{len(chosen) - len(failed)} well, {len(failed)} failed"
    print(f"chaos: {told} in {time.monotonic() - begun_s:.0f} s; {options.out / PAGE}")
    if failed:
        small = " --small" if chosen[0].load.requests == SMALL_REQUESTS else ""
        small += " --backend docker" if on_docker else ""
        small += f" --shards {options.shards}" if options.shards is not None else ""
        names = " ".join(failed)
        print(f"chaos: to strike the same again: python -m chaos run {names} --seed {seed}{small}")
    return 1 if failed else 0


def _check(seed: int, options: argparse.Namespace) -> int:
    failed = 0
    found = checked(seed, options.out, _tell, with_audit=not options.witness_only)
    for check, result in found.items():
        missing = missed(check, result)
        failed += bool(missing)
        print(f"{'missed' if missing else 'found ':6} {check.name}", flush=True)
        for sentence in (*missing, *(result.problems if missing else ())):
            print(f"       {sentence}", flush=True)
    return 1 if failed or len(found) < len(CHECKS) else 0


def _rehearse(seed: int, options: argparse.Namespace) -> int:
    names = options.names or [*DISASTERS]
    if unknown := [name for name in names if name not in DISASTERS]:
        known = ", ".join(DISASTERS)
        print(f"chaos: there is no disaster {unknown[0]!r}, only {known}", file=sys.stderr)
        return 2
    with interrupts_raised():
        with_audit = not options.witness_only
        failed = rehearse(
            *(names, seed, options.times, options.out, _tell),
            shards=options.shards or 1,
            with_audit=with_audit,
        )
    print(f"chaos: {len(names) * options.times - failed} well, {failed} failed, SEED={seed}")
    return 1 if failed else 0


def _docker(options: argparse.Namespace) -> Callable[[Path, Needs, int], Backend]:
    """How clusters of containers are made. BackendError if there is no daemon, or no SDK."""
    try:
        from chaos.docker.start import maker_of
    except ImportError as error:
        raise BackendError(f"{error}: pip install 'delayd[chaos]'") from error
    parts = {name: getattr(options, f"{name}_image") for name in ("node", "kafka", "etcd")}
    return maker_of(_tell, options.base, parts)


def _tell(sentence: str) -> None:
    print(f"       ... {sentence}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chaos", description="Break real clusters.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in (
        ("list", "all scenarios"),
        ("run", "those that are named"),
        ("smoke", "those that matter most, small"),
        ("matrix", "all, at full size"),
        ("rehearse", "disasters, mended by the commands of docs/disaster-recovery.md"),
        ("checks", "with one guarantee broken on purpose: each must be found"),
    ):
        command = commands.add_parser(name, help=what)
        seed = os.environ.get("SEED")
        command.add_argument("--seed", type=int, default=int(seed) if seed else None)
        command.add_argument("--requests", type=int, default=None, help="planned, about")
        told = "of each cluster, unless a scenario changes them (there: 1, or as it says)"
        command.add_argument("--shards", type=int, default=None, help=told)
        command.add_argument("--out", type=Path, default=Path("chaos-report"))
        command.add_argument("--witness-only", action="store_true", help="quicker: no audit")
        command.add_argument("--small", action="store_true", help="the traffic of smoke")
        patience = "how many times the bound a recovery may take, on a machine with other work"
        command.add_argument("--patience", type=float, default=1.0, help=patience)
        command.add_argument("--backend", choices=(PROCESSES, DOCKER), default=PROCESSES)
        command.add_argument("--base", default=None, help="the image that others are built on")
        for part in ("node", "kafka", "etcd"):
            command.add_argument(f"--{part}-image", default=None, help="instead of building one")
        command.set_defaults(names=())
        if name == "run":
            command.add_argument("names", nargs="+", metavar="SCENARIO")
        if name == "rehearse":
            command.add_argument("names", nargs="*", metavar="DISASTER", help="; ".join(DISASTERS))
            command.add_argument("--times", type=int, default=1, help="each, with other seeds")
    return parser


if __name__ == "__main__":
    sys.exit(main())
