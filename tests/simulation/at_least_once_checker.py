"""What must hold of a run whose guarantee is at-least-once: judged from Kafka and from etcd.

Nothing lost, nothing early; each frontier that etcd took follows the one before, written by who led
then; what was delivered twice had not been covered by the last frontier that its deliverer knew.
Requests, ranks and frontiers are read as `simulation_checker.py` reads them.
"""

import json
from collections import Counter
from typing import Any

from log_rules import MOVES, Request, Step, check_follows, step_of_fields
from simulated.history import History
from simulation_checker import DEAD, FRONTIER, Checker
from wishes_checker import LATER

MARKER_VERDICTS = {"cancelled", "too-late", "not-found", "replaced", "scheduled", "rescheduled"}


class AtLeastOnceChecker:
    """One finished run. `read` has read its requests, arrivals and receipts."""

    def __init__(self, read: Checker, history: History) -> None:
        self._read = read
        self._history = history
        self.rules = read.rules
        self.messages = read.messages
        self.answers = read.answers
        self.late: set[str] = set()
        self.written = [step_of_fields(json.loads(write.value)) for write in history.writes]
        """What etcd took, in its order."""
        in_order = [
            (step, at_ms)
            for index, (step, at_ms) in enumerate(zip(read.steps, read.step_times, strict=True))
            if all(step.fields["step"] > other.fields["step"] for other in read.steps[:index])
        ]
        self.steps = [step for step, _ in in_order]
        """What followers take from the frontier topic."""
        self.step_times = [at_ms for _, at_ms in in_order]
        self.doubled: Counter[str] = Counter()
        """By source: how often it arrived beyond the first time."""

    def check(self) -> None:
        """Raise AssertionError, with the source or step that breaks a rule."""
        self._read.check_barriers()
        self.check_progress()
        self.check_topic()
        self.check_arrivals()
        self.check_nothing_lost()
        self.check_answers()
        self._read.pauses.check_holds([self.steps[0], *self.written])

    def check_progress(self) -> None:
        """Check progress: forward only, step by step; terms never back; written only by the
        leader of that time."""
        before = self.steps[0]
        for write, after in zip(self._history.writes, self.written, strict=True):
            new = after.fields
            where = f"step {new['step']} of {new['owner']}"
            assert write.leader is not None, f"{where}: nobody led"
            leader = json.loads(write.leader)
            assert f"{leader['node']}/{leader['nonce']}" == new["owner"], f"{where}: {leader}"
            check_follows(before, after)
            before = after

    def check_topic(self) -> None:
        """Check that the frontier topic holds nothing that etcd did not hold before."""
        first, *others = self._read.committed(FRONTIER)
        assert json.loads(first.value or b"")["step"] == 0, "the first record was written once"
        for record in others:
            write = self._history.index_of((record.value or b"").decode())
            assert write is not None, f"{record.offset} was never in etcd"
            sent = self._history.sent[FRONTIER, 0, record.offset]
            assert sent.known >= write, f"{record.offset} was ahead of etcd"

    def check_arrivals(self) -> None:
        """Check each arrival: asked for, unaltered, not early, and not covered by the progress
        that its sender knew."""
        by_source = {request.source: request for request in self.messages + self.answers}
        seen: set[tuple[str, str, int]] = set()
        for topic in self._read.targets():
            for record in self._read.committed(topic):
                headers = dict(record.headers)
                source = (headers["delayd-source"] or b"").decode()
                assert source in by_source, f"{source} was not asked for, or ignored"
                request = by_source[source]
                assert record.value == request.value, f"{source} was altered"
                known = self._history.sent[topic, record.partition, record.offset].known
                before = self.steps[0] if known < 0 else self.written[known]
                assert not self._is_passed(before, request), f"{source} again, after its step"
                assert (topic, source, known) not in seen, f"{source} twice in one step"
                self.doubled[source] += any(at[:2] == (topic, source) for at in seen)
                seen.add((topic, source, known))
                if topic != DEAD:
                    self._read.check_not_early(topic, record, request)

    def check_nothing_lost(self) -> None:
        """Check that each accepted message that is due has arrived, or the answer to a cancel
        marker said that it never will."""
        for message in self.messages:
            found = self._read.produced[message.source]
            if message.source in self.rules.continued_by:
                is_owed = self.rules.continued_by[message.source].follows
                assert found or not is_owed, f"{message.source} is lost, and its series goes on"
                continue
            if message.due_ms > self._read.due_by_ms and not self._is_passed(self.last, message):
                continue
            marker = self.rules.killed_by.get(message.source)
            is_quiet = marker is not None and marker.op == "debounce" and marker not in self.answers
            if marker is not None and is_quiet and not found:
                continue
            if marker is not None and not found:
                told = {v["verdict"] for v in self._read.verdicts[marker.source]}
                # What a reschedule has killed, and nothing continues, a later one took over.
                said = {"rescheduled"} if marker.op in MOVES else {"cancelled", "replaced"}
                assert told & said, f"{message.source} is lost: {told}"
                continue
            expected = message.topic
            if message.expects == "dead" or message.state == "over":
                expected = DEAD
            may_be_dead = message.topic in self._read.may_die or message.late
            assert found[expected] or (may_be_dead and found[DEAD]), f"{message.source} is lost"

    def check_answers(self) -> None:
        """Check that each request is answered truly, perhaps more than once."""
        for answer in self.answers:
            told = {v["verdict"] for v in self._read.verdicts[answer.source]} - LATER
            if answer.source in self.rules.refusals:
                assert told == {self.rules.refusals[answer.source]}, f"{answer.source}: {told}"
            elif answer.op == "redrive":
                expected = "rejected" if answer.expects == "answer" else "scheduled"
                assert told == {expected}, f"{answer.source}: {told}"
            elif answer.op in ("cancel", "replace", "debounce", *MOVES):
                assert told and told <= MARKER_VERDICTS, f"{answer.source}: {told}"
            is_dead = answer.op in ("schedule", "redrive") and (
                self.rules.refusals.get(answer.source) != "duplicate"
            )
            if is_dead and answer not in self.messages:
                assert self._read.produced[answer.source][DEAD], f"{answer.source} is lost"

    @property
    def last(self) -> Step:
        """Return the last frontier that etcd took."""
        return self.written[-1] if self.written else self.steps[0]

    def _is_passed(self, step: Step, request: Request) -> bool:
        if request in self.messages:
            return step.is_done(request)
        return request.offset < step.offsets[request.partition]

    def counts(self) -> dict[str, Any]:
        """Return figures for whoever reads a run."""
        return {"written": len(self.written), "doubled": self.doubled.total()}
