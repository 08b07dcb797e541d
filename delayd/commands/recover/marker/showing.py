"""What was found and done, as text and as JSON. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any

from delayd.bus import Record
from delayd.commands.recover.marker.deciding import Dealt, Fate
from delayd.commands.recover.marker.looking import Facts
from delayd.commands.recover.marker.of_shards import Looked
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


def is_fine(facts: Facts) -> bool:
    """Return whether nothing is left to do, and nothing is lost."""
    return facts.plan.is_empty and not facts.plan.missing


def marker_json(looked: Sequence[Looked], at_work: str = "") -> dict[str, Any]:
    """Return the result as JSON, of all shards. Times are Unix ms; `at_work` is what shows that a
    master is at work."""
    plans = [(each.shard, each.before.plan) for each in looked]
    done = [each.mended for each in looked if each.mended is not None]
    again = [plan.frontier.frontier.step for _, plan in plans if plan.frontier is not None]
    # The leaders were asked once for all shards.
    first = looked[0].before
    return {
        "ok": all(is_fine(each.after) for each in looked),
        "step": sum(each.after.last.frontier.step for each in looked),
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
        "problems": [each for _, plan in plans for each in plan.problems],
        "at_work": at_work,
        "left_alone": [
            {"topic": p.topic, "partition": p.partition, "offset": since, "producer_id": number}
            for p, since, number in first.foreign
        ],
        "not_looked_at": {str(place): why for place, why in sorted(first.refused.items())},
        "committed": sum(each.committed for each in done),
        "aborted": sum(each.aborted for each in done),
        "written_again": sum(each.again for each in done),
    }


def _shard_json(looked: Looked) -> dict[str, Any]:
    plan, after = looked.before.plan, looked.after
    return {
        "shard": looked.shard,
        "step": after.last.frontier.step,
        "frontier_again": None if plan.frontier is None else plan.frontier.frontier.step,
        "problems": [*plan.problems],
    }


def marker_lines(looked: Sequence[Looked], at_work: str = "") -> Iterator[str]:
    """Yield the result as lines of text."""
    is_still = all(each.before.plan.is_empty and not each.before.plan.missing for each in looked)
    for each in looked:
        yield from _shard_lines(each, is_one=len(looked) == 1)
    if is_still:
        yield "nothing hangs, and no step is visible in part"
    for place, since, producer in looked[0].before.foreign:
        yield f"left alone  {place} from offset {since}: producer {producer} is no master's"
    for place, why in sorted(looked[0].before.refused.items()):
        yield f"not seen    {place}: {why}"
    if at_work:
        yield f"at work     {at_work}. What is shown may be of a step under way: stop all nodes"
    if any(each.mended is not None for each in looked):
        yield _done(looked)
        after = [each.after.plan for each in looked]
        left = sum(len(p.endings) + len(p.again) + len(p.problems) for p in after)
        is_over = all(plan.is_empty for plan in after)
        yield "start the nodes" if is_over else f"left        {left}: run this again"
    elif any(not each.before.plan.is_empty for each in looked):
        has_problems = any(each.before.plan.problems for each in looked)
        yield "nothing was written" + ("" if has_problems else "; stop all nodes and add --yes")
        if not at_work:
            yield "no master was seen at work; but one that has nothing to deliver is not seen"


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


def _done(looked: Sequence[Looked]) -> str:
    done = [each.mended for each in looked if each.mended is not None]
    return (
        f"done        {sum(each.committed for each in done):,} records committed, "
        f"{sum(each.aborted for each in done):,} aborted, "
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
