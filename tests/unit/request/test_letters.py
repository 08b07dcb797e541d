"""Dead letters taken apart, and made into requests again (docs/reference/requests.md)."""

import pytest
from cluster_settings import REQUEST_LIMITS as LIMITS
from hypothesis import given
from hypothesis import strategies as st

from delayd.bus import Headers, Record
from delayd.bus.murmur2 import partition_of
from delayd.request import (
    Body,
    Op,
    Reason,
    Reject,
    Request,
    RequestLimits,
    Wishes,
    conflict_body,
    continuation,
    dead_body,
    dead_letter,
    message_body,
    parse,
    reject_body,
    size_of,
    source_of,
)
from delayd.request.letters import Letter, letter_of
from delayd.request.redrives import (
    AS_IT_WAS,
    Correction,
    NoRedrive,
    Redrive,
    counting_redrive,
    redrive_of_letter,
    redriven_before,
)
from replication.rules import Barrier, Rules

APPEND_MS = 1_700_000_000_000
NOW_MS = APPEND_MS + 3_600_000
OFFSET = 4711
CLIENT_LIMITS = RequestLimits(86_400_000, 10_000, 4, "c", b"")
TOPIC = ("delayd-topic", b"orders")
DELAY = ("delayd-delay", b"10s")
USER: Headers = [("trace", b"1"), ("trace", b"\xff"), ("empty", b""), ("null", None)]


def of_id(id: str) -> int:
    return partition_of(id.encode(), LIMITS.partitions)


def record(
    *headers: tuple[str, bytes | None], key: bytes | None = b"k", value: bytes | None = b"v"
) -> Record:
    """In the partition of its key."""
    partition = partition_of(key or b"", LIMITS.partitions)
    return Record(partition, OFFSET, 0, APPEND_MS, key, value, [*USER, *headers])


def written(body: Body, source: str) -> Letter:
    """As a reader of the dead-letter topic gets it."""
    key, value, headers = dead_letter(body, source=source)
    letter = letter_of(Record(2, 9, 0, NOW_MS, key, value, headers))
    assert letter is not None
    return letter


def rejected(asked: Record) -> Letter:
    reject = parse(asked, LIMITS)
    assert isinstance(reject, Reject), reject
    return written(reject_body(asked, reject), source_of(asked.partition, asked.offset))


def undelivered(asked: Record, origin: str = "0/1", attempts: int = 17) -> Letter:
    request = parse(asked, LIMITS)
    assert isinstance(request, Request), request
    body = dead_body(
        message_body(request), reason=Reason.DEAD, detail="why", origin=origin, attempts=attempts
    )
    return written(body, source_of(asked.partition, asked.offset))


def sent(letter: Letter, correction: Correction = AS_IT_WAS) -> tuple[Redrive, Request]:
    """The redrive, and what a node reads in it."""
    redrive = redrive_of_letter(letter, CLIENT_LIMITS, NOW_MS, correction)
    assert isinstance(redrive, Redrive), redrive
    request = parse(
        Record(
            redrive.partition, 5_000, 0, NOW_MS, redrive.key, redrive.value, list(redrive.headers)
        ),
        LIMITS,
    )
    assert isinstance(request, Request), request
    assert (request.op, request.redrive) == (Op.REDRIVE, redrive.source)
    return redrive, request


def refusal(letter: Letter, correction: Correction = AS_IT_WAS) -> str:
    refused = redrive_of_letter(letter, CLIENT_LIMITS, NOW_MS, correction)
    assert isinstance(refused, NoRedrive), refused
    return refused.detail


# Letters.


@pytest.mark.parametrize("attempts", [1, 17])
def test_a_letter_of_an_undelivered_message_is_taken_apart(attempts: int) -> None:
    asked = record(TOPIC, DELAY)
    letter = undelivered(asked, "1/7", attempts)
    assert letter.headers == [*USER, TOPIC, ("delayd-due", b"%d" % (APPEND_MS + 10_000))]
    assert letter == Letter(
        source=source_of(asked.partition, OFFSET),
        reason="dead",
        detail="why",
        dead_ms=NOW_MS,
        key=b"k",
        value=b"v",
        headers=letter.headers,
        origin="1/7",
        attempts=attempts,
    )
    assert (letter.topic, letter.id) == ("orders", None)


HEADERS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("delayd-reason", "delayd-detail", "delayd-source", "delayd-truncated"),
                *("delayd-origin", "delayd-attempt", "delayd-topic", "trace", ""),
            ]
        ),
        st.none() | st.sampled_from([b"3/4", b"7", b"dead", b"\xff"]),
    ),
    max_size=8,
)


