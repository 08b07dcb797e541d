"""The cases of ids: each operation in each state of the id. Data only.

A state is made by the first steps of a case, the operation is its last one. What a column sends is
the same in every row, but for the id.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from delayd.bus.murmur2 import partition_of
from request_cases.case import (
    PARTITIONS,
    After,
    Case,
    Content,
    Dead,
    Delivered,
    Fate,
    Header,
    Killed,
    Nothing,
    Pending,
    Refused,
    Span,
    Step,
    Told,
)

SECTION = "Each operation in each state of the id"
COLUMNS = ("the same again", "something else", "replace", "debounce", "cancel", "redrive")

TOPIC: Header = ("delayd-topic", b"orders")
MISSING: Header = ("delayd-topic", b"no-such-topic")
SOON: Header = ("delayd-delay", b"1ms")
FAR: Header = ("delayd-delay", b"1h")
FIRST = b"first"
OLDER = b"an older dead letter"
NEWER = b"a newer dead letter"

REPLACE: Header = ("delayd-op", b"replace")
CANCEL: Header = ("delayd-op", b"cancel")
DEBOUNCE: Header = ("delayd-op", b"debounce")
MAX_WAIT: Header = ("delayd-max-wait", b"1ms")
ARRIVES = Delivered(Span(1))
LATER = "no-such-topic does not exist"


@dataclass(frozen=True, slots=True)
class Came:
    """What an operation comes to, and what becomes of the state's own messages then."""

    fate: Fate
    told: tuple[Told, ...] = ()
    before: dict[int, Fate] = field(default_factory=dict)
    """By step: fates that this operation changes."""


def step(*headers: Header, fate: Fate, told: tuple[Told, ...] = (), value: bytes = FIRST) -> Step:
    return Step(headers, fate, told, value=value)


def scheduled(fate: Fate, *when: Header) -> Step:
    return step(TOPIC, *when, fate=fate)


def cancelled(*killed: int, detail: str = "") -> Came:
    return Came(Nothing(), (Told("cancelled", killed, detail),), dict.fromkeys(killed, Killed()))


def replaced(*killed: int) -> Came:
    return Came(ARRIVES, (Told("replaced", killed),), dict.fromkeys(killed, Killed()))


DUPLICATE = Came(Nothing(), (Told("duplicate", detail="the same request is scheduled as"),))
CONFLICT = Came(
    Refused("conflict", "send delayd-op replace to have this one instead"), (Told("conflict"),)
)
ARRIVED = Came(ARRIVES)
REPLACED_NOTHING = Came(ARRIVES, (Told("scheduled"),))
REPLACED_TOO_LATE = Came(ARRIVES, (Told("too-late", detail="had been delivered"),))
TOO_LATE = Came(Nothing(), (Told("too-late", detail="had been delivered or dead-lettered"),))
NOT_FOUND = Came(Nothing(), (Told("not-found", detail="nothing is remembered of it"),))
AGAIN = Came(Nothing(), (Told("cancelled", (0,), "an earlier request cancelled it"),))
DIES = Dead(LATER)
DEAD_TOLD = (Told("dead", detail=LATER),)

CANCEL_0 = step(CANCEL, fate=Nothing(), told=(Told("cancelled", (0,)),))
PENDING = scheduled(Pending(), FAR)
RETRIED = step(MISSING, SOON, fate=DIES, told=DEAD_TOLD)
IN_TIME: Header = ("delayd-delay", b"12s")
"""Long enough to be cancelled by the record that follows, on a busy machine too."""


@dataclass(frozen=True, slots=True)
class State:
    """A state of an id: how it is made, and what each operation comes to then."""

    says: str
    slug: str
    made: tuple[Step, ...]
    same: Came
    cancel: Came
    other: Came = ARRIVED
    replace: Came = REPLACED_NOTHING
    debounce: Came = ARRIVED
    redrive: Came = Came(ARRIVES, (Told("scheduled"),))
    sent: int = 0
    """The step that `the same again` repeats."""
    after: After = After.SENT
    forgets: bool = False


