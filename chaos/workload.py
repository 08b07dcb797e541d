"""What to send, and when: requests of all kinds as a user would write them. Pure.

A plan is a list of requests and of users' own transactions, in the order in which they are sent.
Each record's value is new (`<run>-<number>`), but for a request that is sent again as it was.

Not here: what must become of them. The judge finds that in the log itself, except for

    header `expect`     the reason for which this request must be refused

Invariant: the same seed makes the same plan.
"""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from chaos.asked import spread_ms

Headers = tuple[tuple[str, bytes], ...]

EXPECT: Final = "expect"

AROUND_MS: Final = 50
"""How far from the due time a cancel or replace is sent, before or after."""

LEAD_MS: Final = 1_500
"""How long before its due time a message is scheduled at least."""

TRANSACTION_EVERY_MS: Final = 250
TRANSACTION_RECORDS: Final = 8


class Planned(NamedTuple):
    """One request, for the partition that Java's partitioner has for its key."""

    at_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    topic: str = ""
    """Of an event: where it goes. Requests go to the buffer."""


class PlannedTransaction(NamedTuple):
    """A user's own transaction over some requests."""

    at_ms: int
    requests: tuple[Planned, ...]
    commits: bool
    open_ms: int = 0
    """How long its client does nothing before it ends it."""


Plan = list[Planned | PlannedTransaction]


@dataclass(frozen=True, slots=True)
class Scene:
    """Where and when: `run` is new for each plan; due times lie in `first_due_ms` + `spread_ms`.

    `late` does not exist until someone creates it, `never` never does; messages for `late` are due
    in the part of the spread that `late_share` names. In each hot second, as shares of the spread,
    `hot_share` of all that is due at any time is due. Each tenth transaction is open for `slow_ms`.
    """

    run: str
    targets: tuple[str, ...]
    late: str
    never: str
    first_due_ms: int
    spread_ms: int
    late_share: tuple[float, float] = (0.0, 1.0)
    hot: tuple[float, ...] = ()
    hot_share: float = 0.0
    slow_ms: int = 0
    never_share: tuple[float, float] = (0.0, 1.0)
    """The part of the spread in which messages for `never` are due."""
    retried_for_ms: int = 12_000
    """How long after its due time a message for `never` may be cancelled."""
    held: str = ""
    """A target that is paused meanwhile."""
    limited: str = ""
    """A target for which few may be pending."""
    events: str = ""
    """The topic whose events cancel messages."""


SHARES: Final[Mapping[str, int]] = {
    "plain": 34,
    "overdue": 2,
    "named": 8,
    "cancelled": 16,
    "cancelled_early": 3,
    "cancelled_twice": 4,
    "replaced": 10,
    "sent_again": 4,
    "conflicting": 3,
    "late": 6,
    "never": 3,
    "cancelled_in_retry": 3,
    "unknown_id": 1,
    "bad": 3,
}
"""Of all requests but those in transactions, in percent."""

CHAOS_SHARES: Final[Mapping[str, int]] = {
    **SHARES,
    "plain": 20,
    "ahead": 10,
    "far": 4,
    "by_the_clock": 4,
}
"""The same, and some that are scheduled at the beginning, some that are pending at the end, and
some that are due by the clock of a zone."""

VARIED_SHARES: Final[Mapping[str, int]] = {
    **CHAOS_SHARES,
    "recurring": 4,
    "in_window": 10,
    "by_event": 8,
    "held": 8,
    "limited": 1,
}
"""The same, and some that need more of a cluster: series, windows, events that cancel, a target
that is paused, and one that is limited."""

LIMITED_BURST: Final = 30
LIMITED_EVERY_MS: Final = 40
LIMIT: Final = 10
"""How many may be pending for a limited target. So many more are sent at it, one after the other:
some come before the step that counts them."""

ZONES: Final = ("UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe")

FAR_MS: Final = (60 * 60 * 1000, 3 * 24 * 60 * 60 * 1000)


