"""The section on deliveries and leadership: the figure, failovers, terms."""

from delayd.audit.report import Failover, Reign, Report
from delayd.audit.showing.building.blocks import moment, nothing, part, section, theirs
from delayd.audit.showing.building.elements import Element, Node
from delayd.audit.showing.building.tables import (
    LATENESS_COLUMNS,
    ROWS_MAX,
    Column,
    columns,
    lateness_cells,
    table,
)
from delayd.audit.showing.figures.timeline import timeline
from delayd.audit.showing.words import count_text, duration_text, gap_text, owner_name


def over_time(report: Report) -> Element:
    """Return the section on deliveries, masters and lateness over time."""
    return section(
        "time",
        "Deliveries and leadership",
        timeline(report) or nothing("Nothing was delivered, and no term was seen."),
        _failovers(report) if report.failovers else None,
        _reigns(report) if report.reigns else None,
        lead="What was delivered when, who was master, and how late the messages were.",
    )


def _failovers(report: Report) -> Element:
    def cells(failover: Failover) -> list[Node]:
        return [
            moment(failover.at_ms),
            str(failover.term),
            theirs(owner_name(failover.old_owner)),
            theirs(owner_name(failover.new_owner)),
            gap_text(failover.gap_ms),
            *lateness_cells(failover.lateness),
        ]

    return part(
        "Failovers",
        table(
            "Gap: from the last step of the old term to the first delivery of the new one. "
            "Lateness: of what was due from 5 s before to 15 s after.",
            [
                Column("at (UTC)", "nowrap"),
                Column("term", "n"),
                *columns("from", "to"),
                Column("gap", "n"),
                *LATENESS_COLUMNS,
            ],
            sorted(report.failovers, key=lambda each: each.at_ms),
            cells,
            more="failovers",
        ),
    )


def _reigns(report: Report) -> Element:
    def cells(reign: Reign) -> list[Node]:
        return [
            str(reign.term),
            theirs(reign.owner),
            moment(reign.from_ms),
            moment(reign.to_ms),
            duration_text(reign.to_ms - reign.from_ms),
            count_text(reign.steps),
            count_text(reign.delivered),
        ]

    return part(
        "Terms",
        table(
            "The newest first",
            [
                Column("term"),
                Column("owner"),
                *columns("first step (UTC)", "last step (UTC)", kind="nowrap"),
                *columns("length", "steps", "delivered", kind="n"),
            ],
            sorted(report.reigns, key=lambda reign: -reign.term),
            cells,
            most=ROWS_MAX // 2,
            more="terms before",
        ),
    )
