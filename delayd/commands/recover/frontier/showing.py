"""The result of a recovery, as text and as JSON. Pure."""

from collections.abc import Iterator
from typing import Any

from delayd.commands.move.planning import Listed
from delayd.commands.recover.frontier.recovering import Recovered

SHOWN_MAX = 50
"""Messages of a list on a terminal; the JSON has more."""


def is_fine(recovered: Recovered) -> bool:
    """Return whether a frontier was written or nothing was lost; of a plan, whether a run would
    write one without further options."""
    if recovered.written is not None or not recovered.is_lost:
        return True
    return recovered.found.is_certain and not recovered.open_transactions


def recovered_json(recovered: Recovered) -> dict[str, Any]:
    """Return a result as JSON; times are Unix ms."""
    known, found, written = recovered.known.frontier, recovered.found, recovered.written
    return {
        "ok": is_fine(recovered),
        "is_lost": recovered.is_lost,
        "cluster": recovered.known.settings.realm,
        "known": {"term": known.term, "step": known.step, "now_ms": recovered.known.now_ms},
        "topic_ends_at_step": recovered.topical.step,
        "shards": recovered.shards,
        "lost_shards": list(recovered.lost),
        "delivered": found.delivered,
        "doubled_before": found.doubled,
        "dead": found.dead,
        "requeued": found.requeued,
        "killed": found.killed,
        "done_unseen": found.unseen,
        "pending": found.pending,
        "topics": dict(found.topics),
        "requests_not_read": found.not_read,
        "in_doubt": _listed(found.doubtful),
        "missing": _listed(found.missing),
        "delivered_again": _listed(found.again),
        "unproven": found.unproven,
        "open_transactions": list(recovered.open_transactions),
        "written": None if written is None else {"term": written.term, "step": written.step},
    }


def recovered_lines(recovered: Recovered) -> Iterator[str]:
    """Yield a result as lines of text."""
    known, found, last = recovered.known, recovered.found, recovered.topical.step
    yield f"cluster     {known.settings.realm}"
    yield f"wheel       knows step {known.frontier.step}; what came after it:"
    yield (
        f"delivered   {found.delivered:,}, dead-lettered {found.dead:,}, "
        f"requeued {found.requeued:,}, cancelled or replaced {found.killed:,}"
    )
    if found.unseen:
        yield f"unseen      {found.unseen:,} are done, though their targets do not show it any more"
    if found.doubled:
        yield f"doubled     {found.doubled:,} deliveries were doubled before this"
    yield f"pending     {found.pending:,}"
    for topic, count in found.topics.most_common(SHOWN_MAX):
        yield f"  {count:>12,}  {topic}"
    if found.not_read:
        yield f"not read    {found.not_read:,} requests, which nodes take in when they start"
    yield from _named("in doubt: delivered, or not", found.doubtful)
    yield from _named("missing: done by the order of steps, and nowhere", found.missing)
    yield from _named("delivered already, and again with what is missing", found.again)
    if found.unproven:
        yield f"unproven    {found.unproven}"
    if recovered.open_transactions:
        yield f"open        transactions in {', '.join(recovered.open_transactions)}"
    where = "holds no record" if last is None else f"ends at step {last}"
    name = known.settings.frontier.name
    if recovered.lost and recovered.shards > 1:
        yield f"shards      {', '.join(map(str, recovered.lost))} of {recovered.shards} are lost"
    if not recovered.is_lost:
        yield f"nothing is lost: {name} {where}, which covers all of this. Start the nodes"
    elif recovered.written is not None:
        yield (
            f"written     step {recovered.written.step} of term {recovered.written.term} to "
            f"{name}. Start the nodes"
        )
    else:
        is_gone = recovered.topical.topic_id is None
        yield f"lost        {name} {'is not there' if is_gone else where}"


def _listed(listed: Listed) -> dict[str, Any]:
    return {"count": listed.count, "messages": [each._asdict() for each in listed.names]}


def _named(what: str, listed: Listed) -> Iterator[str]:
    if not listed.count:
        return
    yield f"{what}: {listed.count:,}"
    for each in listed.names[:SHOWN_MAX]:
        yield f"  {each.id or each.source}  {each.topic}  due {each.due_ms}  {each.problem}"
