"""The sections of the page below the verdict, each a function of the report."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from delayd.audit.report import HeatCell, Lateness, NodeState, Report, TopicHour
from delayd.audit.showing.building.blocks import (
    ROWS_MAX,
    Column,
    lateness_columns,
    moment,
    nothing,
    part,
    section,
    table,
    theirs,
    wrong_count,
)
from delayd.audit.showing.building.elements import Html, Node, element
from delayd.audit.showing.figures.heat import heat_map
from delayd.audit.showing.figures.lateness import histogram, spark
from delayd.audit.showing.figures.timeline import timeline
from delayd.audit.showing.words import (
    count_text,
    duration_text,
    fates_of,
    gap_text,
    owner_name,
    second_text,
)

HOURS_MAX: Final = 48
"""Hours of a topic in its little curve."""


def over_time(report: Report) -> Html:
    """Return the section on deliveries, masters and lateness over time."""
    return section(
        "time",
        "Deliveries and leadership",
        timeline(report) or nothing("Nothing was delivered, and no term was seen."),
        _failovers(report) if report.failovers else None,
        _reigns(report) if report.reigns else None,
        lead="What was delivered when, who was master, and how late the messages were.",
    )


def _failovers(report: Report) -> Html:
    return table(
        "Gap: from the last step of the old term to the first delivery of the new one, as far as "
        "messages were due and waited. "
        "Lateness: of what was due from 5 s before to 15 s after.",
        sorted(report.failovers, key=lambda each: each.at_ms),
        Column("at (UTC)", lambda each: moment(each.at_ms), "nowrap"),
        *_of_shard(report),
        Column("term", lambda each: str(each.term), "n"),
        Column("from", lambda each: theirs(owner_name(each.old_owner))),
        Column("to", lambda each: theirs(owner_name(each.new_owner))),
        Column("gap", lambda each: gap_text(each.gap_ms), "n"),
        *lateness_columns(lambda each: each.lateness),
        title="Failovers",
        more="failovers",
    )


def _of_shard(report: Report) -> list[Column[Any]]:
    """Return the column of what is of a shard, if there are several."""
    return [Column("shard", lambda each: str(each.shard), "n")] if report.cut.shards else []


def _reigns(report: Report) -> Html:
    return table(
        "The newest first",
        sorted(report.reigns, key=lambda it: -it.from_ms if report.cut.shards else -it.term),
        *_of_shard(report),
        Column("term", lambda reign: str(reign.term)),
        Column("owner", lambda reign: theirs(reign.owner)),
        Column("first step (UTC)", lambda reign: moment(reign.from_ms), "nowrap"),
        Column("last step (UTC)", lambda reign: moment(reign.to_ms), "nowrap"),
        Column("length", lambda reign: duration_text(reign.to_ms - reign.from_ms), "n"),
        Column("steps", lambda reign: count_text(reign.steps), "n"),
        Column("delivered", lambda reign: count_text(reign.delivered), "n"),
        title="Terms",
        most=ROWS_MAX // 2,
        more="terms before",
    )


def lateness(report: Report) -> Html:
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


def _by_topic(report: Report, overall: Lateness) -> Html:
    """Return the table whose first row, of no topic, is on all of them."""
    by_count = sorted(report.by_topic, key=lambda each: (-each[1].count, each[0]))
    items: list[tuple[str | None, Lateness]] = [(None, overall), *by_count]
    hours = _hours_by_topic(report.by_hour)
    return table(
        "Topics with the most messages first. The curve is the p99 of each hour, from "
        "0 to its highest.",
        items,
        Column(
            "topic",
            lambda item: "all topics" if item[0] is None else theirs(item[0]),
            "wide-text",
        ),
        *lateness_columns(lambda item: item[1]),
        Column("p99 by hour", lambda item: spark(hours.get(item[0] or "", []))),
        title="By topic",
        most=ROWS_MAX + 1,
        more="topics",
        row_class=lambda item: "total" if item[0] is None else None,
    )


def _hours_by_topic(hours: Sequence[TopicHour]) -> dict[str, list[TopicHour]]:
    """Return the last HOURS_MAX hours of each topic, in order."""
    found: dict[str, list[TopicHour]] = defaultdict(list)
    for hour in sorted(hours, key=lambda hour: hour.hour_ms):
        found[hour.topic].append(hour)
    return {topic: own[-HOURS_MAX:] for topic, own in found.items()}


def _by_hour(report: Report) -> Html:
    worst = sorted(report.by_hour, key=lambda each: (-each.lateness.p99, each.hour_ms, each.topic))
    shown = worst[: ROWS_MAX // 2]
    caption = "Hours of due times"
    if len(shown) < len(worst):
        caption = f"The {len(shown)} hours of due times with the highest p99, of "
        caption += count_text(len(worst))
    return table(
        caption,
        shown,
        Column("topic", lambda hour: theirs(hour.topic), "wide-text"),
        Column("hour (UTC)", lambda hour: second_text(hour.hour_ms)[:16], "nowrap"),
        *lateness_columns(lambda hour: hour.lateness),
        title="By topic and hour",
    )


def replicas(report: Report) -> Html:
    """Return the section with the map, the nodes, and the due times that differ."""
    return section(
        "replicas",
        "What is pending, on every node",
        heat_map(report.heat, [node.node for node in report.nodes if node.problem is not None])
        or nothing("Nothing is pending at the cut."),
        _nodes(report),
        _differing(report.heat),
        lead="The wheel of each node at the cut, compared with what the log says is pending.",
    )


def _nodes(report: Report) -> Html:
    if not report.nodes:
        return nothing("No node was asked.")
    differ = {node.node: 0 for node in report.nodes}
    for cell in report.heat:
        if cell.node in differ:
            differ[cell.node] += cell.differ

    def pending(node: NodeState) -> Node:
        return "" if node.pending is None else count_text(node.pending)

    def differing(node: NodeState) -> Node:
        return wrong_count(differ[node.node]) if node.problem is None else ""

    def compared(node: NodeState) -> Node:
        if node.problem is None:
            return "compared"
        return element("span", "not compared: ", theirs(node.problem), class_="bad")

    return table(
        "What their exports hold; those that could not be compared first",
        sorted(report.nodes, key=lambda node: (node.problem is None, node.node)),
        Column("node", lambda node: theirs(node.node)),
        Column("admin port", lambda node: theirs(node.admin, code=True)),
        Column("pending", pending, "n"),
        Column("differ", differing, "n"),
        Column("export", compared, "wide-text"),
        title="Nodes",
        more="nodes",
    )


def _differing(heat: Sequence[HeatCell]) -> Html | None:
    expected = {cell.at_ms: cell.pending for cell in heat if cell.node == ""}
    differing = sorted(
        (cell for cell in heat if cell.differ),
        key=lambda cell: (-cell.differ, cell.at_ms, cell.node),
    )
    if not differing:
        return None
    return table(
        "Messages that are missing, too many or changed; the most first",
        differing,
        Column("due from (UTC)", lambda cell: moment(cell.at_ms), "nowrap"),
        Column("node", lambda cell: theirs(cell.node)),
        Column("by the log", lambda cell: count_text(expected.get(cell.at_ms, 0)), "n"),
        Column("on the node", lambda cell: count_text(cell.pending), "n"),
        Column("differ", lambda cell: wrong_count(cell.differ), "n"),
        title="Where they differ",
        more="due times",
    )


def requests(report: Report) -> Html:
    """Return the section with fates, and verdicts of cancels and replaces."""
    return section(
        "requests",
        "What became of the requests",
        _fates(report),
        part(
            "Verdicts of cancels and replaces",
            _marks(report) if report.marks else nothing("Nobody cancelled or replaced anything."),
        ),
    )


def _fates(report: Report) -> Html:
    fates = fates_of(report.fates)
    most = max(count for _, _, count, _ in fates)

    def requests(fate: tuple[str, str, int, str]) -> Node:
        field, _, count, _ = fate
        return wrong_count(count) if field == "lost" else count_text(count)

    def share(fate: tuple[str, str, int, str]) -> Node:
        style = f"width:{100 * fate[2] / max(most, 1):.1f}%"
        return element("span", class_="share", style=style) if fate[2] else None

    return table(
        "Each request has exactly one fate",
        fates,
        Column("fate", lambda fate: fate[1], "nowrap"),
        Column("requests", requests, "n"),
        Column("", share, "bar"),
        Column("means", lambda fate: fate[3], "wide-text"),
        row_class=lambda fate: None if fate[2] else "none",
    )


def _marks(report: Report) -> Html:
    marks = table(
        "As they follow from the log",
        sorted(report.marks, key=lambda mark: (-mark[1], mark[0])),
        Column("verdict", lambda mark: theirs(mark[0])),
        Column("cancels and replaces", lambda mark: count_text(mark[1]), "n"),
    )
    return element("div", marks, class_="half")


def the_cut(report: Report) -> Html:
    """Return the section with the cut, the records that were read, and the notes."""
    cut = report.cut
    facts: list[tuple[str, Node]] = [
        ("frontier", f"step {count_text(cut.step)} of term {count_text(cut.term)}"),
        ("its offset", count_text(cut.offset)),
        ("committed (UTC)", moment(cut.append_ms)),
    ]
    if cut.shards:
        facts = [
            (
                f"frontier of shard {each.shard}",
                f"step {count_text(each.step)} of term {count_text(each.term)}, offset "
                f"{count_text(each.offset)}, {second_text(each.append_ms)}",
            )
            for each in cut.shards
        ]
    facts.append(("topics read to their ends of (UTC)", moment(cut.read_ms)))
    return section(
        "cut",
        "What was judged",
        element(
            "div",
            table(
                "The cut: one committed frontier",
                facts,
                Column("of", lambda fact: fact[0]),
                Column("is", lambda fact: fact[1]),
            ),
            table(
                "Records that were read",
                sorted(cut.records, key=lambda each: (-each[1], each[0])),
                Column("topic", lambda each: theirs(each[0])),
                Column("records", lambda each: count_text(each[1]), "n"),
                more="topics",
            ),
            class_="columns",
        ),
        part("What could not be judged", _notes(report.notes)),
    )


def _notes(notes: Sequence[str]) -> Html:
    if not notes:
        return nothing("Nothing: the evidence was complete.")
    items = [element("li", theirs(note)) for note in notes[:ROWS_MAX]]
    left = len(notes) - ROWS_MAX
    return element("ul", items, element("li", f"and {count_text(left)} more") if left > 0 else None)


def travel(report: Report) -> Html | None:
    """Return the section on what was pending at another time (`--at`); None if nobody asked."""
    then = report.travel
    if then is None:
        return None
    return section(
        "travel",
        f"What was pending at {second_text(then.at_ms)} UTC",
        element(
            "div",
            table(
                "By target topic",
                then.by_topic,
                Column("topic", lambda each: theirs(each[0])),
                Column("pending", lambda each: count_text(each[1]), "n"),
                more="topics",
            ),
            table(
                "By hour of the due time",
                then.by_hour,
                Column("hour (UTC)", lambda each: second_text(each[0])[:16], "nowrap"),
                Column("pending", lambda each: count_text(each[1]), "n"),
                more="hours",
            ),
            class_="columns",
        ),
        table(
            "Those that came next",
            then.next_due,
            Column("source", lambda each: theirs(each[0], code=True), "nowrap"),
            Column("topic", lambda each: theirs(each[1]), "wide-text"),
            Column("due (UTC)", lambda each: moment(each[2]), "nowrap"),
            title="Due first",
        ),
        lead=f"{count_text(then.pending)} messages had been accepted and were not over.",
    )
