"""What is sent in a world: every kind of request, in every state of an id. Times are ms from its
start; the cut is at 14,000, the end at 20,000."""

from random import Random
from typing import Any, Final

from world import START_MS, World
from written import Written

from delayd.bus import Headers

SEED: Final = 7

Sent = dict[str, list[Written]]
"""What was sent, by what it is for."""


def header(name: str, text: str | int) -> tuple[str, bytes | None]:
    """A header of delayd's."""
    return f"delayd-{name}", str(text).encode()


class Plan:
    """Sends requests to a world, each with a value of its own."""

    def __init__(self, world: World, seed: int = SEED) -> None:
        self.world = world
        self.random = Random(seed)
        self.sent: Sent = {}

    def send(
        self,
        what: str,
        at_ms: int,
        key: str | None,
        *headers: tuple[str, bytes | None],
        value: bytes | None = b"",
        partition: int | None = None,
    ) -> Written:
        """A record with these headers among those of the user."""
        number = sum(len(each) for each in self.sent.values())
        own: Headers = [("trace", b"%d" % number), ("null", None), ("trace", b"\x00\xff")]
        if value == b"":
            value = b"value %d" % number
        written = self.world.send(
            at_ms,
            None if key is None else key.encode(),
            value,
            [own[0], *headers, *own[1:]],
            partition,
        )
        self.sent.setdefault(what, []).append(written)
        return written

    def schedule(
        self,
        what: str,
        at_ms: int,
        due_ms: int,
        *more: tuple[str, bytes | None],
        topic: str = "orders",
        key: str | None = "k",
        value: bytes | None = b"",
    ) -> Written:
        """A schedule without an id."""
        due = header("due", START_MS + due_ms)
        return self.send(what, at_ms, key, header("topic", topic), due, *more, value=value)

    def named(
        self,
        what: str,
        at_ms: int,
        id: str,
        due_ms: int | None = None,
        op: str | None = None,
        topic: str = "orders",
        value: bytes | None = b"",
    ) -> Written:
        """A request about an id."""
        headers = [header("id", id)]
        if op is not None:
            headers.append(header("op", op))
        if due_ms is not None:
            headers.append(header("due", START_MS + due_ms))
            headers.append(header("topic", topic))
        return self.send(what, at_ms, id, *headers, value=value)


def send_all(world: World, count: int = 12) -> Sent:
    """Some 400 requests of every kind, so many of each."""
    plan = Plan(world)
    for number in range(count):
        _plain(plan, number)
        _ids(plan, number)
        _marks(plan, number)
        _failing(plan, number)
        _rejects(plan, number)
        _wishes(plan, number)
        send_series(plan, number)
        _wrong_series(plan, number)
        _beyond(plan, number)
    return plan.sent


def send_random(world: World, seed: int, ids: int = 12, count: int = 300) -> Sent:
    """All operations on few ids, at any time, and for targets that fail too."""
    plan = Plan(world, seed)
    random = plan.random
    for _ in range(count):
        at_ms, id = random.randrange(14_000), f"random-{random.randrange(ids)}"
        due_ms = at_ms + random.choice([-100, 0, 50, 300, 900, 2_000])
        topic = random.choice(["orders", "orders", "mails", "late", "down"])
        op = random.choice([None, None, "replace", "cancel", "cancel"])
        if op == "cancel":
            plan.named("random cancel", at_ms, id, op=op)
        else:
            plan.named("random", at_ms, id, due_ms, op, topic)
    return plan.sent


def send_with_redrives(receipts_written: str) -> tuple[World, Sent]:
    """Everything: what `send_all` and `send_random` send, and redrives of dead letters, which must
    be known before; so the world is run once without them."""
    letters: list[Written] = []
    for _ in range(2):
        world = World(receipts_written)
        sent = send_all(world)
        sent |= send_random(world, SEED)
        for number, letter in enumerate(letters[:9]):
            _redrive_all(world, sent, letter, number)
        if not letters:
            reason = "delayd-reason"
            letters = [each for each in world.run().dead if each.header(reason) == "dead"]
            letters.sort(key=lambda each: each.header("delayd-source") or "")
    return world, sent


