"""What this node answers to others that compare their wheels with its own.

    "cut", [checkpoint...]              compare by the cut of these
    "digests", level, [parent...]       digests below these nodes of the tree
    "frames", hour, [slot...], turn, turns
    "kills", hour                       digests of killed messages from there on
    "look", hour                        this node is wrong there, for all that the other one knows
    "end"                               let go

Questions and answers are msgpack. What takes long, because it is read at a pace, is worked on in
one thread of its own: whoever asks is told to ask again.

A checkpoint that is held for another node costs what was forgotten meanwhile. It is let go of when
nobody has asked for IDLE_S, HELD_S after its beginning, when the disk is short, and with the node.

Source: docs/design/storage.md, "Comparing running nodes".
"""

import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from delayd.errors import CorruptionError
from delayd.node.comparing.side import Checkpoint, ComparisonError, OwnSide, Pace
from delayd.node.comparing.wire import packed, unpacked
from delayd.node.replica.replica import Replica
from delayd.runtime.clock import Clock
from delayd.wheel.comparing.digest_tree import Level
from replication.record import FrontierFormatError

HELD_MAX: Final = 4
"""Checkpoints that are held for others."""
IDLE_S: Final = 300
"""An asker that reads a large hour itself asks nothing meanwhile."""
HELD_S: Final = 900
ANSWER_S: Final = 5.0
"""How long a question is worked on before the asker is told to ask again."""
PARENTS_MAX: Final = 4_096
SLOTS_MAX: Final = 3_600
TURNS_MAX: Final = 100_000
HOUR_MAX: Final = 2**40


class NotYetError(Exception):
    """The answer is being worked on: ask again."""


class _Held:
    """A checkpoint that is held for one node."""

    def __init__(self, asker: str, side: OwnSide, now_ms: int) -> None:
        self.asker = asker
        self.side = side
        self.began_ms = now_ms
        self.used_ms = now_ms
        self.works: dict[bytes, Future[bytes]] = {}
        """What is worked on, by question: one, unless an asker has given one up."""
        self.timer: threading.Timer | None = None

    def is_over(self, now_ms: int) -> bool:
        """Return whether nobody needs it any more, or had it for long enough."""
        is_idle = all(work.done() for work in self.works.values())
        return (is_idle and now_ms - self.used_ms >= IDLE_S * 1000) or (
            now_ms - self.began_ms >= HELD_S * 1000
        )


class Answerer:
    """Answers questions. Thread safe."""

    def __init__(
        self,
        replica: Replica,
        clock: Clock,
        pace: Pace,
        *,
        node: str,
        is_on: bool,
        on_damage: Callable[[CorruptionError], object],
        on_look: Callable[[str, int], object],
        replayed: Callable[[], Sequence[tuple[int, int]]] = tuple,
    ) -> None:
        """`on_look`: another node says that this one is wrong in an hour; `replayed`: see
        `About`."""
        self._replayed = replayed
        self._replica = replica
        self._clock = clock
        self._pace = pace
        self._node = node
        self._is_on = is_on
        self._on_damage = on_damage
        self._on_look = on_look
        self._lock = threading.Lock()
        self._ending = threading.Lock()
        """Held while sides are let go of, so that `stop` returns after that."""
        self._held: dict[str, _Held] = {}
        self._worker = ThreadPoolExecutor(1, "compare-answers")
        replica.room_makers.append(self.give_way)

    def begin(self, asker: str) -> bytes:
        """Hold the last checkpoint for a node; return its name and what it is. ComparisonError."""
        if not self._is_on:
            raise ComparisonError("it compares nothing: its compare_s is 0")
        self.sweep()
        self._end_all(lambda held: held.asker == asker)
        with self._lock:
            if len(self._held) >= HELD_MAX:
                raise ComparisonError(f"{len(self._held)} other nodes compare themselves with it")
        side = OwnSide(self._replica, self._node, self._pace, self._replayed())
        id = secrets.token_hex(8)
        with self._lock:
            if not self._is_on:
                side.end()
                raise ComparisonError("the node is being stopped")
            self._held[id] = held = _Held(asker, side, self._clock.monotonic_ms())
            self._watch(held)
        return packed([id, side.about])

    def ask(self, id: str, question: bytes) -> bytes:
        """Return the answer. NotYetError if that takes longer; ComparisonError."""
        with self._lock:
            held = self._held.get(id)
            if held is None:
                raise ComparisonError("there is no such comparison, or it has ended")
            held.used_ms = self._clock.monotonic_ms()
            work = held.works.get(question)
            if work is None:
                work = held.works[question] = self._worker.submit(self._answer, held, question)
        try:
            answer = work.result(ANSWER_S)
        except TimeoutError as error:
            raise NotYetError from error
        except CorruptionError as error:
            self._on_damage(error)
            raise ComparisonError(str(error)) from error
        finally:
            if work.done():
                held.works.pop(question, None)
        return answer

    def _answer(self, held: _Held, question: bytes) -> bytes:
        try:
            return packed(self._answered(held, question))
        except (ValueError, TypeError, FrontierFormatError) as error:
            raise ComparisonError(f"a question that cannot be answered: {error}") from error

    def _answered(self, held: _Held, question: bytes) -> Any:
        match unpacked(question):
            case ["cut", [*checkpoints]]:
                held.side.agree([Checkpoint.read(each) for each in checkpoints])
                return None
            case ["digests", int(level), [*parents]] if len(parents) <= PARENTS_MAX:
                return list(held.side.digests(Level(level), parents).items())
            case ["frames", int(hour), [*slots], int(turn), int(turns)] if (
                len(slots) <= SLOTS_MAX and 0 <= turn < turns <= TURNS_MAX
            ):
                return held.side.frames(hour, slots, turn, turns)
            case ["kills", int(hour)] if 0 <= hour <= HOUR_MAX:
                digests, next_hour = held.side.kill_digests(hour)
                return [list(digests.items()), next_hour]
            case ["look", int(hour)]:
                self._on_look(held.asker, hour)
                return None
            case ["end"]:
                self._end_all(lambda each: each is held)
                return None
        raise ComparisonError("an unknown question: is it of another release?")

    def sweep(self) -> None:
        """Let go of what nobody asks for any more."""
        now_ms = self._clock.monotonic_ms()
        self._end_all(lambda held: held.is_over(now_ms))

    def _watch(self, held: _Held) -> None:
        held.timer = threading.Timer(IDLE_S / 4, self._look, [held])
        held.timer.daemon = True
        held.timer.start()

    def _look(self, held: _Held) -> None:
        self.sweep()
        with self._lock:
            if held in self._held.values():
                self._watch(held)

    def give_way(self) -> None:
        """Let go of all, because the disk is short."""
        self._end_all(lambda held: True)

    def stop(self) -> None:
        """Let go of all, for good; nobody uses the replica afterwards."""
        with self._lock:
            self._is_on = False
        self.give_way()
        self._worker.shutdown(wait=True, cancel_futures=True)
        self.give_way()

    def _end_all(self, which: Callable[[_Held], bool]) -> None:
        with self._ending:
            with self._lock:
                ended = [self._held.pop(id) for id, held in [*self._held.items()] if which(held)]
            for held in ended:
                if held.timer is not None:
                    held.timer.cancel()
                held.side.end()
