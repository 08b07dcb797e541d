"""What was found and done, as text and as JSON. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any

from delayd.bus import Record
from delayd.commands.recover.marker.changes import Change
from delayd.commands.recover.marker.deciding import Dealt, Fate
from delayd.commands.recover.marker.looking import Facts
from delayd.commands.recover.marker.of_shards import Looked, Seen
from delayd.commands.recover.marker.pieces import UNFINISHED_MS, Kind, Piece, State, Step, header

SHOWN_MAX = 50
"""Records of a piece on a terminal."""
NAMED_MAX = 10_000
"""Records of a piece in JSON."""

_MEANING = {
    Fate.COMMITTED: "commit it, as the rest of its step was",
    Fate.ABORTED: "abort it: a node delivers it",
    Fate.AGAIN: "write it again, as it was",
    Fate.LEFT: "cannot be decided",
}


def marker_json(seen: Seen, at_work: str = "") -> dict[str, Any]:
    """Return the result as JSON, of all shards. Times are Unix ms; `at_work` is what shows that a
    master is at work."""
    looked, changes = seen.shards, seen.changes
    plans = [(each.shard, each.before.plan) for each in looked]
    done = [each.mended for each in looked if each.mended is not None]
    again = [plan.frontier.frontier.step for _, plan in plans if plan.frontier is not None]
    # The leaders were asked once for all shards.
    first = looked[0].before
    return {
        "ok": seen.is_fine,
        "step": sum(each.after.last.frontier.step for each in looked),
        "changes": [_change_json(each) for each in changes],
        "shards": [_shard_json(each) for each in looked],
        "pieces": [{"shard": n, **_piece_json(d)} for n, plan in plans for d in plan.dealt],
        "visible": [
            {"shard": each.shard, **_visible_json(step, piece)}
            for each in looked
            for step, piece in _visible(each.before)
        ],
        "frontier_again": next(iter(again), None),
        "missing": [
            {"shard": n, "step": step, **lack._asdict()}
            for n, plan in plans
            for step, lack in sorted(plan.missing.items())
        ],
        "doubled_steps": [_number(step) for _, plan in plans for step in plan.doubled],
        "problems": [
            *(each.problem for each in changes if each.problem),
            *(each for _, plan in plans for each in plan.problems),
        ],
        "at_work": at_work,
        "left_alone": [
            {"topic": p.topic, "partition": p.partition, "offset": since, "producer_id": number}
            for p, since, number in first.foreign
        ],
        "not_looked_at": {str(place): why for place, why in sorted(first.refused.items())},
        "committed": sum(each.committed for each in done) + _ended(changes, Fate.COMMITTED),
        "aborted": sum(each.aborted for each in done) + _ended(changes, Fate.ABORTED),
        "written_again": sum(each.again for each in done),
    }


def _change_json(change: Change) -> dict[str, Any]:
    return {
        "shards": change.shards,
        "fate": change.fate.value,
        "partitions": {str(n): run.state.value for n, run in sorted(change.runs.items())},
        "problem": change.problem,
    }


def _ended(changes: Sequence[Change], fate: Fate) -> int:
    """Return how many of their records became visible, or were dropped."""
    ended = [each for each in changes if each.is_ended and each.fate is fate]
    return sum(len(run.records) for each in ended for run in each.hanging)


def _shard_json(looked: Looked) -> dict[str, Any]:
    plan, after = looked.before.plan, looked.after
    return {
        "shard": looked.shard,
        "step": after.last.frontier.step,
        "to_be": after.last.resharding,
        "frontier_again": None if plan.frontier is None else plan.frontier.frontier.step,
        "problems": [*plan.problems],
    }


def marker_lines(seen: Seen, at_work: str = "") -> Iterator[str]:
    """Yield the result as lines of text."""
    looked, changes = seen.shards, seen.changes
    is_still = not changes and all(
        each.before.plan.is_empty and not each.before.plan.missing for each in looked
    )
    for change in changes:
        yield from _change_lines(change)
    for each in looked:
        yield from _shard_lines(each, is_one=len(looked) == 1)
    if is_still:
        yield "nothing hangs, and no step is visible in part"
        yield from _closed(looked)
    for place, since, producer in looked[0].before.foreign:
        yield f"left alone  {place} from offset {since}: producer {producer} is no master's"
    for place, why in sorted(looked[0].before.refused.items()):
        yield f"not seen    {place}: {why}"
    if at_work:
        yield f"at work     {at_work}. What is shown may be of a step under way: stop all nodes"
    if any(each.mended for each in looked) or any(each.is_ended for each in changes):
        yield _done(seen)
        after = [each.after.plan for each in looked]
        left = sum(len(p.endings) + len(p.again) + len(p.problems) for p in after)
        left += sum(not each.is_ended for each in changes)
        if left:
            yield f"left        {left}: run this again"
        else:
            yield from _next(looked)
    elif changes or any(not each.before.plan.is_empty for each in looked):
        has_problems = any(each.problem for each in changes) or any(
            each.before.plan.problems for each in looked
        )
        yield "nothing was written" + ("" if has_problems else "; stop all nodes and add --yes")
        if not at_work:
            yield "no master was seen at work; but one that has nothing to deliver is not seen"


def _next(looked: Sequence[Looked]) -> Iterator[str]:
    """Yield what is to be done once all is mended."""
    if moved := looked[0].after.last.moved:
        yield f"moved       to {moved}: run `delayd move` again, which goes on; start no node here"
    else:
        yield from _closed(looked)
        yield "start the nodes"


def _closed(looked: Sequence[Looked]) -> Iterator[str]:
    """Yield how the shards that somebody left closed are opened."""
    closed = {each.shard: each.after.last.resharding for each in looked}
    if to_be := max(closed.values()):
        names = ", ".join(str(shard) for shard, number in closed.items() if number)
        yield f"closed      shards {names}: `delayd shards set {to_be}` ends what was begun"


def _change_lines(change: Change) -> Iterator[str]:
    """Yield what was found of a change of all shards, and what becomes of it."""
    meaning = {Fate.COMMITTED: "commit it in all of them", Fate.ABORTED: "abort it in all of them"}
    kind, to = "change", f"{change.shards} shards"
    if change.moved:
        kind, to = "move", change.moved
    for _, run in sorted(change.runs.items()):
        yield f"{run.state.value:<11} {run.place}  the {kind} to {to}"
    yield f"{kind:<11} to {to}: {meaning.get(change.fate, change.problem)}"


def _shard_lines(looked: Looked, *, is_one: bool) -> Iterator[str]:
    """Yield what was found of a shard, and what becomes of it."""
    before, plan = looked.before, looked.before.plan
    whose = "" if is_one else f"shard {looked.shard}: "
    yield f"frontier    {whose}step {before.last.frontier.step} is the last visible one"
    for step, piece in _visible(before):
        yield f"visible     {piece.place}  step {_number(step)}  {piece.tally.count:,} records"
    for dealt in plan.dealt:
        yield (
            f"{dealt.piece.state.value:<11} {dealt.piece.place}  step {_number(dealt.step)}  "
            f"{len(dealt.records):,} records: {_MEANING[dealt.fate]}"
        )
        for record in dealt.records[:SHOWN_MAX]:
            yield f"  {' '.join(f'{k}={v}' for k, v in _named(dealt.piece, record).items())}"
        if len(dealt.records) > SHOWN_MAX:
            yield f"  and {len(dealt.records) - SHOWN_MAX:,} more, see --json"
    for number, (messages, answers) in sorted(plan.missing.items()):
        yield (
            f"missing     {messages:,} messages and {answers:,} answers of step {number} are in no "
            "log: see `delayd audit`"
        )
    for step in plan.doubled:
        yield f"doubled     step {_number(step)} was repeated: what is visible of it came twice"
    for problem in plan.problems:
        yield f"problem     {problem}"


def _done(seen: Seen) -> str:
    done = [each.mended for each in seen.shards if each.mended is not None]
    committed = sum(each.committed for each in done) + _ended(seen.changes, Fate.COMMITTED)
    aborted = sum(each.aborted for each in done) + _ended(seen.changes, Fate.ABORTED)
    return (
        f"done        {committed:,} records committed, {aborted:,} aborted, "
        f"{sum(each.again for each in done):,} written again"
    )


def _visible(facts: Facts) -> Iterator[tuple[Step, Piece]]:
    """Yield what is visible of the steps that something else is to be done with."""
    steps = {id(dealt.step): dealt.step for dealt in facts.plan.dealt}
    for step in steps.values():
        for piece in [] if step is None else step.pieces:
            if piece.state is State.VISIBLE:
                yield step, piece  # type: ignore[misc]


def _number(step: Step | None) -> int | str:
    if step is None:
        return "unknown"
    if step.record is not None:
        return step.record.frontier.step
    return "unfinished" if step.name.now_ms == UNFINISHED_MS else f"at {step.name.now_ms} ms"


def _visible_json(step: Step, piece: Piece) -> dict[str, Any]:
    return {
        "kind": piece.run.kind.value,
        "topic": piece.place.topic,
        "partition": piece.place.partition,
        "step": _number(step),
        "records": piece.tally.count,
    }


def _piece_json(dealt: Dealt) -> dict[str, Any]:
    piece = dealt.piece
    return {
        "kind": piece.run.kind.value,
        "topic": piece.place.topic,
        "partition": piece.place.partition,
        "step": _number(dealt.step),
        "state": piece.state.value,
        "fate": dealt.fate.value,
        "count": len(dealt.records),
        "records": [_named(piece, record) for record in dealt.records[:NAMED_MAX]],
    }


def _named(piece: Piece, record: Record) -> dict[str, Any]:
    """Return the place of a record, and whose it is."""
    fields: dict[str, Any] = {"offset": record.offset}
    if piece.run.kind is not Kind.FRONTIER:
        for name in ("source", "id"):
            if (said := header(record.headers, f"delayd-{name}")) is not None:
                fields[name] = said
    return fields
