"""Fetching: a whole copy of another node's wheel, in place of this node's.

    1. find the donors: members that have caught up, followers first, the least busy first
    2. copy a snapshot of the first one, in chunks whose proof is their checksum
    3. the next donor if one does not answer any more, gives none, or gave what is no checkpoint
    4. verify all of it, then put it in the place of the node's own wheel, which is kept aside

A copy that was cut short is continued if its donor still pins the snapshot; otherwise it begins
again. Files of two donors are never mixed: each has its frames in an order of its own.

Not here: what a copy is on the disk (`delayd.wheel.draft`), and what the donor gives it from
(`delayd.node.snapshots.donor`).
"""

import http.client
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog

from delayd.cluster.admin_client import Answer, get, opened
from delayd.cluster.member_proof import ANSWER_HEADER, Asked, MemberKeys
from delayd.errors import CorruptionError, DiskFullError, SnapshotError
from delayd.runtime.clock import Clock
from delayd.wheel import Progress
from delayd.wheel.draft import Draft, Tell
from delayd.wheel.layout import FORMAT_VERSION
from delayd.wheel.snapshot import Line, unpacked
from replication.record import FrontierFormatError, decode
from replication.settings import Settings

log = structlog.get_logger()

ANSWER_S: Final = 60.0
"""How long one answer may take, the wait for the donor's rate included."""
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
TRIES: Final = 5
"""Of one request, before its donor is taken for gone."""
RETRY_S: Final = 1.0
NOT_NOW: Final = frozenset({429, 500, 502, 503, 504})
ASK_OTHERS: Final = (
    "start another node of the cluster that still has its wheel, and see in its log why it gave "
    "none; without one, see docs/operations.md, 'A trimmed buffer'"
)


class DonorError(Exception):
    """This donor gives nothing, or nothing more; another one may."""


