"""`delayd upgrade rules`, killed half-way. It is run as `delayd` is.

It writes as many barriers as the environment says, waits for their acknowledgement, and kills its
process (SIGKILL). If there is nothing to write it kills itself too.
"""

import os
import signal
from typing import Any, Final

from delayd.bus import Bus
from delayd.cluster import rules_switch
from delayd.commands.cli import main
from delayd.request.internal import BufferRecord

BARRIERS_VARIABLE: Final = "CHAOS_BARRIERS_MAX"


def _die_half_way(barriers_max: int) -> None:
    write = rules_switch.write_barriers

    def write_some(bus: Bus, barriers: list[BufferRecord], *others: Any) -> None:
        write(bus, barriers[:barriers_max], *others)
        os.kill(os.getpid(), signal.SIGKILL)

    rules_switch.write_barriers = write_some  # type: ignore[assignment]


if __name__ == "__main__":
    _die_half_way(int(os.environ[BARRIERS_VARIABLE]))
    main()
