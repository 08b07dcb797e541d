"""An export of a stopped wheel, as text and as JSON. Pure."""

from collections.abc import Iterator
from typing import Any

from delayd.commands.examine.exporting import Exported
from delayd.commands.examine.showing import time_text


def exported_json(exported: Exported) -> dict[str, Any]:
    """Return an export as JSON; times are Unix ms."""
    cut = exported.cut
    return {
        "directory": exported.directory,
        "file": str(exported.file),
        "rows": exported.rows,
        "bytes": exported.bytes,
        "cut": {
            "term": cut.term,
            "step": cut.step,
            "cursor_ms": cut.lowest_cursor.due_ms,
            "offsets": cut.offsets,
        },
        "newest_step": exported.newest_step,
    }


def exported_lines(exported: Exported) -> Iterator[str]:
    """Yield an export as lines of text."""
    cut = exported.cut
    offsets = ", ".join(map(str, cut.offsets))
    cursor = time_text(cut.lowest_cursor.due_ms)
    yield f"wheel       {exported.directory}"
    yield f"cut         step {cut.step} of term {cut.term}: cursor {cursor}, offsets {offsets}"
    if cut.step != exported.newest_step:
        newest = f"step {exported.newest_step}, the newest that it knows"
        yield f"            older than {newest}: the node had not taken in all that it covers"
    yield f"pending     {exported.rows:,} messages"
    yield f"written     {exported.file}, {exported.bytes:,} bytes"
