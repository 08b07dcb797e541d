"""A delayd node in which one guarantee at a time can be broken on purpose, to check the judges.
It is run as `delayd` is.

Each sabotage replaces one thing at a port, in this process only. It works while a small file that
all nodes share names it: one byte, its number in `Sabotage`, or 0. A run with a sabotage must fail,
and fail for that reason (chaos/checks.py).
"""

import json
import mmap
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from enum import IntEnum, auto
from functools import partial
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
    """The guarantee that is broken."""

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
Told = dict[str, Any]
"""A record to send: the keywords of ConfluentProducer.send."""


def write_sabotage(file: Path, sabotage: Sabotage | None) -> None:
    """Break this, and nothing else, from now on in the nodes that have the file."""
    file.touch()
    with file.open("r+b") as written:
        written.write(NONE if sabotage is None else bytes([sabotage]))


def _drop(send: Send, topic: str, told: Told) -> None:
    """Drop the record without an error."""
    del send, topic, told


def _double(send: Send, topic: str, told: Told) -> None:
    send(topic, **told)
    send(topic, **told)


def _alter(send: Send, topic: str, told: Told) -> None:
    send(topic, **{**told, "value": (told["value"] or b"") + b"!"})


def _lie(send: Send, topic: str, told: Told) -> None:
    said = json.loads(told["value"])
    other = {"cancelled": "too-late", "too-late": "cancelled"}
    said["verdict"] = other.get(said["verdict"], said["verdict"])
    send(topic, **{**told, "value": json.dumps(said).encode()})


def break_it(is_on: IsOn) -> None:
    """Prepare every sabotage in this process; each works whenever it is on."""
    from delayd.node.delivery import grant, mastership

    _tamper(is_on)
    _read_late(is_on)
    early = partial(_instead, lambda: is_on(Sabotage.EARLY))
    early(mastership, "bounded_now_ms", lambda right, *told: right(*told) + AHEAD_MS)
    # No successor fences a master; it has no deadline, and ignores the terms of others.
    unfenced = partial(_instead, lambda: is_on(Sabotage.UNFENCED))
    unfenced(mastership, "transactional_id", lambda _, cluster, *_shard: f"{cluster}-{uuid4().hex}")
    unfenced(grant.Grant, "is_valid", lambda *_told: True)
    unfenced(grant.Grant, "is_live", lambda *_told: True)
    unfenced(mastership.Mastership, "_watch", lambda *_told: None)


def _instead(
    is_wrong: Callable[[], bool], owner: object, name: str, wrong: Callable[..., object]
) -> None:
    """Call `wrong`, with the right function and its arguments, whenever `is_wrong`."""
    right = getattr(owner, name)

    def either(*told: object) -> object:
        return wrong(right, *told) if is_wrong() else right(*told)

    setattr(owner, name, either)


def _tamper(is_on: IsOn) -> None:
    """Send a record of its kind wrongly now and then, or hold it back until its step has sent all
    others."""
    from delayd.bus.confluent.producer import ConfluentProducer

    right, right_flush = ConfluentProducer.send, ConfluentProducer.flush
    held: list[tuple[str, Told]] = []
    sent: Counter[bool] = Counter()
    wrongs: Mapping[Sabotage, tuple[int, Callable[[Send, str, Told], None]]] = {
        Sabotage.DROP: (EVERY, _drop),
        Sabotage.DOUBLE: (EVERY, _double),
        Sabotage.ALTER: (EVERY, _alter),
        Sabotage.LIE: (EVERY_RECEIPT, _lie),
        Sabotage.REORDER: (EVERY_HELD, lambda _send, *waits: held.append(waits)),
    }

    def send(self: ConfluentProducer, topic: str, **told: Any) -> None:
        is_receipt = topic.endswith(RECEIPTS)
        if is_receipt or topic.startswith(TARGETS):
            sent[is_receipt] += 1
            for sabotage, (every, wrong) in wrongs.items():
                is_next = sent[is_receipt] % every == 0
                if is_next and is_receipt == (sabotage is Sabotage.LIE) and is_on(sabotage):
                    return wrong(partial(right, self), topic, told)
        return right(self, topic, **told)

    def flush(self: ConfluentProducer, timeout_ms: int) -> None:
        for topic, told in reversed(held):
            right(self, topic, **told)
        held.clear()
        right_flush(self, timeout_ms)

    ConfluentProducer.send = send  # type: ignore[method-assign]
    ConfluentProducer.flush = flush  # type: ignore[method-assign]


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


def main() -> None:
    """Prepare the sabotages, then run `delayd`."""
    with Path(os.environ[FILE_VARIABLE]).open("r+b") as file:
        setting = mmap.mmap(file.fileno(), 1)
    break_it(lambda sabotage: setting[0] == sabotage)
    from delayd.commands.cli import main as delayd

    sys.argv[0] = "delayd"
    delayd()


if __name__ == "__main__":
    main()
