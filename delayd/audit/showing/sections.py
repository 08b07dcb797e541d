"""The sections of the page below the verdict, each a function of the report."""

from collections.abc import Sequence

from delayd.audit.report import HeatCell, Lateness, Report, TopicHour
from delayd.audit.showing.bounded import ROWS_MAX, hours_of
from delayd.audit.showing.elements import Element, Node, element, number
from delayd.audit.showing.heat import heat_map
from delayd.audit.showing.histogram import histogram
from delayd.audit.showing.scales import Linear, Log
from delayd.audit.showing.tables import (
    LATENESS_COLUMNS,
    Column,
    columns,
    lateness_cells,
    moment,
    table,
    theirs,
)
from delayd.audit.showing.timeline import timeline
from delayd.audit.showing.words import count_text, duration_text, fates_of, second_text


def section(slug: str, title: str, *content: Node, lead: str = "") -> Element:
    """A heading and what is under it."""
    return element(
        "section",
        element("h2", title, id=slug),
        element("p", lead, class_="lead") if lead else None,
        content,
        aria_labelledby=slug,
    )


def nothing(words: str) -> Element:
    """What stands where there is nothing to show."""
    return element("p", words, class_="muted")


def over_time(report: Report) -> Element:
    """Deliveries and leadership."""
    return section(
        "time",
        "Deliveries and leadership",
        timeline(report) or nothing("Nothing was delivered, and no term was seen."),
        _failovers(report) if report.failovers else None,
        _reigns(report) if report.reigns else None,
        lead="What was delivered when, who was master, and how late the messages were.",
    )


def _failovers(report: Report) -> Element:
    heads = [
        Column("at (UTC)", "nowrap"),
        Column("term", "n"),
        *columns("from", "to"),
        Column("gap", "n"),
        *LATENESS_COLUMNS,
    ]
    rows: list[list[Node]] = [
        [
            moment(each.at_ms),
            str(each.term),
            theirs(each.old_owner.rsplit("/", 1)[0]),
            theirs(each.new_owner.rsplit("/", 1)[0]),
            "no delivery since" if each.gap_ms is None else duration_text(each.gap_ms),
            *lateness_cells(each.lateness),
        ]
        for each in sorted(report.failovers, key=lambda each: each.at_ms)
    ]
    return element(
        "div",
        element("h3", "Failovers"),
        table(
            "Gap: from the last step of the old term to the first delivery of the new one. "
            "Lateness of what was due from 5 s before to 15 s after.",
            heads,
            rows,
            more="failovers",
        ),
    )


def _reigns(report: Report) -> Element:
    rows: list[list[Node]] = [
        [
            str(reign.term),
            theirs(reign.owner),
            moment(reign.from_ms),
            moment(reign.to_ms),
            duration_text(reign.to_ms - reign.from_ms),
            count_text(reign.steps),
            count_text(reign.delivered),
        ]
        for reign in sorted(report.reigns, key=lambda reign: -reign.term)
    ]
    return element(
        "div",
        element("h3", "Terms"),
        table(
            "The newest first",
            [
                Column("term"),
                Column("owner"),
                *columns("first step (UTC)", "last step (UTC)", kind="nowrap"),
                *columns("length", "steps", "delivered", kind="n"),
            ],
            rows,
            most=ROWS_MAX // 2,
            more="terms before",
        ),
    )


def lateness(report: Report) -> Element:
    """How late, by topic and by hour."""
    if report.lateness is None:
        return section("lateness", "Lateness", nothing("Nothing was delivered."))
    topics = sorted(report.by_topic, key=lambda each: (-each[1].count, each[0]))
    rows: list[list[Node]] = [["all topics", *lateness_cells(report.lateness), None]]
    rows += [
        [theirs(topic), *lateness_cells(late), _spark(hours_of(report.by_hour, topic))]
        for topic, late in topics[:ROWS_MAX]
    ]
    return section(
        "lateness",
        "Lateness",
        histogram(report.histogram, report.lateness),
        element("h3", "By topic"),
        table(
            "From the due time to the delivery. Topics with the most messages first; the curve is "
            "the p99 of each hour, on a logarithmic scale.",
            [Column("topic", "wide-text"), *LATENESS_COLUMNS, Column("p99 by hour")],
            rows,
            most=ROWS_MAX + 1,
            total=len(topics) + 1,
            first_is_all=True,
            more="topics",
        ),
        _hours(report.by_hour) if report.by_hour else None,
    )


