"""Which nodes are wrong about a message: by the log where it tells, else by the majority. Pure.

    the log tells that it was stored so, or not at all    all that hold something else are wrong
    a node was rebuilt from the log because of it         all that hold something else are wrong
    the log tells only what it would look like            all that hold it otherwise are wrong;
                                                          whether it was stored, the majority says
    the log does not have it any more                     the majority says

A majority is more than half of the nodes that were asked, three of them at least: of two that
differ nobody knows who is wrong.

Source: docs/design/storage.md, "Comparing running nodes".
"""

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from delayd.node.comparing.side import Value

Holding = tuple[Value, ...]
"""What one node holds of a source, sorted: nothing, one value, or two if it holds it twice."""

VOTERS_MIN: Final = 3


class Logged(NamedTuple):
    """What the record in the buffer makes of a message."""

    value: Value | None
    """What a node that stored it holds; None: no node may hold any."""
    is_stored: bool | None
    """None: an id decides, of which other records tell."""


class By(Enum):
    """How it was found out."""

    LOG = "log"
    REPLAY = "replay"
    """A node that was rebuilt from the log says it."""
    MAJORITY = "majority"
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class Judgement:
    """Who is wrong about one message."""

    by: By
    right: frozenset[str]
    wrong: frozenset[str]
    """Nodes that are neither cannot be judged."""


def judge(
    holdings: Mapping[str, Holding],
    logged: Logged | None,
    replayed: Set[str] = frozenset(),
) -> Judgement:
    """Return who is wrong, given what each node holds; `logged` is None if the log has no word.
    `replayed`: nodes that were rebuilt from the log because they differed about this message."""
    nodes = frozenset(holdings)
    if logged is not None and logged.is_stored is not None:
        wanted = (logged.value,) if logged.is_stored and logged.value is not None else ()
        return _by(By.LOG, nodes, {node for node in nodes if holdings[node] == wanted})
    if told := {holdings[node] for node in nodes & replayed}:
        [says, *others] = told
        if others:
            return Judgement(By.NOBODY, frozenset(), frozenset())
        return _by(By.REPLAY, nodes, {node for node in nodes if holdings[node] == says})
    most = _majority(holdings)
    right = frozenset(node for node in nodes if holdings[node] == most)
    if logged is not None:
        possible = ((), (logged.value,))
        impossible = frozenset(node for node in nodes if holdings[node] not in possible)
        rest = nodes - impossible
        if impossible and rest and all(holdings[node] for node in rest):
            return _by(By.LOG, nodes, rest)
        if impossible:
            # That the others hold nothing is right only if they are the majority.
            return _by(By.LOG, nodes, right) if right & rest else _none_right(impossible)
    if most is None:
        return Judgement(By.NOBODY, frozenset(), frozenset())
    return _by(By.MAJORITY, nodes, right)


def _majority(holdings: Mapping[str, Holding]) -> Holding | None:
    [(most, count)] = Counter(holdings.values()).most_common(1)
    return most if len(holdings) >= VOTERS_MIN and 2 * count > len(holdings) else None


def _none_right(wrong: frozenset[str]) -> Judgement:
    return Judgement(By.LOG, frozenset(), wrong)


def _by(by: By, nodes: frozenset[str], right: Set[str]) -> Judgement:
    return Judgement(by, frozenset(right), nodes - right)
