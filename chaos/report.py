"""Results as JSON lines, as a page and as a table on a terminal.

`results.jsonl` is what happened, one run a line, appended; the page is made of all of it anew.
"""

import html
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from chaos.verdict import Result

LINES: Final = "results.jsonl"
PAGE: Final = "report.html"

COLUMNS: Final = (
    *("scenario", "backend", "messages", "failovers", "lost", "doubled", "early", "altered"),
    *("wrong_verdicts", "out_of_order", "replicas_differ", "recovery_p50_ms", "recovery_max_ms"),
    *("wall_s", "seed", "judges", "verdict"),
)

_STYLE: Final = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { border-bottom: 1px solid #ccc; padding: .3rem .6rem; vertical-align: top }
td { text-align: right }
th:first-child, td:first-child { text-align: left }
tr.failed td { background: #fde8e8 }
td ul { margin: .2rem 0; padding-left: 1.2rem; text-align: left }
small { color: #555 }
"""


def note(result: Result, folder: Path) -> None:
    """Append the run, and make the page anew."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LINES).open("a") as lines:
        lines.write(json.dumps(result.to_json()) + "\n")
    results = [json.loads(line) for line in (folder / LINES).read_text().splitlines()]
    (folder / PAGE).write_text(page(results), encoding="utf-8")


def line_of(result: Result) -> str:
    """For a terminal; of a failure what was wrong, too."""
    told = result.to_json()
    wrong = ", ".join(f"{name} {told[name]}" for name in ("lost", "doubled", "early", "altered"))
    head = (
        f"{told['verdict']:6} {result.scenario:18} {result.messages:6} messages,"
        f" {result.failovers} failovers, {wrong}, late for {result.recovery_max_ms / 1000:.1f} s"
        f" at most, {result.wall_s:.0f} s, seed {result.seed}"
    )
    return "\n".join([head, *(f"       {problem}" for problem in result.problems)])


def page(results: Iterable[Mapping[str, Any]]) -> str:
    """One HTML page that needs nothing else."""
    rows = list(results)
    failed = sum(row["verdict"] != "ok" for row in rows)
    head = f"{len(rows)} runs, {failed} failed" if failed else f"{len(rows)} runs, all well"
    made = datetime.now(UTC).isoformat(timespec="seconds")
    titles = "".join(f"<th>{name.replace('_', ' ')}</th>" for name in COLUMNS)
    body = "\n".join(_row(row) for row in rows)
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>delayd: chaos</title>"
        f"<style>{_STYLE}</style><h1>Chaos: {head}</h1><p><small>{made}</small></p>"
        f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></html>"
    )


def _row(row: Mapping[str, Any]) -> str:
    cells = "".join(f"<td>{html.escape(str(row[name]))}</td>" for name in COLUMNS[1:])
    strikes = "".join(f"<li>{html.escape(strike)}</li>" for strike in row["strikes"])
    problems = "".join(f"<li><b>{html.escape(text)}</b></li>" for text in row["problems"])
    first = (
        f"<td>{html.escape(row['scenario'])}<br><small>{html.escape(row['what'])}</small>"
        f"<ul>{strikes}{problems}</ul></td>"
    )
    return f'<tr class="{html.escape(row["verdict"])}">{first}{cells}</tr>'
