"""The judge of mixed loads finds each kind of wrong outcome. Source: chaos/judge.py."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from chaos.judge import Findings, judge
from chaos.records import Logged

DUE_MS = 10_000
Bytes = bytes | None
Pairs = tuple[tuple[str, Bytes], ...]
OWN: Pairs = (("trace", b"1"), ("bytes", b"\x00"), ("trace", b"1"))


class World:
    """Topics that a test fills. Everything is about one id, or none."""

    def __init__(self) -> None:
        self.requests: list[Logged] = []
        self.delivered: list[Logged] = []
        self.dead: list[Logged] = []
        self.receipts: list[Logged] = []

    def ask(self, append_ms: int, *own: tuple[str, Bytes], **asks: object) -> Logged:
        """A request at the end of the log."""
        headers = tuple((f"delayd-{name}", str(said).encode()) for name, said in asks.items())
        value = b"v" if asks.get("op") != "cancel" else None
        record = Logged(
            "buffer", 0, len(self.requests), append_ms, b"id", value, (*OWN, *headers, *own)
        )
        self.requests.append(record)
        return record

    def message(self, append_ms: int = 1_000, **asks: object) -> Logged:
        """A request for a message."""
        return self.ask(append_ms, **{"topic": "target", "due": DUE_MS, "id": "id", **asks})

    def cancel(self, append_ms: int = 2_000) -> Logged:
        return self.ask(append_ms, op="cancel", id="id")

    def switch(self) -> None:
        """A barrier: rules 4 hold behind it."""
        self.ask(2_500, rules=4, proof="x")

    def settle(self, *settled: list[Any]) -> None:
        """The master's note of what markers came to."""
        record = self.ask(DUE_MS + 1, settles=len(settled), proof="x")
        self.requests[-1] = record._replace(value=json.dumps(settled).encode())

    def continuation(self, of: Logged, origin: Logged, attempt: int = 1, **asks: object) -> Logged:
        """The master's own record."""
        own = {"continues": of.offset, "next-due": DUE_MS + 500, "attempt": attempt}
        asks = {"topic": "target", "due": DUE_MS, "id": "id", "origin": origin.place, **own, **asks}
        return self.ask(DUE_MS + 1, **asks)

    def deliver(self, request: Logged, **changes: Any) -> Logged:
        """Its record in the target, as it should be but for the changes."""
        ours: Pairs = (
            ("delayd-id", b"id"),
            ("delayd-due", b"%d" % DUE_MS),
            ("delayd-fired", b"%d" % DUE_MS),
            ("delayd-source", request.place.encode()),
        )
        record = Logged("target", 0, 0, DUE_MS, b"id", b"v", (*OWN, *ours))
        record = record._replace(**changes)
        self.delivered.append(record)
        return record

    def deliver_again(self, again: Logged, origin: Logged, *, is_retry: bool = True) -> None:
        """The record of a continuation in the target."""
        record = self.deliver(again)
        attempt = (("delayd-attempt", b"1"),) if is_retry else ()
        more = (("delayd-origin", origin.place.encode()), *attempt)
        self.delivered[-1] = record._replace(headers=(*record.headers, *more))

    def tell(self, request: Logged, verdict: str, *killed: Logged, **changes: Any) -> None:
        """A receipt."""
        fields = {
            "id": "id",
            "verdict": verdict,
            "op": request.header("delayd-op") or "schedule",
            "source": request.place,
            "killed": [record.place for record in killed],
            "at_ms": DUE_MS,
            **changes,
        }
        source = ("delayd-source", fields["source"].encode())
        told = Logged("receipts", 0, 0, 0, b"id", json.dumps(fields).encode(), (source,))
        self.receipts.append(told)

    def bury(self, request: Logged, reason: str, **headers: str) -> None:
        """A dead letter."""
        said = {"reason": reason, "detail": "why", "source": request.place, **headers}
        ours = tuple((f"delayd-{name}", text.encode()) for name, text in said.items())
        kept = OWN if reason == "dead" else request.headers
        self.dead.append(Logged("dead", 0, 0, 0, b"id", request.value, (*kept, *ours)))

    def judge(self) -> Findings:
        return judge(self.requests, self.delivered, self.dead, self.receipts)


def cancelled(world: World) -> None:
    message = world.message()
    world.tell(world.cancel(), "cancelled", message)


def too_late(world: World) -> None:
    world.deliver(world.message())
    world.tell(world.cancel(), "too-late")


def cancelled_twice(world: World) -> None:
    message = world.message()
    world.tell(world.cancel(), "cancelled", message)
    world.tell(world.cancel(), "cancelled", message)


def not_found(world: World) -> None:
    world.tell(world.cancel(), "not-found")


