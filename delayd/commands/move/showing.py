"""The result of a move, as text and as JSON. Pure."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from delayd.commands.move.moving import Moved
from delayd.commands.move.planning import Listed

SHOWN_MAX = 50
"""Messages of a list on a terminal; the JSON has more."""


def is_fine(moved: Moved) -> bool:
    """Return whether every message is pending in the new cluster, or was when it was judged, and no
    request was left behind; of a plan, whether a run would begin without further options."""
    plan = moved.plan
    if moved.not_held:
        return False
    if moved.accepted is None:
        listed = (plan.refused, plan.doubtful, plan.unmirrored, plan.revocable)
        return not any(each.count for each in listed)
    is_all = moved.written == moved.plan.pending
    return is_all and moved.accepted.is_judged and not moved.accepted.not_taken


def moved_json(moved: Moved) -> dict[str, Any]:
    """Return a result as JSON; times are Unix ms."""
    plan, frontier = moved.plan, moved.cut.frontier
    fields: dict[str, Any] = {
        "ok": is_fine(moved),
        "from": moved.cut.settings.realm,
        "cut": {"term": frontier.term, "step": frontier.step},
        "pending": plan.pending,
        "topics": dict(plan.topics),
        "first_due_ms": plan.first_due_ms,
        "last_due_ms": plan.last_due_ms,
        "in_doubt": _listed(plan.doubtful),
        "not_mirrored": _listed(plan.unmirrored),
        "may_be_cancelled": _listed(plan.revocable),
        "would_be_refused": _listed(plan.refused),
        "replies_not_moved": plan.replies_open,
        "dead_letters_not_moved": [each._asdict() for each in plan.letters],
        "requests_not_held": moved.not_held,
        "written": moved.written,
        "written_now": moved.written_now,
    }
    if moved.accepted is not None:
        not_taken = moved.accepted.not_taken
        fields |= {
            "judged": moved.accepted.is_judged,
            "accepted": moved.written - len(not_taken),
            "not_taken": [each._asdict() for each in not_taken.values()],
        }
    return fields


def moved_lines(moved: Moved) -> Iterator[str]:
    """Yield a result as lines of text."""
    plan, frontier = moved.plan, moved.cut.frontier
    yield f"from        {moved.cut.settings.realm}, as of step {frontier.step}"
    yield f"pending     {plan.pending:,}"
    if plan.first_due_ms is not None and plan.last_due_ms is not None:
        yield f"due         {_time(plan.first_due_ms)} to {_time(plan.last_due_ms)}"
    for topic, count in plan.topics.most_common(SHOWN_MAX):
        yield f"  {count:>12,}  {topic}"
    yield from _named("in doubt: may have been delivered already", plan.doubtful)
    yield from _named("delivered already, and not mirrored", plan.unmirrored)
    yield from _named("may have been cancelled or replaced since", plan.revocable)
    yield from _named("the new cluster would reject", plan.refused)
    if plan.replies_open:
        yield f"not moved   {plan.replies_open:,} verdicts and dead letters that were not written"
    for letter in plan.letters[:SHOWN_MAX]:
        yield f"  dead letter  {letter.source}  {letter.reason}"
    if moved.not_held:
        yield f"not held    up to {moved.not_held:,} requests of the old buffer, by the wheel"
    yield f"written     {moved.written:,}, of them {moved.written_now:,} now"
    if moved.accepted is None:
        return
    not_taken = list(moved.accepted.not_taken.values())
    yield f"accepted    {moved.written - len(not_taken):,}, not taken {len(not_taken):,}"
    for each in not_taken[:SHOWN_MAX]:
        yield f"  {each.why}  {each.id or each.source}  {each.detail}"
    if not moved.accepted.is_judged:
        yield (
            "no master of the new cluster has passed all of them yet: start its nodes, and run "
            "this again to see what they made of it"
        )


def _listed(listed: Listed) -> dict[str, Any]:
    return {"count": listed.count, "messages": [each._asdict() for each in listed.names]}


def _named(what: str, listed: Listed) -> Iterator[str]:
    if not listed.count:
        return
    yield f"{what}: {listed.count:,}"
    for each in listed.names[:SHOWN_MAX]:
        told = f"  {each.problem}" if each.problem else ""
        yield f"  {each.id or each.source}  {each.topic}  {_time(each.due_ms)}{told}"


def _time(at_ms: int) -> str:
    try:
        at = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (ValueError, OverflowError):
        return f"{at_ms} ms"
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03}Z"
