"""Whether a request had its outcome, exactly that one, and nothing else.

Source: docs/reference/requests.md.
"""

import json
import urllib.error
import urllib.parse
import urllib.request
from hashlib import sha256
from typing import Any

from nodes import NodeProcess
from outcomes_read import Found
from request_cases.case import (
    TARGET_PARTITIONS,
    Case,
    Dead,
    Delivered,
    Due,
    Header,
    Killed,
    Moment,
    Nothing,
    Pending,
    Recurs,
    Refused,
    Span,
    Step,
    Told,
    header_of,
)
from request_play import Play, Sent, counted

from delayd.bus.murmur2 import partition_of

RECEIPT_FIELDS = ["id", "verdict", "op", "source", "killed", "due_ms", "at_ms", "detail"]
NOW_BEFORE_SNAPSHOT_MS = 1_000
"""A step reads its `now` first, and then takes what has been ingested by then."""

OF_MESSAGES = ("dead", "delivered", "expired", "ended")
"""Verdicts on what became of a message, whatever stored it."""
WISHES = ("delayd-receipt", "delayd-late", "delayd-window", "delayd-group")
SPANS = {b"1ms": 1, b"1500ms": 1_500, b"2s": 2_000, b"3s": 3_000, b"1d": 86_400_000, None: 0}
"""Of the windows that cases are delivered with, ms."""
OPS = {op: op.decode() for op in (b"cancel", b"replace", b"reschedule", b"fire", b"debounce")}


def judge(play: Play, case: Case) -> None:
    """AssertionError if a step of the case came to anything but what it says."""
    sent = play.sent[id(case)]
    assert len(sent) == len(case.steps), f"step {len(sent)} was never to be written"
    for step, written in zip(case.steps, sent, strict=True):
        judge_fate(play, case, step, written)
        judge_receipts(play, case, step, written)


def judge_fate(play: Play, case: Case, step: Step, sent: Sent) -> None:
    """Check that there is at most one record anywhere, the right one."""
    source = sent.at.source
    delivered, letters = play.seen.delivered[source], play.seen.letters[source]
    if isinstance(step.fate, Recurs):
        check_recurs(step.fate, sent, delivered)
        assert not letters, letters
        return
    wanted = (isinstance(step.fate, Delivered), isinstance(step.fate, Refused | Dead))
    assert (len(delivered), len(letters)) == wanted, (
        f"{source}: delivered {delivered}, dead letters {letters}"
    )
    match step.fate:
        case Delivered():
            by = step.fate.moved_by
            moved = None if by is None else play.sent[id(case)][by]
            since = sent if step.fate.since is None else play.sent[id(case)][step.fate.since]
            check_delivered(play, step.fate, sent, delivered[0], moved, since)
        case Refused():
            check_refused(step.fate, sent, letters[0])
        case Dead():
            check_dead(step, step.fate, sent, letters[0])
        case Pending():
            live = live_under(play, header_of(step, "delayd-id"))
            # A continuation stands for a series, and for a local time.
            is_continued = any(name in ("delayd-cron", "delayd-zone") for name, _ in step.headers)
            assert live if is_continued else source in live, "it is not pending"
        case Killed() | Nothing():
            assert source not in live_under(play, header_of(step, "delayd-id")), "it is pending"