def replaced(world: World) -> None:
    old, new = world.message(), world.message(op="replace")
    world.deliver(new)
    world.tell(new, "replaced", old)


def replaced_too_late(world: World) -> None:
    old, new = world.message(), world.message(op="replace")
    world.deliver(old)
    world.deliver(new)
    world.tell(new, "too-late")


def replaced_again(world: World) -> None:
    """By the rules under which masters write down what it came to."""
    old, new = world.message(), world.message(op="replace")
    world.ask(2_500, settles="id", proof="x")
    again = world.message(op="replace")
    for request in (new, again):
        world.tell(request, "replaced", old)
    world.deliver(new)


def replaced_again_by_older_rules(world: World) -> None:
    old, new, again = world.message(), world.message(op="replace"), world.message(op="replace")
    world.tell(new, "replaced", old)
    world.tell(again, "replaced", new)
    world.deliver(again)


def replaced_again_across_a_switch(world: World) -> None:
    """The first replace is by older rules: what it stored is replaced."""
    replaced_again_by_older_rules(world)
    again = world.requests.pop()
    world.switch()
    again = again._replace(offset=len(world.requests))
    world.requests.append(again)
    del world.receipts[-1], world.delivered[-1]
    world.tell(again, "replaced", world.requests[1])
    world.deliver(again)


def replaced_again_behind_a_switch(world: World) -> None:
    world.switch()
    replaced_again(world)


def cancelled_again_across_a_switch(world: World) -> None:
    """Nothing was settled: the second cancel may find what the first one killed, or not."""
    message, first = world.message(), world.cancel()
    world.switch()
    again, third = world.cancel(), world.cancel()
    for request in (first, again):
        world.tell(request, "cancelled", message)
    world.tell(third, "not-found")


def cancelled_again_behind_a_switch(world: World) -> None:
    not_found(world)
    world.switch()
    cancelled_twice(world)


def sent_again(world: World) -> None:
    world.deliver(world.message())
    world.tell(world.message(), "duplicate")


def sent_again_when_due(world: World) -> None:
    world.deliver(world.message())
    world.deliver(world.message(append_ms=DUE_MS))


def conflicting(world: World) -> None:
    world.deliver(world.message())
    other = world.message(key="another")
    world.tell(other, "conflict")
    world.bury(other, "conflict")


def delivered_after_a_retry(world: World) -> None:
    message = world.message()
    world.deliver_again(world.continuation(message, message), message)


def delivered_after_a_deferral(world: World) -> None:
    message = world.message()
    world.deliver_again(world.continuation(message, message, attempt=0), message, is_retry=False)


def cancelled_in_retry(world: World) -> None:
    message = world.message()
    world.continuation(message, message)
    world.tell(world.cancel(DUE_MS + 2), "cancelled", message)


def continuation_refused(world: World) -> None:
    message = world.message()
    world.tell(world.cancel(DUE_MS), "cancelled", message)
    world.continuation(message, message)


def dead(world: World) -> None:
    message = world.message()
    again = world.continuation(message, message)
    world.bury(again, "dead", origin=message.place, attempt="2")
    world.tell(message, "dead")


def conflicting_twice(world: World) -> None:
    world.deliver(world.message())
    for _ in range(2):
        other = world.message(due=DUE_MS + 500)
        world.tell(other, "conflict")
        world.bury(other, "conflict")


def cancelled_and_sent_again(world: World) -> None:
    cancelled(world)
    world.deliver(world.message())


def redriven(world: World) -> None:
    message = world.message(redrive="3/4")
    world.tell(message, "scheduled", op="redrive")
    world.deliver(message)
    again = world.message(redrive="3/4")
    world.tell(again, "duplicate", op="redrive")


def moved_too_late(world: World) -> None:
    """A reschedule came behind the delivery, and its master has said so."""
    message = world.message()
    world.deliver(message)
    moving = world.ask(DUE_MS + 1, op="reschedule", id="id", due=DUE_MS + 500)
    world.tell(moving, "too-late")
    world.settle(["id", moving.offset, [], [[DUE_MS, message.offset, 0, -1]], False, DUE_MS + 1])


def moved_too_late_and_cancelled(world: World) -> None:
    moved_too_late(world)
    world.tell(world.cancel(DUE_MS + 2), "too-late")


def moved_too_late_and_replaced(world: World) -> None:
    """What a reschedule found done is not live any more."""
    moved_too_late(world)
    replacing = world.message(DUE_MS + 2, op="replace")
    world.tell(replacing, "scheduled")
    world.deliver(replacing)


def bad(world: World) -> None:
    request = world.ask(1_000, ("expect", b"missing-due"), topic="target", id="id")
    world.bury(request, "missing-due")
    world.tell(request, "rejected")


