"""One part at a time: started, awaited until it does its work, ended.

Not here: the kernel's view of processes (processes.py), a whole cluster's start (startup.py).

Invariant: every wait has a deadline, and ends at once, with the log's last line, when the awaited
process dies.
"""

import os
import signal
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from delayd.dev.etcd import etcd_is_healthy
from delayd.dev.kafka import brokers_seen_by
from delayd.dev.nodes import NODE_VARIABLES, ask_node
from delayd.dev.parts import Kind, LocalClusterError, Part, State, last_words
from delayd.dev.processes import (
    CLUSTER_VARIABLE,
    ProcessIdentity,
    is_stopped,
    send,
    spawn,
    wait_until_gone,
)
from delayd.runtime.clock import wait_until

POLL_MS = 50
ANSWER_TIMEOUT_S = 90.0  # Kafka needs 2 s on an idle machine; a loaded laptop is slow
GENTLE_TIMEOUT_MS = 5_000  # a node's step is at most 200 ms; then it resigns
KILL_TIMEOUT_MS = 10_000
KILL_ROUNDS_MAX = 3  # a process may start another one while the list is made


def start_part(part: Part, *, directory: Path) -> Part:
    """Start the part's process, and return at once. Raises LocalClusterError if it cannot."""
    try:
        process = spawn(part.command, env=environment_for(part.env, directory), log=part.log)
    except OSError as problem:
        raise LocalClusterError(f"cannot start {part.name}: {problem}") from problem
    return replace(part, process=process)


def wait_until_answering(part: Part, state: State) -> None:
    """Wait until a started part does its work: a broker does when it sees itself and all other
    running brokers in the cluster. Raises LocalClusterError if the part ends or stays silent."""
    brokers = sum(broker.alive() for broker in state.of(Kind.BROKER))
    wait_for(
        lambda: does_its_work(part.kind, part.address, brokers),
        watched=[part],
        timeout_s=ANSWER_TIMEOUT_S,
        what=f"{part.name} did not answer",
    )


def does_its_work(kind: Kind, address: str, brokers: int) -> bool:
    """Return whether a part answers and is ready; a broker, whether it sees so many brokers."""
    match kind:
        case Kind.BROKER:
            return brokers_seen_by(address) >= brokers
        case Kind.ETCD:
            return etcd_is_healthy(address)
        case Kind.NODE:
            answer = ask_node(address)
            return answer is not None and answer.ready


def end_processes(
    find: Callable[[], Collection[ProcessIdentity]], *, gently: Iterable[Part] = ()
) -> None:
    """End the processes that `find` finds, until it finds none. Parts in `gently` may first end
    in good order. Raises LocalClusterError if any survives SIGKILL."""
    asked = [part.process for part in gently if part.process and not is_stopped(part.process)]
    wait_until_gone(
        [process for process in asked if send(process, signal.SIGTERM)], GENTLE_TIMEOUT_MS
    )
    for _ in range(KILL_ROUNDS_MAX):
        found = find()
        if not found:
            return
        for process in found:
            send(process, signal.SIGKILL)
        wait_until_gone(found, KILL_TIMEOUT_MS)
    if found := find():
        pids = ", ".join(str(process.pid) for process in found)
        raise LocalClusterError(f"these processes survived SIGKILL: {pids}", remedy="see dmesg")


def wait_for(
    condition: Callable[[], bool], *, watched: Collection[Part], timeout_s: float, what: str
) -> None:
    """Wait for the condition. Raises LocalClusterError if a watched part ends or time is up."""

    def holds() -> bool:
        if condition():
            return True
        for part in watched:
            if not part.alive():
                raise LocalClusterError(
                    f"{part.name} ended while starting: {last_words(part.log)}",
                    remedy=f"see {part.log}",
                )
        return False

    if not wait_until(holds, int(timeout_s * 1000), POLL_MS):
        logs = " and ".join(str(part.log) for part in watched)
        raise LocalClusterError(f"{what} within {timeout_s:.0f} s", remedy=f"see {logs}")


def environment_for(variables: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Return the environment of a process of this cluster: that of this process, and the cluster's
    mark.

    Variables that would override this cluster's own settings are left out: etcd takes ETCD_* for
    settings, a node DELAYD_BOOTSTRAP and the like, which a person may have exported for the command
    line.
    """
    inherited = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("ETCD_") and key not in NODE_VARIABLES
    }
    return {**inherited, **variables, CLUSTER_VARIABLE: str(directory)}