@dataclass(slots=True)
class _Writer:
    """Writes requests of one plan; counts them."""

    scene: Scene
    chance: random.Random
    written: int = 0
    plan: Plan = field(default_factory=list)

    def due_ms(self, share: tuple[float, float] = (0.0, 1.0)) -> int:
        scene = self.scene
        first, last = (int(scene.spread_ms * part) for part in share)
        if scene.hot and share == (0.0, 1.0):
            number = int(self.chance.random() / scene.hot_share)
            if number < len(scene.hot):
                first = int(scene.spread_ms * scene.hot[number]) // 1000 * 1000
                last = first + 1000
        return scene.first_due_ms + self.chance.randrange(first, last)

    def lead_ms(self, due_ms: int) -> int:
        return due_ms - LEAD_MS - self.chance.randrange(1_000)

    def around_ms(self, due_ms: int) -> int:
        return due_ms + self.chance.randint(-AROUND_MS, AROUND_MS)

    def target(self) -> str:
        return self.chance.choice(self.scene.targets)

    def request(self, at_ms: int, id: str | None, asks: Mapping[str, object]) -> Planned:
        """A request with a new value. With an id it is the key; else one of a hundred keys."""
        self.written += 1
        trace = ("trace", b"%d" % self.written)
        own: Headers = (trace, ("bytes", b"\x00\xff"), trace)
        headers = tuple((f"delayd-{name}", str(said).encode()) for name, said in asks.items())
        named: Headers = (("delayd-id", id.encode()),) if id is not None else ()
        key = id.encode() if id is not None else b"key-%d" % (self.written % 100)
        value = f"{self.scene.run}-{self.written:07}".encode()
        return Planned(at_ms, key, value, (own[0], *headers, *named, *own[1:]))

    def put(self, at_ms: int, id: str | None = None, **asks: object) -> Planned:
        """Such a request, as part of the plan."""
        planned = self.request(at_ms, id, asks)
        self.plan.append(planned)
        return planned

    def new_id(self) -> str:
        return f"{self.scene.run}-id-{self.written}"

    # --- The kinds, by their names in the shares

    def plain(self) -> None:
        due_ms = self.due_ms()
        self.put(self.lead_ms(due_ms), topic=self.target(), due=due_ms)

    def ahead(self) -> None:
        at_ms = self.scene.first_due_ms - self.chance.randrange(LEAD_MS, LEAD_MS + 1_500)
        self.put(at_ms, topic=self.target(), due=self.due_ms())

    def overdue(self) -> None:
        at_ms = self.due_ms()
        self.put(at_ms, topic=self.target(), due=at_ms - self.chance.randrange(1, 5_000))

    def named(self) -> tuple[str, int]:
        due_ms, id = self.due_ms(), self.new_id()
        self.put(self.lead_ms(due_ms), id, topic=self.target(), due=due_ms, key="another key")
        return id, due_ms

    def cancelled(self, times: int = 1) -> None:
        id, due_ms = self.named()
        for _ in range(times):
            self.put(self.around_ms(due_ms), id, op="cancel")

    def cancelled_early(self) -> None:
        id, due_ms = self.named()
        self.put(due_ms - self.chance.randrange(100, LEAD_MS), id, op="cancel")

    def cancelled_twice(self) -> None:
        self.cancelled(times=2)

    def replaced(self) -> None:
        id, due_ms = self.named()
        at_ms = self.around_ms(due_ms)
        new_ms = at_ms + self.chance.randrange(0, 1_000)
        first = self.put(at_ms, id, op="replace", topic=self.target(), due=new_ms)
        match self.chance.randrange(4):
            case 0 | 1:
                self.put(self.around_ms(new_ms), id, op="cancel")
            case 2:
                self.plan.append(first._replace(at_ms=self.around_ms(new_ms)))

    def sent_again(self) -> None:
        """As it was: long before it is due, or about when it is."""
        due_ms, id = self.due_ms(), self.new_id()
        first = self.put(self.lead_ms(due_ms), id, topic=self.target(), due=due_ms)
        later_ms = self.chance.choice((first.at_ms, self.around_ms(due_ms)))
        self.plan.append(first._replace(at_ms=later_ms))

    def conflicting(self) -> None:
        id, due_ms = self.named()
        at_ms = self.chance.choice((due_ms - LEAD_MS, self.around_ms(due_ms)))
        self.put(at_ms, id, topic=self.target(), due=due_ms + 500)

    def late(self) -> None:
        self.missing(self.scene.late, self.scene.late_share)

    def never(self) -> None:
        self.missing(self.scene.never, self.scene.never_share)

    def missing(self, topic: str, share: tuple[float, float]) -> None:
        due_ms = self.due_ms(share)
        id = self.new_id() if self.chance.random() < 0.5 else None
        self.put(self.lead_ms(due_ms), id, topic=topic, due=due_ms)

    def cancelled_in_retry(self) -> None:
        """A cancel while the first attempt fails, or at any time after; some after the last."""
        due_ms, id = self.due_ms(self.scene.never_share), self.new_id()
        self.put(self.lead_ms(due_ms), id, topic=self.scene.never, due=due_ms)
        after_ms = self.chance.randrange(self.scene.retried_for_ms)
        at_ms = self.chance.choice((self.around_ms(due_ms), due_ms + after_ms))
        self.put(at_ms, id, op="cancel")

    def unknown_id(self) -> None:
        self.put(self.due_ms(), self.new_id(), op="cancel")

    def far(self) -> None:
        """Pending for hours or days; of those with an id some are cancelled."""
        at_ms, due_ms = self.due_ms(), self.scene.first_due_ms + self.chance.randrange(*FAR_MS)
        id = self.new_id() if self.chance.random() < 0.5 else None
        self.put(at_ms, id, topic=self.target(), due=due_ms)
        if id is not None and self.chance.random() < 0.3:
            self.put(at_ms + 500, id, op="cancel")

    def by_the_clock(self) -> None:
        """Due when the clock of a zone shows it; of those with an id half are cancelled."""
        due_ms, zone = self.due_ms(), self.chance.choice(ZONES)
        id = self.new_id() if self.chance.random() < 0.5 else None
        moment = datetime.fromtimestamp(due_ms // 1000, ZoneInfo(zone)).replace(tzinfo=None)
        shown = f"{moment.isoformat()}.{due_ms % 1000:03}"
        self.put(self.lead_ms(due_ms), id, topic=self.target(), due=shown, zone=zone)
        if id is not None and self.chance.random() < 0.5:
            self.put(self.around_ms(due_ms), id, op="cancel")

    def recurring(self) -> None:
        """Every few seconds, for some seconds; of those with an id half are cancelled meanwhile."""
        at_ms, step_s = self.lead_ms(self.due_ms()), self.chance.choice((1, 2, 3))
        until_ms = at_ms + self.chance.randrange(4_000, 12_000)
        catchup = self.chance.choice(("once", "all"))
        asks = {"topic": self.target(), "cron": f"*/{step_s} * * * * *", "until": until_ms}
        id = self.new_id() if self.chance.random() < 0.5 else None
        self.put(at_ms, id, **asks, catchup=catchup, **self.group_of(id))
        if id is not None and self.chance.random() < 0.5:
            self.put(at_ms + self.chance.randrange(1_000, 9_000), id, op="cancel")

    def in_window(self) -> None:
        """Spread from its due time on; of those with an id half are cancelled about when it is to
        go out."""
        due_ms, window_ms = self.due_ms(), self.chance.choice((1, 500, 2_000, 5_000))
        id = self.new_id() if self.chance.random() < 0.5 else None
        asks = {"topic": self.target(), "due": due_ms, "window": f"{window_ms}ms"}
        self.put(self.lead_ms(due_ms), id, **asks, **self.group_of(id))
        if id is not None and self.chance.random() < 0.5:
            self.put(self.around_ms(spread_ms(due_ms, window_ms, id)), id, op="cancel")

    def group_of(self, id: str | None) -> dict[str, object]:
        """What has an id may have a group."""
        return {} if id is None else {"group": f"group-{self.written % 3}"}

    def by_event(self) -> None:
        """Named, and an event about it, early or about when it is due; some are of no account."""
        id, due_ms = self.named()
        early_ms = due_ms - self.chance.randrange(100, LEAD_MS)
        at_ms = self.chance.choice((self.around_ms(due_ms), early_ms))
        status = "paid" if self.chance.random() < 0.8 else "open"
        self.written += 1
        event = {"order": {"id": id}, "status": status, "number": self.written}
        value = json.dumps(event).encode()
        self.plan.append(Planned(at_ms, id.encode(), value, (), self.scene.events))

    def held(self) -> None:
        """For a target that is paused at times; of those with an id half are cancelled, some while
        they wait."""
        due_ms = self.due_ms()
        id = self.new_id() if self.chance.random() < 0.5 else None
        self.put(self.lead_ms(due_ms), id, topic=self.scene.held, due=due_ms)
        if id is not None and self.chance.random() < 0.5:
            self.put(self.around_ms(due_ms) + self.chance.randrange(5_000), id, op="cancel")

    def limited(self) -> None:
        """More than may be pending, within a second."""
        due_ms = self.due_ms()
        at_ms = self.lead_ms(due_ms)
        for number in range(LIMITED_BURST):
            asks = {"topic": self.scene.limited, "due": due_ms + number}
            self.put(at_ms + LIMITED_EVERY_MS * number, None, **asks)

    def bad(self) -> None:
        at_ms, topic = self.due_ms(), self.target()
        kinds: list[tuple[str, dict[str, object]]] = [
            ("missing-due", {"topic": topic}),
            ("bad-delay", {"topic": topic, "delay": "soon"}),
            ("bad-delay", {"topic": topic, "delay": "soon", "op": "replace"}),
            ("unknown-header", {"topic": topic, "due": at_ms, "dew": "drop"}),
            ("forbidden-topic", {"topic": "__consumer_offsets", "due": at_ms}),
            ("unexpected-header", {"op": "cancel", "topic": topic}),
            ("bad-proof", {"topic": topic, "due": at_ms, "continues": 0, "proof": "00" * 32}),
        ]
        reason, asks = self.chance.choice(kinds)
        needs_id = "op" in asks
        id = self.new_id() if needs_id or self.chance.random() < 0.5 else None
        bad = self.put(at_ms, id, **asks)
        self.plan[-1] = bad._replace(headers=(*bad.headers, (EXPECT, reason.encode())))

    def transaction(self, due_ms: int, *, commits: bool) -> PlannedTransaction:
        """Messages with and without ids; and cancels of messages that were scheduled outside."""
        at_ms = due_ms - LEAD_MS
        target = self.target()
        requests = []
        for number in range(TRANSACTION_RECORDS):
            asks: dict[str, object] = {"topic": target, "due": due_ms + number}
            match number % 4:
                case 0:
                    requests.append(self.request(at_ms, None, asks))
                case 1:
                    requests.append(self.request(at_ms, self.new_id(), asks))
                case _:
                    id = self.new_id()
                    self.put(at_ms - 500, id, **asks)
                    requests.append(self.request(at_ms, id, {"op": "cancel"}))
        return PlannedTransaction(at_ms, tuple(requests), commits)


def mixture(scene: Scene, *, count: int, seed: int, shares: Mapping[str, int] = SHARES) -> Plan:
    """`count` requests of all kinds in these shares, and transactions besides."""
    writer = _Writer(scene, random.Random(seed))
    for kind in writer.chance.choices(list(shares), weights=list(shares.values()), k=count):
        getattr(writer, kind)()
    for number, offset_ms in enumerate(range(0, scene.spread_ms, TRANSACTION_EVERY_MS)):
        due_ms = scene.first_due_ms + offset_ms
        transaction = writer.transaction(due_ms, commits=offset_ms % 500 == 0)
        open_ms = scene.slow_ms if number % 10 == 5 else 0
        writer.plan.append(transaction._replace(open_ms=open_ms))
    # The sort is stable: of equal times a message comes before its cancel.
    return sorted(writer.plan, key=lambda planned: planned.at_ms)