def check_delivered(
    play: Play,
    fate: Delivered,
    sent: Sent,
    found: Found,
    moved: Sent | None,
    since: Sent,
) -> None:
    """`moved`: the step that has given it its due time, if that is not its own. `since`: that from
    which its due time counts."""
    assert found.topic == play.topic_of[fate.topic]
    assert found.value == sent.value
    key = sent.key if fate.key is None else fate.key
    assert found.key == key
    if fate.partition is not None:
        assert found.partition == fate.partition
    elif key is not None and fate.topic == b"orders":
        assert found.partition == partition_of(key, TARGET_PARTITIONS)
    user = list(fate.headers) if fate.headers is not None else users(sent)
    assert found.headers[: len(user)] == user
    own = found.headers[len(user) :]
    planned = ["delayd-planned"] if fate.is_planned else []
    is_local = is_local_time(sent)
    origin = ["delayd-origin"] if is_local or moved is not None else []
    origin += ["delayd-local"] if is_local and moved is None else []
    names = ["delayd-due", *planned, "delayd-fired", "delayd-source", *origin]
    id = dict(sent.headers).get("delayd-id")
    if id is not None:
        assert own[0] == ("delayd-id", id)
        own = own[1:]
    group = dict(sent.headers).get("delayd-group")
    if group is not None:
        assert own[0] == ("delayd-group", group)
        own = own[1:]
    if "delayd-origin" in dict(own) and not origin:
        # A busy machine, or a target that is slow, may have put it off for a moment.
        names.append("delayd-origin")
        assert found.header("delayd-origin") == sent.at.source
    assert [name for name, _ in own] == names
    due_ms = due_of(fate.due, since if moved is None else moved)
    if moved is not None and isinstance(fate.due, Moment):
        due_ms += fate.due.in_ms
    assert found.header("delayd-due") == str(due_ms)
    if "delayd-local" in origin:
        given = dict(sent.headers)
        local = b"%s[%s]" % (given["delayd-due"], given["delayd-zone"])
        assert found.header("delayd-local") == local.decode()
    fired_ms = int(found.header("delayd-fired") or 0)
    if fate.is_planned:
        share = int(sha256(id or sent.at.source.encode()).hexdigest()[:8], 16) / 2**32
        [window] = [c for n, c in sent.headers if n == "delayd-window"]
        planned_ms = due_ms + int(share * SPANS[window])
        assert found.header("delayd-planned") == str(planned_ms)
        due_ms = planned_ms
    assert max(due_ms, sent.at.append_ms) <= fired_ms <= found.received_ms