@given(HEADERS, st.booleans())
def test_only_what_delayd_appended_is_taken_off(headers: Headers, truncated: bool) -> None:
    """A dead letter that somebody sent to the buffer as it was is a reject with all its headers."""
    asked = Record(3, 8, 0, APPEND_MS, b"k", b"v", headers)
    reject = Reject(Reason.UNKNOWN_HEADER, "why", truncated=truncated)
    letter = written(reject_body(asked, reject), "3/8")
    assert (letter.source, letter.reason, letter.headers) == ("3/8", "unknown-header", headers)
    assert (letter.truncated_bytes is not None) == truncated
    assert (letter.origin, letter.attempts) == (None, 0)


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("delayd-source", b"3/4")],
        [("delayd-reason", b"dead"), ("delayd-detail", b"d"), ("delayd-source", b"somewhere")],
        [("delayd-detail", b"d"), ("delayd-reason", b"dead"), ("delayd-source", b"3/4")],
        [
            ("delayd-reason", b"dead"),
            ("delayd-detail", b"d"),
            ("delayd-source", b"3/4"),
            ("mine", b""),
        ],
    ],
)
def test_what_delayd_did_not_write_is_no_letter(headers: Headers) -> None:
    assert letter_of(Record(0, 0, 0, 0, None, None, headers)) is None


# What is sent.


@given(
    st.lists(
        st.tuples(st.text("abü\n", max_size=3), st.none() | st.binary(max_size=5)), max_size=5
    ),
    st.none() | st.binary(max_size=5),
    st.none() | st.text("ab/ü", min_size=1, max_size=5),
    st.none() | st.integers(0, 9),
    st.booleans(),
)
def test_a_redrive_asks_for_the_very_message_that_died(
    user: Headers, key: bytes | None, id: str | None, partition: int | None, has_key: bool
) -> None:
    """docs/reference/requests.md, Redrives: key, value, headers in their order, target, id."""
    asked: Headers = [TOPIC, ("delayd-due", b"%d" % APPEND_MS), *user]
    if id is not None:
        key = id.encode()
        asked.append(("delayd-id", key))
    if has_key:
        asked.append(("delayd-key", b"other"))
    if partition is not None:
        asked.append(("delayd-partition", b"%d" % partition))
    lies_in = partition_of(key or b"", LIMITS.partitions)
    first = parse(Record(lies_in, OFFSET, 0, APPEND_MS, key, b"v", asked), LIMITS)
    assert isinstance(first, Request), first
    body = dead_body(message_body(first), reason=Reason.DEAD, detail="d", origin="0/1", attempts=3)
    letter = written(body, source_of(lies_in, OFFSET))
    redrive, request = sent(letter)
    assert redrive.partition == lies_in
    assert request == first._replace(op=Op.REDRIVE, redrive=letter.source)
    assert redrive.told == (letter.source if id is None else id)


def test_a_retried_message_is_redriven_from_its_last_record() -> None:
    """Its letter tells of the continuation, in the same partition; its origin stays out."""
    asked = record(TOPIC, DELAY, ("delayd-id", b"k"), key=b"k")
    request = parse(asked, LIMITS)
    assert isinstance(request, Request)
    retry = continuation(
        message_body(request),
        partition=asked.partition,
        offset=OFFSET,
        rank_due_ms=request.due_ms,
        next_due_ms=request.due_ms + 5,
        limits=LIMITS,
    )
    again = Record(retry.partition, 9_999, 0, APPEND_MS, retry.key, retry.value, retry.headers)
    letter = undelivered(again, f"{asked.partition}/{OFFSET}", 2)
    redrive, redriven = sent(letter)
    assert redrive.source == f"{asked.partition}/9999"
    assert (redriven.id, redriven.headers) == ("k", USER)
    assert (redriven.origin, redriven.attempt, redriven.continues) == ("", 0, None)


def test_the_letter_of_a_redrive_that_died_is_redriven_for_itself() -> None:
    letter = undelivered(record(TOPIC, DELAY, ("delayd-redrive", b"%d/7" % of_id("k"))))
    assert sent(letter)[0].source == letter.source


def test_a_rejected_redrive_goes_on_to_stand_for_the_letter_that_it_names() -> None:
    """Else that letter and this one could both be sent, and the message would arrive twice."""
    named = f"{of_id('k')}/7"
    letter = rejected(record(TOPIC, ("delayd-redrive", named.encode())))
    redrive, _ = sent(letter, Correction(when=("delayd-delay", "1s")))
    assert (letter.source != named, redrive.source, redrive.told) == (True, named, named)
    assert [c for n, c in redrive.headers if n == "delayd-redrive"] == [named.encode()]


