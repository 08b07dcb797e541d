"""The rounds of comparisons: this node with one other after the other, and what comes of it.

    1. first look     with one peer: the hours from where the last round with it ended
    2. second look    with all nodes that are ready, at later checkpoints, where the first differed
    3. judgement      of each message that both looks found, by the log or by the majority
    4. alarm          log line, /status, metric; the node that is wrong is told to look by itself

A comparison changes no wheel and ends no node. What becomes of a node that is wrong is the matter
of its `Repairer`, which is asked after each round and each look (`delayd.node.repairing`).

A difference that the second look cannot see any more, because it has been delivered or forgotten
meanwhile, is counted apart from one that was not there: neither is hidden. A master begins no round
of its own, but looks where it is told to, and again at what it has found.

Source: docs/design/storage.md, "Comparing running nodes".
"""

import queue
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, Final

import structlog

from delayd.errors import CorruptionError
from delayd.node.comparing.findings import SHOWN_MAX, ComparerView, Finding, named, unjudged
from delayd.node.comparing.judging import Logged, judge
from delayd.node.comparing.looking import (
    DIFFERENCES_MAX,
    Differing,
    Walk,
    differing_messages,
    differing_slots,
)
from delayd.node.comparing.ports import Alarmed, Log, Looked, OtherNodes, Repairer
from delayd.node.comparing.side import KILL, ComparisonError, OwnSide, Pace, Side, Source, cut_of
from delayd.node.replica.replica import Replica
from delayd.runtime.clock import Clock
from delayd.wheel.comparing.common_cut import CommonCut
from delayd.wheel.comparing.digest_tree import DifferingHour
from delayd.wheel.layout import hour_of
from replication.rank import Rank, slot_of

log = structlog.get_logger()

AGAIN_S: Final = 5.0
"""Between the two looks: each node has made another checkpoint."""
LOGGED_MAX: Final = 100
"""Messages of which one look reads the records in the buffer."""
SOON_S: Final = 10.0
"""Between two rounds of a node whose repair is to be confirmed."""
TOLD_MAX: Final = 16
"""Hours that other nodes have told this one to look at, and that wait."""