class Member(NamedTuple):
    """A node as etcd announces it."""

    node: str
    admin: str
    """`host:port` of its admin port."""
    life: str
    """The nonce of its life."""

    @classmethod
    def of(cls, node: str, value: str) -> "Member":
        """Return what a member key says."""
        fields = json.loads(value)
        return cls(node, str(fields.get("admin", "")), str(fields.get("nonce", "")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """What is to be fetched, by whom and where to."""

    node: str
    """The node that fetches."""
    directory: Path
    settings: Settings
    proof_key: bytes
    spare_bytes: int
    """`disk_free_min_bytes`: stays free beside the copy."""
    starts: Mapping[int, int]
    """The first offset of each partition of the buffer: the copy must have read up to there."""
    donor: str | None = None
    """The only node to fetch from; None: any."""


class Fetched(NamedTuple):
    """A copy that has taken its place."""

    donor: str
    bytes: int
    took_ms: int
    progress: Progress


class FetchView:
    """What others see of a fetch that is running. Written by one thread, read by any."""

    def __init__(self) -> None:
        self.donor: str | None = None
        self.stage = "looking for a donor"
        self.done_bytes = 0
        self.bytes = 0
        self.problems: dict[str, str] = {}
        """By donor, why it gave nothing at last."""


class Fetch:
    """One fetch, which `run` carries out; in any thread, once."""

    def __init__(
        self,
        want: Want,
        members: Callable[[], Mapping[str, str]],
        clock: Clock,
        tell: Tell = lambda stage, done, total: None,
    ) -> None:
        """`members` returns the member keys of the cluster in etcd."""
        self._want = want
        self._members = members
        self._clock = clock
        self._tell_more = tell
        self._keys = MemberKeys(want.proof_key, want.settings.realm)
        self._draft = Draft(want.directory)
        self.view = FetchView()

    def run(self, patience_s: float) -> Fetched:
        """Copy, verify and install. Blocks for as long as that takes.

        Raises SnapshotError if no donor was found for `patience_s` in which nothing was copied,
        DiskError if this disk fails, or another process is at it, and what `members` raises.
        """
        began_ms = self._clock.monotonic_ms()
        with self._draft.locked():
            last_ms = began_ms
            while True:
                done_before = self.view.done_bytes
                for donor in self._donors():
                    try:
                        return self._fetch_from(donor, began_ms)
                    except DonorError as error:
                        self.view.problems[donor.node] = str(error)
                        log.warning("fetch_failed", donor=donor.node, problem=str(error))
                if self.view.done_bytes != done_before:
                    last_ms = self._clock.monotonic_ms()
                if self._clock.monotonic_ms() - last_ms >= patience_s * 1000:
                    raise SnapshotError(
                        f"no other node gave its wheel: {self._told()}", remedy=ASK_OTHERS
                    )
                threading.Event().wait(RETRY_S)

    def _told(self) -> str:
        problems = [f"{node}: {problem}" for node, problem in sorted(self.view.problems.items())]
        return "; ".join(problems) or "no other node is announced in etcd"

    # Donors.

    def _donors(self) -> list[Member]:
        """Return who may be asked, in the order in which to ask."""
        life = (self._draft.source or {}).get("life")
        asked = {
            name: value
            for name, value in self._members().items()
            if name != self._want.node and self._want.donor in (None, name)
        }
        return donors_among(asked, self.view.problems, lambda member: member.life != life)

    def _fetch_from(self, member: Member, began_ms: int) -> Fetched:
        """Copy all of one donor's snapshot. Raise DonorError if it does not come to that."""
        want, donor = self._want, DonorCalls(member, self._keys, self._clock)
        resumed = self._resumed(donor)
        about = resumed or self._begun(donor)
        donor.snapshot, donor.catalogue_bytes = about["snapshot"], about["catalogue_bytes"]
        size_bytes = about["bytes"] + about["catalogue_bytes"]
        self.view.donor, self.view.bytes = member.node, size_bytes
        log.info("fetch_begun", donor=member.node, bytes=size_bytes, is_resumed=resumed is not None)
        try:
            self._draft.copy(donor, self._tell)
            progress = self._draft.verify(want.settings.partitions, self._tell)
            self._require_ours(progress)
            donor.end()
            self._draft.install(2 * want.spare_bytes)
        except DiskFullError:
            raise
        except CorruptionError as error:
            self._draft.clear()
            raise DonorError(str(error)) from error
        took_ms = self._clock.monotonic_ms() - began_ms
        log.info("fetch_ended", donor=member.node, bytes=size_bytes, took_ms=took_ms)
        return Fetched(member.node, size_bytes, took_ms, progress)

    def _resumed(self, donor: "DonorCalls") -> dict[str, Any] | None:
        """Return what the snapshot is of which a part was copied; None if it has ended."""
        source = self._draft.source
        if source is None or source.get("life") != donor.member.life:
            return None
        try:
            return self._accepted(donor.described(str(source["snapshot"])))
        except DonorError:
            return None

    def _begun(self, donor: "DonorCalls") -> dict[str, Any]:
        about = self._accepted(donor.begin(self._want.node))
        self._draft.begin({"snapshot": about["snapshot"], "life": donor.member.life})
        # Twice the catalogue: LevelDB merges its tables.
        needed_bytes = about["bytes"] + 2 * about["catalogue_bytes"]
        self._draft.require_room(needed_bytes, self._want.spare_bytes)
        return about

    def _accepted(self, about: dict[str, Any]) -> dict[str, Any]:
        """Return what is described if it is of use here. Raise DonorError."""
        settings = self._want.settings
        ours = (settings.realm, settings.buffer.topic_id, settings.partitions, FORMAT_VERSION)
        theirs = tuple(about[name] for name in ("realm", "buffer", "partitions", "format"))
        if theirs != ours:
            raise DonorError(f"it gives a wheel of {theirs}, and this node needs one of {ours}")
        self._require_reached(about["reached"])
        return about

    def _require_reached(self, reached: Sequence[int]) -> None:
        for partition, start in self._want.starts.items():
            if reached[partition] < start:
                raise DonorError(
                    f"its checkpoint is at offset {reached[partition]} of partition {partition}, "
                    f"which begins at {start}"
                )

    def _require_ours(self, progress: Progress) -> None:
        """Raise CorruptionError unless the copied checkpoint itself says that it is of this
        cluster, and of use here."""
        try:
            of_whom = decode(progress.frontier).settings if progress.frontier else None
        except FrontierFormatError as error:
            raise CorruptionError(f"the copied checkpoint: {error}") from error
        ours = self._want.settings
        if of_whom is None or (of_whom.cluster, of_whom.buffer) != (ours.cluster, ours.buffer):
            raise CorruptionError("the copied checkpoint is another cluster's")
        self._require_reached(progress.reached or progress.offsets)

    def _tell(self, stage: str, done: int, total: int) -> None:
        self.view.stage, self.view.done_bytes = stage, done
        self._tell_more(stage, done, total)


def donors_among(
    members: Mapping[str, str], problems: dict[str, str], is_other: Callable[[Member], bool]
) -> list[Member]:
    """Return the members that may be asked for their wheel, in the order in which to ask: those
    that are not `is_other`, followers, the least busy. Note in `problems` why others may not be."""
    found: list[tuple[tuple[bool, bool, int, str], Member]] = []
    for name, value in members.items():
        member = Member.of(name, value)
        answer = get(f"http://{member.admin}/status")
        status = answer.fields() if answer else None
        if status is None or not status.get("ready"):
            why = "does not answer" if status is None else f"is not ready: {status['unready']}"
            problems[name] = why
            continue
        busy = len(status.get("snapshots") or ())
        order = (is_other(member), status.get("role") == "master", busy, name)
        found.append((order, member))
    return [member for _, member in sorted(found)]


class DonorCalls:
    """The requests to one donor, which is a source of copies. Every method raises DonorError."""

    def __init__(self, member: Member, keys: MemberKeys, clock: Clock) -> None:
        self.member = member
        self.snapshot = ""
        self.catalogue_bytes = 0
        self._keys = keys
        self._clock = clock

    def begin(self, fetcher: str) -> dict[str, Any]:
        """Have it pin a snapshot; return what that is."""
        return self._fields(self._ask("POST", f"/snapshots/{fetcher}"))

    def described(self, snapshot: str) -> dict[str, Any]:
        """Return what a snapshot is that it still pins."""
        return self._fields(self._ask("GET", f"/snapshots/{snapshot}"))

    def end(self) -> None:
        """Tell it that nothing more is needed; what it does then is its own matter."""
        try:
            self._ask("DELETE", f"/snapshots/{self.snapshot}", tries=1)
        except DonorError:
            return

    def lines_after(self, key: bytes) -> Sequence[Line]:
        """Return the next lines of the catalogue."""
        path = f"/snapshots/{self.snapshot}/lines/{key.hex() or '-'}"
        lines = unpacked(self._ask("GET", path))
        if not lines or lines[0][0] <= key:
            raise DonorError("it gives no further lines of its catalogue")
        return lines

    def bytes_at(self, position: int, size_bytes: int | None = None) -> bytes:
        """Return the next bytes of the stream of files, so many at most."""
        size = "" if size_bytes is None else f"/{size_bytes}"
        return self._ask("GET", f"/snapshots/{self.snapshot}/bytes/{position}{size}")

    def _fields(self, body: bytes) -> dict[str, Any]:
        fields: dict[str, Any] = json.loads(body)
        return fields

    def _ask(self, method: str, path: str, tries: int = TRIES) -> bytes:
        """Return the body of an answer that a member of the cluster has made to this request."""
        problem = ""
        for attempt in range(tries):
            if attempt:
                threading.Event().wait(RETRY_S)
            try:
                answer, proof, asked = self._ask_once(method, path)
            except (OSError, ValueError, http.client.HTTPException) as error:
                problem = f"does not answer: {error}"
                continue
            if answer.status == http.client.OK:
                if asked.is_answered_by(answer.body, proof):
                    return answer.body
                problem = "its answer was damaged on the way, or is not a member's"
                continue
            problem = next(_problems_in(answer), f"answers {answer.status}")
            if answer.status not in NOT_NOW:
                break
        raise DonorError(problem)

    def _ask_once(self, method: str, path: str) -> tuple[Answer, str, Asked]:
        asked = Asked(self._keys, method, path, self.member.life, self._clock)
        url, headers = f"http://{self.member.admin}{path}", {"authorization": asked.header}
        with opened(url, ANSWER_S, method, headers=headers) as response:
            answer = Answer(response.status, response.read(ANSWER_BYTES_MAX))
            length = response.headers.get("content-length")
            if length is not None and len(answer.body) != int(length):
                raise ValueError("its answer was cut short")
            return answer, response.headers.get(ANSWER_HEADER, ""), asked


def _problems_in(answer: Answer) -> Iterator[str]:
    try:
        yield str(json.loads(answer.body)["problem"])
    except (ValueError, KeyError, TypeError):
        return
