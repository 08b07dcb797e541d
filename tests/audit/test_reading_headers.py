"""delayd.audit.reading.headers: the rules about headers, against the parser and its bodies."""

from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayd.audit.reading.batches import piece_of
from delayd.audit.reading.headers import UNREAD, Flat, Judged, judge_headers
from delayd.audit.tables import CONTROL_HEADERS
from delayd.bus import UNREADABLE_HEADERS, Headers, Record
from delayd.bus.unreadable import TOO_LARGE, unreadable_batch
from delayd.request.bodies import dead_letter, delivered
from delayd.request.letters import letter_of
from delayd.request.parser import parse
from delayd.request.reasons import Reject
from delayd.request.request import RequestLimits
from replication.rules import Rules

LIMITS = RequestLimits(10**15, 10**6, 4, "c", b"k" * 16)

HEADER_REASONS = {
    *("unknown-header", "not-supported", "not-utf8"),
    *("repeated-header", "null-header", "empty-header"),
}
NAMES = st.sampled_from(
    [
        *("trace", "delayd", "", "delayd-", "delayd-nothing", "x-delayd-topic"),
        *(f"delayd-{name}" for name in CONTROL_HEADERS),
        UNREADABLE_HEADERS[0][0],
        *("delayd-topic", "delayd-due", "delayd-id") * 4,
    ]
)
CONTENTS = st.sampled_from([None, b"", b"\xff", "ü".encode(), b"1", b"orders", b"1/2", b"x" * 300])
HEADERS = st.lists(st.tuples(NAMES, CONTENTS), max_size=7)


def judged(records: list[Headers], role: str) -> tuple[Judged, Flat]:
    every = list(chain.from_iterable(records))
    names = pa.array([name for name, _ in every], pa.utf8()).dictionary_encode()
    flat = Flat(
        names.dictionary,
        np.asarray(names.indices).astype(np.int64),
        pa.array([content for _, content in every], pa.binary()),
        np.array([len(headers) for headers in records], np.int64),
    )
    return judge_headers(flat, role), flat


def control(read: Judged) -> list[dict[str, str]]:
    columns = [column.to_pylist() for column in read.control]
    return [
        {n: text for n, text in zip(CONTROL_HEADERS, row, strict=True) if text is not None}
        for row in zip(*columns, strict=True)
    ]


def chosen(records: list[Headers], flags: Any) -> list[Headers]:
    flag = iter(flags.tolist())
    return [[header for header in headers if next(flag)] for headers in records]


@given(st.lists(HEADERS, min_size=1, max_size=12), st.booleans())
def test_a_request_has_the_flaw_that_the_parser_finds(
    records: list[Headers], by_older_rules: bool
) -> None:
    read, _ = judged(records, "buffer")

    flaws = (read.older_flaw if by_older_rules else read.flaw).to_pylist()
    limits = replace(LIMITS, rules=Rules(4)) if by_older_rules else LIMITS
    for headers, flaw, internal in zip(records, flaws, read.is_internal.tolist(), strict=True):
        parsed = parse(Record(0, 0, -1, 0, b"orders", b"", headers), limits)
        if internal:
            assert isinstance(parsed, Reject) and parsed.reason.slug == "bad-proof"
            continue
        assert flaw is None or isinstance(parsed, Reject)
        found = parsed.reason.slug if isinstance(parsed, Reject) else None
        assert flaw == (found if found in HEADER_REASONS else None)


@given(st.lists(HEADERS, min_size=1, max_size=12), st.sampled_from(["buffer", "target"]))
def test_text_is_there_of_what_is_there_once_and_readable(
    records: list[Headers], role: str
) -> None:
    read, _ = judged(records, role)

    wanted = []
    for headers in records:
        texts = {}
        for name in CONTROL_HEADERS:
            contents = [content for other, content in headers if other == f"delayd-{name}"]
            if len(contents) == 1 and contents[0] and contents[0] != b"\xff":
                texts[name] = contents[0].decode()
        wanted.append(texts)
    assert control(read) == wanted
    users = [[h for h in headers if not h[0].startswith("delayd-")] for headers in records]
    assert chosen(records, read.is_user) == users