def _hours(hours: Sequence[TopicHour]) -> Element:
    worst = sorted(hours, key=lambda each: (-each.lateness.p99, each.hour_ms, each.topic))
    rows: list[list[Node]] = [
        [theirs(each.topic), second_text(each.hour_ms)[:16], *lateness_cells(each.lateness)]
        for each in worst[: ROWS_MAX // 2]
    ]
    return element(
        "div",
        element("h3", "By topic and hour"),
        table(
            f"The hours of due times with the highest p99, {len(rows)} of {count_text(len(hours))}",
            [Column("topic", "wide-text"), Column("hour (UTC)", "nowrap"), *LATENESS_COLUMNS],
            rows,
        ),
    )


SPARK_WIDTH, SPARK_HEIGHT = 120, 22


def _spark(hours: Sequence[TopicHour]) -> Node:
    """A little curve of the p99 by hour; nothing for a single hour."""
    if len(hours) < 2:
        return None
    top = max(hour.lateness.p99 for hour in hours)
    across = Linear(hours[0].hour_ms, hours[-1].hour_ms, 2, SPARK_WIDTH - 2)
    up = Log(1, max(top, 2), SPARK_HEIGHT - 2, 2)
    points = " ".join(
        f"{number(across(hour.hour_ms))},{number(up(hour.lateness.p99))}" for hour in hours
    )
    return element(
        "svg",
        element("polyline", points=points, class_="spark"),
        width=SPARK_WIDTH,
        height=SPARK_HEIGHT,
        viewBox=f"0 0 {SPARK_WIDTH} {SPARK_HEIGHT}",
        role="img",
        aria_label=f"p99 over {len(hours)} hours, at most {duration_text(top)}",
    )


def replicas(report: Report) -> Element:
    """Pending sets: the map, the nodes, the cells that differ."""
    return section(
        "replicas",
        "What is pending, on every node",
        heat_map(report.heat) or nothing("Nothing is pending at the cut."),
        _nodes(report),
        _differing(report.heat),
        lead="The wheel of each node at the cut, held against what the log says is pending.",
    )


def _nodes(report: Report) -> Element:
    differ = {node.node: 0 for node in report.nodes}
    for cell in report.heat:
        if cell.node in differ:
            differ[cell.node] += cell.differ
    rows: list[list[Node]] = [
        [
            theirs(node.node),
            theirs(node.admin, code=True),
            "" if node.pending is None else count_text(node.pending),
            "" if node.pending is None else _count(differ[node.node]),
            "compared"
            if node.problem is None
            else element("span", "not compared: ", theirs(node.problem), class_="bad"),
        ]
        for node in sorted(report.nodes, key=lambda node: (node.problem is None, node.node))
    ]
    if not rows:
        return nothing("No node was asked.")
    heads = [
        Column("node"),
        Column("admin port"),
        *columns("pending", "differ", kind="n"),
        Column("export", "wide-text"),
    ]
    return element("div", element("h3", "Nodes"), table("Nodes at the cut", heads, rows))


def _differing(cells: Sequence[HeatCell]) -> Element | None:
    expected = {cell.at_ms: cell.pending for cell in cells if cell.node == ""}
    rows: list[list[Node]] = [
        [
            moment(cell.at_ms),
            theirs(cell.node),
            count_text(expected.get(cell.at_ms, 0)),
            count_text(cell.pending),
            _count(cell.differ),
        ]
        for cell in sorted(cells, key=lambda cell: (-cell.differ, cell.at_ms, cell.node))
        if cell.differ
    ]
    if not rows:
        return None
    heads = [
        Column("due from (UTC)", "nowrap"),
        Column("node"),
        *columns("by the log", "on the node", "differ", kind="n"),
    ]
    return element(
        "div",
        element("h3", "Where they differ"),
        table("Due times with the most differing messages first", heads, rows, more="due times"),
    )


def _count(count: int) -> Node:
    """Red if it is not 0."""
    return element("span", count_text(count), class_="bad") if count else "0"


def requests(report: Report) -> Element:
    """Fates, and verdicts of cancels."""
    most = max((count for _, _, count, _ in fates_of(report.fates)), default=0)
    rows: list[list[Node]] = [
        [
            name,
            _count(count) if field == "lost" else count_text(count),
            element("span", class_="share", style=f"width:{100 * count / most:.1f}%")
            if count
            else None,
            meaning,
        ]
        for field, name, count, meaning in fates_of(report.fates)
    ]
    heads = [Column("fate", "nowrap"), Column("requests", "n"), Column("", "bar"), Column("means")]
    marks: list[list[Node]] = [
        [theirs(verdict), count_text(count)]
        for verdict, count in sorted(report.marks, key=lambda mark: (-mark[1], mark[0]))
    ]
    heads_marks = [Column("verdict"), Column("cancels and replaces", "n")]
    return section(
        "requests",
        "What became of the requests",
        table("Each request has exactly one fate", heads, rows),
        element("h3", "Verdicts of cancels and replaces"),
        table("As they follow from the log", heads_marks, marks)
        if marks
        else nothing("Nobody cancelled or replaced anything."),
    )


def travel(report: Report) -> Element | None:
    """What was pending at another time, if that was asked."""
    then = report.travel
    if then is None:
        return None
    topics: list[list[Node]] = [
        [theirs(topic), count_text(count)] for topic, count in then.by_topic
    ]
    hours: list[list[Node]] = [
        [second_text(hour)[:16], count_text(count)] for hour, count in then.by_hour
    ]
    first: list[list[Node]] = [
        [theirs(source, code=True), theirs(topic), moment(due)]
        for source, topic, due in then.next_due
    ]
    return section(
        "travel",
        f"What was pending at {second_text(then.at_ms)} UTC",
        element("p", f"{count_text(then.pending)} messages were accepted and not over."),
        element(
            "div",
            table(
                "By target topic", [Column("topic"), Column("pending", "n")], topics, more="topics"
            ),
            table(
                "By hour of the due time",
                [Column("hour (UTC)", "nowrap"), Column("pending", "n")],
                hours,
                more="hours",
            ),
            class_="columns",
        ),
        element("h3", "Due first"),
        table(
            "Those that were next",
            [
                Column("source", "nowrap"),
                Column("topic", "wide-text"),
                Column("due (UTC)", "nowrap"),
            ],
            first,
        ),
    )


def the_cut(report: Report) -> Element:
    """Which moment was judged, from what, and what could not be."""
    cut = report.cut
    facts: list[list[Node]] = [
        ["frontier", f"step {count_text(cut.step)} of term {cut.term}"],
        ["at offset", f"{cut.offset} of the frontier topic"],
        ["committed (UTC)", moment(cut.append_ms)],
        ["topics read to their ends of (UTC)", moment(cut.read_ms)],
    ]
    records: list[list[Node]] = [
        [theirs(topic), count_text(count)]
        for topic, count in sorted(cut.records, key=lambda each: (-each[1], each[0]))
    ]
    return section(
        "cut",
        "What was judged",
        element(
            "div",
            table("The cut: one committed frontier", [Column(""), Column("")], facts),
            table(
                "Records that were read",
                [Column("topic"), Column("records", "n")],
                records,
                more="topics",
            ),
            class_="columns",
        ),
        element("h3", "What could not be judged"),
        _notes(report.notes),
    )


def _notes(notes: Sequence[str]) -> Element:
    if not notes:
        return nothing("Nothing: the evidence was complete.")
    items = [element("li", theirs(note)) for note in notes[:ROWS_MAX]]
    left = len(notes) - ROWS_MAX
    return element("ul", items, element("li", f"and {count_text(left)} more") if left > 0 else None)


def percentile_text(late: Lateness | None) -> str:
    """The p99, for the verdict's tiles."""
    return "none" if late is None else duration_text(late.p99)
