"""Reports to look at: one where all is well, one where much is wrong, and extreme ones.

Made from a seed, so that the same one is made every time.
"""

import random
from dataclasses import replace
from typing import Any

from delayd.audit.judging.faults import Fault
from delayd.audit.report import (
    EXAMPLES_MAX,
    Bin,
    CutInfo,
    Failover,
    Fates,
    Finding,
    HeatCell,
    Lateness,
    Moment,
    NodeState,
    Reign,
    Report,
    TopicHour,
    Travel,
)

START_MS = 1_795_257_000_000
"""2026-11-21 10:30 UTC."""
SECOND, HOUR = 1000, 3_600_000
OWNERS = ("node-1/6f1c0b8d52a94e07", "node-2/b90a4c1d7e3f2586", "node-3/17e2d4c6a8b09f35")
EDGES = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000)

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror="document.title=\'hacked\'">',
    "'-alert(1)-' & &lt;b&gt; </td></table></style></script>",
    "\u202egnp.exe\u202c abc \u2066\u2067 tail",
    "‮\x1b[31mred\x1b[0m\x07\r\nsecond line\x00",
    "😀 𝕌𝕟𝕚𝕔𝕠𝕕𝕖 𠜎𠜱 👩‍👩‍👧",
    "שלום עולם 123",
    "\ud800 half a pair",
    "i" * 256,
    "日本語の識別子" * 12,
    "{{7*7}} ${7*7} [bold red]markup[/bold red]",
)
"""Ids, topics and reasons as nobody should choose them."""


WORST = "&"
"""The character that takes most bytes in HTML: `&amp;`."""


def ok_report() -> Report:
    """Half an hour of a busy cluster with two failovers; all is well."""
    dice = random.Random(5)
    seconds = 1800
    failovers = (620, 1275)
    reigns = _reigns(seconds, failovers)
    timeline = tuple(_timeline(dice, seconds, failovers))
    delivered = sum(moment.delivered for moment in timeline)
    lateness = Lateness(delivered, 4, 38, 1910, 3340)
    pending = 41_380
    heat = tuple(_heat(dice, pending))
    pending = sum(cell.pending for cell in heat if cell.node == "")
    return Report(
        cluster="payments",
        made_ms=START_MS + seconds * SECOND + 74_000,
        wall_ms=46_250,
        version="0.1.0",
        cut=CutInfo(
            step=88_412,
            term=3,
            offset=176_903,
            append_ms=START_MS + seconds * SECOND,
            read_ms=START_MS + seconds * SECOND + 2210,
            records=(
                ("delayd-buffer", delivered + pending + 2 * 133_488 + 1210),
                ("order-timeouts", delivered - 81_204 - 20_411),
                ("reminders", 81_204),
                ("retries-eu", 20_411),
                ("delayd-receipts", 133_488 + 1180),
                ("delayd-dead", 212),
                ("delayd-frontier", 88_412),
            ),
        ),
        fates=Fates(delivered, 130_951, 2_537, 121, 968, 30, dead=91, pending=pending),
        marks=(
            *(("cancelled", 130_951), ("too-late", 1_204), ("replaced", 2_537)),
            *(("not-found", 318), ("scheduled", 12)),
        ),
        found=(),
        examples=(),
        nodes=tuple(
            NodeState(f"node-{n}", f"10.0.3.{10 + n}:7070", pending, None) for n in (1, 2, 3)
        ),
        lateness=lateness,
        by_topic=(
            ("order-timeouts", Lateness(delivered - 101_615, 4, 36, 1890, 3340)),
            ("reminders", Lateness(81_204, 5, 41, 1934, 2980)),
            ("retries-eu", Lateness(20_411, 4, 44, 1962, 3021)),
        ),
        by_hour=tuple(
            TopicHour(
                topic,
                START_MS - START_MS % HOUR + hour * HOUR,
                Lateness(9000 - 800 * hour, 4, late + dice.randrange(9), 900 + 340 * hour, 3340),
            )
            for topic, late in (("order-timeouts", 34), ("reminders", 40), ("retries-eu", 43))
            for hour in range(2)
        ),
        histogram=tuple(_histogram(delivered)),
        timeline=timeline,
        reigns=reigns,
        failovers=tuple(
            Failover(
                at_ms=after.from_ms,
                term=after.term,
                old_owner=before.owner,
                new_owner=after.owner,
                gap_ms=gap,
                lateness=Lateness(5200 + 11 * gap, 6, gap, gap + 180, gap + 420),
            )
            for before, after, gap in zip(reigns, reigns[1:], (2920, 1480), strict=False)
        ),
        heat=heat,
        notes=(
            "Records of the topic order-timeouts before 2026-11-21 09:00:00 UTC are deleted by "
            "retention: nothing that was over by then is judged.",
        ),
    )