def test_a_redrive_that_was_sent_to_the_wrong_partition_goes_to_the_right_one() -> None:
    other = (of_id("k") + 1) % LIMITS.partitions
    letter = rejected(record(TOPIC, DELAY, ("delayd-redrive", b"%d/7" % other)))
    assert letter.reason == "bad-redrive"
    assert (sent(letter)[0].partition, sent(letter)[0].source) == (other, f"{other}/7")
    nonsense = rejected(record(TOPIC, DELAY, ("delayd-redrive", b"x")))
    assert sent(nonsense)[0].source == nonsense.source


def test_the_due_time_stays_as_it_was_asked_unless_another_is_given() -> None:
    future = ("delayd-due", b"%d" % (NOW_MS + 5_000))
    letter = rejected(record(("delayd-topic", b"no such name!"), future))
    to_orders = Correction(topic="orders")
    assert sent(letter, to_orders)[1].asked_due_ms == NOW_MS + 5_000, "never early"
    corrected = to_orders._replace(when=("delayd-delay", "1m"))
    assert sent(letter, corrected)[1].asked_due_ms == NOW_MS + 60_000
    relative = rejected(record(("delayd-topic", b"no such name!"), DELAY))
    assert sent(relative, to_orders)[1].asked_due_ms == NOW_MS + 10_000


@pytest.mark.parametrize(
    ("headers", "correction"),
    [
        ([DELAY], Correction(topic="orders")),
        ([("delayd-topic", b"__x"), DELAY], Correction(topic="orders")),
        ([TOPIC, TOPIC, DELAY], Correction(topic="orders")),
        ([TOPIC], Correction(when=("delayd-delay", "0s"))),
        ([TOPIC, DELAY, ("delayd-level", b"1")], Correction(when=("delayd-delay", "0s"))),
        ([TOPIC, ("delayd-level", b"19")], Correction(when=("delayd-due", "5"))),
        ([TOPIC, ("delayd-delay", b"900d")], Correction(when=("delayd-due", "5"))),
    ],
)
def test_what_is_wrong_with_target_or_time_can_be_corrected(
    headers: Headers, correction: Correction
) -> None:
    letter = rejected(record(*headers))
    assert refusal(letter).startswith(f"{letter.reason}: ")
    _, request = sent(letter, correction)
    assert (request.topic, request.headers, request.value) == ("orders", USER, b"v")


@pytest.mark.parametrize(
    "extra",
    [
        [("delayd-source", b"3/4"), ("delayd-fired", b"1")],
        [("delayd-reason", b"dead"), ("delayd-detail", b"x"), ("delayd-source", b"3/4")],
        [("delayd-continues", b"4"), ("delayd-proof", b"00")],
    ],
)
def test_what_delayd_itself_wrote_at_any_time_is_dropped(extra: Headers) -> None:
    letter = rejected(record(TOPIC, DELAY, *extra))
    assert letter.reason in ("unknown-header", "bad-proof")
    assert sent(letter)[1].headers == USER


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (("delayd-delai", b"1s"), "unknown-header"),
        (("delayd-cron", b"* * * * *"), "several-dues"),
        (("delayd-key", b""), "empty-header"),
        (("delayd-key", None), "null-header"),
        (("delayd-partition", b"-1"), "bad-partition"),
        (("delayd-op", b"purge"), "bad-op"),
    ],
)
def test_what_cannot_become_valid_is_not_sent(
    header: tuple[str, bytes | None], reason: str
) -> None:
    """Nothing is dropped or guessed: a header that asked for something stays, and is refused."""
    letter = rejected(record(TOPIC, DELAY, header))
    assert letter.reason == reason
    assert refusal(letter).startswith(f"{reason}: ")


def test_neither_a_cancel_nor_a_replace_is_redriven() -> None:
    cancel = rejected(record(("delayd-op", b"cancel"), DELAY, ("delayd-id", b"k")))
    assert "it is a cancel" in refusal(cancel)
    replace = rejected(record(("delayd-op", b"replace"), DELAY, ("delayd-id", b"k")))
    assert "it is a replace" in refusal(replace, Correction(topic="orders"))


def test_a_letter_without_its_value_is_not_redriven() -> None:
    asked = record(TOPIC, DELAY, value=b"v" * LIMITS.record_bytes_max)
    letter = rejected(asked)
    assert f"{size_of(asked.key, asked.value, asked.headers)} bytes" in refusal(letter)
    assert letter.source in refusal(letter)


