"""Python's cycle collector, tuned to processes whose hot paths make no cycles.

Not here: reference counting, which frees all that the hot paths make.
"""

import gc
from typing import Final

COLLECT_AFTER_OBJECTS: Final = 100_000
"""Container objects made before Python's cycle collector runs. The hot paths make a dozen for a
message, and no cycles; with the default of 700, `delayd bench ingest` was a third slower."""


def tune_collector() -> None:
    """Run the cycle collector seldom, and never over objects that exist at the start."""
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER_OBJECTS, 50, 100)
