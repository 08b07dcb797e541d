"""What the nodes must know of ids once a run is over: the same everywhere, and what the log says.

Nodes may forget sooner or later, but never what still counts: a message that is not Done, or was
due within `id_memory` before its partition's log time. Of those each node must know, exactly:

- which are live under an id, and which the last cancel marker that killed anything killed
- who killed a message that is not Done, and whether its continuation was refused because of that
- which dead letters were redriven
"""

from log_rules import Request
from simulation_checker import Checker

from delayd.wheel.id_memory import id_name, redrive_name
from delayd.wheel.storage import Wheel
from replication.ids import LIVE_MAX
from replication.rank import Rank

Places = list[tuple[int, int]]
"""Messages by due time and offset."""


class IdChecker:
    """The ids of one finished run; `judge` has read the log."""

    def __init__(self, judge: Checker, known_from_ms: int = 0) -> None:
        """`known_from_ms`: what counts no more by then the node need not know."""
        self._judge = judge
        self._known_from_ms = known_from_ms
        self._rules = judge.rules

    def check(self, name: str, wheel: Wheel) -> None:
        """Raise AssertionError, with the id and what this node knows of it."""
        for (partition, id), live in self._rules.live.items():
            expected = (
                self.that_count(sorted(live, key=lambda m: (m.due_ms, m.offset))[-LIVE_MAX:]),
                self.that_count(self._rules.last_killed.get((partition, id), [])),
            )
            state = wheel.ids.state(partition, id_name(id))
            found = (
                self._known(partition, [(m.due_ms, m.offset) for m in state.live]),
                self._known(partition, [(m.due_ms, m.offset) for m in state.killed]),
            )
            assert found == expected, f"{name} knows of {id}: {found}, not {expected}"
        for source, marker in self._rules.killed_by.items():
            self._check_kill(name, wheel, self._rules.by_source[source], marker)
        for source in self._rules.redriven:
            partition = int(source.partition("/")[0])
            if self._rules.counts_as_redriven(source, self._floor_ms(partition)):
                state = wheel.ids.state(partition, redrive_name(source))
                assert state.live, f"{name} does not know that {source} was redriven"

    def _check_kill(self, name: str, wheel: Wheel, message: Request, marker: Request) -> None:
        kill = wheel.ids.kill(Rank(*message.rank))
        if kill is None:
            assert self._is_done(message), f"{name} does not know who killed {message.source}"
            return
        is_refused = message.source in self._rules.refused
        # What is held in place of another has no marker that a step could pass.
        by = 0 if message.source in self._rules.held_as.values() else marker.offset
        assert kill[:2] == (by, is_refused), f"{name}: {message.source} was killed by {kill}"

    def _is_done(self, message: Request) -> bool:
        return self._judge.steps[-1].is_done(message)

    def _counts(self, partition: int, due_ms: int, offset: int) -> bool:
        message = self._rules.by_source[f"{partition}/{offset}"]
        within_ms = due_ms + self._rules.id_memory_ms
        return within_ms >= self._floor_ms(partition) or not self._is_done(message)

    def _floor_ms(self, partition: int) -> int:
        return max(self._known_from_ms, self._rules.times[partition].floor_ms)

    def that_count(self, messages: list[Request]) -> Places:
        """Return those of the messages that a node must still know of."""
        return sorted(
            (m.due_ms, m.offset) for m in messages if self._counts(m.partition, m.due_ms, m.offset)
        )

    def _known(self, partition: int, places: Places) -> Places:
        return sorted(place for place in places if self._counts(partition, *place))
