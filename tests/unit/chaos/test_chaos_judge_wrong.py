"""The judge of mixed loads finds each wrong story by itself. Source: chaos/judge.py."""

from collections.abc import Callable

import pytest
from test_chaos_judge import DUE_MS, OWN, World, bad, cancelled, dead


def a_continuation_asks_for_something_else(world: World) -> None:
    message = world.message()
    world.deliver_again(world.continuation(message, message, topic="elsewhere"), message)


def a_continuation_names_another_origin(world: World) -> None:
    message = world.message()
    again = world.continuation(message, origin=message._replace(offset=9))
    world.deliver_again(again, message)


def a_message_is_continued_twice(world: World) -> None:
    message = world.message()
    world.continuation(message, message)
    world.deliver_again(world.continuation(message, message), message)


def a_refused_continuation_is_delivered(world: World) -> None:
    message = world.message()
    world.tell(world.cancel(DUE_MS), "too-late")
    world.deliver_again(world.continuation(message, message), message)


def a_continued_message_is_delivered_as_its_first_record(world: World) -> None:
    message = world.message()
    world.continuation(message, message)
    world.deliver(message)


def a_continued_message_died_as_its_first_record(world: World) -> None:
    message = world.message()
    world.continuation(message, message)
    world.bury(message, "dead", origin=message.place, attempt="2")
    world.tell(message, "dead")


def a_dead_message_is_altered(world: World) -> None:
    dead(world)
    world.dead[-1] = world.dead[-1]._replace(value=b"w")


def a_receipt_is_of_another_operation(world: World) -> None:
    message = world.message()
    world.tell(world.cancel(), "cancelled", message, op="replace")


def a_receipt_has_another_key(world: World) -> None:
    cancelled(world)
    world.receipts[-1] = world.receipts[-1]._replace(key=b"other")


def a_cancel_is_too_late_before_anything_was_delivered(world: World) -> None:
    world.deliver(world.message())
    world.tell(world.cancel(), "too-late", at_ms=DUE_MS - 1)


def a_cancel_did_not_find_what_was_there(world: World) -> None:
    world.deliver(world.message())
    world.tell(world.cancel(), "not-found")


def a_bad_request_has_another_reason(world: World) -> None:
    world.bury(world.ask(1_000, ("expect", b"missing-due"), topic="target"), "bad-due")


def a_cancel_claims_a_message_of_another_id(world: World) -> None:
    other = world.message(id="other")
    world.tell(world.cancel(), "cancelled", other)


def a_cancel_claims_what_was_never_sent(world: World) -> None:
    world.tell(world.cancel(), "cancelled", killed=["9/9"])


def a_message_has_the_receipt_of_a_cancel(world: World) -> None:
    message = world.message()
    world.deliver(message)
    world.tell(message, "not-found")


def a_cancel_has_a_dead_letter(world: World) -> None:
    cancel = world.cancel()
    world.tell(cancel, "not-found")
    world.bury(cancel, "bad-due")


def a_rejected_request_is_delivered(world: World) -> None:
    bad(world)
    [request] = world.requests
    ours = {"id": "id", "due": "0", "fired": str(DUE_MS), "source": request.place}
    headers = tuple((f"delayd-{name}", text.encode()) for name, text in ours.items())
    world.deliver(request, headers=(*OWN, ("expect", b"missing-due"), *headers))


def a_rejected_request_is_altered(world: World) -> None:
    bad(world)
    world.dead[-1] = world.dead[-1]._replace(headers=world.dead[-1].headers[1:])


WRONG = [story for name, story in globals().items() if name.startswith("a_")]


@pytest.mark.parametrize("story", WRONG, ids=lambda story: story.__name__)
def test_what_is_wrong_is_found(story: Callable[[World], None]) -> None:
    world = World()
    story(world)
    assert len(world.judge().faults) == 1, world.judge()
