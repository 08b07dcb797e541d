"""What ends a benchmark without figures."""

from delayd.errors import DelaydError


class BenchError(DelaydError):
    """The machine was too slow, or a part of the benchmark failed: nothing is measured by it."""

    code = "bench"


class TooSlowError(BenchError):
    """Messages became due before all nodes had ingested them."""

    def __init__(self) -> None:
        super().__init__(
            "this machine was too slow to take all messages in before the first was due",
            remedy="measure when it does nothing else, or smaller sizes",
        )
