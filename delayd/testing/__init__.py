"""A delayd in the process of a program's tests, with a clock that they move.

    from delayd.testing import InMemoryDelayd

    with InMemoryDelayd() as delayd:
        delayd.client().schedule("reminders", b"renew", in_="30d", id="order-7")
        delayd.clock.advance("30d")
        assert [record.value for record in delayd.delivered("reminders")] == [b"renew"]

pytest has it as the fixture `in_memory_delayd` (`fixtures.py`). What is here is loaded when it is
first used, so that the fixture costs nothing where nobody asks for it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from delayd.testing.clock import SteppedClock as SteppedClock
    from delayd.testing.in_memory import Delivered as Delivered
    from delayd.testing.in_memory import InMemoryDelayd as InMemoryDelayd
    from delayd.testing.in_memory import Pending as Pending

__all__ = ["Delivered", "InMemoryDelayd", "Pending", "SteppedClock"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        import delayd.testing.clock
        import delayd.testing.in_memory

        module = delayd.testing.clock if name == "SteppedClock" else delayd.testing.in_memory
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