def failed_report() -> Report:
    """The same cluster with things wrong, among them a replica that differs and one that is down;
    ids and reasons are hostile."""
    good = ok_report()
    found = (
        *(("lost", 3), ("duplicate", 1), ("altered", 27), ("ghost", 2), ("verdict-false", 14)),
        *(("replica-absent", 1), ("replica-missing", 41), ("frontier-false", 2)),
    )
    examples = tuple(
        finding for slug, count in found for finding in _examples(slug, min(count, EXAMPLES_MAX))
    )
    missing = {good.heat[9].at_ms: 30, good.heat[21].at_ms: 11}
    heat = tuple(
        replace(cell, pending=cell.pending - missing[cell.at_ms], differ=missing[cell.at_ms])
        if cell.node == "node-2" and cell.at_ms in missing
        else cell
        for cell in good.heat
        if cell.node != "node-3"
    )
    nodes = (
        good.nodes[0],
        replace(good.nodes[1], pending=good.fates.pending - 41),
        NodeState("node-3", "10.0.3.13:7070", None, "it does not answer: connection refused"),
    )
    return replace(
        good,
        fates=replace(good.fates, lost=3, delivered=good.fates.delivered - 3),
        found=found,
        examples=examples,
        heat=heat,
        nodes=nodes,
        travel=Travel(
            at_ms=START_MS + 900 * SECOND,
            pending=118_204,
            by_topic=(("order-timeouts", 101_022), ("reminders", 15_002), (HOSTILE[0], 2180)),
            by_hour=tuple((START_MS + n * HOUR, 98_000 // (n + 1)) for n in range(4)),
            next_due=tuple(
                (f"{n % 4}/{81_000 + n}", "order-timeouts", START_MS + 900 * SECOND + 37 * n)
                for n in range(8)
            ),
        ),
        notes=(*good.notes, f"The topic {HOSTILE[1]} does not exist any more."),
    )


def young_report() -> Report:
    """Three quarters of a minute of a demo, with a failover."""
    late = Lateness(20_000, 3, 1200, 2900, 3100)
    counts = (15_000, 1200, 40, 0, 0, 0, 20, 600, 900, 1300)
    before = Reign(1, OWNERS[0], START_MS - 20_000, START_MS + 14_700, 700, 6000)
    after = Reign(2, OWNERS[2], START_MS + 17_500, START_MS + 62_000, 800, 9000)
    return replace(
        ok_report(),
        timeline=tuple(
            Moment(START_MS + SECOND * n, 300 + 97 * (n % 7), 3, 2900 if n == 18 else 9, 3100)
            for n in range(40)
            if not 14 < n < 18
        ),
        reigns=(before, after),
        failovers=(Failover(after.from_ms, 2, before.owner, after.owner, 2800, late),),
        lateness=late,
        by_topic=(("order-timeouts", late),),
        by_hour=(TopicHour("order-timeouts", START_MS, late),),
        histogram=tuple(Bin(EDGES[n + 2], EDGES[n + 3], each) for n, each in enumerate(counts)),
        heat=tuple(HeatCell(START_MS + 45_000, node, 12, 0) for node in ("", "node-1", "node-2")),
    )


def single_report() -> Report:
    """One message was delivered."""
    young = young_report()
    late = Lateness(1, 3, 3, 3, 3)
    return replace(
        young,
        timeline=(Moment(START_MS, 1, 3, 3, 3),),
        reigns=young.reigns[:1],
        failovers=(),
        lateness=late,
        by_topic=(("order-timeouts", late),),
        by_hour=(TopicHour("order-timeouts", START_MS, late),),
        histogram=(Bin(0, 2, 0), Bin(2, 5, 1), Bin(5, 10, 0)),
    )


def month_report() -> Report:
    """A month with two failovers a day among nodes with long names, and replicas that differ."""
    half_day, names = 12 * HOUR, [f"delayd-{n}.delayd.production.svc" for n in range(5)]
    late = Lateness(20_000, 3, 1200, 2900, 3100)
    return replace(
        ok_report(),
        found=(("replica-missing", 2),),
        nodes=tuple(NodeState(name, f"{name}:7070", 1000, None) for name in names),
        timeline=tuple(
            Moment(START_MS + 3 * HOUR * n, 10**6 + n * 1000, 5, 20 + n % 90, 5000)
            for n in range(240)
            if n % 11
        ),
        reigns=tuple(
            Reign(
                n,
                f"{names[n % 5]}/{n:x}",
                START_MS + n * half_day,
                START_MS + (n + 1) * half_day - 1000,
                10**6,
                10**7,
            )
            for n in range(60)
        ),
        failovers=tuple(
            Failover(
                START_MS + n * half_day,
                n,
                f"{names[(n - 1) % 5]}/a",
                f"{names[n % 5]}/b",
                None if n == 7 else 900 + n,
                None if n % 3 else late,
            )
            for n in range(1, 60)
        ),
        by_hour=tuple(
            TopicHour(
                topic, START_MS + HOUR * n, Lateness(900, 4, 20 + n * 37 % (50 + n), 2000, 3000)
            )
            for topic in ("order-timeouts", "reminders")
            for n in range(700)
        ),
        heat=tuple(
            HeatCell(
                START_MS + 60 * half_day + 6 * HOUR * n,
                node,
                max(0, 4000 - n * 33),
                int(node == names[2] and n in (3, 90)),
            )
            for n in range(110)
            for node in ("", *names)
        ),
    )


def empty_report() -> Report:
    """A new cluster that nobody has asked for anything."""
    lists = ("marks", "found", "examples", "nodes", "by_topic", "by_hour", "histogram", "timeline")
    nothing: dict[str, Any] = dict.fromkeys((*lists, "reigns", "failovers", "heat", "notes"), ())
    return replace(
        ok_report(),
        cluster="new",
        made_ms=START_MS,
        wall_ms=2100,
        cut=CutInfo(1, 1, 1, START_MS, START_MS, ()),
        fates=Fates(),
        lateness=None,
        **nothing,
    )


def maximal_report() -> Report:
    """More of everything than any audit finds, with the longest and strangest names."""
    names = [f"{HOSTILE[n % len(HOSTILE)]} {n} {WORST * 400}" for n in range(900)]
    late = Lateness(10**12, 1, 10**7, 10**10, 10**14)
    return Report(
        cluster=names[0],
        made_ms=10**18,
        wall_ms=10**12,
        version=names[1],
        cut=CutInfo(10**15, 10**9, 10**15, 10**18, -(10**18), tuple((n, 10**12) for n in names)),
        fates=Fates(*(10**12,) * 11),
        marks=tuple((n, 10**12) for n in names),
        found=(*tuple((fault.slug, 10**12) for fault in Fault), ("newer-than-this", 1)),
        examples=tuple(
            Finding(fault.job, fault.slug, n, n, n, 10**9, 10**15, n, 10**17, n * 10)
            for fault in Fault
            for n in names[:40]
        ),
        nodes=tuple(NodeState(n, n, 10**12, n) for n in names),
        lateness=late,
        by_topic=tuple((n, late) for n in names),
        by_hour=tuple(
            TopicHour(n, START_MS + hour * HOUR, late) for n in names[:60] for hour in range(300)
        ),
        histogram=tuple(Bin(n * 10, n * 10 + 10, 10**12 + n) for n in range(900)),
        timeline=tuple(
            Moment(START_MS + 250 * n, 10**6 + n % 977, 3, 10**5 + n % 613, 10**9)
            for n in range(20_000)
        ),
        reigns=tuple(
            Reign(n, names[n % 900], START_MS + n * 900, START_MS + n * 900 + 800, 10**9, 10**12)
            for n in range(5000)
        ),
        failovers=tuple(
            Failover(START_MS + n * 900, n, names[n % 900], names[n % 899], 10**6 + n, late)
            for n in range(1, 5000)
        ),
        heat=tuple(
            HeatCell(START_MS + slot * SECOND, node, 10**9 + slot, slot % 3)
            for node in ["", *names[:40]]
            for slot in range(900)
        ),
        notes=tuple(names),
        travel=Travel(
            at_ms=10**18,
            pending=10**12,
            by_topic=tuple((n, 10**12) for n in names),
            by_hour=tuple((START_MS + n * HOUR, 10**12) for n in range(5000)),
            next_due=tuple((n, n, 10**18) for n in names),
        ),
    )


def _reigns(seconds: int, failovers: tuple[int, ...]) -> tuple[Reign, ...]:
    edges = (0, *failovers, seconds)
    gaps = (0, 2920, 1480)
    return tuple(
        Reign(
            term=n + 1,
            owner=OWNERS[n % 3],
            from_ms=START_MS + edges[n] * SECOND + gaps[n],
            to_ms=START_MS + edges[n + 1] * SECOND - 90,
            steps=49 * (edges[n + 1] - edges[n]),
            delivered=240 * (edges[n + 1] - edges[n]),
        )
        for n in range(len(edges) - 1)
    )


def _timeline(dice: random.Random, seconds: int, failovers: tuple[int, ...]) -> list[Moment]:
    moments = []
    for second in range(0, seconds, 10):
        since = min((second - at for at in failovers if second - at > -10), default=seconds)
        load = 2600 + 900 * ((second % 600) / 600) + dice.gauss(0, 130)
        hot = 2.4 if second % 300 == 0 else 1.0
        p99 = 22 + dice.randrange(24) + (40 if hot > 1 else 0)
        if -10 < since <= 0:
            load, p99 = load * 0.6, 2950
        elif since <= 20:
            load, p99 = load * 1.3, 900 // max(since // 10, 1)
        moments.append(
            Moment(START_MS + second * SECOND, int(load * hot), 3 + dice.randrange(4), p99, 2 * p99)
        )
    return moments


def _heat(dice: random.Random, pending: int) -> list[HeatCell]:
    cells = []
    for slot in range(90):
        share = int(pending / 34 * (0.965**slot) * dice.uniform(0.75, 1.25))
        at = START_MS + 1_800_000 + slot * 60_000
        cells += [HeatCell(at, node, share, 0) for node in ("", "node-1", "node-2", "node-3")]
    return cells


def _histogram(delivered: int) -> list[Bin]:
    shares = (0.004, 0.051, 0.182, 0.401, 0.214, 0.082, 0.041, 0.009, 0.004, 0.003, 0.004, 0.005, 0)
    return [
        Bin(low, high, int(share * delivered))
        for low, high, share in zip(EDGES, EDGES[1:], shares, strict=False)
    ]


def _examples(slug: str, count: int) -> list[Finding]:
    [fault] = [each for each in Fault if each.slug == slug]
    reasons = {
        "lost": "due, covered by step 88,120, and in no target",
        "duplicate": "delivered at order-timeouts/1@5120 and order-timeouts/1@5127",
        "altered": "delivered with another value",
        "ghost": "delivered although the cancel 2/90211 killed it",
        "verdict-false": "the receipt says cancelled, and 1/44120 was delivered",
        "replica-absent": "it does not answer: connection refused",
        "replica-missing": "pending by the log, not in the export",
        "frontier-false": "step 51,020 says 128 deliveries, its difference has 127",
    }
    found = []
    for n in range(count):
        of_node = slug.startswith("replica")
        id_ = HOSTILE[n % len(HOSTILE)] if slug == "altered" else f"order-{48_211 + 37 * n}"
        found.append(
            Finding(
                job=fault.job,
                fault=slug,
                source=None if slug in ("replica-absent",) else f"{n % 4}/{44_120 + 911 * n}",
                id=None if slug.startswith(("replica-absent", "frontier")) else id_,
                topic=None if of_node else "order-timeouts",
                partition=None if of_node or slug == "lost" else n % 4,
                offset=None if of_node or slug == "lost" else 5120 + 7 * n,
                node=("node-3" if slug == "replica-absent" else "node-2") if of_node else None,
                due_ms=None if slug == "replica-absent" else START_MS + 61_337 * (n + 1),
                reason=f"{reasons[slug]} ({HOSTILE[n % 5]})" if slug == "ghost" else reasons[slug],
            )
        )
    return found
