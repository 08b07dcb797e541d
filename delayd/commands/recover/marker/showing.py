"""What was found and done, as text and as JSON. Pure."""

from collections.abc import Iterator
from typing import Any

from delayd.bus import Record
from delayd.commands.recover.marker.deciding import Dealt, Fate
from delayd.commands.recover.marker.looking import Facts
from delayd.commands.recover.marker.mending import Mended
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


def marker_json(
    before: Facts, after: Facts, mended: Mended | None, at_work: str = ""
) -> dict[str, Any]:
    """Return the result as JSON. Times are Unix ms; `mended` is None of a dry run, `at_work` what
    shows that a master is at work."""
    plan = before.plan
    return {
        "ok": is_fine(after),
        "step": after.last.frontier.step,
        "pieces": [_piece_json(dealt) for dealt in plan.dealt],
        "visible": [_visible_json(step, piece) for step, piece in _visible(before)],
        "frontier_again": None if plan.frontier is None else plan.frontier.frontier.step,
        "missing": [{"step": n, **lack._asdict()} for n, lack in sorted(plan.missing.items())],
        "doubled_steps": [_number(step) for step in plan.doubled],
        "problems": [*plan.problems],
        "at_work": at_work,
        "left_alone": [
            {"topic": p.topic, "partition": p.partition, "offset": since, "producer_id": number}
            for p, since, number in before.foreign
        ],
        "not_looked_at": {str(place): why for place, why in sorted(before.refused.items())},
        "committed": 0 if mended is None else mended.committed,
        "aborted": 0 if mended is None else mended.aborted,
        "written_again": 0 if mended is None else mended.again,
    }


def marker_lines(
    before: Facts, after: Facts, mended: Mended | None, at_work: str = ""
) -> Iterator[str]:
    """Yield the result as lines of text."""
    plan = before.plan
    yield f"frontier    step {before.last.frontier.step} is the last visible one"
    if plan.is_empty and not plan.missing:
        yield "nothing hangs, and no step is visible in part"
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
    for place, since, producer in before.foreign:
        yield f"left alone  {place} from offset {since}: producer {producer} is no master's"
    for place, why in sorted(before.refused.items()):
        yield f"not seen    {place}: {why}"
    if at_work:
        yield f"at work     {at_work}. What is shown may be of a step under way: stop all nodes"
    for problem in plan.problems:
        yield f"problem     {problem}"
    if mended is not None:
        yield (
            f"done        {mended.committed:,} records committed, {mended.aborted:,} aborted, "
            f"{mended.again:,} written again"
        )
        left = len(after.plan.endings) + len(after.plan.again) + len(after.plan.problems)
        yield "start the nodes" if after.plan.is_empty else f"left        {left}: run this again"
    elif not plan.is_empty:
        yield "nothing was written" + ("" if plan.problems else "; stop all nodes and add --yes")
        if not at_work:
            yield "no master was seen at work; but one that has nothing to deliver is not seen"


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
