"""The clock of the tests."""

import delayd.testing.clock as kit

START_MS = 1_785_000_000_000


class ManualClock(kit.ManualClock):
    """A clock that stands still until a test moves it, at first at a time that all tests know."""

    def __init__(self, now_ms: int = START_MS) -> None:
        super().__init__(now_ms)
