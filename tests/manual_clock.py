"""The clock of the tests."""

START_MS = 1_785_000_000_000


class ManualClock:
    """A clock that stands still until a test moves it: the port `Clock`."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms = now_ms

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic_ms(self) -> int:
        return self.now_ms

    def monotonic_ns(self) -> int:
        # A little fast, as it may be: so `now`, which keeps that back, is the ms that was set.
        return self.monotonic_ms() * 1_000_201
