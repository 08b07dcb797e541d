"""The section on the cut: the moment judged, the records read, and what could not be judged."""

from collections.abc import Sequence

from delayd.audit.report import Report
from delayd.audit.showing.building.blocks import moment, nothing, part, section, theirs
from delayd.audit.showing.building.elements import Element, Node, element
from delayd.audit.showing.building.tables import ROWS_MAX, Column, table
from delayd.audit.showing.words import count_text


def the_cut(report: Report) -> Element:
    """Return the section with the cut, the records that were read, and the notes."""
    cut = report.cut
    facts: list[tuple[str, Node]] = [
        ("frontier", f"step {count_text(cut.step)} of term {count_text(cut.term)}"),
        ("its offset", count_text(cut.offset)),
        ("committed (UTC)", moment(cut.append_ms)),
        ("topics read to their ends of (UTC)", moment(cut.read_ms)),
    ]
    return section(
        "cut",
        "What was judged",
        element(
            "div",
            table("The cut: one committed frontier", [Column("of"), Column("is")], facts, list),
            table(
                "Records that were read",
                [Column("topic"), Column("records", "n")],
                sorted(cut.records, key=lambda each: (-each[1], each[0])),
                lambda each: [theirs(each[0]), count_text(each[1])],
                more="topics",
            ),
            class_="columns",
        ),
        part("What could not be judged", _notes(report.notes)),
    )


def _notes(notes: Sequence[str]) -> Element:
    if not notes:
        return nothing("Nothing: the evidence was complete.")
    items = [element("li", theirs(note)) for note in notes[:ROWS_MAX]]
    left = len(notes) - ROWS_MAX
    return element("ul", items, element("li", f"and {count_text(left)} more") if left > 0 else None)
