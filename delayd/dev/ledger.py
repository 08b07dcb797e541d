"""What a witness writes down, and the verdict that follows from it. Pure.

It knows the batch (batch.py) and what was received. Of delayd it knows the wire contract alone
(docs/design, "The wire contract"): `delayd-due` and `delayd-fired`.

Failover. A record belongs to a successor if its receipt and its `delayd-fired` are both later than
the end of the killed master's process: a dead master plans no steps, no node fires ahead of the
clock of this one host, and a record received earlier is no successor's, whatever it claims. So the
gap needs neither the frontier nor a guess about silence. It holds on one host with one clock, which
a local cluster is. A kill counts only if a message was due within the second after it; otherwise
nothing could be late because of it.

A batch with payments is one of orders: the id of each message is its key, and receipts answer the
payments (answers.py). A message whose payment was answered `cancelled` must not come. One that did
not come without that answer is lost, whatever else the payment was told.

Invariants: memory is 19 bytes a message, whatever is received; the verdict does not depend on the
order in which receipts and kills were written down.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Final, NamedTuple

from delayd.dev.answers import Answer, Answers
from delayd.dev.batch import Batch, Payments
from delayd.dev.verdict import Counts, Failover, Lateness, Stall, Verdict

KILL_WINDOW_MS: Final = 1_000
"""How soon after a kill a message must be due for the kill to count."""

CAUGHT_UP_MS: Final = 100
"""A successor that delivers this soon after the due time has caught up."""

STALLS_SHOWN: Final = 3
EXAMPLES_MAX: Final = 10

COPIES_MAX: Final = 255
_OURS: Final = "delayd-"
_ALTERED: Final = 1
_EARLY: Final = 2


class Receipt(NamedTuple):
    """A record as a consumer of the target got it, and when (Unix ms by this host's clock)."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    received_ms: int


class Kill(NamedTuple):
    """A master that was killed: just before the signal, and when it was surely gone. Unix ms."""

    at_ms: int
    gone_ms: int


class FirstCopies:
    """By number of a message: when its first copy was received and fired (0: never, unknown), and
    how many copies came."""

    def __init__(self, count: int) -> None:
        self.received_ms = array("q", bytes(8 * count))
        self.fired_ms = array("q", bytes(8 * count))
        self.copies = bytearray(count)

    def note_copy(self, number: int, received_ms: int, fired_ms: int) -> int:
        """Count one more copy. Return how many there are now."""
        copies = self.copies[number] = min(self.copies[number] + 1, COPIES_MAX)
        if copies == 1:
            self.received_ms[number], self.fired_ms[number] = received_ms, fired_ms
        return copies

    def successor_times(
        self, gone_ms: int, due_ms: Callable[[int], int]
    ) -> tuple[int | None, int | None]:
        """Return when the first record of a successor was received, and the first that came at most
        CAUGHT_UP_MS after its due time; None: none yet. `gone_ms`: when the killed master was."""
        first_ms = caught_up_ms = None
        times = zip(self.received_ms, self.fired_ms, strict=True)
        for number, (at_ms, sent_ms) in enumerate(times):
            if min(at_ms, sent_ms) <= gone_ms:
                continue
            first_ms = at_ms if first_ms is None else min(first_ms, at_ms)
            if at_ms - due_ms(number) <= CAUGHT_UP_MS:
                caught_up_ms = at_ms if caught_up_ms is None else min(caught_up_ms, at_ms)
        return first_ms, caught_up_ms


class Ledger(FirstCopies):
    """Receipts as they come. Used by one thread. `payments` are of this batch, if there are any."""

    def __init__(self, batch: Batch, payments: Payments | None = None) -> None:
        self._batch = batch
        self._answers = None if payments is None else Answers(payments)
        super().__init__(batch.count)
        self._faults = bytearray(batch.count)
        self._kills: list[Kill] = []
        self._delivered = self._doubled = self._early = self._altered = self._unknown = 0

    def write_down(self, receipt: Receipt) -> int | None:
        """Count one more record. Return its lateness in ms; None if it is a copy or not of the
        batch."""
        number = self._batch.number_of(receipt.key, receipt.value)
        if number is None:
            self._unknown += 1
            return None
        due_ms = self._batch.due_ms(number)
        fired_ms = _number(receipt.headers, "delayd-fired")
        if fired_ms is None or not self._is_as_sent(receipt, number, due_ms):
            self._altered += self._note_fault(number, _ALTERED)
        if receipt.received_ms < due_ms or (fired_ms is not None and fired_ms < due_ms):
            self._early += self._note_fault(number, _EARLY)
        copies = self.note_copy(number, receipt.received_ms, fired_ms or 0)
        if copies > 1:
            self._doubled += copies == 2
            return None
        self._delivered += 1
        return receipt.received_ms - due_ms

    def note_answer(self, answer: Answer) -> None:
        """Count a record of the receipts."""
        assert self._answers is not None, "receipts of a batch with payments"
        self._answers.write_down(answer)

    def note_kill(self, kill: Kill) -> None:
        """Take note that a master was killed."""
        self._kills.append(kill)

    def counts(self) -> Counts:
        """Return the counts so far."""
        answers = self._answers
        return Counts(
            delivered=self._delivered,
            doubled=self._doubled,
            early=self._early,
            altered=self._altered,
            unknown=self._unknown + (0 if answers is None else answers.stray),
            cancelled=0 if answers is None else answers.cancelled,
            too_late=0 if answers is None else answers.too_late,
        )

    def failovers(self) -> tuple[Failover, ...]:
        """Return the failovers so far; goes through all messages once for each kill."""
        return tuple(self._failover(kill) for kill in self._kills)

    def verdict(self, *, complete: bool) -> Verdict:
        """Return what all this proves, given that nothing more is to come."""
        failovers = self.failovers()
        delivered = [number for number, copies in enumerate(self.copies) if copies]
        answers = self._answers
        return Verdict(
            planned=self._batch.count,
            lost=sum(map(self._is_lost, range(self._batch.count))),
            wrong_verdicts=0 if answers is None else sum(1 for _ in answers.wrong(self.copies)),
            unanswered=0 if answers is None else answers.unanswered(),
            counts=self.counts(),
            complete=complete,
            lateness_ms=self._lateness(delivered),
            steady_lateness_ms=self._lateness(
                number for number in delivered if not self._is_affected(number, failovers)
            ),
            failovers=failovers,
            stalls=_stalls(self.received_ms[number] for number in delivered),
            examples=tuple(islice(self._examples(), EXAMPLES_MAX)),
        )

    def _is_lost(self, number: int) -> bool:
        is_cancelled = self._answers is not None and self._answers.is_cancelled(number)
        return not self.copies[number] and not is_cancelled

    def _is_as_sent(self, receipt: Receipt, number: int, due_ms: int) -> bool:
        batch = self._batch
        ids = [content for name, content in receipt.headers if name == "delayd-id"]
        headers = [pair for pair in receipt.headers if not pair[0].startswith(_OURS)]
        return (
            receipt.value == batch.value(number)
            and receipt.key == batch.key(number)
            and receipt.topic == batch.topic(number)
            and headers == batch.headers(number)
            and ids == ([] if self._answers is None else [batch.key(number)])
            and _number(receipt.headers, "delayd-due") == due_ms
        )

    def _note_fault(self, number: int, fault: int) -> int:
        is_new = not self._faults[number] & fault
        self._faults[number] |= fault
        return int(is_new)

    def _failover(self, kill: Kill) -> Failover:
        due_ms = self._batch.due_ms
        since_kill_ms = (due_ms(number) - kill.at_ms for number in range(self._batch.count))
        first_ms, caught_up_ms = self.successor_times(kill.gone_ms, due_ms)
        return Failover(
            killed_ms=kill.at_ms,
            counts=any(0 <= each_ms <= KILL_WINDOW_MS for each_ms in since_kill_ms),
            gap_ms=None if first_ms is None else first_ms - kill.at_ms,
            caught_up_ms=None if caught_up_ms is None else caught_up_ms - kill.at_ms,
        )

    def _is_affected(self, number: int, failovers: Iterable[Failover]) -> bool:
        received_ms, due_ms = self.received_ms[number], self._batch.due_ms(number)
        return any(
            received_ms >= failover.killed_ms
            and (
                failover.caught_up_ms is None
                or due_ms <= failover.killed_ms + failover.caught_up_ms
            )
            for failover in failovers
        )

    def _lateness(self, numbers: Iterable[int]) -> Lateness | None:
        batch = self._batch
        values = sorted(self.received_ms[number] - batch.due_ms(number) for number in numbers)
        if not values:
            return None
        p50, p99, p999 = (nearest_rank(values, per_mille) for per_mille in (500, 990, 999))
        return Lateness(p50, p99, p999, values[-1])

    def _examples(self) -> Iterator[str]:
        false = {} if self._answers is None else dict(self._answers.wrong(self.copies))
        for number, copies in enumerate(self.copies):
            wrong = ["lost"] if self._is_lost(number) else []
            wrong += [f"delivered {copies} times"] if copies > 1 else []
            wrong += ["altered"] if self._faults[number] & _ALTERED else []
            wrong += ["early"] if self._faults[number] & _EARLY else []
            wrong += [false[number]] if number in false else []
            if wrong:
                yield f"{self._batch.key(number).decode()}: {', '.join(wrong)}"


def nearest_rank(values: Sequence[int], per_mille: int) -> int:
    """Return a quantile of sorted values: the smallest that so many of a thousand do not exceed."""
    return values[max(0, -(-len(values) * per_mille // 1000) - 1)]


def _stalls(received_ms: Iterable[int]) -> tuple[Stall, ...]:
    times = sorted(received_ms)
    gaps = (Stall(before, after - before) for before, after in pairwise(times))
    longest = sorted(gaps, key=lambda stall: stall.for_ms, reverse=True)[:STALLS_SHOWN]
    return tuple(stall for stall in longest if stall.for_ms)


def _number(headers: Iterable[tuple[str, bytes | None]], name: str) -> int | None:
    """Return the number in the one header of that name; None if it is missing, repeated or no
    number."""
    found = [content for header, content in headers if header == name]
    if len(found) != 1 or not (found[0] or b"").isdigit():
        return None
    return int(found[0] or b"")