def test_the_largest_message_can_be_redriven() -> None:
    """docs/reference/requests.md, Redrives: its request may be 1 KiB larger."""
    asked = record(TOPIC, DELAY, key=b"k", value=b"")
    room = LIMITS.record_bytes_max - size_of(asked.key, asked.value, asked.headers)
    letter = undelivered(asked._replace(value=b"v" * room))
    redrive, _ = sent(letter)
    assert size_of(redrive.key, redrive.value, redrive.headers) > LIMITS.record_bytes_max


# Ids.


def test_a_conflict_is_redriven_with_its_id() -> None:
    asked = record(TOPIC, DELAY, ("delayd-id", b"k"))
    letter = written(conflict_body(asked, "taken"), source_of(asked.partition, OFFSET))
    redrive, request = sent(letter)
    assert (request.id, redrive.told, redrive.lost_id) == ("k", "k", None)


def test_an_id_of_another_partition_is_lost_only_if_that_is_wanted() -> None:
    """The source says where a redrive lies, and the id where its requests lie."""
    wrong = (of_id("k") + 1) % LIMITS.partitions
    letter = rejected(record(TOPIC, DELAY, ("delayd-id", b"k"))._replace(partition=wrong))
    assert letter.reason == "wrong-partition"
    assert "cannot keep its id" in refusal(letter)
    redrive, request = sent(letter, Correction(without_id=True))
    assert (redrive.partition, redrive.told, redrive.lost_id) == (wrong, letter.source, "k")
    assert (request.id, request.key) == (None, b"k")


def test_an_id_that_is_not_the_key_is_lost_only_if_that_is_wanted() -> None:
    letter = rejected(record(TOPIC, DELAY, ("delayd-id", b"other"), ("delayd-key", b"dk")))
    assert letter.reason == "bad-id" and "cannot keep its id" in refusal(letter)
    redrive, request = sent(letter, Correction(without_id=True))
    assert (request.id, request.key, redrive.lost_id) == (None, b"dk", "other")


def test_a_redrive_is_planned_by_the_rules_in_force() -> None:
    """Since version 4 a due time in seconds is refused: the cluster would reject it."""
    letter = undelivered(record(TOPIC, DELAY))
    seconds = Correction(when=("delayd-due", "1700000000"))
    for partition, is_refused in ((0, True), (1, False)):
        rules = Rules(3, (Barrier(partition, 9, 4),))
        limits = RequestLimits(86_400_000, 10_000, 4, "c", b"", rules=rules)
        planned = redrive_of_letter(letter, limits, NOW_MS, seconds)
        assert isinstance(planned, NoRedrive) == is_refused


def test_a_refused_redrive_names_the_one_that_counts() -> None:
    assert counting_redrive(redriven_before("1/7", "1/99")) == "1/99"
    assert (
        counting_redrive("the dead letter 1/7 was redriven before: nothing is sent twice") is None
    )


def test_an_id_that_can_be_kept_is_kept() -> None:
    letter = undelivered(record(TOPIC, DELAY, ("delayd-id", b"k")))
    redrive, request = sent(letter, Correction(without_id=True))
    assert (request.id, redrive.lost_id) == ("k", None)


def test_a_redrive_keeps_its_group_and_without_its_id_has_none() -> None:
    group = ("delayd-group", b"g")
    letter = undelivered(record(TOPIC, DELAY, ("delayd-id", b"k"), group))
    _, request = sent(letter)
    assert request.wishes == Wishes(group="g")
    letter = rejected(record(TOPIC, DELAY, ("delayd-id", b"other"), group))
    redrive, request = sent(letter, Correction(without_id=True))
    assert (request.id, request.wishes, redrive.lost_id) == (None, None, "other")


def test_a_redrive_without_a_new_time_leaves_lateness_out() -> None:
    """docs/design/wishes.md: it was due long ago, and would expire again at once."""
    wishes = (("delayd-late", b"1000ms"), ("delayd-window", b"5000ms"), ("delayd-receipt", b"yes"))
    letter = undelivered(record(TOPIC, DELAY, *wishes))
    assert {*wishes} <= {*letter.headers}
    redrive, request = sent(letter)
    assert request.wishes == Wishes(is_told=True, window_ms=5_000)
    assert "delayd-late" not in dict(redrive.headers)
    _, request = sent(letter, Correction(when=("delayd-delay", "1s")))
    assert request.wishes == Wishes(True, 1_000, 5_000)


def test_a_delivered_record_that_was_sent_again_is_redriven_without_what_delayd_wrote() -> None:
    written_before = (("delayd-planned", b"5"), ("delayd-fired", b"6"), ("delayd-source", b"0/1"))
    redrive, _ = sent(rejected(record(TOPIC, DELAY, *written_before)))
    assert not {name for name, _ in written_before} & dict(redrive.headers).keys()
