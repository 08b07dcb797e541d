"""The section on lateness, by topic and by hour."""

from delayd.audit.report import Lateness, Report, TopicHour
from delayd.audit.showing.building.blocks import nothing, part, section, theirs
from delayd.audit.showing.building.elements import Element, Node
from delayd.audit.showing.building.tables import (
    LATENESS_COLUMNS,
    ROWS_MAX,
    Column,
    lateness_cells,
    table,
)
from delayd.audit.showing.figures.histogram import histogram
from delayd.audit.showing.figures.spark import spark
from delayd.audit.showing.limits import hours_by_topic
from delayd.audit.showing.words import count_text, second_text

ALL = None
"""In place of a topic: all of them."""


def lateness(report: Report) -> Element:
    """Return the section on the time from due to delivered."""
    if report.lateness is None:
        return section("lateness", "Lateness", nothing("Nothing was delivered."))
    return section(
        "lateness",
        "Lateness",
        histogram(report.histogram, report.lateness),
        _by_topic(report, report.lateness),
        _by_hour(report) if report.by_hour else None,
        lead="From the due time, or from the acceptance if that came later, to the delivery. "
        "Messages that were requeued because their target failed are left out.",
    )


def _by_topic(report: Report, overall: Lateness) -> Element:
    by_count = sorted(report.by_topic, key=lambda each: (-each[1].count, each[0]))
    items: list[tuple[str | None, Lateness]] = [(ALL, overall), *by_count]
    hours = hours_by_topic(report.by_hour)

    def cells(item: tuple[str | None, Lateness]) -> list[Node]:
        topic, late = item
        if topic is ALL:
            return ["all topics", *lateness_cells(late), None]
        return [theirs(topic), *lateness_cells(late), spark(hours.get(topic, []))]

    return part(
        "By topic",
        table(
            "Topics with the most messages first. The curve is the p99 of each hour, from "
            "0 to its highest.",
            [Column("topic", "wide-text"), *LATENESS_COLUMNS, Column("p99 by hour")],
            items,
            cells,
            most=ROWS_MAX + 1,
            more="topics",
            row_class=lambda item: "total" if item[0] is ALL else None,
        ),
    )


def _by_hour(report: Report) -> Element:
    worst = sorted(report.by_hour, key=lambda each: (-each.lateness.p99, each.hour_ms, each.topic))
    shown = worst[: ROWS_MAX // 2]

    def cells(hour: TopicHour) -> list[Node]:
        return [theirs(hour.topic), second_text(hour.hour_ms)[:16], *lateness_cells(hour.lateness)]

    return part(
        "By topic and hour",
        table(
            "Hours of due times"
            if len(shown) == len(worst)
            else f"The {len(shown)} hours of due times with the highest p99, of "
            f"{count_text(len(worst))}",
            [Column("topic", "wide-text"), Column("hour (UTC)", "nowrap"), *LATENESS_COLUMNS],
            shown,
            cells,
        ),
    )
