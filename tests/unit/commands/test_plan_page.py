"""docs/design/scale.md prints the figures of `delayd plan`, and what its arithmetic makes of them.

With `--rewrite` the tables are written.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from generated_pages import check_blocks

from delayd.commands.plan import figures as known
from delayd.commands.plan.figures import ALL, DAY_S, Figure, Kind
from delayd.commands.plan.showing import size, time
from delayd.commands.plan.sizing import (
    MASTER_PER_S_PLANNED,
    Demand,
    Load,
    Size,
    load_of,
    plan,
    smallest,
)

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "design" / "scale.md"
MONTH_S = 30 * DAY_S

DEMANDS = {
    "1 M/s, 1 bn pending": Demand(1e6, 1e9, DAY_S, 300),
    "1 bn pending, 30 days": Demand(1e9 / MONTH_S, 1e9, MONTH_S, 300),
    "100 bn pending, 30 days": Demand(1e11 / MONTH_S, 1e11, MONTH_S, 300),
}
SIZES = (Size(12, 32), Size(100, 64))
COPIES = 3

ROWS: Sequence[tuple[str, Callable[[Load], str]]] = (
    ("nodes", lambda load: str(load.size.nodes)),
    ("shards", lambda load: str(load.size.shards)),
    ("processors, follower", lambda load: f"{load.follower_processors:.2f}"),
    ("processors, most shards led", lambda load: f"{load.leader_processors:.2f}"),
    ("volume of a node", lambda load: size(load.disk.volume)),
    ("memory of a node", lambda load: size(load.memory_bytes)),
    ("a node reads", lambda load: f"{size(load.network.node_reads)}/s"),
    ("brokers send", lambda load: f"{size(load.network.brokers_send)}/s"),
    ("buffer, 3 replicas", lambda load: size(load.topics.buffer)),
    ("reads of etcd", lambda load: f"{load.network.etcd_reads_per_s:,.0f}/s"),
    ("a lost disk is copied in", lambda load: time(load.durations.copy)),
    ("two nodes compare all in", lambda load: time(load.durations.compare)),
    ("does not fit", lambda load: ", ".join(each.name for each in load.limits) or "-"),
)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    assert not [cell for line in lines for cell in line if "|" in cell]
    return "\n".join(["", *(f"| {' | '.join(line)} |" for line in lines), "", ""])


def loads(copies: int | None) -> str:
    found = [
        (name, load_of(demand, replace(size, copies=copies)))
        for name, demand in DEMANDS.items()
        for size in SIZES
    ]
    head = ["", *(name for name, _ in found)]
    return table(head, [[name, *(shown(load) for _, load in found)] for name, shown in ROWS])


def rates() -> str:
    """The highest rate of a cluster of any size, to a thousand."""
    rows = []
    for name, is_native, id_share in (
        ("natively", True, 0.0),
        ("natively, one message in ten with an id", True, 0.1),
        ("in Python", False, 0.0),
        ("in Python, one message in ten with an id", False, 0.1),
    ):
        low, high = 1, 1_000
        while high - low > 1:
            rate = (low + high) // 2
            demand = Demand(rate * 1e3, rate * 1e3, 1, 300, id_share, is_native)
            low, high = (low, rate) if smallest(demand) is None else (rate, high)
        rows.append([name, f"{low},000 messages/s"])
    return table(["nodes take in and deliver", "a cluster ends at"], rows)


def costs() -> str:
    """What each part pays for one of each thing."""
    pending, steps = known.FRAME_BYTES.value + 300, known.STEPS_PER_S.value
    record = 300 + known.BUFFER_BYTES.value
    led, followed = steps * known.LED_STEP_US.value, steps * known.FOLLOWED_STEP_US.value
    rows = [
        [
            "node",
            f"{us(known.INGEST_NATIVE_US)} natively, {us(known.INGEST_US)} in Python to take in; "
            f"one of them {us(known.DELIVER_NATIVE_US)} or {us(known.DELIVER_US)} to deliver",
            f"{pending:.0f} bytes of disk, {known.EXPORT_BYTES.value:.0f} more to be exported; "
            f"{known.PENDING_MEMORY_BYTES.value:.1f} bytes of memory",
            f"{led / 1e6:.2f} processors to lead it, {followed / 1e6:.4f} to follow it; "
            f"{size(known.LED_BYTES.value)} of memory to lead it in a hot second",
            f"{known.NODE_PROCESSORS.value:.3f} processors, {size(known.REST_BYTES.value)} of "
            "memory",
        ],
        [
            "brokers",
            f"{record:.0f} bytes in the buffer, {300 + known.DELIVERED_BYTES.value:.0f} in the "
            "target, each on three brokers",
            "nothing of its own",
            f"{steps * known.BROKER_TRANSACTION_MS.value / 1e3:.2f} processors for its steps",
            "all of the buffer once",
        ],
        [
            "etcd",
            "nothing",
            "nothing",
            f"{known.LEADER_WRITES_PER_S.value:.0f} writes/s, and "
            f"{known.POLLS_PER_S.value:.1f} reads/s from each node, "
            f"{known.READS_PER_S_MAX.value:.0f} for all shards at most",
            "a keepalive every 3.3 s",
        ],
        [
            "audit",
            f"{known.AUDIT_S.value / known.AUDITED.value * 1e6:.0f} us on two processors for each "
            "request in the buffer",
            "20 to 50 bytes of an export of each node",
            "never measured",
            "an export",
        ],
    ]
    return table(["", "a message", "a pending message", "a shard at full pace", "a node"], rows)


def us(figure: Figure) -> str:
    return f"{figure.value:g} us"


def figures() -> str:
    rows = [
        [f"`{name}`", f"{each.value:,.6g} {each.unit}".strip(), each.meaning, source_of(each)]
        for name, each in ALL.items()
    ]
    return table(["figure", "value", "is", "from"], rows)


def source_of(figure: Figure) -> str:
    page, _, anchor = figure.source.partition("#")
    if not page:
        return figure.kind.value
    where = {"design/scale.md": "", "performance.md": "../performance.md"}.get(page)
    if where is None:
        where = page.removeprefix("design/") if page.startswith("design/") else f"../{page}"
    return f"[{figure.kind.value}]({where}#{anchor})"


def test_the_tables_of_the_page_are_up_to_date(request: pytest.FixtureRequest) -> None:
    blocks = {
        "costs": costs(),
        "everywhere": loads(None),
        "rates": rates(),
        "placed": loads(COPIES),
        "figures": figures(),
    }
    check_blocks(PAGE, blocks, request)


@pytest.mark.parametrize("name", [name for name, each in ALL.items() if each.source])
def test_a_figure_stands_in_the_page_that_it_was_taken_from(name: str) -> None:
    figure = ALL[name]
    page, _, anchor = figure.source.partition("#")
    assert anchor and figure.says, "a source is a page, a heading and words of it"
    text = " ".join((DOCS / page).read_text(encoding="utf-8").split())
    assert " ".join(figure.says.split()) in text, f"docs/{page} does not say {figure.says!r}"


@pytest.mark.parametrize("name", [name for name, each in ALL.items() if each.source])
def test_what_a_page_says_of_a_figure_holds_its_value(name: str) -> None:
    """Measured figures and settings are copied, so their digits stand in what is cited."""
    figure = ALL[name]
    if figure.kind not in (Kind.MEASURED, Kind.SETTING) or name in WORKED_OUT:
        return
    written = {number.replace(",", "") for number in re.findall(r"[\d,]*\d(?:\.\d+)?", figure.says)}
    assert f"{figure.value:.10g}" in written, f"{figure.value} is not in {figure.says!r}"


WORKED_OUT = {
    # The middle of a range.
    "STEPS_PER_S": (100 + 160) / 2,
    "BROKER_TRANSACTION_MS": (2.6 + 2.9) / 2,
    # In another unit, or over a time.
    "POLLS_PER_S": 1 / 0.150,
    "IDLE_STEPS_PER_S": 1 / 5.000,
    "LEADER_WRITES_PER_S": 1 + 1,
    "DENSE_HOUR_BYTES": 32 * 2**20,
    "ID_MEMORY_S": 24 * 3_600,
    "COPY_BYTES_PER_S": 33 * 10**6,
    "COMPARED_PER_S": 500_000 / 600,
    "AUDITED": 10 * 10**6,
    "REQUEST_BYTES_MAX": 1_048_588 - 64 * 2**10,
    # Of two figures of one row.
    "REST_BYTES": 161.8 * 2**20 / 1.20,
    "LED_BYTES": (179.5 - 60.96) * 2**20,
}


@pytest.mark.parametrize("name", WORKED_OUT)
def test_a_figure_in_another_unit_is_what_its_page_says(name: str) -> None:
    assert ALL[name].value == pytest.approx(WORKED_OUT[name])


def test_the_prose_says_what_the_tables_say() -> None:
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    first, billion, most = DEMANDS.values()
    few, many = load_of(billion, Size(12, 32)), load_of(most, Size(12, 32))
    polls = load_of(first, Size(100, 64)).network.etcd_reads_per_s
    for words in (
        f"{MASTER_PER_S_PLANNED:,.0f} messages a second for each master",
        f"is {known.NODE_PROCESSORS.value:.3f} processors",
        f"is {known.LED_STEP_US.value / 1e3:.2f} ms a step",
        f"100 times, {size(load_of(first, Size(100, 64)).network.brokers_send)} a second",
        f"after {time(few.durations.compare)}",
        f"copied in {time(few.durations.copy)}",
        f"takes {time(few.durations.audit)} on two processors",
        f"{size(many.disk.volume)} on every node",
        f"{polls / 1e3:.0f},000 a second with 100",
        f"A volume of {size(few.disk.volume)} holds it, and {size(few.memory_bytes)} of memory",
    ):
        assert words in text, words
    assert plan(billion).limits == ()


def test_the_largest_number_pending_that_a_volume_holds_is_what_the_page_says() -> None:
    limits = {
        pending: plan(Demand(pending / MONTH_S, pending, MONTH_S, 300)).limits
        for pending in (25e9, 26e9)
    }
    assert [each.name for each in limits[25e9]] == []
    assert [each.name for each in limits[26e9]] == ["disk"]