RIGHT = [story for story in list(vars().values()) if getattr(story, "__module__", "") == __name__]
RIGHT.remove(World)
"""All stories so far: each is a world in which nothing is wrong."""


@pytest.mark.parametrize("story", RIGHT, ids=lambda story: story.__name__)
def test_what_is_right_passes(story: Callable[[World], None]) -> None:
    world = World()
    story(world)
    findings = world.judge()
    assert findings.ok, findings
    assert sum(findings.outcomes.values()) >= 1


@pytest.mark.parametrize("story", RIGHT, ids=lambda story: story.__name__)
def test_whatever_is_left_out_or_doubled_is_found(story: Callable[[World], None]) -> None:
    told = World()
    story(told)
    for topic in ("delivered", "dead", "receipts"):
        for number, record in enumerate(getattr(told, topic)):
            lost, doubled = World(), World()
            for world in (lost, doubled):
                story(world)
            getattr(lost, topic).pop(number)
            getattr(doubled, topic).append(record)
            assert not lost.judge().ok, f"{topic} without {record}"
            assert doubled.judge().faults, f"{topic} with {record} twice"


ALTERED = {"value": b"w", "key": b"other", "topic": "elsewhere", "append_ms": DUE_MS - 1}


@pytest.mark.parametrize(("field", "wrong"), [*ALTERED.items(), ("headers", ())])
def test_an_altered_or_early_record_is_found(field: str, wrong: object) -> None:
    world = World()
    world.deliver(world.message(), **{field: wrong})
    assert world.judge().faults


@pytest.mark.parametrize("name", ["trace", "bytes", "delayd-id", "delayd-due", "delayd-fired"])
def test_a_record_that_lacks_a_header_is_found(name: str) -> None:
    world = World()
    record = world.deliver(world.message())
    left = tuple(pair for pair in record.headers if pair[0] != name)
    world.delivered[-1] = record._replace(headers=left)
    assert world.judge().faults


def test_what_nobody_committed_is_found_when_it_is_delivered() -> None:
    world = World()
    world.deliver(world.message())
    world.requests.clear()
    assert "nobody asked" in str(world.judge())


def test_a_cancelled_message_that_is_delivered_is_found() -> None:
    world = World()
    message = world.message()
    world.tell(world.cancel(), "cancelled", message)
    world.deliver(message)
    assert "delivered and killed" in str(world.judge())


def test_a_message_that_is_both_dead_and_delivered_is_found() -> None:
    world = World()
    message = world.message(topic="target")
    world.deliver(message)
    world.bury(message, "dead", origin=message.place, attempt="1")
    world.tell(message, "dead")
    assert "delivered and dead" in str(world.judge())


def test_a_verdict_about_what_was_not_there_is_found() -> None:
    for verdict in ("cancelled", "too-late", "replaced", "scheduled"):
        world = World()
        world.tell(world.cancel(), verdict)
        assert world.judge().faults, verdict


@pytest.mark.parametrize("verdict", ["not-found", "too-late", "cancelled"])
def test_behind_a_switch_a_repeated_cancel_is_told_the_same_or_found(verdict: str) -> None:
    world = World()
    world.switch()
    message = world.message()
    world.tell(world.cancel(), "cancelled", message)
    again = world.cancel()
    world.tell(again, verdict, *([message] if verdict == "cancelled" else []))
    assert world.judge().ok == (verdict == "cancelled")


@pytest.mark.parametrize("is_switched", [False, True])
def test_a_replace_is_repeated_behind_a_switch_only(is_switched: bool) -> None:
    """What the first one stored is not replaced then."""
    world = World()
    world.switch()
    if not is_switched:
        world.requests[0] = world.requests[0]._replace(partition=-1)  # one before
    old, new, again = world.message(), world.message(op="replace"), world.message(op="replace")
    for request in (new, again):
        world.tell(request, "replaced", old)
    world.deliver(new)
    assert world.judge().ok == is_switched


def test_a_settlement_before_the_switch_is_nobodys() -> None:
    world = World()
    world.ask(500, settles="id", proof="x")
    world.switch()
    with pytest.raises(AssertionError, match="masters do"):
        world.judge()


def test_a_message_stored_twice_under_a_pending_id_is_found() -> None:
    world = World()
    world.deliver(world.message())
    world.deliver(world.message())
    assert world.judge().faults


def test_a_delivery_of_a_killed_messages_continuation_is_found() -> None:
    world = World()
    message = world.message()
    world.tell(world.cancel(DUE_MS), "cancelled", message)
    world.deliver_again(world.continuation(message, message), message)
    assert "delivered and killed" in str(world.judge())
