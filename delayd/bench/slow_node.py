"""A node whose steps wait before they write, as if a distant broker took so long to commit: on few
cores, this shows what shards give where cores are not the limit.

    python -m delayd.bench.slow_node node --config FILE
"""

from runpy import run_module
from threading import Event
from typing import Any, Final

from delayd.node.delivery.mastership import Mastership

STEP_S: Final = 0.1
"""How long each step waits, without the replica's lock."""


def slow_down() -> None:
    """Make each step of this process wait."""
    carry_out = Mastership._carry_out

    def wait_first(self: Mastership, *args: Any) -> None:
        Event().wait(STEP_S)
        carry_out(self, *args)

    Mastership._carry_out = wait_first  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    slow_down()
    run_module("delayd.commands.cli", run_name="__main__")