def check_recurs(fate: Recurs, sent: Sent, found: list[Found]) -> None:
    """Check that each occurrence came once and nothing else; with `once`, at least the last."""
    first_ms = (sent.at.append_ms // fate.every_ms + 1) * fate.every_ms
    wanted = range(first_ms, sent.due_ms + 1, fate.every_ms)
    came = sorted(found, key=lambda each: int(each.header("delayd-due") or 0))
    due = [int(each.header("delayd-due") or 0) for each in came]
    numbers = [int(each.header("delayd-occurrence") or 0) for each in came]
    if dict(sent.headers).get("delayd-catchup") == b"all":
        assert due == [*wanted] and numbers == [*range(1, len(due) + 1)]
    else:  # a busy machine may be late by more than a period
        assert {*due} <= {*wanted} and due[-1] == wanted[-1]
        assert numbers == sorted(numbers)
        assert all(1 <= n <= wanted.index(at) + 1 for at, n in zip(due, numbers, strict=True))
    assert len({*due}) == len({*numbers}) == len(found)
    for due_ms, each in zip(due, came, strict=True):
        assert each.header("delayd-origin") == sent.at.source
        group = dict(sent.headers).get("delayd-group")
        assert each.header("delayd-group") == (None if group is None else group.decode())
        assert (each.key, each.value) == (sent.key, sent.value)
        assert int(each.header("delayd-fired") or 0) >= due_ms


def check_refused(fate: Refused, sent: Sent, letter: Found) -> None:
    kept = sent.headers if fate.keeps_headers else []
    if not fate.keeps_headers and fate.keeps_value:
        kept = [("delayd-unreadable-headers", None)]
    wanted = [
        ("delayd-reason", fate.reason.encode()),
        ("delayd-detail", (letter.header("delayd-detail") or "").encode()),
        ("delayd-source", sent.at.source.encode()),
    ]
    if not fate.keeps_value:
        wanted.append(("delayd-truncated", b"%d" % counted(sent.key, sent.value, sent.headers)))
    assert letter.header("delayd-reason") == fate.reason
    assert letter.headers == [*kept, *wanted]
    assert letter.key == sent.key
    assert letter.value == (sent.value if fate.keeps_value else None)
    check_detail(letter.header("delayd-detail") or "", fate.detail)


def check_dead(step: Step, fate: Dead, sent: Sent, letter: Found) -> None:
    """Check that the letter holds the request in a form that can be sent again."""
    given = dict(sent.headers)
    if fate.reason == "no-occurrence":
        check_over(given, fate, sent, letter)
        return
    when = next((n, c) for n, c in sent.headers if n in ("delayd-due", "delayd-delay"))
    is_local = is_local_time(sent)
    due_ms = int(letter.header("delayd-due") or 0) if is_local else asked_ms(when, sent)
    asked: list[tuple[str, bytes | None]] = [
        ("delayd-topic", given["delayd-topic"]),
        ("delayd-due", b"%d" % due_ms),
    ]
    asked += [(n, c) for n, c in sent.headers if n in ("delayd-id", "delayd-partition")]
    asked += [(n, given[n]) for n in WISHES if n in given]
    user = users(sent)
    assert letter.headers[: len(user) + len(asked)] == [*user, *asked]
    own = dict(letter.headers[len(user) + len(asked) :])
    attempts = fate.attempts
    if attempts < 0:
        attempts = 3 if fate.reason == "dead" else 0
    tried = () if attempts == 0 else ("delayd-attempt",)
    names = ("delayd-reason", "delayd-detail", "delayd-source", "delayd-origin")
    assert list(own) == [*names, *tried]
    assert (letter.key, letter.value) == (sent.key, sent.value)
    assert own["delayd-reason"] == fate.reason.encode()
    assert own.get("delayd-attempt", b"0") == b"%d" % attempts
    assert own["delayd-origin"] == sent.at.source.encode()
    assert (own["delayd-source"] != own["delayd-origin"]) == (attempts > 0 or is_local)
    check_detail(letter.header("delayd-detail") or "", fate.detail)


def check_over(given: dict[str, Any], fate: Dead, sent: Sent, letter: Found) -> None:
    """Check that the letter asks for the series, or the local time, again."""
    own = dict(letter.headers)
    if is_local_time(sent):
        kept = {n: c for n, c in given.items() if n != "delayd-receipt"}
        assert kept.items() <= own.items() and "delayd-occurrence" not in own
        assert own["delayd-reason"] == b"no-occurrence"
        check_detail(letter.header("delayd-detail") or "", fate.detail)
        return
    zone = given.get("delayd-zone", b"UTC")
    kept = {n: c for n, c in given.items() if n not in ("delayd-receipt", "delayd-until")}
    assert kept.items() | {("delayd-zone", zone)} <= own.items() and "delayd-due" not in own
    assert (own["delayd-reason"], own["delayd-occurrence"]) == (b"no-occurrence", b"0")
    assert own["delayd-origin"] == sent.at.source.encode()
    assert (letter.key, letter.value) == (sent.key, sent.value)
    check_detail(letter.header("delayd-detail") or "", fate.detail)


def check_detail(detail: str, fragment: str) -> None:
    """Check that a person can act on it."""
    assert fragment in detail
    assert 0 < len(detail) <= 500 and detail.isascii() and detail.isprintable()


def judge_receipts(play: Play, case: Case, step: Step, sent: Sent) -> None:
    """Check that the step has all its receipts, and no other."""
    found = play.seen.receipts[sent.at.source]
    verdicts = sorted(receipt["verdict"] for receipt in found)
    assert verdicts == sorted(told.verdict for told in step.told), found
    for told in step.told:
        [receipt] = [each for each in found if each["verdict"] == told.verdict]
        check_receipt(play, case, step, told, sent, receipt)


def check_receipt(
    play: Play, case: Case, step: Step, told: Told, sent: Sent, receipt: dict[str, Any]
) -> None:
    more = ["old_due_ms"] if told.verdict == "rescheduled" else []
    forecast = [name for name in receipt if name.startswith("forecast_")]
    assert list(receipt) == [*RECEIPT_FIELDS, *more, *forecast]
    check_forecast(receipt, forecast)
    named = header_of(step, "delayd-id")
    by_source = told.id or sent.at.source
    assert receipt["id"] == (by_source if named is None else named.decode())
    op = OPS.get(header_of(step, "delayd-op") or b"", "schedule")
    if told.verdict in OF_MESSAGES:
        op = "schedule"
    elif op == "schedule" and header_of(step, "delayd-redrive"):
        op = "redrive"
    assert receipt["op"] == op
    killed = [play.sent[id(case)][n].at.source for n in told.killed]
    assert sorted(receipt["killed"]) == sorted(killed), "by the sources that their users know"
    assert told.detail in receipt["detail"], receipt["detail"]
    assert receipt["at_ms"] > sent.at.append_ms - NOW_BEFORE_SNAPSHOT_MS
    due_ms = receipt["due_ms"]
    if told.verdict == "rejected":
        assert due_ms is None
    elif op in ("cancel", "reschedule", "fire"):
        assert (due_ms is None) == ("nothing is remembered" in receipt["detail"])
    elif is_local_time(sent):
        assert due_ms == sent.at.append_ms or told.verdict != "scheduled"
    elif header_of(step, "delayd-cron") is None:
        [when] = [(n, c) for n, c in step.headers if n in ("delayd-due", "delayd-delay")]
        assert due_ms == asked_ms(when, sent)


def check_forecast(receipt: dict[str, Any], forecast: list[str]) -> None:
    """Check the form of a forecast; only of a message that is stored there may be one, and none of
    what was due before the step. A far hour counts what was cancelled since no more."""
    if not forecast:
        return
    assert receipt["verdict"] == "scheduled" and receipt["op"] in ("schedule", "redrive")
    assert forecast[:2] == ["forecast_messages", "forecast_span_ms"]
    assert receipt["forecast_messages"] >= 0 and receipt["forecast_span_ms"] in (1_000, 3_600_000)
    assert forecast[2:] in ([], ["forecast_late_ms"]) and receipt.get("forecast_late_ms", 0) >= 0


def asked_ms(when: Header, sent: Sent) -> int:
    """Return the time that a case with receipts asks for, Unix ms."""
    name, content = when
    spans = {b"1ms": 1, b"12s": 12_000, b"1h": 3_600_000}
    assert isinstance(content, bytes)
    return int(content) if name == "delayd-due" else sent.at.append_ms + spans[content]


def due_of(due: Due, sent: Sent) -> int:
    """Return the due time, Unix ms."""
    if isinstance(due, Span):
        return sent.at.append_ms + due.ms
    return sent.due_ms if isinstance(due, Moment) else due


def is_local_time(sent: Sent) -> bool:
    """Return whether a step asks for a local time."""
    given = dict(sent.headers)
    return "delayd-zone" in given and "delayd-cron" not in given


def users(sent: Sent) -> list[tuple[str, bytes | None]]:
    """Return the headers that are not delayd's."""
    return [header for header in sent.headers if not header[0].startswith("delayd-")]


def live_under(play: Play, id: bytes | None) -> set[str]:
    """Return the sources that a node still has to deliver under an id."""
    if id is None:
        return set()
    known = known_of(play.nodes[0], id)
    return {each["source"] for each in known["live"] if not each["done"]}


def known_of(node: NodeProcess, id: bytes) -> dict[str, Any]:
    """Return what a node knows of an id."""
    path = urllib.parse.quote(id, safe="")
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{node.port}/ids/{path}", timeout=10
        ) as answer:
            known: dict[str, Any] = json.load(answer)
            return known
    except urllib.error.HTTPError as error:
        assert error.code == 404, error
        error.close()
        return {"live": [], "killed": []}
