"""The section on replicas: what is pending on every node, and where they differ."""

from collections.abc import Sequence

from delayd.audit.report import HeatCell, NodeState, Report
from delayd.audit.showing.building.blocks import (
    moment,
    nothing,
    part,
    section,
    theirs,
    wrong_count,
)
from delayd.audit.showing.building.elements import Element, Node, element
from delayd.audit.showing.building.tables import Column, columns, table
from delayd.audit.showing.figures.heat import heat_map
from delayd.audit.showing.words import count_text


def replicas(report: Report) -> Element:
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


def _nodes(report: Report) -> Element:
    if not report.nodes:
        return nothing("No node was asked.")
    differ = {node.node: 0 for node in report.nodes}
    for cell in report.heat:
        if cell.node in differ:
            differ[cell.node] += cell.differ

    def cells(node: NodeState) -> list[Node]:
        compared: Node = "compared"
        if node.problem is not None:
            compared = element("span", "not compared: ", theirs(node.problem), class_="bad")
        return [
            theirs(node.node),
            theirs(node.admin, code=True),
            "" if node.pending is None else count_text(node.pending),
            "" if node.problem is not None else wrong_count(differ[node.node]),
            compared,
        ]

    return part(
        "Nodes",
        table(
            "What their exports hold; those that could not be compared first",
            [
                Column("node"),
                Column("admin port"),
                *columns("pending", "differ", kind="n"),
                Column("export", "wide-text"),
            ],
            sorted(report.nodes, key=lambda node: (node.problem is None, node.node)),
            cells,
            more="nodes",
        ),
    )


def _differing(heat: Sequence[HeatCell]) -> Element | None:
    expected = {cell.at_ms: cell.pending for cell in heat if cell.node == ""}
    differing = sorted(
        (cell for cell in heat if cell.differ),
        key=lambda cell: (-cell.differ, cell.at_ms, cell.node),
    )
    if not differing:
        return None

    def cells(cell: HeatCell) -> list[Node]:
        return [
            moment(cell.at_ms),
            theirs(cell.node),
            count_text(expected.get(cell.at_ms, 0)),
            count_text(cell.pending),
            wrong_count(cell.differ),
        ]

    return part(
        "Where they differ",
        table(
            "Messages that are missing, too many or changed; the most first",
            [
                Column("due from (UTC)", "nowrap"),
                Column("node"),
                *columns("by the log", "on the node", "differ", kind="n"),
            ],
            differing,
            cells,
            more="due times",
        ),
    )
