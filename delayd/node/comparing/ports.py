"""What a comparer needs of its surroundings: the other nodes, the log, and what repairs a wheel."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

from delayd.node.comparing.findings import ComparerView, Finding
from delayd.node.comparing.judging import Logged
from delayd.node.comparing.side import Side, Source
from delayd.wheel.comparing.common_cut import CommonCut


class OtherNodes(Protocol):
    """The other nodes; every method raises ComparisonError."""

    def ready(self) -> Sequence[str]:
        """Return those that could take over now."""

    def announced(self) -> Collection[str]:
        """Return all that are announced."""

    def side(self, name: str) -> Side:
        """Return a node with its last checkpoint."""

    def tell(self, side: Side, hour: int) -> None:
        """Tell a node to look at an hour by itself."""


class Log(Protocol):
    """The buffer."""

    def logged(self, source: Source) -> Logged | None:
        """Return what it says of a message; None if it does not."""


class Looks(Protocol):
    """The comparer, for its repairer. Every method raises ComparisonError."""

    view: ComparerView

    def look_over(self, hours: Sequence[int]) -> tuple["Looked", list[Finding]]:
        """Return all that are ready, by then let go of, and what differs in these hours."""

    def ready(self) -> Sequence[str]:
        """Return the other nodes that could take over now."""

    def away(self) -> Sequence[str]:
        """Return the nodes that are announced and not ready."""


class Repairer(Protocol):
    """What a node does about a wheel of its own that is wrong. Called by one thread."""

    @property
    def replayed(self) -> Sequence[tuple[int, int]]:
        """Return the messages about which this wheel was rebuilt from the log, by source."""

    @property
    def is_under_way(self) -> bool:
        """Return whether a repair was begun that is not confirmed: the next round comes soon."""

    @property
    def has_failed(self) -> bool:
        """Return whether it repairs nothing more, because a repair failed."""

    @property
    def counts(self) -> Counter[str]:
        """Return how many repairs this life has seen `repaired` and `failed`."""

    def tend(self, comparer: Looks) -> None:
        """Do what is to be done now."""

    def shown(self) -> dict[str, Any] | None:
        """Return it for /status; None if there was never anything to repair."""


class Alarmed:
    """The repairer of a node that repairs nothing."""

    replayed: Sequence[tuple[int, int]] = ()
    is_under_way = False
    has_failed = False

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def tend(self, comparer: Looks) -> None:
        """Leave it to people."""

    def shown(self) -> dict[str, Any] | None:
        """Nothing is repaired."""
        return None


class Looked(Mapping[str, Side]):
    """The sides of one look, by node, which have agreed on a cut."""

    def __init__(self, sides: Mapping[str, Side], cut: CommonCut) -> None:
        self._sides = sides
        self.cut = cut

    def __getitem__(self, name: str) -> Side:
        return self._sides[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sides)

    def __len__(self) -> int:
        return len(self._sides)
