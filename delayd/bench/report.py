"""The page that is made of a run: Markdown, a pure function of its result.

docs/performance.md is made of the run that is kept beside it (performance/all.json), and a test
compares them.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from delayd.bench.catalogue import WANTED
from delayd.bench.figures import Figure
from delayd.bench.goals import goal_of
from delayd.bench.result import Result, number_text, range_text, ratio_text, sizes_said

PICTURE: Final = "performance/all.svg"

HEAD: Final = """\
# Performance

How fast delayd is on one machine, measured by `delayd bench {bench}`. You can
[run it on yours](reference/cli.md#delayd-bench). [Profiles](performance/profiles.md) shows where
the time goes, and what was tried for the goals that were missed.
"""

READING: Final = """\
## How to read it

- **Ratios first.** Machines differ, so most figures stand beside another that was measured in the
  same minutes on the same brokers: mostly the bare driver (confluent-kafka), doing the part of the
  work that cannot be left out. A ratio of 0.4 in a rate is four tenths of the bare driver's rate. A
  ratio of 2 in a lateness is twice as late.
- **Median and range** are over the runs; the ratio is the median of the runs' own ratios. A wide
  range points to a machine that was busy with something else.
- **Lateness** is the time of receipt minus the due time, in whole ms, at a `read_committed`
  consumer in a process of its own on the same host. It shares no interpreter with delayd, and
  includes the time that Kafka needs to commit and to hand over.
- **us/message** and **ms/1000 messages** are processor time of a node by the kernel's account, with
  all its threads, children and system calls. The master has ingested and delivered the messages. A
  follower has ingested them and dropped what was delivered.
- **-lost, -doubled, -early, -altered** count messages. Each benchmark checks its own, and they must
  be 0.
- **takeovers** count masters that lost leadership during a run although nothing asked for it: the
  machine was too busy for a master to keep its lease. The figures of such a run show little else.
- **Goals** hold for full sizes on two processors that brokers, nodes and readers share. With small
  sizes they mean little.
- Brokers, nodes, senders and readers all run on this one machine. With machines of their own, each
  has more room. Values have 300 bytes, and each message has two headers of its user.
"""


EXPLAINED: Final[dict[str, str]] = {
    "raw": (
        "The limit on these brokers: confluent-kafka alone, in one process. `raw-transactions` "
        "writes 10,000 records in a transaction, with the five headers that delivered messages "
        "have. `raw-consume` reads them, `read_committed`, and looks at none."
    ),
    "ingest": (
        "One node starts before a full buffer and ingests it; nothing becomes due meanwhile. "
        "Compared with a bare read of the same buffer, by a consumer that looks at no record."
    ),
    "deliver": (
        "One node ingests a backlog, ends, and starts again when all of it is due. The rate is "
        "that of its exactly-once delivery, with frontier records, while nobody reads the "
        "target. Compared with bare transactions of 10,000 records with the same headers."
    ),
    "hot-second": (
        "Three nodes, and very many messages that are due within one second and were ingested "
        "before. A reader in a process of its own receives them; `hot-second-last` is the latest "
        "of all. `hot-second-other-lane-last` is the latest of 100 messages a second to a target "
        "of another lane, over the ten seconds around it. `hot-second-memory` is the peak of the "
        "master's own memory."
    ),
    "lateness": (
        "Three nodes, many messages pending over 30 days, and an even rate of messages that are "
        "sent about five seconds before they are due. Compared with a bare transactional producer "
        "that writes messages at the same rate as soon as each is due, to the same reader."
    ),
    "failover": (
        "Three nodes under an even load; the master gets `kill -9`, again and again. "
        "`failover-gap` is the time from the signal to the successor's first record at a "
        "`read_committed` reader. `failover-caught-up` is the time until a message is at most "
        "100 ms late. Compared with the time that the bare driver needs to take over the "
        "transactional id of a producer in the middle of a transaction."
    ),
    "freeze": (
        "The same with SIGSTOP, which leaves the master's connections open, until another node "
        "delivers: most of it is the time of suspicion, 1 second."
    ),
    "shards": (
        "A backlog that is due at one moment, on one node and on three, with more and more shards, "
        "each against one shard: `shards-4x3` are four on three nodes. `cpu` is that of all nodes "
        "for a message. On few cores these are the limit; with slow steps the wait for commits is."
    ),
    "window": (
        "Three nodes, and very many messages that are due at one time, with a `delayd-window` over "
        "which they are spread. Lateness is against where in it each was planned, which the reader "
        "works out itself. Compared with a bare transactional producer that writes messages at the "
        "same rate as soon as each is due, to the same reader."
    ),
    "handover": (
        "The same with SIGTERM, after which the master hands over. The figure is the longest time "
        "without a record at the reader around each signal."
    ),
    "scale": (
        "Two clusters of one node each, side by side: one with very many messages pending over 30 "
        "days, the other with a hundredth of them. Processor time of the node for each message "
        "that it ingests (due over the same 30 days), and for each that it delivers (at an even "
        "rate, from when all are ingested until all are received)."
    ),
    "memory": (
        "Memory of the same two nodes, summed over their processes: RssAnon, which is their own, "
        "and RssFile, pages of mapped files that the kernel takes back when it needs them."
    ),
    "startup": (
        "The same two nodes, each killed with `kill -9` during ingest: the time from its restart "
        "until it reports that it could take over."
    ),
}
"""By benchmark: what it measures, and against what."""


def report(result: Result) -> str:
    """Return the page, without anything that is not in the result."""
    parts = [
        HEAD.format(bench=result.bench),
        _smallness(result),
        READING,
        _table("## The machine", ("what", "is"), _machine(result)),
        _table("## Sizes", ("benchmark", "sizes"), _sizes(result)),
        f"## In one picture\n\n![The figures as bars]({PICTURE})\n",
    ]
    for name in result.sizes:
        figures = [figure for figure in result.figures if _is_of(figure, name, result)]
        rows = (_row(figure) for figure in figures if not figure.is_fault or any(figure.runs))
        head = f"## {name}\n\n{EXPLAINED.get(name, '')}".rstrip()
        columns = ("figure", "median", "range", "unit", "ratio", "against", "goal", "met")
        parts.append(_table(head, columns, rows) + "\n" + _faults(figures))
    return "\n".join(part for part in parts if part)


def _is_of(figure: Figure, name: str, result: Result) -> bool:
    """Return whether it is the benchmark's figure. Figures are called after it; the longest name
    counts."""
    names = [each for each in result.sizes if (figure.name + "-").startswith(each + "-")]
    return max(names, key=len, default=None) == name


def _smallness(result: Result) -> str:
    """Return a warning if less was measured than the goals are for."""
    small = [
        name
        for name, sizes in result.sizes.items()
        if name in WANTED
        and any(sizes.get(key, 0) < value for key, value in sizes_said(WANTED[name].full).items())
    ]
    if not small:
        return ""
    return (
        "**These are not full sizes.** Smaller than by default were: "
        f"{', '.join(small)}. [The sizes](#sizes) say by how much. Such figures show that the "
        "measurement works, and little more.\n"
    )


def _machine(result: Result) -> Iterator[tuple[str, ...]]:
    words = {
        "delayd": "delayd",
        "cpu": "processor",
        "cpus": "processors",
        "memory_mib": "memory, MiB",
        "arch": "architecture",
        "system": "kernel",
        "python": "Python",
        "kafka": "Kafka",
        "java": "Java",
    }
    for key, value in result.machine.items():
        yield words.get(key, key), str(value)


def _sizes(result: Result) -> Iterator[tuple[str, ...]]:
    for name, sizes in result.sizes.items():
        yield name, ", ".join(f"{key} {number_text(value)}" for key, value in sizes.items())


def _row(figure: Figure) -> tuple[str, ...]:
    goal = goal_of(figure)
    return (
        f"`{figure.name}`",
        number_text(figure.value),
        range_text(figure),
        figure.unit,
        ratio_text(figure),
        figure.against,
        "" if goal is None else goal.text(),
        "" if goal is None else "yes" if goal.is_met(figure) else "no",
    )


def _faults(figures: Iterable[Figure]) -> str:
    faults = [figure for figure in figures if figure.is_fault]
    if not faults or any(any(figure.runs) for figure in faults):
        return ""
    kinds = sorted({figure.name.rpartition("-")[2] for figure in faults})
    return f"{', '.join(kinds).capitalize()}: none, in all runs.\n"


def _table(head: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    said = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns), *lines]
    return f"{head}\n\n" + "\n".join(said) + "\n"
