"""The cases of the target: its topic, its key, its partition. Data only."""

from collections.abc import Iterable

from request_cases.case import (
    KEY,
    Case,
    Dead,
    Header,
    Step,
)
from request_cases.making import (
    NOW,
    TOPIC,
    delivered,
    dies,
    refused,
    spoilt,
)


def topic_cases() -> Iterable[Case]:
    name = "delayd-topic"

    def bad(says: str, topic: bytes, reason: str, detail: str) -> Case:
        shown = (name, topic)
        return refused(name, says, shown, reason=reason, detail=detail, implied=(NOW,))

    yield delivered(name, "a topic", TOPIC, implied=(NOW,))
    every_kind = b"Orders_2.eu-west"
    yield delivered(
        name, "every kind of character", (name, every_kind), implied=(NOW,), topic=every_kind
    )
    long = b"t" * 249
    yield delivered(name, "as long as a name can be", (name, long), implied=(NOW,), topic=long)
    yield bad("one character more", long + b"t", "bad-topic", "1 to 249 letters")
    yield refused(name, "none", reason="missing-topic", detail="is missing", implied=(NOW,))
    yield refused(
        name,
        "another spelling is a header of yours",
        ("Delayd-Topic", b"orders"),
        reason="missing-topic",
        detail="delayd-topic is missing",
        implied=(NOW,),
    )
    yield bad("a slash", b"orders/eu", "bad-topic", "no legal topic name")
    yield bad("a space", b" orders", "bad-topic", "no legal topic name")
    yield bad("a NUL byte", b"orders\0", "bad-topic", "no legal topic name")
    yield bad("not ASCII", "größe".encode(), "bad-topic", "gr\\xf6\\xdfe")
    yield bad("a dot", b".", "bad-topic", "not . or ..")
    yield bad("two dots", b"..", "bad-topic", "not . or ..")
    yield bad("Kafka's own", b"__consumer_offsets", "forbidden-topic", "Kafka (__*)")
    yield bad("delayd's own", b"delayd-buffer", "forbidden-topic", "never a target")
    yield bad("as delayd's own", b"delayd-orders", "forbidden-topic", "it belongs to delayd")
    yield refused(
        name,
        "two of them",
        TOPIC,
        (name, b"others"),
        reason="repeated-header",
        detail="more than once",
        implied=(NOW,),
    )
    yield from spoilt(name, b"orders", (NOW,))
    yield dies(
        name,
        "a topic that does not exist",
        (name, b"no-such-topic"),
        detail="topic no-such-topic does not exist; create it",
        implied=(NOW,),
    )
    yield Case(
        name,
        "a topic that takes smaller records only",
        (
            Step(
                ((name, b"small"), NOW),
                Dead("takes 2000 at most (max.message.bytes)"),
                value=b"x" * 2_000,
                implied=1,
            ),
        ),
    )
    compacted: Header = (name, b"compacted")
    yield delivered(
        name, "a compacted topic, with a key", compacted, implied=(NOW,), topic=b"compacted"
    )
    yield Case(
        name,
        "a compacted topic, without a key",
        (Step((compacted, NOW), Dead("each record needs a key"), key=None, implied=1),),
    )


def key_cases() -> Iterable[Case]:
    name = "delayd-key"
    long = b"k" * 1_000
    yield delivered(name, "none: the record's own", implied=(TOPIC, NOW))
    yield delivered(name, "another", (name, b"customer-7"), delivered_key=b"customer-7")
    yield delivered(name, "the same", (name, KEY), delivered_key=KEY)
    yield delivered(name, "for a record without a key", (name, b"k"), key=None, delivered_key=b"k")
    umlaut = "schlüssel".encode()
    yield delivered(name, "not ASCII", (name, umlaut), delivered_key=umlaut)
    yield delivered(name, "a NUL byte", (name, b"a\0b"), delivered_key=b"a\0b")
    yield delivered(name, "a long one", (name, long), delivered_key=long)
    yield delivered(name, "a space", (name, b" "), delivered_key=b" ")
    yield from spoilt(name, b"customer-7", (TOPIC, NOW))


def partition_cases() -> Iterable[Case]:
    name = "delayd-partition"

    def bad(says: str, text: str) -> Case:
        return refused(
            name,
            says,
            (name, text.encode()),
            reason="bad-partition",
            detail="is not an integer from 0 to 2147483647",
        )

    yield delivered(name, "the first", (name, b"0"), to_partition=0)
    yield delivered(name, "the second", (name, b"1"), to_partition=1)
    yield delivered(name, "the last of four", (name, b"3"), to_partition=3)
    yield delivered(name, "a leading zero", (name, b"02"), to_partition=2)
    yield delivered(name, "of a record without a key", (name, b"2"), key=None, to_partition=2)
    there: Header = ("delayd-key", b"customer-7")
    yield delivered(
        name,
        "with another key",
        (name, b"1"),
        there,
        delivered_key=b"customer-7",
        to_partition=1,
    )
    for says, text in (("one too many", "4"), ("Kafka's last", "2147483647")):
        yield dies(
            name,
            says,
            (name, text.encode()),
            detail=f"has 4 partitions, the message asks for partition {text}",
            implied=(TOPIC, NOW),
        )
    yield bad("beyond Kafka's last", "2147483648")
    yield bad("11 digits", "00000000001")
    yield bad("negative", "-1")
    yield bad("a fraction", "1.0")
    yield bad("a word", "first")
    yield bad("a list", "0,1")
    yield from spoilt(name, b"1", (TOPIC, NOW))