class Comparer:
    """Compares one node with the others, on a thread of its own."""

    def __init__(
        self,
        replica: Replica,
        others: OtherNodes,
        log_of: Log,
        clock: Clock,
        pace: Pace,
        *,
        node: str,
        interval_s: float,
        is_master: Callable[[], bool],
        on_damage: Callable[[CorruptionError], object],
        stopping: threading.Event | None = None,
        again_s: float = AGAIN_S,
        repairer: Repairer | None = None,
    ) -> None:
        """`interval_s`: 0 for never. `on_damage`: this node has read what is damaged."""
        self._repairer = repairer or Alarmed()
        self._replica = replica
        self._others = others
        self._log = log_of
        self._clock = clock
        self._pace = pace
        self._node = node
        self._interval_s = interval_s
        self._is_master = is_master
        self._on_damage = on_damage
        self._stopping = stopping or threading.Event()
        self._again_s = again_s
        self._walks: defaultdict[str, Walk] = defaultdict(Walk)
        """By peer."""
        self._unfinished: defaultdict[str, set[int]] = defaultdict(set)
        """By peer: hours whose second look could not be taken."""
        self._turn = 0
        self._told: queue.Queue[tuple[str, int] | None] = queue.Queue(TOLD_MAX)
        self._own: OwnSide | None = None
        self._thread: threading.Thread | None = None
        self.view = ComparerView()

    # The thread.

    def start(self) -> None:
        """Begin, if it is on."""
        if self._interval_s > 0:
            self._thread = threading.Thread(target=self._run, name="comparer", daemon=True)
            self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """End; nobody uses the replica afterwards."""
        self._stopping.set()
        self.give_way()
        if self._thread is not None:
            with suppress(queue.Full):  # what is in it wakes it up
                self._told.put_nowait(None)
            self._thread.join(timeout_s)

    def give_way(self) -> None:
        """Let go of the checkpoint of the look that is under way, because the disk is short."""
        if (own := self._own) is not None:
            own.end()

    def look_soon(self, asker: str, hour: int) -> None:
        """Look at an hour with the node that says this one is wrong there."""
        try:
            self._told.put_nowait((asker, hour))
        except queue.Full:
            return  # The rounds find it.

    def _run(self) -> None:
        due_ms = self._next_ms()
        while not self._stopping.is_set():
            wait_s = max(0.0, (due_ms - self._clock.monotonic_ms()) / 1000)
            try:
                told = self._told.get(timeout=wait_s)
            except queue.Empty:
                self.round()
                due_ms = self._next_ms()
                continue
            if told is not None and not self._stopping.is_set():
                self.look_at(*told)

    # Rounds.

    def _next_ms(self) -> int:
        interval_s = self._interval_s
        if self._repairer.is_under_way:
            interval_s = min(interval_s, SOON_S)
        return self._clock.monotonic_ms() + int(interval_s * 1000)

    def round(self) -> None:
        """Compare some hours with one peer. A master only looks again at what it has found."""
        if not self._is_master():
            self._tried(self._round)
        elif self.view.findings:
            self._tried(lambda: self._look_again(self._others.ready()))
        self._tried(lambda: self._repairer.tend(self), is_round=False)

    def look_at(self, peer: str, hour: int) -> None:
        """Compare one hour with one peer."""
        self._tried(
            lambda: self._looks(peer, lambda own, other: differing_slots(own, other, [hour]))
        )
        self._tried(lambda: self._repairer.tend(self), is_round=False)

    def look_over(self, hours: Sequence[int]) -> tuple[Looked, list[Finding]]:
        """Return all that are ready, by then let go of, and what differs in these hours, seen once.
        ComparisonError if no other node is ready, or one breaks off."""
        with self._sides(self._others.ready()) as sides:
            if len(sides) == 1:
                raise ComparisonError("no other node is ready")
            found, _ = self._seen_by_all(sides, hours)
            return sides, self._judged(list(found.values()), self._logged(found), sides)

    def away(self) -> Sequence[str]:
        """Return the nodes that are announced and not ready. ComparisonError."""
        ready = self._others.ready()
        return [name for name in self._others.announced() if name not in ready]

    def ready(self) -> Sequence[str]:
        """Return the other nodes that could take over now. ComparisonError."""
        return self._others.ready()

    def _tried(self, look: Callable[[], None], *, is_round: bool = True) -> None:
        try:
            look()
        except ComparisonError as error:
            self.view.failed += 1
            self.view.problem = str(error)
            if not self._stopping.is_set():
                log.warning("comparison_failed", problem=str(error))
        except CorruptionError as error:
            self._on_damage(error)
        except Exception as error:  # the thread goes on with the next round
            self.view.failed += 1
            self.view.problem = f"{type(error).__name__}: {error}"
            log.exception("comparison_failed", problem=self.view.problem)
        else:
            if is_round:
                self.view.problem = None
        if not is_round:
            return
        self.view.rounds += 1
        self.view.round_ended_ms = self._clock.monotonic_ms()

    def _round(self) -> None:
        ready = self._others.ready()
        if not ready:
            raise ComparisonError("no other node is ready")
        if self.view.findings:
            with suppress(ComparisonError):  # what is known stays known, and the round goes on
                self._look_again(ready)
        peer = ready[self._turn % len(ready)]
        self._turn += 1
        walk, again = self._walks[peer], sorted(self._unfinished.pop(peer, ()))
        self._looks(
            peer,
            lambda own, other: [*differing_slots(own, other, again), *walk.round(own, other)],
        )

    def _looks(self, peer: str, first: Callable[[Side, Side], list[DifferingHour]]) -> None:
        """Take the first look with a peer and, if something differs, the second one with all."""
        with self._sides([peer]) as sides:
            if peer not in sides:
                raise ComparisonError(f"{peer} cannot be compared: {self.view.problem}")
            hours = first(sides[self._node], sides[peer])
            seen = differing_messages(sides, hours)
        if seen:
            self._look_twice(peer, hours, seen)

    def _look_twice(
        self, peer: str, hours: Sequence[DifferingHour], seen: Mapping[Source, Differing]
    ) -> None:
        """Take the second look: with all that are ready or, if one of them breaks off, with the
        peer alone."""
        self._stopping.wait(self._again_s)
        try:
            ready = self._others.ready()
            try:
                self._second_look(peer, ready, seen)
            except ComparisonError:
                self._second_look(peer, [peer], seen)
        except ComparisonError:
            self._unfinished[peer] |= {hour.hour for hour in hours}
            raise

    def _second_look(
        self, peer: str, asked: Sequence[str], seen: Mapping[Source, Differing]
    ) -> None:
        with self._sides(asked) as sides:
            if peer not in sides:
                raise ComparisonError(f"{peer} differs, and gave no second look")
            logged = self._logged(seen)
            found, is_all = self._seen_by_all(sides, _hours_of(seen.values(), logged))
            confirmed = [found[source] for source in seen if source in found]
            if is_all:
                self._count_gone([each for s, each in seen.items() if s not in found], sides.cut)
            self._note_new([each for s, each in found.items() if s not in seen], sides)
            self._judge(confirmed, logged, sides)

    def _look_again(self, ready: Sequence[str]) -> None:
        """See which differences there still are. A node that is away may still differ, until the
        message is delivered."""
        with self._sides(ready) as sides:
            known = {finding.differing.source: finding for finding in self.view.findings}
            differing = [finding.differing for finding in known.values()]
            found, is_all = self._seen_by_all(sides, _hours_of(differing, {}))
            if not is_all:
                return
            left = [
                each
                for source, each in known.items()
                if source in found
                or (not each.holdings.keys() <= sides.keys() and _holds(sides.cut, each.differing))
            ]
            if len(left) < len(known):
                log.info("wheel_differs_no_more", messages=len(known) - len(left))
                self.view.findings = left

    def _seen_by_all(
        self, sides: Looked, hours: Sequence[int]
    ) -> tuple[dict[Source, Differing], bool]:
        """Return what any node of these holds differently from this one in these hours; and
        whether that is all of it."""
        slots: defaultdict[int, set[int]] = defaultdict(set)
        frames: Counter[int] = Counter()
        for name, side in sides.items():
            if name == self._node:
                continue
            for hour in differing_slots(sides[self._node], side, hours):
                slots[hour.hour] |= hour.slots
                frames[hour.hour] += hour.frames
        wanted = [DifferingHour(h, frozenset(slots[h]), frames[h]) for h in sorted(slots)]
        found = differing_messages(sides, wanted)
        return found, len(found) < DIFFERENCES_MAX

    @contextmanager
    def _sides(self, peers: Sequence[str]) -> Iterator[Looked]:
        """Yield this node and those of the peers that can be compared, at one cut."""
        sides: dict[str, Side] = {}
        try:
            self._own = OwnSide(self._replica, self._node, self._pace, self._repairer.replayed)
            sides[self._node] = self._own
            for name in peers:
                try:
                    side = self._others.side(name)
                except ComparisonError as error:
                    self.view.problem = str(error)
                    continue
                if side.about.is_comparable(self._own.about):
                    sides[name] = side
                else:
                    self.view.problem = f"{name} is of another release or cluster"
                    side.end()
            checkpoints = [side.about.checkpoint for side in sides.values()]
            for side in sides.values():
                side.agree(checkpoints)
            yield Looked(sides, cut_of(checkpoints, self._replica.settings.id_memory_ms))
        finally:
            self._own = None
            for side in sides.values():
                side.end()

    # What was found.

    def _count_gone(self, gone: Sequence[Differing], cut: CommonCut) -> None:
        for each in gone:
            self.view.counts["transient" if _holds(cut, each) else "passed"] += 1
        if gone:
            log.error("wheel_differed", **named([unjudged(each) for each in gone]))

    def _note_new(self, new: Iterable[Differing], sides: Looked) -> None:
        """Have the next rounds with those that differ begin where the second look saw something
        for the first time."""
        for each in new:
            holdings = each.of(sides)
            for name in sides.keys() - {self._node}:
                if holdings[name] != holdings[self._node]:
                    self._unfinished[name].update(_hours_of([each], {}))

    def _logged(self, seen: Iterable[Source]) -> dict[Source, Logged]:
        found = {source: self._log.logged(source) for source in islice(seen, LOGGED_MAX)}
        return {source: logged for source, logged in found.items() if logged is not None}

    def _judge(
        self,
        confirmed: Sequence[Differing],
        logged: Mapping[Source, Logged],
        sides: Looked,
    ) -> None:
        if not confirmed:
            return
        findings = self._judged(confirmed, logged, sides)
        self._alarm(findings)
        for name, hour in self._wrong_elsewhere(findings):
            if name in sides:
                with suppress(ComparisonError):  # its own rounds find it
                    self._others.tell(sides[name], hour)

    def _judged(
        self, differing: Sequence[Differing], logged: Mapping[Source, Logged], sides: Looked
    ) -> list[Finding]:
        findings = []
        for each in differing:
            holdings, (_, *source) = each.of(sides), each.source
            replayed = {n for n, side in sides.items() if tuple(source) in side.about.replayed}
            judgement = judge(holdings, logged.get(each.source), replayed)
            findings.append(Finding(each, holdings, judgement))
        return findings

    def _alarm(self, findings: Sequence[Finding]) -> None:
        known = {finding.differing.source: finding for finding in self.view.findings}
        new = [finding for finding in findings if finding.differing.source not in known]
        known |= {finding.differing.source: finding for finding in findings}
        self.view.findings = list(known.values())
        self.view.counts["confirmed"] += len(new)
        log.error("wheel_differs", **named(findings))

    def _wrong_elsewhere(self, findings: Sequence[Finding]) -> list[tuple[str, int]]:
        return sorted(
            {
                (name, hour)
                for finding in findings
                for name in finding.judgement.wrong - {self._node}
                for hour in _hours_of([finding.differing], {})
            }
        )

    # What others see.

    def shown(self) -> dict[str, Any]:
        """Return it for /status."""
        view, ended_ms = self.view, self.view.round_ended_ms
        return {
            "every_s": self._interval_s,
            "rounds": view.rounds,
            "failed": view.failed,
            "problem": view.problem,
            "age_ms": None if ended_ms is None else self._clock.monotonic_ms() - ended_ms,
            "passes": {name: walk.passes for name, walk in sorted([*self._walks.items()])},
            "left_out": sum(len(walk.left_out) for walk in [*self._walks.values()]),
            "read_bytes": self._pace.read_bytes,
            "repair": self._repairer.shown(),
            "differs": view.differs,
            "messages": [finding.shown() for finding in view.findings[:SHOWN_MAX]],
            **{name: view.counts[name] for name in ("confirmed", "passed", "transient")},
        }


def _hours_of(differing: Iterable[Differing], logged: Mapping[Source, Logged]) -> list[int]:
    """Return the hours in which these messages are held, or should be: one that a node does not
    hold in the hour where another does may be held, rightly, in the hour that the log says."""
    dues_ms = {v.due_ms for each in differing for held in each.holdings.values() for v in held}
    dues_ms |= {each.value.due_ms for each in logged.values() if each.value}
    return sorted({hour_of(slot_of(due_ms)) for due_ms in dues_ms})


def _holds(cut: CommonCut, each: Differing) -> bool:
    """Return whether all must hold what any of them holds of this source."""
    kind, partition, offset = each.source
    return any(
        cut.holds_kill(Rank(value.due_ms, partition, offset), value.crc)
        if kind == KILL
        else cut.holds(value.due_ms, partition, offset, each.lane, kind)
        for held in each.holdings.values()
        for value in held
    )