def _redrive_all(world: World, sent: Sent, letter: Written, number: int) -> None:
    id = letter.header("delayd-id")
    sent.setdefault("redrive", []).append(_redrive(world, letter, 8_000))
    if id is not None:
        sent.setdefault("redrive", []).append(_redrive(world, letter, 8_100, id))
    # The last ones are beyond the cut.
    sent["redrive"].append(_redrive(world, letter, 9_000 + 1_000 * number))


def _plain(plan: Plan, number: int) -> None:
    at_ms, random = 100 + 90 * number, plan.random
    plan.schedule("plain", at_ms, at_ms + random.randrange(500, 9_000), key=f"k{number}")
    plan.schedule("keyless", at_ms, at_ms + 700, key=None)
    plan.schedule("null", at_ms, at_ms + 800, key=f"n{number}", value=None)
    plan.schedule("keyed", at_ms, at_ms + 900, header("key", f"other-{number}"))
    plan.schedule("placed", at_ms, at_ms + 900, header("partition", number % 4))
    plan.schedule("mail", at_ms, at_ms + 1_000, topic="mails")
    plan.schedule("overdue", at_ms, at_ms - 5_000)
    topic = header("topic", "orders")
    plan.send("delayed", at_ms, "k", topic, header("delay", "2s"))
    plan.send("level", at_ms, "k", topic, header("level", 2))
    plan.send("dated", at_ms, "k", topic, header("due", "2023-11-14T22:13:25.0001Z"))


def _ids(plan: Plan, number: int) -> None:
    at_ms, id = 150 + 80 * number, f"id-{number}"
    due_ms = at_ms + 4_000
    plan.named("first", at_ms, id, due_ms, value=b"same")
    again = plan.named("duplicate", at_ms + 300, id, due_ms, value=b"same")
    again.headers = [*plan.sent["first"][-1].headers]
    plan.named("conflict", at_ms + 600, id, due_ms, value=b"other")
    plan.named("reused", due_ms + 500, id, due_ms + 1_500)
    plan.named("reused again", due_ms + 2_500, id, due_ms + 3_500)


def _marks(plan: Plan, number: int) -> None:
    at_ms = 200 + 70 * number
    for what, mark_ms in (("early", 400), ("late", 2_500), ("edge", 1_000), ("twice", 500)):
        id = f"{what}-{number}"
        plan.named(f"{what} target", at_ms, id, at_ms + 1_000)
        plan.named(f"{what} cancel", at_ms + mark_ms, id, op="cancel")
    plan.named("second cancel", at_ms + 800, f"twice-{number}", op="cancel")
    plan.named("third cancel", at_ms + 9_500, f"twice-{number}", op="cancel")
    plan.named("unknown cancel", at_ms, f"nobody-{number}", op="cancel")
    plan.named("forgotten cancel", at_ms + 11_000, f"late-{number}", op="cancel")
    for what, mark_ms in (("replaced", 300), ("outrun", 2_500)):
        id = f"{what}-{number}"
        plan.named(f"{what} target", at_ms, id, at_ms + 1_500)
        plan.named(f"{what} replace", at_ms + mark_ms, id, at_ms + 4_000, op="replace")
        plan.named(f"{what} replace again", at_ms + 2_600, id, at_ms + 4_500, op="replace")
    plan.named("aged target", at_ms, f"aged-{number}", at_ms + 900)
    plan.named("aged cancel", at_ms + 7_500, f"aged-{number}", op="cancel")
    plan.named("new replace", at_ms, f"new-{number}", at_ms + 900, op="replace")


