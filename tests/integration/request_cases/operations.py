"""The cases of operations, ids and redrives as such. Data only.

Not here: the state of the id (states.py).
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from request_cases.case import (
    KEY,
    RECORD_BYTES_MAX,
    After,
    Case,
    Delivered,
    Fate,
    Header,
    Killed,
    Nothing,
    Pending,
    Step,
    Told,
)
from request_cases.making import (
    NOW,
    REJECTED,
    TOPIC,
    delivered,
    refused,
    refusing,
    spoilt,
)


def op_cases() -> Iterable[Case]:
    name = "delayd-op"

    def about(id: bytes) -> Header:
        return ("delayd-id", id)

    yield delivered(name, "schedule, as without it", (name, b"schedule"))
    bad = refusing(name, "bad-op", "use one of schedule, cancel, replace")
    for word in ("Cancel", "delete", " cancel", "schedule,cancel"):
        yield bad("no operation", word)
    cancel: Header = (name, b"cancel")
    replacing: Header = (name, b"replace")
    missing = "delayd-id is missing"
    yield refused(
        name, "cancel without an id", cancel, reason="missing-id", detail=missing, implied=()
    )
    yield refused(name, "replace without an id", replacing, reason="missing-id", detail=missing)
    for shown in (
        TOPIC,
        NOW,
        ("delayd-delay", b"1s"),
        ("delayd-level", b"1"),
        ("delayd-key", b"k"),
        ("delayd-partition", b"1"),
        ("delayd-redrive", b"0/4711"),
    ):
        unfit = str(shown[0])
        id = f"cancel-with-{unfit}".encode()
        yield refused(
            name,
            "cancel with a header that it does not take",
            cancel,
            about(id),
            shown,
            reason="unexpected-header",
            detail=f"the header {unfit} has no meaning with delayd-op cancel",
            implied=(),
            key=id,
            told=REJECTED,
        )
    id = b"replace-with-redrive"
    yield refused(
        name,
        "replace with a header that it does not take",
        replacing,
        about(id),
        ("delayd-redrive", b"0/4711"),
        reason="unexpected-header",
        detail="delayd-redrive has no meaning with delayd-op replace",
        key=id,
        told=REJECTED,
    )
    for left, wanted, reason in ((NOW, "topic", "missing-topic"), (TOPIC, "due", "missing-due")):
        id = f"replace-without-{wanted}".encode()
        yield refused(
            name,
            f"replace without {'a topic' if wanted == 'topic' else 'a time'}",
            replacing,
            about(id),
            reason=reason,
            detail=reason.replace("missing-topic", "is missing").replace("missing-due", "no due"),
            implied=(left,),
            key=id,
            told=REJECTED,
        )
    for says, id, value in (
        ("cancel without a value", b"cancel-null", None),
        ("cancel with a value and headers of yours: ignored", b"cancel-value", b"why"),
    ):
        mine: tuple[Header, ...] = () if value is None else (("mine", b"1"),)
        step = Step(
            (cancel, about(id), *mine),
            Nothing(),
            (Told("not-found", detail="nothing is scheduled under the id"),),
            key=id,
            value=value,
        )
        yield Case(name, says, (step,))
    yield from repeated_cases(name, replacing)
    yield from spoilt(name, b"cancel", (TOPIC, NOW))


def repeated_cases(name: str, op: Header) -> Iterable[Case]:
    """A replace that is sent again, once the first one has had its outcome."""

    def replaced(id: bytes, when: Header, fate: Fate, *told: Told) -> Step:
        headers = (op, ("delayd-id", id), TOPIC, when)
        return Step(headers, fate, told, key=id, after=After.ANSWERED)

    id = b"replace-again"
    first = replaced(id, NOW, Delivered(0), Told("replaced", (0,)))
    again = replaced(id, NOW, Nothing(), Told("replaced", (0,), "the same request is scheduled as"))
    old = Step((("delayd-id", id), TOPIC, ("delayd-delay", b"1h")), Killed(), key=id)
    yield Case(
        name,
        "replace, the same again with its due time",
        (old, replace(first, after=After.SENT), again),
    )
    id, later = b"replace-again-later", ("delayd-delay", b"1h")
    first = replaced(id, later, Killed(), Told("scheduled"))
    again = replaced(id, later, Pending(), Told("replaced", (0,)))
    yield Case(
        name, "replace, the same again with a delay", (replace(first, after=After.SENT), again)
    )


def id_cases() -> Iterable[Case]:
    name = "delayd-id"

    def good(says: str, id: bytes) -> Case:
        return delivered(name, says, (name, id), key=id)

    def bad(says: str, id: bytes, key: bytes | None, detail: str, told: bool = True) -> Case:
        return refused(
            name,
            says,
            (name, id),
            reason="bad-id",
            detail=detail,
            key=key,
            told=REJECTED if told else (),
        )

    yield good("the key", b"order-4711")
    yield good("one byte", b"i")
    yield good("256 bytes", b"i" * 256)
    yield good("256 bytes that are 128 characters", "ü".encode() * 128)
    yield good("not ASCII", "Bestellung №1".encode())
    yield good("a space", b" ")
    yield good("a NUL byte", b"order\x004711")
    yield good("quotes and a backslash", b'"order"\\4711')
    yield delivered(
        name,
        "with another key to deliver",
        (name, b"order-4712"),
        ("delayd-key", b"customer-7"),
        key=b"order-4712",
        delivered_key=b"customer-7",
    )
    traced = b"order-traced"
    duplicate = Told("duplicate", detail="the same request is scheduled as")
    sends = [
        Step(
            ((name, traced), TOPIC, ("delayd-delay", b"1h"), ("traceparent", b"00-%032x" % send)),
            Nothing() if send else Pending(),
            (duplicate,) if send else (),
            key=traced,
        )
        for send in range(3)
    ]
    yield Case(name, "the same twice more, each with a trace of its own", tuple(sends))
    yield bad("257 bytes", b"i" * 257, b"i" * 257, "has 257 bytes: use one of 1 to 256", False)
    yield bad("not the key", b"order-1", b"order-2", "send the id as the key, byte for byte")
    yield bad("other capitals than the key", b"Order-3", b"order-3", "which is another")
    yield bad("no key", b"order-4", None, "which is null")
    yield bad("an empty key", b"order-5", b"", "which is another")
    wrong = b"order-6"  # murmur2 has it in partition 0 of 3
    yield refused(
        name,
        "in another partition than murmur2 gives",
        (name, wrong),
        reason="wrong-partition",
        detail="partitioner=murmur2_random",
        key=wrong,
        partition=1,
        told=REJECTED,
    )
    yield refused(
        name,
        "two of them",
        (name, b"order-7"),
        (name, b"order-8"),
        reason="repeated-header",
        detail="more than once",
        key=b"order-7",
    )
    yield refused(
        name,
        "with another fault: a receipt too",
        (name, b"order-9"),
        ("delayd-dely", b"1s"),
        reason="unknown-header",
        detail="did you mean delayd-delay?",
        key=b"order-9",
        told=(Told("rejected", detail="unknown-header: "),),
    )
    yield from spoilt(name, KEY, (TOPIC, NOW))


def redrive_cases() -> Iterable[Case]:
    name = "delayd-redrive"

    def good(says: str, source: str, *others: Header, **fields: Any) -> Case:
        return delivered(
            name,
            says,
            (name, source.encode()),
            *others,
            partition=int(source.partition("/")[0]),
            told=(Told("scheduled", id=source),),
            **fields,
        )

    def bad(
        says: str, text: str, detail: str = "copy delayd-source of the dead letter", **fields: Any
    ) -> Case:
        shown = (name, text.encode())
        usual: dict[str, Any] = {"reason": "bad-redrive", "partition": 0}
        return refused(name, says, shown, detail=detail, **(usual | fields))

    yield good("a source", "0/4711000")
    yield good("in any partition", "2/4711000")
    yield good("as a schedule", "0/4711001", ("delayd-op", b"schedule"))
    yield good("Kafka's last offset", "1/9223372036854775807")
    first = Step(
        ((name, b"1/4711002"), TOPIC, NOW),
        Delivered(0),
        (Told("scheduled", id="1/4711002"),),
        partition=1,
    )
    again = Step(
        ((name, b"1/4711002"), TOPIC, NOW),
        Nothing(),
        (Told("duplicate", detail="was redriven before", id="1/4711002"),),
        value=b"whatever it says",
        partition=1,
        implied=2,
    )
    yield Case(name, "the same source again", (first, again))
    limit = RECORD_BYTES_MAX + 1_024
    yield good("as large as it may be", "0/4711004", size_bytes=limit)
    yield bad(
        "one byte more",
        "0/4711005",
        f"counts {limit + 1} bytes",
        reason="too-large",
        size_bytes=limit + 1,
        keeps_value=False,
        told=(Told("rejected", id="0/4711005"),),
    )
    yield bad(
        "not its partition",
        "1/4711003",
        "is sent again through partition 1",
        told=(Told("rejected", id="1/4711003"),),
    )
    yield bad("beyond Kafka's last offset", "0/9223372036854775808")
    yield bad("a word", "nowhere")
    yield bad("a partition only", "0")
    yield bad("no offset", "0/")
    yield bad("leading zeros", "0/04711")
    yield bad("negative", "0/-1")
    yield bad("a space behind", "0/4711 ")
    yield bad("three numbers", "0/4711/1")
    yield from spoilt(name, b"0/4711", (TOPIC, NOW))
