"""The cases of the target: its topic, its key, its partition. Data only."""

from collections.abc import Iterable

from request_cases.case import (
    KEY,
    Case,
    Header,
)
from request_cases.making import (
    NOW,
    TOPIC,
    delivered,
    dies,
    refused,
    refusing,
    spoilt,
)


def topic_cases() -> Iterable[Case]:
    name = "delayd-topic"
    bad = refusing(name, "bad-topic", "no legal topic name", (NOW,))
    yield delivered(name, "a topic", TOPIC, implied=(NOW,))
    every_kind = b"Orders_2.eu-west"
    yield delivered(
        name, "every kind of character", (name, every_kind), implied=(NOW,), topic=every_kind
    )
    long = b"t" * 249
    yield delivered(name, "as long as a name can be", (name, long), implied=(NOW,), topic=long)
    yield bad("one character more", "t" * 250, "1 to 249 letters")
    yield refused(name, "none", reason="missing-topic", detail="is missing", implied=(NOW,))
    yield refused(
        name,
        "another spelling is a header of yours",
        ("Delayd-Topic", b"orders"),
        reason="missing-topic",
        detail="delayd-topic is missing",
        implied=(NOW,),
    )
    yield bad("a slash", "orders/eu")
    yield bad("a space", " orders")
    yield bad("a NUL byte", "orders\0")
    yield bad("not ASCII", "größe", "gr\\xf6\\xdfe")
    yield bad("a dot", ".", "not . or ..")
    yield bad("two dots", "..", "not . or ..")
    yield bad("Kafka's own", "__consumer_offsets", "Kafka (__*)", "forbidden-topic")
    yield bad("delayd's own", "delayd-buffer", "never a target", "forbidden-topic")
    yield bad("as delayd's own", "delayd-orders", "it belongs to delayd", "forbidden-topic")
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
    yield dies(
        name,
        "a topic that takes smaller records only",
        (name, b"small"),
        detail="takes 2000 at most (max.message.bytes)",
        implied=(NOW,),
        value=b"x" * 2_000,
    )
    compacted: Header = (name, b"compacted")
    yield delivered(
        name, "a compacted topic, with a key", compacted, implied=(NOW,), topic=b"compacted"
    )
    yield dies(
        name,
        "a compacted topic, without a key",
        compacted,
        detail="each record needs a key",
        implied=(NOW,),
        key=None,
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
    bad = refusing(name, "bad-partition", "is not an integer from 0 to 2147483647")
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
