"""The end of a hold: how a topic comes back to going out when its messages are due.

While a message of a topic waits for its turn, one that becomes due must wait behind it, and by then
the next has become due: with a message every second that would never end. So once no turn is
further away than END_MS, the lane of the topic stands still until the last turn has come. The step
after that takes all of them, and what has become due meanwhile goes out behind them, in that step.

    tail within END_MS        the lane stops
    now is beyond the tail    one step passes the lane beyond the tail: the hold is over
                              a step that cannot is an ordinary one: later once more

A lane that stops is the price for the order; other topics of the lane wait with it, END_MS or so.
The step after that is the lane's alone. If that is still too much for it, the lane is left alone
for RETRY_MS, and after each further attempt for twice as long.

Not here: turns (`replication.smoothing`). Pure: times are Unix ms. Only a master's memory: a
successor begins anew.
Source: docs/design/pauses.md, "The end".
"""

from collections.abc import Mapping
from typing import Final

from replication.frontier import Frontier
from replication.rank import lane_of

END_MS: Final = 1_000
"""As long as the shortest deferral: a topic with steady traffic comes no closer to its end."""

STOP_MS_MAX: Final = 3_000
"""How long a lane stops at most: late arrivals may put the last turn off."""

RETRY_MS: Final = 10_000
"""How long after an attempt that failed the next one is made: twice as long after each further one,
so that a topic with more than a step holds seldom stands still."""

RETRY_MS_MAX: Final = 10 * 60 * 1000


class Endings:
    """Which holds come to their end. Changed by one thread."""

    def __init__(self) -> None:
        self._since_ms: dict[str, int] = {}
        """When the lane of a topic was stopped."""
        self._failed: dict[str, tuple[int, int]] = {}
        """When the end of a topic may be tried again, and how long that is after the attempt."""

    def stopped(self, tails_ms: Mapping[str, int], lanes: int, now_ms: int) -> dict[int, int]:
        """Return the lanes that the step at `now_ms` must leave alone, and until when. `tails_ms`:
        the last turn of each topic whose hold is open."""
        for topic in self._since_ms.keys() - tails_ms.keys():
            del self._since_ms[topic]
        for topic in self._failed.keys() - tails_ms.keys():
            del self._failed[topic]
        found: dict[int, int] = {}
        for topic, tail_ms in tails_ms.items():
            if topic not in self._since_ms:
                if tail_ms > now_ms + END_MS or now_ms < self._failed.get(topic, (0, 0))[0]:
                    continue
                self._since_ms[topic] = now_ms
            if now_ms - self._since_ms[topic] > STOP_MS_MAX:
                self._give_up(topic, now_ms)
            elif tail_ms >= now_ms:
                lane = lane_of(topic, lanes)
                found[lane] = max(found.get(lane, 0), tail_ms + 1)
        return found

    def lanes_due(self, tails_ms: Mapping[str, int], lanes: int, now_ms: int) -> frozenset[int]:
        """Return the lanes that stood still, and which the step at `now_ms` must take beyond the
        last turn."""
        return frozenset(
            lane_of(topic, lanes)
            for topic in self._since_ms
            if tails_ms.get(topic, now_ms) < now_ms
        )

    def ended(
        self, tails_ms: Mapping[str, int], after: Frontier, lanes: int, now_ms: int
    ) -> frozenset[str]:
        """Return the topics whose last turns are in the step at `now_ms` to `after`."""
        found = set()
        for topic, tail_ms in tails_ms.items():
            if topic in self._since_ms and tail_ms < now_ms:
                if after.cursors[lane_of(topic, lanes)].due_ms > tail_ms:
                    found.add(topic)
                else:
                    self._give_up(topic, now_ms)
        return frozenset(found)

    def _give_up(self, topic: str, now_ms: int) -> None:
        del self._since_ms[topic]
        _, before_ms = self._failed.get(topic, (0, RETRY_MS // 2))
        wait_ms = min(2 * before_ms, RETRY_MS_MAX)
        self._failed[topic] = (now_ms + wait_ms, wait_ms)
