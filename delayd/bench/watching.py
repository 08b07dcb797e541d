"""A node's rate and processor time while it works, by what it says of itself."""

from typing import Final, NamedTuple

from delayd.bench.nodes import BenchNodes
from delayd.bench.process_costs import tree_cpu_s

PROGRESS_S_MAX: Final = 900


class Progress(NamedTuple):
    """A stretch of a node's work."""

    rate: float
    """Messages per second."""
    cpu_us: float
    """Processor time for each message, that of child processes included."""


class _Sample(NamedTuple):
    at_ms: int
    done: int
    cpu_s: float


def watch(nodes: BenchNodes, name: str, what: str, count: int) -> Progress:
    """Measure from the node's first sign of progress until `what` (`ingested_count`,
    `delivered_count`) has reached `count`, without the last look: when it got there between two
    looks is unknown.

    Work that is over after a look or two is measured from the start of watching. Raises BenchError.
    """
    pid = nodes.pid(name)

    def sample() -> _Sample:
        return _Sample(nodes.clock.monotonic_ms(), nodes.count(name, what), tree_cpu_s(pid))

    samples = [sample()]

    def is_done() -> bool:
        samples.append(sample())
        return samples[-1].done >= count

    nodes.wait(is_done, PROGRESS_S_MAX, f"{name} has {what} = {count}")
    under_way = [each for each in samples if samples[0].done < each.done < count]
    first, last = samples[0], samples[-1]
    if len(under_way) > 1:
        first, last = under_way[0], under_way[-1]
    done = max(1, last.done - first.done)
    return Progress(
        done * 1000 / max(1, last.at_ms - first.at_ms), (last.cpu_s - first.cpu_s) * 10**6 / done
    )