def _failing(plan: Plan, number: int) -> None:
    at_ms = 250 + 60 * number
    due_ms = at_ms + 500
    plan.schedule("dead", at_ms, due_ms, topic="down", key=f"d{number}")
    plan.named("dead by id", at_ms, f"dead-{number}", due_ms, topic="down")
    plan.schedule("retried", 2_100 + at_ms // 4, 2_500, topic="late", key=f"r{number}")
    plan.named("retried by id", 2_100 + at_ms // 4, f"retried-{number}", 2_600, topic="late")
    # Put back by the step at 1,800, and killed before it is tried again; or while it is requeued.
    plan.named("killed between", at_ms, f"between-{number}", 1_750, topic="down")
    plan.named("cancel between", 1_950, f"between-{number}", op="cancel")
    plan.named("killed within", at_ms, f"within-{number}", 1_750, topic="down")
    plan.named("cancel within", 1_802, f"within-{number}", op="cancel")
    # The same in the very step of the cut: done, killed by a cancel marker beyond O, and refused.
    plan.named("killed at the cut", at_ms, f"cut-{number}", 13_950, topic="down")
    plan.named("cancel at the cut", 14_002, f"cut-{number}", op="cancel")
    plan.named("second cancel within", 2_900, f"within-{number}", op="cancel")


def _wishes(plan: Plan, number: int) -> None:
    at_ms, told = 220 + 70 * number, header("receipt", "yes")
    due_ms = at_ms + 900
    plan.schedule("told", at_ms, due_ms, told)
    plan.schedule("told dead", at_ms, due_ms, told, topic="down")
    plan.schedule("told later", 2_100 + at_ms // 4, 2_500, told, topic="late")
    plan.schedule("told far", at_ms, 3_600_000, told)
    for what, op, mark_ms in (("told by id", None, 0), ("told replace", "replace", 400)):
        id = f"{what}-{number}".replace(" ", "-")
        named = (header("id", id), header("topic", "orders"), header("due", START_MS + due_ms))
        ops = () if op is None else (header("op", op),)
        plan.send(what, at_ms + mark_ms, id, told, *named, *ops)
        plan.send(f"{what} again", at_ms + mark_ms + 50, id, told, *named, *ops)
    plan.send("told reject", at_ms, "k", told, header("delay", "1s"))
    plan.schedule("late in time", at_ms, due_ms, header("late", "5s"))
    plan.schedule("expired", at_ms, at_ms - 5_000, header("late", "1s"))
    plan.schedule("expired retry", at_ms, due_ms, header("late", "500ms"), topic="down")
    id = f"expired-{number}"
    when = (header("topic", "orders"), header("due", START_MS), header("id", id))
    plan.send("expired by id", at_ms, id, *when, header("late", "1ms"))
    plan.send("other lateness", at_ms + 50, id, *when, header("late", "2ms"))
    window = header("window", "3s")
    plan.schedule("spread", at_ms, due_ms, window)
    plan.schedule("spread early", at_ms, due_ms, window)
    plan.schedule("spread retry", 2_100 + at_ms // 4, 2_500, window, topic="late")
    plan.schedule("spread over", at_ms, at_ms - 5_000, window, header("late", "1s"))
    _groups(plan, number, at_ms, due_ms)
    plan.send("bad window", at_ms, "k", *when[:2], header("window", "25h"))
    plan.send("bad late", at_ms, "k", *when[:2], header("late", "0s"))


def _groups(plan: Plan, number: int, at_ms: int, due_ms: int) -> None:
    group, due = header("group", "a-group"), header("due", START_MS + due_ms)
    told, later = header("receipt", "yes"), header("due", START_MS + 2_500)
    for what, sent_ms, topic, more in (
        ("grouped", at_ms, "orders", (due,)),
        ("grouped retry", 2_100 + at_ms // 4, "late", (later,)),
        ("grouped dead", at_ms, "down", (due, told)),
    ):
        id = f"{what}-{number}".replace(" ", "-")
        plan.send(what, sent_ms, id, header("id", id), header("topic", topic), group, *more)
    id = f"grouped-{number}"
    named = (header("id", id), header("topic", "orders"), due)
    plan.send("grouped again", at_ms + 40, id, *named, group)
    plan.send("other group", at_ms + 50, id, *named, header("group", "b-group"))
    plan.send("group alone", at_ms, "k", *named[1:], group)
    plan.send("long group", at_ms, id, *named, header("group", "g" * 257))


def send_series(plan: Plan, number: int) -> None:
    """Series of every kind, in every state of an id."""
    at_ms, topic = 400 + 90 * number, header("topic", "orders")
    each = header("cron", "*/2 * * * * *")
    until = header("until", START_MS + 9_000)
    plan.send("series", at_ms, f"s{number}", topic, each, until)
    id = f"grouped-series-{number}"
    grouped = (header("id", id), header("group", "a-group"))
    plan.send("grouped series", at_ms, id, topic, *grouped, each, until)
    told = header("receipt", "yes")
    plan.send("series told", at_ms, f"t{number}", topic, each, until, told)
    plan.send("series beyond", at_ms, f"e{number}", topic, header("cron", "*/5 * * * * *"))
    plan.send("series at once", at_ms, f"a{number}", topic, each, header("catchup", "all"), until)
    for what, target in (("by id", "orders"), ("dead", "down"), ("late", "late")):
        id = f"series-{what}-{number}".replace(" ", "-")
        named = (header("id", id), header("topic", target))
        plan.send(f"series {what}", at_ms, id, *named, header("cron", "*/3 * * * * *"), until)
        plan.send(f"series {what} again", at_ms + 2_000, id, *named, each, until)
    id = f"series-late-{number}"
    plan.send("series cancel", 7_000 + 50 * number, id, header("op", "cancel"), header("id", id))
    id = f"series-cut-{number}"
    named = (header("id", id), topic)
    plan.send("series cut", at_ms, id, *named, header("cron", "* * * * * *"), told)
    # While the step at 6,000 is under way, which delivers an occurrence.
    plan.send("series cut cancel", 6_002, id, header("op", "cancel"), header("id", id))
    id = f"series-replaced-{number}"
    named = (header("id", id), topic)
    plan.send("series replaced", at_ms, id, *named, header("cron", "* * * * * *"))
    due = header("due", START_MS + 8_000)
    plan.send("series replace", 5_500, id, *named, header("op", "replace"), due)
    plan.send("series never", at_ms, f"n{number}", topic, header("cron", "0 0 31 2 *"), told)
    zone = header("zone", "Mars/Olympus")
    plan.send("series nowhere", at_ms, f"z{number}", topic, header("cron", "@daily"), zone)
    plan.send("series expiring", at_ms, f"x{number}", topic, each, until, header("late", "1ms"))


def send_moves(plan: Plan, number: int, *, is_plain: bool = False) -> None:
    """Reschedules and fires, in every state of an id, and what comes between. `is_plain`: nothing
    that the judge of the chaos tests cannot know from a request alone."""
    at_ms = 400 + 90 * number
    asks: dict[str, tuple[Any, ...]] = {
        "move later": ("reschedule", header("by", "+1500ms")),
        "move earlier": ("reschedule", header("by", "-2s")),
        "move there": ("reschedule", header("due", START_MS + 7_000 + number)),
        "move on": ("reschedule", header("delay", "2s")),
        "fire": ("fire",),
    }
    wishes = [header("late", "9s"), header("receipt", "yes"), header("group", "a-group")]
    wishes += [] if is_plain else [header("window", "1s")]

    def move(what: str, then_ms: int, id: str, op: str, *when: Any) -> None:
        plan.send(what, then_ms, id, header("op", op), header("id", id), *when, value=None)

    for what, asked in asks.items():
        for topic, more in (("orders", ()), ("late", wishes), ("down", ())):
            id = f"{what}-{topic}-{number}".replace(" ", "-")
            named = (header("id", id), header("topic", topic), header("due", START_MS + 5_000))
            plan.send(f"{what} {topic}", at_ms, id, *named, *more)
            move(what, at_ms + 30, id, *asked)
            # While the step at 5,000 is under way, which delivers it or tries to.
            late = f"late-{id}"
            named = (header("id", late), *named[1:])
            plan.send(f"{what} {topic} late", at_ms, late, *named, *more)
            move(f"{what} late", 5_002, late, *asked)
            move(f"{what} again", 9_500, late, *asked)
    for then in ("cancel", "replace", "reschedule", "schedule"):
        for gap_ms in (1, 110):
            id = f"moved-{then}-{gap_ms}-{number}"
            named = (header("id", id), header("topic", "orders"), header("due", START_MS + 6_000))
            plan.send(f"moved then {then}", at_ms, id, *named)
            move("move", at_ms + 50, id, "reschedule", header("by", "+500ms"))
            then_ms = at_ms + 50 + gap_ms
            if then == "reschedule":
                move("move again", then_ms, id, "reschedule", header("by", "+500ms"))
            elif then == "cancel":
                move("move cancel", then_ms, id, "cancel")
            else:
                plan.send(f"move {then}", then_ms, id, header("op", then), *named[:2], named[2])
    move("fire nothing", at_ms, f"nothing-{number}", "fire")
    id = f"fired-series-{number}"
    named = (header("id", id), header("topic", "orders"), header("cron", "*/4 * * * * *"))
    plan.send("fired series", at_ms, id, *named, header("until", START_MS + 12_000))
    move("fire series", 1_350 + 210 * number, id, "fire")
    move("move series", 1_360 + 210 * number, id, "reschedule", header("by", "+1s"))
    if is_plain:
        return
    move("too far", at_ms + 31, f"moved-cancel-1-{number}", "reschedule", header("by", "+999d"))


def _wrong_series(plan: Plan, number: int) -> None:
    at_ms, topic = 400 + 90 * number, header("topic", "orders")
    each = header("cron", "*/2 * * * * *")
    plan.send("series bad", at_ms, "k", topic, header("cron", "* * *"))
    plan.send("series odd", at_ms, "k", topic, each, header("due", START_MS))
    plan.send("series spread", at_ms, "k", topic, each, header("window", "1s"))
    plan.send("series idle", at_ms, "k", topic, header("zone", "UTC"), header("delay", "1s"))
    plan.send("series hasty", at_ms, "k", topic, each, header("catchup", "some"))
    plan.send("series ending", at_ms, "k", topic, each, header("until", "soon"))
    plan.send("series lost", at_ms, "k", topic, each, header("zone", "not a zone"))


def _rejects(plan: Plan, number: int) -> None:
    at_ms = 300 + 50 * number
    topic, due = header("topic", "orders"), header("delay", "1s")
    id = f"bad-{number}"
    plan.send("no topic", at_ms, "k", due)
    plan.send("no due", at_ms, id, topic, header("id", id))
    plan.send("bad due", at_ms, "k", topic, header("due", "soon"))
    plan.send("odd header", at_ms, "k", topic, due, header("odd", "1"), ("delayd-odd", None))
    plan.send("too large", at_ms, id, topic, due, header("id", id), value=b"v" * 3_000)
    plan.send("forged", at_ms, "k", topic, due, header("continues", 3), header("proof", "0" * 64))
    plan.send("bad cancel", at_ms, id, header("op", "cancel"), header("id", id), topic)


def _beyond(plan: Plan, number: int) -> None:
    at_ms = 13_000 + 300 * number
    plan.schedule("beyond", at_ms, at_ms + 700)
    id = f"beyond-{number}"
    plan.named("beyond id", at_ms, id, at_ms + 900)
    plan.named("beyond cancel", at_ms + 500 + 70 * number, id, op="cancel")
    plan.named("beyond again", at_ms + 600 + 70 * number, id, at_ms + 1_500)
    plan.named("beyond twice", at_ms + 650 + 70 * number, id, at_ms + 1_600)
    plan.send("beyond bad", at_ms, id, header("id", id))
    plan.schedule("far", at_ms - 12_000, 3_600_000, key=f"far-{number}")
    plan.named("far id", at_ms - 12_000, f"far-{number}", 3_600_000)
    plan.schedule("beyond dead", at_ms, at_ms + 400, topic="down")


def _redrive(world: World, letter: Written, at_ms: int, id: str | None = None) -> Written:
    """A request that sends a dead letter again, to a target that is there."""
    source = letter.header("delayd-source") or ""
    headers = [header("topic", "orders"), header("delay", "500ms"), header("redrive", source)]
    key = letter.key
    if id is not None:
        headers.append(header("id", id))
        key = id.encode()
    return world.send(at_ms, key, letter.value, headers, int(source.split("/")[0]))
