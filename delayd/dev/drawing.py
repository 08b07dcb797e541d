"""The look of the demo: from a scene to tables for rich, and to plain lines. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from delayd.dev.nodes import NodeAnswer
from delayd.dev.verdict import Lateness, Progress, Verdict

BAR_WIDTH: Final = 50
EVENTS_SHOWN: Final = 12
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"


@dataclass(slots=True)
class Scene:
    """Everything on show. A field is replaced as a whole, so that another thread can draw it."""

    planned: int = 0
    payments: int = 0
    scheduled: int = 0
    paid: int = 0
    progress: Progress = field(default_factory=Progress)
    nodes: Mapping[str, NodeAnswer | None] = field(default_factory=dict)
    """By name; None: it does not answer."""
    rates: tuple[int, ...] = ()
    """Deliveries in each second so far."""
    events: tuple[str, ...] = ()


def draw(scene: Scene) -> RenderableType:
    """Return the scene for a terminal."""
    counts = scene.progress.counts
    bars = Table.grid(padding=(0, 1))
    for label, count, planned in (
        ("scheduled", scene.scheduled, scene.planned),
        ("paid", scene.paid, scene.payments),
        ("delivered", counts.delivered, scene.planned),
        ("cancelled", counts.cancelled, scene.planned),
    ):
        bar = ProgressBar(total=planned, completed=count, width=BAR_WIDTH)
        bars.add_row(label, bar, f"{count:>9,} of {planned:,}")
    recent = scene.progress.recent_p50_ms
    bars.add_row(
        "each second",
        Text(sparkline(scene.rates[-BAR_WIDTH:]), style="cyan"),
        f"{scene.rates[-1] if scene.rates else 0:>9,} /s"
        + ("" if recent is None else f", {recent} ms late"),
    )
    witness = Text("witness  ")
    for name, count in (
        ("doubled", counts.doubled),
        ("early", counts.early),
        ("altered", counts.altered),
        ("unknown", counts.unknown),
    ):
        witness.append(f"{name} {count}   ", style="bold red" if count else "green")
    waiting = max(0, scene.paid - counts.answered)
    witness.append(f"payments that wait for their verdict {waiting}")
    nodes = Table("node", "role", "ready")
    for name, answer in scene.nodes.items():
        role, style = "follower", ""
        if answer is None:
            role, style = "down", "bold red"
        elif answer.is_delivering:
            role, style = "master", "bold green"
        ready = "yes" if answer is not None and answer.ready else "no"
        nodes.add_row(name, role, ready, style=style)
    return Group(bars, witness, nodes, *map(Text, scene.events))


def line(scene: Scene) -> str:
    """Return the scene as one line, where there is no terminal."""
    if scene.scheduled < scene.planned:
        return f"scheduled {scene.scheduled} of {scene.planned}"
    counts = scene.progress.counts
    rate = scene.rates[-1] if scene.rates else 0
    return (
        f"delivered {counts.delivered} of {scene.planned}, {rate}/s, "
        f"cancelled {counts.cancelled} of {scene.paid} paid, doubled {counts.doubled}, "
        f"early {counts.early}, altered {counts.altered}, unknown {counts.unknown}"
    )


def sparkline(values: Sequence[int]) -> str:
    """Return one block per value, scaled to the largest; only 0 is blank."""
    largest = max(values, default=0) or 1
    return "".join(_BLOCKS[-(-value * (len(_BLOCKS) - 1) // largest)] for value in values)


def summary(
    verdict: Verdict, story: Sequence[tuple[str, str]], problems: Sequence[str]
) -> RenderableType:
    """Return the table of what the witness counted, and of the story's own figures."""
    counts = verdict.counts
    table = Table(show_header=False, title=f"verdict: {'failed' if problems else 'ok'}")
    rows = (
        ("orders", f"{verdict.planned:,}"),
        ("delivered / cancelled", f"{counts.delivered:,} / {counts.cancelled:,}"),
        ("payments that came too late", f"{counts.too_late:,}"),
        ("lost / doubled / early", f"{verdict.lost} / {counts.doubled} / {counts.early}"),
        ("altered / unknown", f"{counts.altered} / {counts.unknown}"),
        ("wrong / missing verdicts", f"{verdict.wrong_verdicts} / {verdict.unanswered}"),
        ("lateness p50 / p99 / max", lateness(verdict.lateness_ms)),
        ("  without the failover", lateness(verdict.steady_lateness_ms)),
        *story,
    )
    for name, value in rows:
        table.add_row(name, value)
    return table


def lateness(figures: Lateness | None) -> str:
    """Return `2 / 9 / 31 ms`."""
    return "-" if figures is None else f"{figures.p50} / {figures.p99} / {figures.max} ms"
