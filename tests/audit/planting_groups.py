"""Defects of groups, planted in a correct history of a world as by `planting.py`."""

from planting import Planter
from written import LIMITS, Written

from delayd.request.proof import proof_of

GROUP = "delayd-group"


def plant_groups(planter: Planter) -> None:
    """Groups that a delivery, a letter or what continues a message has otherwise."""
    planter.alter("grouped", lambda record: record.set(GROUP, b"another"))
    planter.alter("grouped", lambda record: record.remove(GROUP))
    planter.alter("first", lambda record: _insert(record, b"a-group"))
    planter.plant(
        "letter-false",
        ["grouped dead"],
        lambda asked: planter.letter(asked).set(GROUP, b"another"),
    )
    planter.plant(
        "letter-false", ["grouped dead"], lambda asked: planter.letter(asked).remove(GROUP)
    )
    request = planter.next("grouped retry")
    _regroup(planter, planter.delivery(request))
    planter.expect("altered", request)
    request = planter.next("grouped series")
    [second] = [
        each
        for each in planter.history.targets
        if (each.header("delayd-origin"), each.header("delayd-occurrence")) == (request.place, "2")
    ]
    _regroup(planter, second)
    planter.expect("series", request)


def _insert(record: Written, group: bytes) -> None:
    """Add a group where it belongs."""
    [at] = [n for n, (name, _) in enumerate(record.headers) if name == "delayd-id"]
    record.headers.insert(at + 1, (GROUP, group))


def _regroup(planter: Planter, delivery: Written) -> None:
    """Let a master write another group into a record, and deliver that."""
    [record] = [
        each for each in planter.history.buffer if each.place == delivery.header("delayd-source")
    ]
    for each in (record, delivery):
        each.set(GROUP, b"another")
    parts = (record.partition, record.key, record.value, record.headers[:-1])
    record.set("delayd-proof", proof_of(LIMITS, *parts))
