"""Which dead letters are meant, how they are read, shown and counted."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from manual_clock import ManualClock

from delayd.bus import Headers
from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.client import NotScheduledError, RequestRefusedError, Verdict, VerdictUnknownError
from delayd.client.redrive_outcomes import Outcome, Send, Word, redrive, try_out
from delayd.cluster.dead_letters import RECORDS_MAX, Wanted, letters, newest, wanted, whole
from delayd.commands.dead.showing import line, outcome_line, page, time_of
from delayd.errors import (
    ConfigError,
    ConsumerError,
    DelaydError,
    KafkaUnreachableError,
    TopicMismatchError,
)
from delayd.request.letters import Letter
from delayd.request.redrives import NoRedrive, Redrive

NOW_MS = 1_700_000_000_000
DEAD = "delayd-dead"
TIMEOUT_MS = 500
EVERYTHING = Wanted()


class Passing(ManualClock):
    """Whoever looks at it lets time pass."""

    def monotonic_ms(self) -> int:
        self.now_ms += 100
        return self.now_ms


def letter(
    source: str = "3/4",
    reason: str = "dead",
    topic: str = "orders",
    dead_ms: int = NOW_MS,
    id: str | None = None,
    value: bytes | None = b"v",
    detail: str = "why",
) -> Letter:
    headers: Headers = [("delayd-topic", topic.encode())]
    if id is not None:
        headers.append(("delayd-id", id.encode()))
    return Letter(source, reason, detail, dead_ms, b"k", value, headers)


# Which are meant.


def test_a_letter_is_meant_if_all_that_is_given_fits() -> None:
    one = letter(id="a")
    assert Wanted().is_everything and Wanted().has(one)
    fitting: tuple[dict[str, Any], ...] = (
        {"sources": ["3/4", "0/1"]},
        {"reasons": ["dead", "too-far"]},
        {"topics": ["orders"], "ids": ["a"]},
        {"since": str(NOW_MS), "until": str(NOW_MS + 1)},
        {"since": "2h"},
        {"until": "2023-11-14T22:13:20.001Z"},
    )
    for fields in fitting:
        meant = wanted(NOW_MS, **fields)
        assert meant.has(one) and not meant.is_everything, fields
    others: tuple[dict[str, Any], ...] = (
        {"sources": ["3/5"]},
        {"reasons": ["too-far"]},
        {"topics": ["orders"], "ids": ["b"]},
        {"ids": ["a"], "since": str(NOW_MS + 1)},
        {"until": str(NOW_MS)},
    )
    for fields in others:
        assert not wanted(NOW_MS, **fields).has(one), fields


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"sources": ["4711"]}, "no source"),
        ({"sources": ["3/04"]}, "no source"),
        ({"reasons": ["ded"]}, "no reason 'ded'"),
        ({"since": "yesterday"}, "--since 'yesterday'"),
        ({"until": "2023-11-14T22:13:20"}, "--until"),
        ({"since": "1h", "until": "2h"}, "not after"),
    ],
)
def test_what_no_letter_can_have_is_a_slip(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        wanted(NOW_MS, **fields)


# Reading.


@pytest.fixture
def kafka() -> MemoryKafka:
    made = MemoryKafka(ManualClock(NOW_MS))
    made.create_topic(DEAD, 2, {})
    return made


def write(kafka: MemoryKafka, partition: int, number: int, reason: bytes = b"dead") -> None:
    headers: Headers = [
        *(("delayd-reason", reason), ("delayd-detail", b"why")),
        ("delayd-source", b"%d/%d" % (partition, number)),
    ]
    kafka.append(DEAD, partition, None, b"%d" % number, headers)


def read(kafka: MemoryKafka, meant: Wanted = EVERYTHING) -> Iterator[Letter]:
    return letters(MemoryBus(kafka), DEAD, meant, ManualClock(NOW_MS), TIMEOUT_MS)


def test_all_letters_are_read_and_none_that_comes_later(kafka: MemoryKafka) -> None:
    assert list(read(kafka)) == []
    for number in range(1_200):
        write(kafka, number % 2, number)
    kafka.append(DEAD, 0, None, b"no letter", [("mine", b"")])
    found = []
    for each in read(kafka):
        found.append(each)
        if len(found) == 3:
            write(kafka, 0, 9_999)
    assert sorted(int(each.value or b"") for each in found) == list(range(1_200))
    for partition in ("0", "1"):
        mine = [each.source for each in found if each.source.startswith(partition)]
        assert mine == sorted(mine, key=lambda source: int(source[2:])), "in their order"


def test_reading_ends_with_the_last_of_the_sources_that_are_meant(kafka: MemoryKafka) -> None:
    for number in range(10):
        write(kafka, 0, number)
    meant = Wanted(sources=frozenset({"0/3", "0/5"}))
    assert [each.source for each in read(kafka, meant)] == ["0/3", "0/5"]
    assert [each.source for each in read(kafka, Wanted(reasons=frozenset({"x"})))] == []


def test_reading_begins_where_it_may(kafka: MemoryKafka) -> None:
    clock = kafka.clock
    assert isinstance(clock, ManualClock)
    for number in range(3):
        write(kafka, 0, number)
        clock.now_ms += 1_000
    meant = Wanted(since_ms=NOW_MS + 1_000)
    assert [each.source for each in read(kafka, meant)] == ["0/1", "0/2"]
    assert list(read(kafka, Wanted(since_ms=clock.now_ms))) == []


def test_a_log_that_is_trimmed_meanwhile_is_no_mystery(kafka: MemoryKafka) -> None:
    for number in range(2 * RECORDS_MAX):
        write(kafka, 0, number)
    reading = read(kafka)
    next(reading)
    kafka.log(DEAD, 0).delete_before(2 * RECORDS_MAX - 1)
    with pytest.raises(ConsumerError, match="trimmed"):
        list(reading)


def test_an_absent_topic_and_a_log_that_stands_still_are_errors(kafka: MemoryKafka) -> None:
    bus = MemoryBus(kafka)
    with pytest.raises(TopicMismatchError):
        list(letters(bus, "nowhere", Wanted(), ManualClock(NOW_MS), TIMEOUT_MS))
    for number in range(RECORDS_MAX + 1):
        write(kafka, 0, number)
    reading = letters(bus, DEAD, Wanted(), Passing(), TIMEOUT_MS)
    next(reading)
    bus.link.up = False
    with pytest.raises(KafkaUnreachableError, match="could not be read to its end"):
        list(reading)


# What is said.


def test_a_list_keeps_the_newest_and_counts_all() -> None:
    some = [letter(f"0/{n}", dead_ms=NOW_MS + n % 3, value=bytes(1_000)) for n in range(9)]
    kept, reasons = newest([*some, letter(reason="too-far", dead_ms=0)], 2)
    assert [each.source for each in kept] == ["0/5", "0/8"]
    assert all(each.value is None for each in kept)
    assert reasons == {"dead": 9, "too-far": 1}


def test_a_terminal_gets_nothing_but_printable_characters() -> None:
    """Whoever sends requests chooses topics, ids, header names, keys and values."""
    hostile = "\x1b[2J\nx\u202e" + "y" * 5_000
    one = letter(topic=hostile, id=hostile, value=hostile.encode() + b"\xff")
    one.headers.append((hostile, None))
    for text in (line(one), *page(one).splitlines()):
        assert text.isprintable() and len(text) < 6_000
    assert "\\x1b[2J" in line(one) and "null" in page(one)
    assert len(line(one)) < 500
    assert line(letter()).split() == ["3/4", "2023-11-14T22:13:20.000Z", "dead", "orders", "why"]


def test_json_has_all_of_a_letter() -> None:
    one = letter(value=b"\xff\x00", id="\u00fc")._replace(key=None, origin="1/2", attempts=3)
    one.headers.append(("bin", b"\xfe"))
    assert json.loads(json.dumps(whole(one))) == {
        "source": "3/4",
        "reason": "dead",
        "detail": "why",
        "dead_ms": NOW_MS,
        "topic": "orders",
        "id": "\u00fc",
        "origin": "1/2",
        "attempts": 3,
        "truncated_bytes": None,
        "key": None,
        "value": {"base64": "/wA="},
        "headers": [
            *(["delayd-topic", "orders"], ["delayd-id", "\u00fc"], ["bin", {"base64": "/g=="}])
        ],
    }


def test_an_outcome_is_one_line() -> None:
    assert outcome_line(Outcome("3/4", Word.REDRIVEN, "", "3/9")) == "3/4          redriven as 3/9"
    assert outcome_line(Outcome("3/4", Word.MISSING, "why")) == "3/4          not found: why"
    assert time_of(0) == "1970-01-01T00:00:00.000Z"


# Redriving: what becomes of each answer.


def verdict(word: str) -> Verdict:
    return Verdict(word, (), None, NOW_MS, "because", "3/99")


def sending(sent: list[str], *answers: Verdict | DelaydError) -> Send:
    """Notes what is sent, and gives these answers in turn."""

    def send(redrives: Iterable[Redrive]) -> Iterator[Verdict | DelaydError]:
        for each, answer in zip(redrives, answers, strict=False):
            sent.append(each.source)
            yield answer

    return send


def planned(one: Letter) -> Redrive | NoRedrive:
    if one.reason == "too-large":
        return NoRedrive("no value")
    lost = one.id if one.reason == "bad-id" else None
    return Redrive(3, b"k", b"v", [], one.source, one.source, lost)


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (verdict("scheduled"), Word.REDRIVEN),
        (verdict("duplicate"), Word.ALREADY),
        (verdict("rejected"), Word.REJECTED),
        (NotScheduledError("denied"), Word.IMPOSSIBLE),
        (RequestRefusedError("no"), Word.IMPOSSIBLE),
        (KafkaUnreachableError("gone"), Word.IMPOSSIBLE),
        (VerdictUnknownError("silence"), Word.UNKNOWN),
    ],
)
def test_each_answer_has_its_word(answer: Verdict | DelaydError, word: Word) -> None:
    said: list[Outcome] = []
    redrive([letter()], planned, sending([], answer), said.append)
    assert [(each.source, each.word) for each in said] == [("3/4", word)]


def test_after_an_answer_that_fails_to_come_nothing_more_is_sent() -> None:
    some = [letter("0/0"), letter("0/1", "too-large"), letter("0/2", "bad-id", id="a\n")]
    more = [letter("0/3"), letter("0/4")]
    sent: list[str] = []
    send = sending(
        sent,
        *(NotScheduledError("denied"), verdict("scheduled"), VerdictUnknownError("silence")),
        *(verdict("scheduled"), verdict("scheduled")),
    )
    said: list[Outcome] = []
    complete = redrive([*some, *more], planned, send, said.append)
    assert (complete, sent) == (False, ["0/0", "0/2", "0/3"])
    assert {each.source: each.word for each in said} == {
        "0/0": Word.IMPOSSIBLE,
        "0/1": Word.IMPOSSIBLE,
        "0/2": Word.REDRIVEN,
        "0/3": Word.UNKNOWN,
    }
    assert next(each for each in said if each.source == "0/2").detail.startswith(
        "without its id 'a\\n'"
    )


def test_a_dry_run_says_the_same_without_sending() -> None:
    said = list(try_out([letter("0/0"), letter("0/1", "too-large")], planned))
    assert [(each.word, each.detail) for each in said] == [
        (Word.REDRIVEN, ""),
        (Word.IMPOSSIBLE, "no value"),
    ]
