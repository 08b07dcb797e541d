"""The section on what was pending at another time (`--at`)."""

from delayd.audit.report import Report
from delayd.audit.showing.building.blocks import moment, part, section, theirs
from delayd.audit.showing.building.elements import Element, element
from delayd.audit.showing.building.tables import Column, table
from delayd.audit.showing.words import count_text, second_text


def travel(report: Report) -> Element | None:
    """Return the section; None if nobody asked for it."""
    then = report.travel
    if then is None:
        return None
    pending = Column("pending", "n")
    return section(
        "travel",
        f"What was pending at {second_text(then.at_ms)} UTC",
        element(
            "div",
            table(
                "By target topic",
                [Column("topic"), pending],
                then.by_topic,
                lambda each: [theirs(each[0]), count_text(each[1])],
                more="topics",
            ),
            table(
                "By hour of the due time",
                [Column("hour (UTC)", "nowrap"), pending],
                then.by_hour,
                lambda each: [second_text(each[0])[:16], count_text(each[1])],
                more="hours",
            ),
            class_="columns",
        ),
        part(
            "Due first",
            table(
                "Those that came next",
                [
                    Column("source", "nowrap"),
                    Column("topic", "wide-text"),
                    Column("due (UTC)", "nowrap"),
                ],
                then.next_due,
                lambda each: [theirs(each[0], code=True), theirs(each[1]), moment(each[2])],
            ),
        ),
        lead=f"{count_text(then.pending)} messages had been accepted and were not over.",
    )
