"""A delayd node in which one guarantee at a time can be broken on purpose: the check of the
checker. Run as `delayd` is.

Each sabotage replaces one thing behind a door, in this process only, and works while a small file,
shared by all nodes, names it: one byte, its number in `Sabotage`, or 0. A run in which one was on
must be red, and red for that reason (chaos/checks.py).
"""

import json
import mmap
import os
import sys
import time
from collections.abc import Callable, Mapping
from enum import IntEnum, auto
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

FILE_VARIABLE: Final = "CHAOS_SABOTAGE_FILE"
NONE: Final = b"\0"
TARGETS: Final = "target."
RECEIPTS: Final = "-receipts"
EVERY: Final = 50
EVERY_RECEIPT: Final = 10
EVERY_HELD: Final = 5
AHEAD_MS: Final = 400
STALE_MS: Final = 2_000


class Sabotage(IntEnum):
    """What is broken."""

    DROP = auto()
    DOUBLE = auto()
    ALTER = auto()
    REORDER = auto()
    EARLY = auto()
    LIE = auto()
    UNREAD = auto()
    UNFENCED = auto()


IsOn = Callable[[Sabotage], bool]
Send = Callable[..., None]


def write_sabotage(file: Path, sabotage: Sabotage | None) -> None:
    """From now on this is broken in the nodes that have the file, and nothing else."""
    file.touch()
    with file.open("r+b") as written:
        written.write(NONE if sabotage is None else bytes([sabotage]))


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


def break_it(is_on: IsOn) -> None:
    """In this process: each whenever it is on."""
    _reorder(is_on)
    for sabotage in _WRONG:
        _tamper(is_on, sabotage)
    _hurry(is_on)
    _read_late(is_on)
    _unfence(is_on)


def _tamper(is_on: IsOn, sabotage: Sabotage) -> None:
    """Now and then a record of its kind is sent wrongly."""
    from delayd.bus.confluent.producer import ConfluentProducer

    right = ConfluentProducer.send
    is_lie = sabotage is Sabotage.LIE
    sent = 0

    def send(self: ConfluentProducer, topic: str, **told: Any) -> None:
        nonlocal sent
        concerned = topic.endswith(RECEIPTS) if is_lie else topic.startswith(TARGETS)
        sent += concerned
        is_next = concerned and sent % (EVERY_RECEIPT if is_lie else EVERY) == 0
        if is_next and is_on(sabotage):
            _WRONG[sabotage](lambda to, **what: right(self, to, **what), topic, told)
        else:
            right(self, topic, **told)

    ConfluentProducer.send = send  # type: ignore[method-assign]


def _reorder(is_on: IsOn) -> None:
    """Now and then a record waits until its step has sent all others."""
    from delayd.bus.confluent.producer import ConfluentProducer

    right, right_flush = ConfluentProducer.send, ConfluentProducer.flush
    held: list[tuple[str, dict[str, Any]]] = []
    sent = 0

    def send(self: ConfluentProducer, topic: str, **told: Any) -> None:
        nonlocal sent
        sent += topic.startswith(TARGETS)
        is_next = topic.startswith(TARGETS) and sent % EVERY_HELD == 0
        if is_next and is_on(Sabotage.REORDER):
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


def _hurry(is_on: IsOn) -> None:
    """Masters deliver too soon."""
    from delayd.node.delivery import mastership

    names = vars(mastership)
    right = names["bounded_now_ms"]
    names["bounded_now_ms"] = lambda *told: right(*told) + AHEAD_MS * is_on(Sabotage.EARLY)


def _read_late(is_on: IsOn) -> None:
    """Hide frontier records newer than STALE_MS: a successor goes on from an old one."""
    from delayd.cluster.frontier_log import FrontierLog, SeenFrontier

    right = FrontierLog.poll
    held: dict[int, list[SeenFrontier]] = {}

    def poll(self: FrontierLog, timeout_ms: int) -> list[SeenFrontier]:
        shown = self.newest
        waiting = held.setdefault(id(self), [])
        waiting += right(self, timeout_ms)
        until_ms = time.time_ns() // 1_000_000 - STALE_MS * is_on(Sabotage.UNREAD)
        seen = [each for each in waiting if each.append_ms <= until_ms or shown is None]
        held[id(self)] = waiting[len(seen) :]
        self.newest = seen[-1] if seen else shown
        return seen

    FrontierLog.poll = poll  # type: ignore[method-assign]


def _unfence(is_on: IsOn) -> None:
    """A master is not fenced by its successor, has no deadline, and looks at no other's term."""
    from delayd.node.delivery import mastership

    names = vars(mastership)
    right_id = names["transactional_id"]

    def transactional_id(cluster: str, shard: int) -> str:
        is_wrong = is_on(Sabotage.UNFENCED)
        return f"{cluster}-{uuid4().hex}" if is_wrong else str(right_id(cluster, shard))

    names["transactional_id"] = transactional_id
    grant, attempt = mastership.Grant, mastership.Mastership
    is_valid, is_live, watch = grant.is_valid, grant.is_live, attempt._watch
    grant.is_valid = (  # type: ignore[method-assign]
        lambda self, monotonic_ms: is_on(Sabotage.UNFENCED) or is_valid(self, monotonic_ms)
    )
    grant.is_live = (  # type: ignore[method-assign]
        lambda self, monotonic_ms: is_on(Sabotage.UNFENCED) or is_live(self, monotonic_ms)
    )
    attempt._watch = (  # type: ignore[method-assign]
        lambda self: None if is_on(Sabotage.UNFENCED) else watch(self)
    )


def main() -> None:
    """Break it, then be `delayd`."""
    with Path(os.environ[FILE_VARIABLE]).open("r+b") as file:
        setting = mmap.mmap(file.fileno(), 1)
    break_it(lambda sabotage: setting[0] == sabotage)
    from delayd.cli import main as delayd

    sys.argv[0] = "delayd"
    delayd()


if __name__ == "__main__":
    main()
