"""The reports of audits that a node keeps, in files of its data directory: the newest ones.

    DIR/audits/MADE_MS-DIGEST    the body as it was sent
    body                         {"report": as of `delayd audit --json`, "page": the HTML}

DIGEST begins the SHA-256 of the body, so each file says whether it is whole. All are read once,
when the first one is asked for; what lists show of them stays in memory.

Not here: who may send one. No file here is a part of the wheel, and none is needed to deliver.

Invariants: a report is kept whole or not at all; a file that is damaged, or that is not of this
grammar, is passed over, and takes no other one's place; with a report the disk keeps the room that
the wheel must have free.

Not thread safe: one thread does all (`Services.shelf`).
"""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple

from delayd.cluster.audit_reports import id_of
from delayd.node.monitoring.api.audit_models import AuditSummary, summary_of
from delayd.node.monitoring.api.problems import MalformedError, NotKeptError, NotKnownError
from delayd.runtime.atomic_file import write_bytes_atomically
from delayd.runtime.clock import Clock

AUDITS_MAX: Final = 30
"""A month of nights."""
BYTES_MAX: Final = 64 * 1024 * 1024
"""Of all of them: eight of the largest, hundreds of the usual size."""
AHEAD_MAX_MS: Final = 3_600_000
"""A report from further in the future would stay the newest one: a clock is wrong."""
NAME: Final = re.compile(r"[0-9]{13}-[0-9a-f]{32}")


class Kept(NamedTuple):
    """A whole report."""

    report: Mapping[str, Any]
    page: str


class KeptAudits:
    """The reports of one node."""

    def __init__(
        self, folder: Path, cluster: str, clock: Clock, room_bytes: Callable[[], int]
    ) -> None:
        """`room_bytes`: how much may be written."""
        self._folder = folder
        self._cluster = cluster
        self._clock = clock
        self._room_bytes = room_bytes

    def keep(self, id: str, body: bytes) -> bool:
        """Keep a report and let go of the oldest ones; return False if it was there already.

        Raises MalformedError if it is none of this cluster, or older than all that are kept, and
        NotKeptError if there is no room.
        """
        summary, known = self._summary_of(id, body), self._known
        if id in known and self._body(id) is not None:
            return False
        stay = _newest({**{name: each.bytes for name, each in known.items()}, id: len(body)})
        if id not in stay:
            raise MalformedError(
                f"{AUDITS_MAX} newer reports, or {BYTES_MAX} bytes, are kept",
                status=HTTPStatus.CONFLICT,
            )
        if (room := self._room_bytes()) < len(body):
            raise NotKeptError(
                f"the report has {len(body)} bytes, and the disk room for {max(0, room)}",
                remedy="make room on the node's disk: see docs/operations.md, 'A full disk'",
            )
        try:
            self._folder.mkdir(exist_ok=True)
            self._remove_drafts()
            write_bytes_atomically(self._folder / id, body)
        except OSError as error:
            self._remove_drafts()
            raise NotKeptError(
                f"the report cannot be written: {error.strerror}", remedy="see the node's disk"
            ) from error
        known[id] = summary
        for old in known.keys() - stay:
            self._let_go(old)
        return True

    def summaries(self) -> list[AuditSummary]:
        """Return the reports that are kept, the newest first."""
        return [self._known[id] for id in sorted(self._known, reverse=True)]

    def read(self, id: str) -> Kept:
        """Return a report. NotKnownError if it is not kept, or damaged."""
        body = self._body(id) if id in self._known else None
        if body is None:
            raise NotKnownError("no such audit is kept", remedy="list them, or ask another node")
        fields = json.loads(body)
        return Kept(fields["report"], fields["page"])

    @cached_property
    def _known(self) -> dict[str, AuditSummary]:
        """What lists show of the reports that are kept, by id."""
        found = dict[str, AuditSummary]()
        try:
            names = [each.name for each in self._folder.iterdir() if NAME.fullmatch(each.name)]
        except OSError:  # there is no folder yet, or nobody may read it
            return found
        for name in names:
            body = self._whole(name)
            with suppress(MalformedError):  # it was of another cluster, or of a wrong clock
                if body is not None:
                    found[name] = self._summary_of(name, body)
        for old in found.keys() - _newest({name: each.bytes for name, each in found.items()}):
            del found[old]  # whoever kept a newer one was killed before it did so
            with suppress(OSError):
                (self._folder / old).unlink()
        return found

    def _body(self, id: str) -> bytes | None:
        """Return the body of a report that is known; None, and it is not any more, if its file is
        damaged or gone."""
        body = self._whole(id)
        if body is None:
            del self._known[id]
        return body

    def _whole(self, id: str) -> bytes | None:
        """Return the body in a file; None if it is damaged or cannot be read. One that is damaged
        is removed: nobody can ask for it, and it may be published again."""
        file = self._folder / id
        try:
            body = file.read_bytes()
            if id.endswith(id_of(0, body)[1:]):
                return body
            file.unlink()
        except OSError:
            pass
        return None

    def _let_go(self, id: str) -> None:
        del self._known[id]
        with suppress(OSError):
            (self._folder / id).unlink()

    def _summary_of(self, id: str, body: bytes) -> AuditSummary:
        """Return what a list will show of a body. MalformedError if it is no report for here."""
        cluster, summary = summary_of(id, body)
        if id != id_of(summary.made_ms, body):
            raise MalformedError("the id is not that of this report")
        if cluster != self._cluster:
            raise MalformedError(
                f"the report is of the cluster {cluster[:100]!a}, not {self._cluster}",
                status=HTTPStatus.CONFLICT,
            )
        if summary.made_ms > self._clock.wall_ms() + AHEAD_MAX_MS:
            raise MalformedError("the report is of the future: a clock is wrong")
        return summary

    def _remove_drafts(self) -> None:
        """Remove what a process left that was killed while it wrote."""
        for left in self._folder.glob(".*.new"):
            with suppress(OSError):
                left.unlink()


def _newest(sizes: Mapping[str, int]) -> set[str]:
    """Return the names of the newest files, as many as may be kept."""
    left_bytes, stay = BYTES_MAX, set[str]()
    for name in sorted(sizes, reverse=True)[:AUDITS_MAX]:
        left_bytes -= sizes[name]
        if left_bytes < 0:
            break
        stay.add(name)
    return stay
