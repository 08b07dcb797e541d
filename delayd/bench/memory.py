"""`delayd bench memory`: the memory of a node with very many messages pending, and with few.

Anonymous memory is the node's own. Pages of mapped files can be taken back by the kernel at any
time. Both are summed over the node's processes.
"""

from threading import Event
from typing import Final

from delayd.bench.context import Context
from delayd.bench.figures import Figure, Measured
from delayd.bench.pending import Pair, add_pair
from delayd.bench.process_costs import tree_memory

MIB: Final = 2**20
BETWEEN_S: Final = 2
"""Two checkpoints."""


def bench_memory(context: Context, pair: Pair) -> list[Figure]:
    """Return the memory of a node with many pending against one with few, some seconds apart."""
    measured = Measured()
    for _ in context.runs("memory"):
        Event().wait(BETWEEN_S)
        many, few = tree_memory(pair.many.pid), tree_memory(pair.few.pid)
        add_pair(measured, pair, "memory-anon", "MiB", (many.anon / MIB, few.anon / MIB))
        add_pair(measured, pair, "memory-file", "MiB", (many.file / MIB, few.file / MIB))
        lost = max(0, pair.many.pending - _pending(pair))
        measured.add("memory-pending-lost", "messages", lost)
    return measured.figures()


def _pending(pair: Pair) -> int:
    return int(pair.many.nodes.status(pair.many.name)["wheel"]["frames"])
