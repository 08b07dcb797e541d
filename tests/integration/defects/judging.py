"""The audit's judgement of what was planted: its findings against those that must come."""

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from defects.operation import Expected
from delayd.audit.cut import Cut, Export
from delayd.audit.judging.evidence import deliveries_of, letters_of, receipts_of
from delayd.audit.judging.frontiers import frontiers_of
from delayd.audit.reading.access import Access
from delayd.audit.reading.kafka import read_topics
from delayd.audit.report import Report
from delayd.audit.run import AuditOptions, Judging
from delayd.audit.spans import Span, span_of
from delayd.audit.table_loader import Source, Tables, TableStore, read_tables
from delayd.audit.tables import DELIVERIES, FRONTIERS, LETTERS, RECEIPTS

AWAY = "the node is not running"


@dataclass(frozen=True, slots=True)
class Audit:
    """Audits at one cut, as often as one likes."""

    store: TableStore
    source: Source
    cut: Cut
    options: AuditOptions

    def read(self, name: str) -> Tables:
        """All topics, into a folder of this name."""
        store = replace(self.store, folder=self.store.folder / name)
        return read_tables(store, self.source, self.cut.seen)

    def read_again(self, known: Tables, changed: Collection[str]) -> Tables:
        """The same, where only these topics have changed; never the buffer."""
        settings = self.cut.seen.record.settings
        targets = tuple(known.bounds.target_partitions)
        store = replace(self.store, folder=self.store.folder / "again")
        with self._access() as access:

            def read(name: str, topics: Sequence[str], role: str) -> Any:
                if not set(topics) & set(changed):
                    return getattr(known, name)
                schema, of = {
                    "deliveries": (DELIVERIES, deliveries_of),
                    "receipts": (RECEIPTS, receipts_of),
                    "letters": (LETTERS, letters_of),
                    "frontiers": (FRONTIERS, frontiers_of),
                }[name]
                spans = [span for topic in topics if any((span := self._span(topic)).ends)]
                records = read_topics(store.spark, access, spans, role)
                return store.keep(name, schema, lambda: of(records), name)

            return replace(
                known,
                deliveries=read("deliveries", targets, "target"),
                receipts=read("receipts", [settings.receipts.name], "receipts"),
                letters=read("letters", [settings.dead.name], "dead"),
                frontiers=read("frontiers", [settings.frontier.name], "frontier"),
            )

    def report(
        self, tables: Tables, absent: Collection[str] = ()
    ) -> tuple[Report, list[dict[str, Any]]]:
        """The report, as if these nodes had given no export, and all findings: it keeps a few
        examples only."""
        exports = tuple(
            Export(each.node, each.admin, None, AWAY) if each.node in absent else each
            for each in self.cut.exports
        )
        cut = Cut(self.cut.seen, exports)
        report, findings = Judging(self.store, tables, cut, self.options).report()
        return report, [row.asDict() for row in findings.collect()]

    @contextlib.contextmanager
    def _access(self) -> Iterator[Path]:
        source = self.source
        access = Access(source.bootstrap, source.kafka, self.options.cluster, source.cluster_key)
        file = access.write(self.store.folder / "access.json")
        try:
            yield file
        finally:
            file.unlink()

    def _span(self, topic: str) -> Span:
        with contextlib.closing(self.source.bus.cluster()) as kafka:
            span = span_of(kafka, self.source.clock, topic)
        if topic == self.cut.seen.record.settings.frontier.name:
            return replace(span, ends=(self.cut.seen.offset + 1,))
        return span


def check_findings(findings: Sequence[dict[str, Any]], expected: Sequence[Expected]) -> None:
    """AssertionError unless each expected finding is there once, and no other."""
    left = list(findings)
    told = []
    for each in expected:
        found = next((finding for finding in left if _fits(finding, each)), None)
        if found is None:
            told.append(f"missed: {each}")
        else:
            left.remove(found)
    for finding in left:
        shown = {name: said for name, said in finding.items() if said is not None}
        told.append(f"not planted: {shown}")
    assert not told, "\n".join(told)


def _fits(finding: dict[str, Any], expected: Expected) -> bool:
    place = f"{finding['partition']}/{finding['offset']}"
    return (
        finding["fault"] == expected.fault
        and expected.source in (None, finding["source"])
        and expected.at in (None, place)
        and expected.node == finding["node"]
        and expected.says in finding["reason"]
    )