@given(st.lists(HEADERS, min_size=1, max_size=8), st.booleans(), st.booleans(), st.booleans())
def test_a_letter_is_taken_apart_as_its_readers_do(
    records: list[Headers], truncated: bool, died: bool, bare: bool
) -> None:
    letters: list[Headers] = []
    for headers in records:
        body = (
            *(None, None, headers, "dead", "because", 7 if truncated else None),
            *("1/2" if died else "", 3 if died else 0),
        )
        letters.append(headers if bare else dead_letter(body, source="0/9").headers)

    read, _ = judged(letters, "dead")

    for headers, own, texts, flaw in zip(
        letters,
        chosen(letters, ~read.is_appended),
        control(read),
        read.flaw.to_pylist(),
        strict=True,
    ):
        letter = letter_of(Record(0, 0, -1, 0, None, None, headers))
        if letter is not None and flaw is None:
            assert own == letter.headers
            assert (texts["source"], texts["reason"]) == (letter.source, letter.reason)
            assert texts.get("origin") == letter.origin
        if not bare:
            assert flaw is None and len(texts) == 3 + truncated + 2 * died
        elif letter is None and flaw is None:  # whose source is none: text, to be judged as such
            assert texts["source"] != "1/2"


DELIVERED = delivered(
    ("t", 5, None, None, [["trace", b"1"]], None, "me", b"", "1/2", 3), fired_ms=6, source="0/9"
).headers


@pytest.mark.parametrize(
    ("headers", "flaw"),
    [
        (DELIVERED, None),
        (DELIVERED[2:], None),
        (DELIVERED[:-2], None),
        ([("delayd-topic", b"t"), *DELIVERED], "unknown-header"),
        ([*DELIVERED, ("later", b"")], "misplaced-header"),
        ([DELIVERED[1], DELIVERED[0], *DELIVERED[2:]], "misplaced-header"),
        ([DELIVERED[0], DELIVERED[2], DELIVERED[1], *DELIVERED[3:]], "misplaced-header"),
        ([*DELIVERED, DELIVERED[-1]], "repeated-header"),
        ([*DELIVERED[:-1], ("delayd-attempt", None)], "null-header"),
        ([*DELIVERED[:-1], ("delayd-attempt", b"")], "empty-header"),
        ([*DELIVERED[:-1], ("delayd-attempt", b"\xff")], "not-utf8"),
        ([], None),
    ],
)
def test_a_delivered_record_ends_with_its_own_headers_in_their_order(
    headers: Headers, flaw: str | None
) -> None:
    neighbours: list[Headers] = [DELIVERED, [("trace", b"")]]

    read, _ = judged([*neighbours, headers, *neighbours], "target")

    assert read.flaw.to_pylist() == [None, None, flaw, None, None]


def test_a_record_says_that_it_is_the_masters_own_by_any_of_its_headers() -> None:
    proof: Headers = [("delayd-proof", b"ab")]
    records: list[Headers] = [
        [("delayd-topic", b"t"), ("delayd-continues", b"5"), *proof],
        [*proof, ("trace", b"")],
        [("delayd-digest", b"0")],
        [("delayd-proof", None)],
        [("delayd-origin", b"0/1")],
        [],
        [("delayd-turn", b"1/2")],
        [("delayd-continues", b"5"), ("delayd-turn", b"1/2"), *proof],
    ]

    read, _ = judged(records, "buffer")

    assert read.is_internal.tolist() == [True, True, True, True, False, False, False, True]
    ends = read.ends_with_proof.tolist()
    assert ends == [True, False, False, False, False, False, False, True]
    assert read.flaw.to_pylist()[0] is None  # what only the master's own may have
    assert read.flaw.to_pylist()[4] == read.flaw.to_pylist()[6] == "unknown-header"
    assert read.flaw.to_pylist()[7] is None


def test_what_stands_for_an_unreadable_batch_is_a_reject_without_headers() -> None:
    """Rules: batch-unreadable"""
    batch = unreadable_batch(0, 5, 104, 0, 1_000, 100, "zstd", TOO_LARGE)
    plain = Record(0, 105, 0, 1_001, None, b"v", [("delayd-topic", b"orders")])
    piece = piece_of([batch, plain])
    assert (piece.offsets.tolist(), piece.timestamps.tolist()) == ([104, 105], [1_000, 1_001])
    assert piece.values.to_pylist() == [None, b"v"]
    read, _ = judged([[(UNREAD, None)], plain.headers], "buffer")
    assert read.flaw.to_pylist() == ["unreadable-batch", None]
    assert read.is_appended.tolist() == [True, False]  # none of the record's own
    assert read.is_internal.tolist() == [False, False]
