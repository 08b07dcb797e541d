"""A delayd node with one guarantee broken on purpose: the check of the checker. Run as `delayd` is.

Each sabotage replaces one thing behind a door, in this process only. A run with it must be red, and
red for that reason (chaos/checks.py).
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final
from uuid import uuid4

VARIABLE: Final = "CHAOS_SABOTAGE"
TARGETS: Final = "target."
RECEIPTS: Final = "-receipts"
EVERY: Final = 300
EVERY_RECEIPT: Final = 30
AHEAD_MS: Final = 400


class Sabotage(Enum):
    """What is broken."""

    DROP = "drop"
    DOUBLE = "double"
    ALTER = "alter"
    REORDER = "reorder"
    EARLY = "early"
    LIE = "lie"
    UNFENCED = "unfenced"


Send = Callable[..., None]


def _drop(send: Send, topic: str, told: dict[str, Any]) -> None:
    """It is not sent, and nobody notices."""
    del send, topic, told


def _double(send: Send, topic: str, told: dict[str, Any]) -> None:
    send(topic, **told)
    send(topic, **told)


def _alter(send: Send, topic: str, told: dict[str, Any]) -> None:
    send(topic, **{**told, "value": (told["value"] or b"") + b"!"})


def _lie(send: Send, topic: str, told: dict[str, Any]) -> None:
    said = json.loads(told["value"])
    other = {"cancelled": "too-late", "too-late": "cancelled"}
    said["verdict"] = other.get(said["verdict"], said["verdict"])
    send(topic, **{**told, "value": json.dumps(said).encode()})


_WRONG: Final[Mapping[Sabotage, Callable[[Send, str, dict[str, Any]], None]]] = {
    Sabotage.DROP: _drop,
    Sabotage.DOUBLE: _double,
    Sabotage.ALTER: _alter,
    Sabotage.LIE: _lie,
}


def break_it(sabotage: Sabotage) -> None:
    """In this process, from now on."""
    if sabotage is Sabotage.EARLY:
        _hurry()
    elif sabotage is Sabotage.UNFENCED:
        _unfence()
    elif sabotage is Sabotage.REORDER:
        _reorder()
    else:
        _tamper(sabotage)


def _tamper(sabotage: Sabotage) -> None:
    """Now and then a record of its kind is sent wrongly."""
    from delayd.bus.confluent.producer import ConfluentProducer

    right = ConfluentProducer.send
    is_lie = sabotage is Sabotage.LIE
    sent = 0

    def send(self: ConfluentProducer, topic: str, **told: Any) -> None:
        nonlocal sent
        concerned = topic.endswith(RECEIPTS) if is_lie else topic.startswith(TARGETS)
        sent += concerned
        if concerned and sent % (EVERY_RECEIPT if is_lie else EVERY) == 0:
            _WRONG[sabotage](lambda to, **what: right(self, to, **what), topic, told)
        else:
            right(self, topic, **told)

    ConfluentProducer.send = send  # type: ignore[method-assign]


def _reorder() -> None:
    """Now and then a record waits until its step has sent all others."""
    from delayd.bus.confluent.producer import ConfluentProducer

    right, right_flush = ConfluentProducer.send, ConfluentProducer.flush
    held: list[tuple[str, dict[str, Any]]] = []
    sent = 0

    def send(self: ConfluentProducer, topic: str, **told: Any) -> None:
        nonlocal sent
        sent += topic.startswith(TARGETS)
        if topic.startswith(TARGETS) and sent % 5 == 0:
            held.append((topic, told))
        else:
            right(self, topic, **told)

    def flush(self: ConfluentProducer, timeout_ms: int) -> None:
        for topic, told in reversed(held):
            right(self, topic, **told)
        held.clear()
        right_flush(self, timeout_ms)

    ConfluentProducer.send = send  # type: ignore[method-assign]
    ConfluentProducer.flush = flush  # type: ignore[method-assign]


def _hurry() -> None:
    """Masters deliver too soon."""
    from delayd import mastership

    names = vars(mastership)
    right = names["bounded_now_ms"]
    names["bounded_now_ms"] = lambda *told: right(*told) + AHEAD_MS


def _unfence() -> None:
    """A master is not fenced by its successor, has no deadline, and looks at no other's term."""
    from delayd import mastership

    vars(mastership)["transactional_id"] = lambda cluster, _shard: f"{cluster}-{uuid4().hex}"
    grant, attempt = mastership.Grant, mastership.Mastership
    grant.is_valid = lambda self, monotonic_ms: True  # type: ignore[method-assign]
    grant.is_live = lambda self, monotonic_ms: True  # type: ignore[method-assign]
    attempt._watch = lambda self: None  # type: ignore[method-assign]


def main() -> None:
    """Break it, then be `delayd`."""
    break_it(Sabotage(os.environ[VARIABLE]))
    from delayd.cli import main as delayd

    sys.argv[0] = "delayd"
    delayd()


if __name__ == "__main__":
    main()
