"""The log is compared with what clients were told.

Source: chaos/acknowledgements.py, chaos/history.py.
"""

import json
from pathlib import Path

import pytest

from chaos.acknowledgements import acknowledgement_faults, reception_faults
from chaos.history import History, What, now_ms
from chaos.records import Logged


def logged(offset: int, key: bytes | None = b"k", value: bytes | None = b"v") -> Logged:
    return Logged("buffer", 0, offset, 0, key, value, ())


def told(how: What | None = None, *, stored: bool = True) -> History:
    """One request, alone or in a transaction that ended so; acknowledged at 0/7 or not."""
    history = History()
    if how is None:
        number = history.sent("c", b"k", b"v")
    else:
        transaction = history.began("c")
        number = history.sent("c", b"k", b"v", transaction)
    if stored:
        history.stored(number, 0, 7)
    if how is not None:
        history.ended("c", 0, how)
    return history


@pytest.mark.parametrize("how", [None, What.COMMITTED])
def test_what_was_acknowledged_must_be_in_the_log_as_it_was_sent(how: What | None) -> None:
    assert acknowledgement_faults(told(how), [logged(7)]) == []
    for log in ([], [logged(8)], [logged(7, value=b"w")], [logged(7, key=b"l")]):
        assert "was acknowledged" in acknowledgement_faults(told(how), log)[0]


def test_what_was_taken_back_must_not_be_in_the_log() -> None:
    assert acknowledgement_faults(told(What.ABORTED), []) == []
    assert "was taken back" in acknowledgement_faults(told(What.ABORTED), [logged(7)])[0]


def test_the_place_of_what_was_taken_back_may_be_anothers() -> None:
    history = told(What.ABORTED)
    history.stored(history.sent("c", b"k", b"w"), 0, 7)
    assert acknowledgement_faults(history, [logged(7, value=b"w")]) == []


@pytest.mark.parametrize("log", [[], [logged(7)]], ids=["absent", "there"])
def test_what_is_not_known_may_be_in_the_log_or_not(log: list[Logged]) -> None:
    assert acknowledgement_faults(told(stored=False), log) == []
    assert acknowledgement_faults(told(What.UNKNOWN), log) == []


def test_what_nobody_sent_and_what_was_stored_twice_is_found() -> None:
    twice = [logged(7), logged(8)]
    assert "2 times in the log, and was sent 1 times" in acknowledgement_faults(told(), twice)[0]
    stranger = [logged(7), logged(8, value=b"x")]
    assert "sent 0 times" in acknowledgement_faults(told(), stranger)[0]


def test_what_the_master_writes_back_is_nobodys_request() -> None:
    own = logged(8)._replace(headers=(("delayd-continues", b"7"), ("delayd-origin", b"0/7")))
    note = logged(9)._replace(headers=(("delayd-settles", b"1"), ("delayd-proof", b"p")))
    barrier = logged(10)._replace(headers=(("delayd-rules", b"4"), ("delayd-proof", b"p")))
    assert acknowledgement_faults(told(), [logged(7), own, note, barrier]) == []


def test_a_request_that_pretends_to_be_the_masters_is_somebodys() -> None:
    forged = logged(7)._replace(headers=(("delayd-continues", b"0"),))
    assert acknowledgement_faults(told(), [forged]) == []


def test_a_reception_before_the_due_time_is_early() -> None:
    history, record = History(), logged(1)._replace(topic="t")
    history.received("consumer", "t", "0/1", "0/7")
    assert reception_faults(history, {"0/7": now_ms() - 1}, [record]) == []
    [early] = reception_faults(history, {"0/7": now_ms() + 1_000}, [record])
    assert "early" in early


def test_a_reception_of_what_is_not_there_is_found() -> None:
    history = History()
    history.received("consumer", "t", "0/1", "0/7")
    [gone] = reception_faults(history, {}, [])
    assert "is not there" in gone


def test_a_history_can_be_read_again(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    history = History(file)
    transaction = history.began("c")
    number = history.sent("c", None, b"\xff", transaction)
    history.stored(number, 2, 3)
    history.doubtful(history.sent("d", b"k", None), "away")
    history.ended("c", transaction, What.ABORTED)
    history.received("e", "t", "0/1", None)
    history.close()
    events = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(event["what"], event["client"]) for event in events] == [
        *(("began", "c"), ("sent", "c"), ("stored", "c"), ("sent", "d"), ("doubtful", "d")),
        *(("aborted", "c"), ("received", "e")),
    ]
    assert events[2]["place"] == "2/3" and events[4]["why"] == "away"
    assert [event["at_ms"] for event in events] == sorted(event["at_ms"] for event in events)
