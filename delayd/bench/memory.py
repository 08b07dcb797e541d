"""`delayd bench memory`: the memory of a node with very many messages pending, and with few.

Anonymous memory is the node's own. Pages of mapped files can be taken back by the kernel at any
time. Both are summed over the node's processes.
"""

from threading import Event
from typing import Final

from delayd.bench.context import Context
from delayd.bench.figures import Figure, Measured
from delayd.bench.pending import Pair
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
        measured.add("memory-anon", "MiB", many.anon / MIB, pair.against, few.anon / MIB)
        measured.add("memory-file", "MiB", many.file / MIB, pair.against, few.file / MIB)
        frames = int(pair.many.nodes.status(pair.many.name)["wheel"]["frames"])
        measured.add("memory-pending-lost", "messages", max(0, pair.many.pending - frames))
    return measured.figures()
