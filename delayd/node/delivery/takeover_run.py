"""A takeover as it is carried out: the orders of `replication.takeover`, up to the first step.

Not here: the first step, which the mastership writes as it writes any other; `check_first` judges
where its record is.
"""

from collections.abc import Callable

from delayd.cluster.frontier_log import FrontierLog
from delayd.errors import DelaydError, FrontierError, NotInitialisedError
from delayd.node.delivery.commits import StepCommit
from delayd.node.replica.replica import Replica
from delayd.runtime.clock import Clock
from replication.pause import WAIT_MAX_MS
from replication.takeover import (
    BeginTerm,
    CatchUp,
    CommitTerm,
    Granted,
    ReachFrontier,
    Refusal,
    Refuse,
    Takeover,
    TermWritten,
    WheelBehind,
    WheelReached,
)


class BehindError(DelaydError):
    """This node has not ingested what the frontier took into account, and lets others try."""

    code = "behind"


class StaleReadError(DelaydError):
    """The frontier topic goes on behind what its broker served."""

    code = "stale-read"


def run_takeover(
    takeover: Takeover,
    commit: StepCommit,
    replica: Replica,
    frontier_log: FrontierLog,
    clock: Clock,
    goes_on: Callable[[], bool],
    shard: int = 0,
) -> BeginTerm | None:
    """Carry out a takeover up to its first step; None if the grant ended on the way.

    `goes_on` says if the grant is still good. Raises BehindError if another may try; FrontierError
    and NotInitialisedError if nobody may deliver; and what `commit` raises.
    """
    known = replica.newest_of(shard)
    order = takeover.handle(
        Granted(clock.monotonic_ms(), None if known is None else known.record.frontier)
    )
    while not isinstance(order, Refuse):
        if not goes_on():
            return None
        if isinstance(order, BeginTerm):
            return order
        if isinstance(order, CatchUp | ReachFrontier):
            has_reached = replica.wait_ingested(order.frontier, WAIT_MAX_MS)
            answer = WheelReached if has_reached else WheelBehind
            order = takeover.handle(answer(clock.monotonic_ms()))
            continue
        assert not isinstance(order, CommitTerm), "the first step has not been written"
        fact = commit.obey(order)
        if frontier_log.newest is not None:
            replica.observe(frontier_log.newest)
        order = takeover.handle(fact)
    raise _error(order, replica.settings.frontier.name)


def check_first(takeover: Takeover, offset: int, topic: str, clock: Clock) -> None:
    """Raise StaleReadError if the record of the first step is not where the takeover read ended."""
    order = takeover.handle(TermWritten(clock.monotonic_ms(), offset))
    if isinstance(order, Refuse):
        raise _error(order, topic)


def _error(refused: Refuse, topic: str) -> DelaydError:
    """Return what a takeover that must not go on ends with."""
    match refused.reason:
        case Refusal.BEHIND:
            return BehindError(refused.detail)
        case Refusal.STALE_READ:
            return StaleReadError(f"{topic} {refused.detail}")
        case Refusal.LOG_CUT:
            return FrontierError(
                f"{topic} {refused.detail}",
                remedy="the topic lost records, or was made again: see docs/operations.md; what "
                "this node remembers need not be the last frontier",
            )
        case Refusal.MARKER_LOST:
            return FrontierError(
                f"{topic}: {refused.detail}",
                remedy="stop all nodes and run `delayd recover marker`, see docs/operations.md, "
                "'A lost commit marker'; delivering now could double messages",
            )
        case Refusal.OTHER_TOPIC:
            return FrontierError(
                f"{topic} {refused.detail}",
                remedy="see docs/operations.md, 'A lost frontier'; nothing was delivered",
            )
        case Refusal.NOT_INITIALISED:
            return NotInitialisedError(
                f"{topic} {refused.detail}",
                remedy="run `delayd topics create` if the cluster is new; otherwise see "
                "docs/operations.md",
            )
