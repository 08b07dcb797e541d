"""The reports of audits that a node keeps, in files of its data directory: the newest ones.

    DIR/audits/MADE_MS-DIGEST    CHECKSUM SUMMARY, a line, then the body as it was sent
    body                         {"report": as of `delayd audit --json`, "page": the HTML}

DIGEST begins the SHA-256 of the body, CHECKSUM that of the summary, which is JSON. So a list reads
only lines, and each file says whether it is whole.

Not here: who may send one. No file here is a part of the wheel, and none is needed to deliver.

Invariants: a report is kept whole or not at all; a file that is damaged, or that is not of this
grammar, is passed over; with a report the disk keeps the room that the wheel must have free.

Not thread safe: one thread does all (`Services.shelf`).
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
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
LINE_BYTES_MAX: Final = 16 * 1024
"""Many times the largest summary."""
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
        summary = self._summary_of(id, body).model_dump_json().encode()
        content = b"%s %s\n%s" % (_checksum(summary), summary, body)
        sizes = self._sizes()
        if id in sizes and self._whole(id) is not None:
            return False
        stay = _newest({**sizes, id: len(content)})
        if id not in stay:
            raise MalformedError(
                f"{AUDITS_MAX} newer reports, or {BYTES_MAX} bytes, are kept",
                status=HTTPStatus.CONFLICT,
            )
        if (room := self._room_bytes()) < len(content):
            raise NotKeptError(
                f"the report has {len(content)} bytes, and the disk room for {max(0, room)}",
                remedy="make room on the node's disk: see docs/operations.md, 'A full disk'",
            )
        try:
            self._folder.mkdir(exist_ok=True)
            self._remove_drafts()
            write_bytes_atomically(self._folder / id, content)
            for old in sizes.keys() - stay:
                (self._folder / old).unlink(missing_ok=True)
        except OSError as error:
            self._remove_drafts()
            raise NotKeptError(
                f"the report cannot be written: {error.strerror}", remedy="see the node's disk"
            ) from error
        return True

    def summaries(self) -> list[AuditSummary]:
        """Return the reports that are kept, the newest first."""
        found = (self._summary(id, size) for id, size in self._sizes().items())
        return sorted((each for each in found if each), key=lambda it: it.id, reverse=True)

    def read(self, id: str) -> Kept:
        """Return a report. NotKnownError if it is not kept, or damaged."""
        body = self._whole(id) if NAME.fullmatch(id) else None
        if body is None:
            raise NotKnownError("no such audit is kept", remedy="list them, or ask another node")
        return Kept(**json.loads(body))

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

    def _sizes(self) -> dict[str, int]:
        """Return name and size of each file of this grammar."""
        if not self._folder.is_dir():
            return {}
        return {
            each.name: each.stat().st_size
            for each in self._folder.iterdir()
            if NAME.fullmatch(each.name) and each.is_file()
        }

    def _summary(self, id: str, size_bytes: int) -> AuditSummary | None:
        """Return the first line of a file; None if the file is damaged."""
        try:
            with (self._folder / id).open("rb") as file:
                line = file.readline(LINE_BYTES_MAX)
        except OSError:
            return None
        return _summary_in(line, id, size_bytes - len(line))

    def _whole(self, id: str) -> bytes | None:
        """Return the body of a file; None if it is damaged or not there."""
        try:
            content = (self._folder / id).read_bytes()
        except OSError:
            return None
        line, end, body = content.partition(b"\n")
        is_whole = _summary_in(line + end, id, len(body)) and id.endswith(id_of(0, body)[1:])
        return body if is_whole else None

    def _remove_drafts(self) -> None:
        """Remove what a process left that was killed while it wrote."""
        for left in self._folder.glob(".*.new"):
            with suppress(OSError):
                left.unlink()


def _summary_in(line: bytes, id: str, body_bytes: int) -> AuditSummary | None:
    """Return what the first line of a file says; None if the line or the file is damaged."""
    checksum, _, text = line.removesuffix(b"\n").partition(b" ")
    if checksum != _checksum(text):
        return None
    try:
        summary = AuditSummary.model_validate_json(text)
    except ValueError:
        return None
    return summary if (summary.id, summary.bytes) == (id, body_bytes) else None


def _newest(sizes: Mapping[str, int]) -> set[str]:
    """Return the names of the newest files, as many as may be kept."""
    left_bytes, stay = BYTES_MAX, set[str]()
    for name in sorted(sizes, reverse=True)[:AUDITS_MAX]:
        left_bytes -= sizes[name]
        if left_bytes < 0:
            break
        stay.add(name)
    return stay


def _checksum(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest()[:16].encode()
