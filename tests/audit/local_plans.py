"""Local times in a world: of every kind, in every state of an id."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from plans import Plan, header
from world import START_MS

BERLIN = "Europe/Berlin"
DAY_MS = 86_400_000
FAR_MS = 30 * 3_600_000
"""Taken by a cluster whose longest delay is a day: elsewhere it may be sooner."""


def clock(at_ms: int, zone: str = BERLIN) -> tuple[tuple[str, bytes | None], ...]:
    """The headers for what the clock of a zone shows so long after the start."""
    moment = datetime.fromtimestamp((START_MS + at_ms) / 1000, UTC).astimezone(ZoneInfo(zone))
    text = moment.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return header("due", text), header("zone", zone)


def send_local(plan: Plan, number: int, *, is_plain: bool = False) -> None:
    """Send local times. `is_plain`: nothing that the judge of the chaos tests cannot know from a
    request alone."""
    at_ms, topic = 400 + 90 * number, header("topic", "orders")
    told, due = header("receipt", "yes"), 5_000 + 30 * number
    plan.send("local", at_ms, f"l{number}", topic, *clock(due))
    plan.send("local told", at_ms, f"t{number}", topic, *clock(due, "Asia/Kolkata"), told)
    plan.send("local past", at_ms, f"p{number}", topic, *clock(-DAY_MS, "UTC"), told)
    plan.send("local far", at_ms, f"f{number}", topic, *clock(FAR_MS), told)
    plan.send("local late", at_ms, f"r{number}", header("topic", "late"), *clock(2_500))
    plan.send("local expiring", at_ms, f"x{number}", topic, *clock(-9_000), header("late", "1s"))
    nowhere = (clock(due)[0], header("zone", "Mars/Olympus"))
    plan.send("local nowhere", at_ms, f"n{number}", topic, *nowhere, told)
    for place, (at, then) in enumerate(
        ((due, ()), (FAR_MS, ()), (due, (topic, *clock(due + 1)))), start=1
    ):
        id = f"local-{place}-{number}"
        named = (header("id", id), topic, *clock(at))
        plan.world.send(at_ms, id.encode(), b"same", [*named], None)
        plan.world.send(at_ms + 300, id.encode(), b"same", [*named], None)
        plan.send("local too late", 9_000, id, header("op", "cancel"), header("id", id))
        plan.send(
            "local other", at_ms + 310, id, header("id", id), *(then or (topic, *clock(7_000)))
        )
    for gap_ms in (1, 300, 3_000):
        for what, asked in (
            ("cancel", ()),
            ("fire", ()),
            ("reschedule", (header("due", START_MS + 8_000),)),
            ("reschedule", (header("by", "+1s"),)),
            ("replace", (topic, *clock(8_500))),
        ):
            for at in (due, FAR_MS):
                id = f"local-{what}-{gap_ms}-{at}-{len(asked)}-{number}-{len(plan.sent)}"
                plan.send("local then", at_ms, id, header("id", id), topic, *clock(at))
                plan.send(
                    f"local {what}",
                    at_ms + gap_ms,
                    id,
                    *(header("op", what), header("id", id), *asked),
                    value=b"v" if what == "replace" else None,
                )
    if is_plain:
        return
    plan.send("local spread", at_ms, f"w{number}", topic, *clock(due), header("window", "2s"))
    for more in (
        (header("due", "2027-03-28T09:00"),),
        (header("due", "2027-03-28T09:00Z"), header("zone", BERLIN)),
        (header("due", "2027-02-29T09:00"), header("zone", BERLIN)),
        (header("due", "9999-03-28T09:00"), header("zone", BERLIN)),
        (header("due", START_MS), header("zone", BERLIN)),
        (header("delay", "1s"), header("zone", BERLIN)),
        (header("zone", BERLIN),),
        (*clock(due), header("delay", "1s")),
        (*clock(due), header("level", "1")),
        (clock(due)[0], header("zone", "../x")),
        (*clock(due), header("cron", "@daily")),
        (*clock(due), header("until", START_MS)),
        (*clock(due), header("local", "x")),
        clock(5 * DAY_MS),
        (*clock(FAR_MS), header("window", "1d")),
    ):
        plan.send("local bad", at_ms, f"b{number}", topic, *more)