STATES = (
    State(
        "nothing",
        "nothing",
        (),
        same=Came(Pending()),
        cancel=NOT_FOUND,
    ),
    State(
        "a message is pending",
        "pending",
        (PENDING,),
        same=DUPLICATE,
        other=CONFLICT,
        replace=replaced(0),
        debounce=replaced(0),
        cancel=cancelled(0),
    ),
    State(
        "it is delivered",
        "delivered",
        (scheduled(ARRIVES, SOON),),
        same=ARRIVED,
        replace=REPLACED_TOO_LATE,
        cancel=TOO_LATE,
        after=After.ANSWERED,
    ),
    State(
        "it is delivered, and a cancel was too late",
        "too-late",
        (
            scheduled(ARRIVES, SOON),
            replace(step(CANCEL, fate=Nothing(), told=TOO_LATE.told), after=After.ANSWERED),
        ),
        same=ARRIVED,
        cancel=TOO_LATE,
        after=After.ANSWERED,
    ),
    State(
        "it is being retried: its target does not exist",
        "retried",
        (RETRIED,),
        same=DUPLICATE,
        other=CONFLICT,
        replace=replaced(0),
        debounce=replaced(0),
        cancel=cancelled(0),
        after=After.RETRIED,
    ),
    State(
        "it is dead: its target never came to exist",
        "dead",
        (RETRIED,),
        same=Came(DIES, DEAD_TOLD),
        replace=REPLACED_TOO_LATE,
        cancel=TOO_LATE,
        after=After.ANSWERED,
    ),
    State(
        "it is cancelled",
        "cancelled",
        (replace(PENDING, fate=Killed()), CANCEL_0),
        same=Came(Pending()),
        cancel=AGAIN,
    ),
    State(
        "it is cancelled, and would be due by now",
        "cancelled-past",
        (scheduled(Killed(), IN_TIME), CANCEL_0),
        same=Came(Delivered(Span(12_000))),
        cancel=AGAIN,
        after=After.PASSED,
    ),
    State(
        "it was cancelled while it was retried",
        "cancelled-retry",
        (
            replace(RETRIED, fate=Killed(), told=()),
            replace(CANCEL_0, after=After.RETRIED),
        ),
        same=Came(DIES, DEAD_TOLD),
        cancel=AGAIN,
    ),
    State(
        "it is replaced, the new one is pending",
        "replaced",
        (
            replace(PENDING, fate=Killed()),
            step(REPLACE, TOPIC, FAR, fate=Pending(), told=(Told("replaced", (0,)),), value=b"2nd"),
        ),
        same=DUPLICATE,
        other=CONFLICT,
        replace=replaced(1),
        debounce=replaced(1),
        cancel=cancelled(1),
        sent=1,
    ),
    State(
        "it is replaced, the new one is delivered",
        "replaced-delivered",
        (
            replace(PENDING, fate=Killed()),
            step(REPLACE, TOPIC, SOON, fate=ARRIVES, told=(Told("replaced", (0,)),), value=b"2nd"),
        ),
        same=ARRIVED,
        replace=REPLACED_TOO_LATE,
        cancel=TOO_LATE,
        sent=1,
        after=After.ANSWERED,
    ),
    State(
        "two are pending: one is a redrive",
        "two",
        (
            PENDING,
            step(
                TOPIC,
                FAR,
                ("delayd-redrive", OLDER),
                fate=Pending(),
                told=(Told("scheduled"),),
                value=b"redriven",
            ),
        ),
        same=DUPLICATE,
        other=CONFLICT,
        replace=replaced(0, 1),
        debounce=replaced(0, 1),
        cancel=cancelled(0, 1),
    ),
    State(
        "one is pending, and something else met a conflict",
        "conflict",
        (PENDING, step(TOPIC, FAR, fate=CONFLICT.fate, told=CONFLICT.told, value=b"2nd")),
        same=DUPLICATE,
        other=CONFLICT,
        replace=replaced(0),
        debounce=replaced(0),
        cancel=cancelled(0),
    ),
    State(
        "nothing: the request was refused",
        "refused",
        (
            step(
                TOPIC,
                ("delayd-delay", b"soon"),
                fate=Refused("bad-delay", "write it like"),
                told=(Told("rejected", detail="bad-delay: "),),
            ),
        ),
        same=Came(Refused("bad-delay", "write it like"), (Told("rejected"),)),
        cancel=NOT_FOUND,
    ),
    State(
        "it was delivered longer ago than ids are remembered",
        "forgotten",
        (scheduled(ARRIVES, SOON),),
        same=ARRIVED,
        cancel=NOT_FOUND,
        after=After.ANSWERED,
        forgets=True,
    ),
    State(
        "it was cancelled, longer ago than ids are remembered",
        "forgotten-cancel",
        (scheduled(Killed(), IN_TIME), CANCEL_0),
        same=Came(Delivered(Span(12_000))),
        cancel=Came(Nothing(), (Told("not-found"),)),
        after=After.PASSED,
        forgets=True,
    ),
)


def cases_of(number: int, state: State) -> Iterable[Case]:
    again = state.made[state.sent].headers if state.made else (TOPIC, FAR)
    repeated = tuple(header for header in again if header[0] != "delayd-op")
    value = state.made[state.sent].value if state.made else FIRST
    asks: tuple[tuple[Came, tuple[Header, ...], bytes | None], ...] = (
        (state.same, repeated, value),
        (state.other, (TOPIC, SOON), b"something else"),
        (state.replace, (REPLACE, TOPIC, SOON), b"instead"),
        (state.debounce, (DEBOUNCE, TOPIC, SOON, MAX_WAIT), b"the last one"),
        (state.cancel, (CANCEL,), None),
        (state.redrive, (TOPIC, SOON, ("delayd-redrive", NEWER)), b"redriven"),
    )
    for place, (column, (came, headers, content)) in enumerate(zip(COLUMNS, asks, strict=True)):
        if state.after is After.RETRIED:
            # The message that was being retried is dead in the end, or never.
            came = replace(came, before={0: came.before.get(0, DIES)})
        id = f"{state.slug}-{column.replace(' ', '-')}".encode()
        steps = [
            replace(each, key=id, fate=came.before.get(n, each.fate))
            for n, each in enumerate(state.made)
        ]
        if isinstance(came.before.get(0), Killed):
            # What never comes to its end is not told of it.
            steps = [
                replace(each, told=tuple(told for told in each.told if told.verdict != "dead"))
                for each in steps
            ]
        steps.append(Step(headers, came.fate, came.told, key=id, value=content, after=state.after))
        made = (with_id(each, id, number * len(COLUMNS) + place) for each in steps)
        yield Case(SECTION, state.says, tuple(made), column, state.forgets)


def with_id(step: Step, id: bytes, number: int) -> Step:
    """With the header `delayd-id`; what is redriven is redriven by this step only."""
    partition = partition_of(id, PARTITIONS)
    sources: dict[Content, bytes] = {
        OLDER: b"%d/%d" % (partition, 8_000_000_000 + number),
        NEWER: b"%d/%d" % (partition, 9_000_000_000 + number),
    }
    headers = tuple((name, sources.get(content, content)) for name, content in step.headers)
    return replace(step, headers=(("delayd-id", id), *headers))


ID_CASES: tuple[Case, ...] = tuple(
    case for number, state in enumerate(STATES) for case in cases_of(number, state)
)
