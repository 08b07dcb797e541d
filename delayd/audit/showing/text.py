"""The report on a terminal: the verdict first, then what is wrong, then the figures."""

from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from delayd.audit.report import Failover, Finding, Lateness, Report
from delayd.audit.showing.words import (
    count_text,
    duration_text,
    fates_of,
    gap_text,
    meaning_of,
    owner_name,
    place_text,
    second_text,
    time_text,
    verdict_sentence,
    wrong_sentence,
)
from delayd.runtime.visible import visible

EXAMPLES_SHOWN: Final = 3
"""Findings of each fault; `--html` and `--json` have more."""
ROWS_SHOWN: Final = 10


def show(report: Report, console: Console) -> None:
    """Print it."""
    _verdict(report, console)
    _faults(report, console)
    _fates(report, console)
    _lateness(report, console)
    _failovers(report, console)
    _nodes(report, console)
    _travel(report, console)
    _notes(report, console)


def _verdict(report: Report, console: Console) -> None:
    style = "bold green" if report.ok else "bold red"
    word = "ok" if report.ok else "failed"
    console.print(Text.assemble(("Verdict: " + word, style), "  ", wrong_sentence(report)))
    console.print(Text(verdict_sentence(report)))
    cut = report.cut
    of = f"{len(cut.shards)} shards" if cut.shards else f"term {cut.term}"
    about = (
        f"Cluster {visible(report.cluster)} at step {count_text(cut.step)} of {of}, "
        f"{second_text(cut.append_ms)} UTC; took {duration_text(report.wall_ms)}."
    )
    console.print(Text(about, style="dim"))


def _faults(report: Report, console: Console) -> None:
    for slug, count in report.found:
        console.print()
        name = Text.assemble((visible(slug), "bold red"), f"  {count_text(count)}  ")
        console.print(name + Text(meaning_of(slug)))
        examples = [each for each in report.examples if each.fault == slug]
        for finding in examples[:EXAMPLES_SHOWN]:
            console.print(_indented(Text(_finding(finding))))
        more = count - min(len(examples), EXAMPLES_SHOWN)
        if more > 0:
            console.print(_indented(Text(f"and {count_text(more)} more", style="dim")))


def _finding(finding: Finding) -> str:
    place = place_text(finding.topic, finding.partition, finding.offset)
    said = [
        ("source", finding.source),
        ("id", finding.id),
        ("in", place or None),
        ("node", finding.node),
        ("due", None if finding.due_ms is None else time_text(finding.due_ms)),
    ]
    known = ", ".join(f"{name} {visible(value)}" for name, value in said if value is not None)
    return f"{known}: {visible(finding.reason)}" if known else visible(finding.reason)


def _fates(report: Report, console: Console) -> None:
    rows = [[name, count_text(count)] for _, name, count, _ in fates_of(report.fates) if count]
    _table(console, ["requests", count_text(report.fates.accepted)], rows)
    marks = [[visible(verdict, 60), count_text(count)] for verdict, count in report.marks]
    total = count_text(sum(count for _, count in report.marks))
    _table(console, ["cancels and replaces", total], marks)


def _lateness(report: Report, console: Console) -> None:
    if report.lateness is None:
        return
    topics = sorted(report.by_topic, key=lambda each: (-each[1].count, each[0]))
    rows = [["all topics", *_percentiles(report.lateness)]]
    rows += [[visible(topic, 60), *_percentiles(late)] for topic, late in topics]
    _table(console, ["lateness", "messages", "p50", "p99", "p99.9", "max"], rows)


def _failovers(report: Report, console: Console) -> None:
    def of_shard(failover: Failover) -> str:
        return f"shard {failover.shard}: " if report.cut.shards else ""

    rows = [
        [
            second_text(each.at_ms),
            f"{of_shard(each)}{owner_name(each.old_owner)} to {owner_name(each.new_owner)}",
            gap_text(each.gap_ms),
            "" if each.lateness is None else duration_text(each.lateness.p99),
            "" if each.lateness is None else duration_text(each.lateness.max),
        ]
        for each in report.failovers
    ]
    _table(console, ["failover (UTC)", "master", "gap", "p99 around", "max"], rows)


def _nodes(report: Report, console: Console) -> None:
    rows = [
        [
            visible(node.node, 60),
            "" if node.pending is None else count_text(node.pending),
            "compared" if node.problem is None else f"not compared: {visible(node.problem)}",
        ]
        for node in report.nodes
    ]
    _table(console, ["node", "pending", "export"], rows)


def _travel(report: Report, console: Console) -> None:
    then = report.travel
    if then is None:
        return
    rows = [[visible(topic, 60), count_text(count)] for topic, count in then.by_topic]
    _table(console, [f"pending at {second_text(then.at_ms)}", count_text(then.pending)], rows)
    due = [
        [visible(source), visible(topic, 60), time_text(due)]
        for source, topic, due in then.next_due
    ]
    _table(console, ["due first", "topic", "due (UTC)"], due)


def _notes(report: Report, console: Console) -> None:
    if report.notes:
        console.print()
        console.print(Text("Not judged:", style="bold"))
    for note in report.notes[:ROWS_SHOWN]:
        console.print(_indented(Text(visible(note))))


def _indented(words: Text) -> Padding:
    return Padding(words, (0, 0, 0, 4))


def _percentiles(late: Lateness) -> list[str]:
    times = (late.p50, late.p99, late.p999, late.max)
    return [count_text(late.count), *map(duration_text, times)]


def _table(console: Console, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print at most ROWS_SHOWN rows; the first column at the left, numbers at the right."""
    if not rows:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for n, head in enumerate(heads):
        is_number = all(_is_number(row[n]) for row in rows[:ROWS_SHOWN])
        table.add_column(Text(head), justify="right" if n and is_number else "left")
    for row in rows[:ROWS_SHOWN]:
        table.add_row(*map(Text, row))
    if len(rows) > ROWS_SHOWN:
        table.add_row(Text(f"and {count_text(len(rows) - ROWS_SHOWN)} more", style="dim"))
    console.print()
    console.print(table)


def _is_number(cell: str) -> bool:
    return cell == "" or cell[0].isdigit() or cell[0] == "-"
