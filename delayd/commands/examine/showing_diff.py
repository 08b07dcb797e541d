"""A comparison of two wheels, as text and as JSON. Pure."""

from collections.abc import Iterator
from typing import Any, Final

from delayd.commands.examine.diffing import Comparison, Side, Where
from delayd.commands.examine.showing import time_text

DIFFERENCES_SHOWN: Final = 50
"""Differences on a terminal; the JSON has more."""

_TOLD: Final = {
    Where.ONLY_A: "only in A",
    Where.ONLY_B: "only in B",
    Where.ALTERED: "in both, and not the same",
    Where.TWICE_A: "twice in A",
    Where.TWICE_B: "twice in B",
}


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as JSON; times are Unix ms."""
    return {
        "alike": comparison.is_alike,
        "a": _side_json(comparison.a),
        "b": _side_json(comparison.b),
        "offsets": comparison.cut.offsets,
        "different": sum(comparison.counts.values()),
        **{where.name.lower(): count for where, count in comparison.counts.items()},
        "differences": [
            {
                "due_ms": each.due_ms,
                "source": f"{each.partition}/{each.offset}",
                "what": each.what,
                "where": each.where.value,
            }
            for each in comparison.differences
        ],
        "exchanges": comparison.exchanges,
        "digests": comparison.nodes,
        "hours_read": comparison.frames_exchanges,
        "read_bytes": comparison.read_bytes,
    }


def comparison_lines(comparison: Comparison) -> Iterator[str]:
    """Yield a comparison as lines of text."""
    for name, side in (("A", comparison.a), ("B", comparison.b)):
        offsets = ", ".join(map(str, side.progress.offsets))
        yield f"{name}           {side.directory}"
        forgotten = side.forgotten
        told = "nothing" if forgotten is None else f"what step {forgotten.step} covers"
        yield f"            offsets {offsets}; has forgotten {told}"
    offsets = ", ".join(map(str, comparison.cut.offsets))
    yield f"compared    what both must hold: below offsets {offsets}, and forgotten by neither"
    told = f"{comparison.nodes:,} digests in {comparison.exchanges:,} exchanges"
    yield f"            {told}; {comparison.read_bytes:,} bytes of their files were read"
    for each in comparison.differences[:DIFFERENCES_SHOWN]:
        source = f"{each.partition}/{each.offset}"
        yield f"DIFFERENT   {each.what} {source} (due {time_text(each.due_ms)}) {_TOLD[each.where]}"
    different = sum(comparison.counts.values())
    if different > DIFFERENCES_SHOWN:
        yield f"DIFFERENT   and {different - DIFFERENCES_SHOWN:,} more"
    if comparison.is_alike:
        yield "alike: both hold the same"
        return
    counted = ", ".join(f"{n:,} {_TOLD[where]}" for where, n in comparison.counts.items() if n)
    yield f"different: {counted}"


def _side_json(side: Side) -> dict[str, Any]:
    return {
        "directory": side.directory,
        "offsets": side.progress.offsets,
        "forgotten_step": None if side.forgotten is None else side.forgotten.step,
    }
