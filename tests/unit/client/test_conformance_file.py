"""clients/conformance/cases.json: what every client library of delayd does, here `delayd.client`.

Names, arguments and receipts in the file are written by hand; the record or verdict of each case
is what Python makes of it, written with `--rewrite`. Go, Java and Node read the same file
(tests/guides/test_clients.py).
"""

import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from generated_pages import check_page

from delayd.bus.murmur2 import partition_of
from delayd.client.asking import (
    BUFFER,
    ask_cancel,
    cancel_record,
    debounce_record,
    fire_record,
    replace_record,
    reschedule_record,
    schedule_record,
)
from delayd.client.driver import PlainRecord, Reader
from delayd.client.errors import RequestRefusedError
from delayd.client.outcomes import Sent, Verdict
from delayd.client.verdicts import Deadline, Ticket, Verdicts

FILE = Path(__file__).parents[3] / "clients" / "conformance" / "cases.json"
CASES: dict[str, list[dict[str, Any]]] = json.loads(FILE.read_text(encoding="utf-8"))
REQUESTS, RECEIPTS = CASES["requests"], CASES["receipts"]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIMEOUT_S = 30
MAKERS: dict[str, Callable[..., PlainRecord]] = {
    "schedule": schedule_record,
    "replace": replace_record,
    "debounce": debounce_record,
    "reschedule": reschedule_record,
    "cancel": cancel_record,
    "fire": fire_record,
}
SPANS = ("in", "late", "window", "max_wait", "by")
Content = str | dict[str, Any] | None


def content_of(said: Content) -> bytes | str | None:
    """Return a text, bytes or None as the file says them."""
    if isinstance(said, dict):
        # Python's text can have a lone surrogate.
        return "\ud800" if "unencodable" in said else bytes.fromhex(said["hex"])
    return said


def said_of(content: bytes | None) -> Content:
    """Return how the file says bytes that were made: as text if they are UTF-8."""
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"hex": content.hex()}


def argument_of(name: str, said: Any) -> Any:
    """Return an argument as Python takes it."""
    if name == "headers":
        return [(key, content_of(content)) for key, content in said]
    if isinstance(said, dict) and "us" in said:
        span = timedelta(microseconds=said["us"])
        return span if name in SPANS else EPOCH + span
    return content_of(said) if isinstance(said, str | dict) else said


def record_of(case: dict[str, Any]) -> PlainRecord:
    """Return the record that the client makes; RequestRefusedError if it makes none."""
    arguments = {name: argument_of(name, said) for name, said in case["arguments"].items()}
    if "in" in arguments:
        arguments["in_"] = arguments.pop("in")
    return MAKERS[case["op"]](**arguments)


def expected_record(case: dict[str, Any]) -> dict[str, Any]:
    """Return the record as the file says it: with its partition if it has an id."""
    made = record_of(case)
    partition = None
    if "id" in case["arguments"]:
        assert made.key is not None, "a record with an id has it as its key"
        partition = partition_of(made.key, case["partitions"])
    return {
        "topic": made.topic,
        "key": said_of(made.key),
        "partition": partition,
        "value": said_of(made.value),
        "headers": [[name, said_of(content)] for name, content in made.headers],
    }


class _NoReader(Reader):
    """Stands at the end of no topic; the test hands out what it would have read."""

    def __init__(self) -> None:
        """Read nothing."""

    def open(self, timeout_ms: int) -> None:
        """Be ready at once."""

    def poll(self, timeout_ms: int) -> list[tuple[bytes | None, bytes | None]]:
        return []

    def close(self) -> None:
        """Release nothing."""


def verdict_of_case(case: dict[str, Any]) -> Verdict | None:
    """Return the answer of a client that reads these receipts; None if it goes on waiting."""
    id, source = case["request"]["id"], case["request"]["source"]
    partition, offset = source.split("/")
    place: Future[Sent] = Future()
    place.set_result(Sent(int(partition), int(offset), 0))
    verdicts = Verdicts(_NoReader, TIMEOUT_S * 1_000)
    try:
        asked = ask_cancel("any" if id is None else id)._replace(id=id)
        ticket = verdicts.ticket(asked, Deadline.after(TIMEOUT_S * 1_000))
        ticket.wait_until_ready()
        return _answer(verdicts, ticket, place, case)
    finally:
        verdicts.close()


def _answer(
    verdicts: Verdicts, ticket: Ticket, place: "Future[Sent]", case: dict[str, Any]
) -> Verdict | None:
    reading = verdicts._reading
    assert reading is not None
    for number in range(len(case["receipts"]) + 1):
        if number == case["acknowledged_after"]:
            ticket.follow(place)
        for receipt in case["receipts"][number : number + 1]:
            key, value = content_of(receipt["key"]), content_of(receipt["value"])
            verdicts._hand_out(reading, _bytes(key), _bytes(value))
    return ticket.answer.result(0) if ticket.answer.done() else None


def _bytes(content: bytes | str | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content


def expected_verdict(case: dict[str, Any]) -> dict[str, Any] | None:
    """Return the verdict as the file says it: without a forecast, which only Python reads."""
    found = verdict_of_case(case)
    names = [name for name in Verdict.__slots__ if not name.startswith("forecast_")]
    return None if found is None else {name: getattr(found, name) for name in names}


def test_the_file_has_what_python_makes_of_each_case(request: pytest.FixtureRequest) -> None:
    requests = [
        case if "refused" in case else {**case, "record": expected_record(case)}
        for case in REQUESTS
    ]
    receipts = [{**case, "verdict": expected_verdict(case)} for case in RECEIPTS]
    parts = (("requests", requests), ("receipts", receipts))
    check_page(
        FILE, "{\n" + ",\n".join(_lines(name, cases) for name, cases in parts) + "\n}\n", request
    )


def _lines(part: str, cases: list[dict[str, Any]]) -> str:
    """Return one line for each case, so that a change shows as one."""
    lines = ",\n".join(f"    {json.dumps(case, ensure_ascii=False)}" for case in cases)
    return f'  "{part}": [\n{lines}\n  ]'


@pytest.mark.parametrize(
    "case", [case for case in REQUESTS if "refused" in case], ids=lambda case: case["name"]
)
def test_what_the_file_says_is_refused_is_refused(case: dict[str, Any]) -> None:
    with pytest.raises(RequestRefusedError):
        record_of(case)


def test_each_case_has_a_name_of_its_own() -> None:
    names = Counter(case["name"] for case in (*REQUESTS, *RECEIPTS))
    assert names.most_common(1)[0][1] == 1
    assert {case["op"] for case in REQUESTS} == set(MAKERS)


def test_the_buffer_is_the_one_that_clients_take_unless_told_another() -> None:
    topics = {case["record"]["topic"] for case in REQUESTS if "record" in case}
    assert topics == {BUFFER, "eu-buffer"}
