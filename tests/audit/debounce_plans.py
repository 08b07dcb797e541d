"""Debounces in a world: runs, what they take the place of, and what is asked between."""

from typing import Any

from plans import Plan, header
from world import START_MS


def send_debounces(plan: Plan, number: int, *, is_plain: bool = False) -> None:
    """Send debounces in every state of an id. `is_plain`: nothing that the judge of the chaos tests
    cannot know from a request alone."""
    at_ms, told = 410 + 90 * number, header("receipt", "yes")

    def debounce(
        what: str, then_ms: int, id: str, delay: str, max_wait: str, topic: str, *more: Any
    ) -> None:
        named = (header("op", "debounce"), header("id", id), header("topic", topic))
        times = (header("delay", delay), header("max-wait", max_wait))
        plan.send(what, then_ms, id, *named, *times, *more)

    def ask(what: str, then_ms: int, id: str, op: str, *more: Any) -> None:
        plan.send(what, then_ms, id, header("op", op), header("id", id), *more, value=None)

    for topic in ("orders", "late", "down"):
        for every_ms in (40, 300, 700):
            id = f"run-{topic}-{every_ms}-{number}"
            for place in range(7):
                then_ms = at_ms + place * every_ms
                wishes = (told,) if place in (2, 6) else ()
                debounce("run", then_ms, id, "500ms", "1s", topic, *wishes)
    for op in ("cancel", "replace", "fire", "reschedule", "schedule"):
        for gap_ms in (1, 60, 400):
            id = f"debounced-{op}-{gap_ms}-{number}"
            debounce("run", at_ms, id, "300ms", "2s", "orders")
            debounce("run", at_ms + 30, id, "300ms", "2s", "orders")
            then_ms, due = at_ms + 30 + gap_ms, header("due", START_MS + 6_000)
            if op in ("replace", "schedule"):
                target = (header("op", op), header("id", id), header("topic", "orders"), due)
                plan.send(f"debounced {op}", then_ms, id, *target)
            else:
                ask(f"debounced {op}", then_ms, id, op, *([due] if op == "reschedule" else []))
            debounce("run", then_ms + 2, id, "300ms", "2s", "orders", told)
            debounce("run", then_ms + 200, id, "300ms", "300ms", "orders")
    id = f"before-{number}"
    plan.named("in place of", at_ms, id, 5_000)
    debounce("in place of it", at_ms + 20, id, "1ms", "1ms", "orders")
    id = f"debounced-series-{number}"
    cron = (header("id", id), header("topic", "orders"), header("cron", "*/3 * * * * *"))
    plan.send("in place of series", at_ms, id, *cron)
    debounce("in place of it", at_ms + 20, id, "1s", "1s", "orders", header("late", "9s"))
    if is_plain:
        return
    id = f"bad-debounce-{number}"
    debounce("bad debounce", at_ms, id, "2s", "1s", "orders")
    debounce("odd debounce", at_ms, id, "1s", "1s", "orders", header("window", "1s"))
