"""Fetching: a whole copy of another node's wheel, in place of this node's.

    1. find the donors: members that have caught up, followers first, the least busy first
    2. copy a snapshot of the first one, in chunks whose proof is their checksum
    3. the next donor if one does not answer any more, gives none, or gave what is no checkpoint
    4. once all is copied, verify it without the donor
    5. put it in the place of the node's own wheel, which is kept aside

A copy that was cut short is continued if its donor still pins the snapshot. If it does not, and is
in the same life, the copy goes on with its next snapshot: files only grow in one life, so it keeps
those that the next catalogue still names, and gets the rest of each. Otherwise it begins again.
Files of two donors or of two lives are never mixed: each has its frames in an order of its own.

It ends: a copy of the same life has less to get each time, a life that has given SPOILED_MAX
copies that are no checkpoint is not asked again, and patience bounds what brings nothing.

Not here: what a copy is on the disk (`delayd.wheel.draft`), and what the donor gives it from
(`delayd.node.snapshots.donor`).
"""

import http.client
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog

from delayd.cluster.admin_client import Answer, Member, get, opened, url_of
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
SPOILED_MAX: Final = 2
"""Copies of one donor's life that were no checkpoint. One may have kept a file that is another one
of the same name by now, or met a power loss here."""
NOT_NOW: Final = frozenset({429, 500, 502, 503, 504})
ASK_OTHERS: Final = (
    "start another node of the cluster that still has its wheel, and see in its log why it gave "
    "none; without one, see docs/operations.md, 'A trimmed buffer'"
)


class DonorError(Exception):
    """This donor gives nothing, or nothing more; another one may."""


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
    starts: Callable[[], Mapping[int, int]]
    """Asks for the first offset of each partition of the buffer: the copy must have read up to
    there. They move while it is copied."""
    donor: str | None = None
    """The only node to fetch from; None: any."""
    is_spare: bool = False
    """This node could go on with the wheel that it has, which then never gives way to a copy."""


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
        self._spoiled: Counter[str] = Counter()
        """Copies that were no checkpoint, by the life of the donor."""
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
                for fetch, whose in self._ways(began_ms):
                    try:
                        return fetch()
                    except DonorError as error:
                        self.view.problems[whose] = str(error)
                        log.warning("fetch_failed", donor=whose, problem=str(error))
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

    def _ways(self, began_ms: int) -> Iterator[tuple[Callable[[], Fetched], str]]:
        """Yield what may bring a wheel, in the order in which to try, and whose wheel."""
        source = self._draft.source or {}
        if source.get("is_whole") and self._want.donor in (None, source.get("node")):
            yield partial(self._install, source, began_ms), str(source.get("node"))
        for donor in self._donors():
            yield partial(self._fetch_from, donor, began_ms), donor.node

    # Donors.

    def _donors(self) -> list[Member]:
        """Return who may be asked, in the order in which to ask."""
        life = (self._draft.source or {}).get("life")
        asked = {
            name: value
            for name, value in self._members().items()
            if name != self._want.node
            and self._want.donor in (None, name)
            and self._spoiled[Member.of(name, value).life] < SPOILED_MAX
        }
        return donors_among(asked, self.view.problems, lambda member: member.life != life)

    def _fetch_from(self, member: Member, began_ms: int) -> Fetched:
        """Copy all of one donor's snapshot. Raise DonorError if it does not come to that."""
        donor = DonorCalls(member, self._keys, self._clock)
        resumed = self._resumed(donor)
        about = resumed or self._begun(donor)
        donor.snapshot, donor.catalogue_bytes = about["snapshot"], about["catalogue_bytes"]
        size_bytes = about["bytes"] + about["catalogue_bytes"]
        self.view.donor, self.view.bytes = member.node, size_bytes
        log.info("fetch_begun", donor=member.node, bytes=size_bytes, is_resumed=resumed is not None)
        try:
            self._draft.copy(donor, self._tell)
        except CorruptionError as error:
            raise self._spoilt(member.life, error) from error
        source = {**_source(member, about), "is_whole": True, "bytes": size_bytes}
        self._draft.note_source(source)
        donor.end()
        return self._install(source, began_ms)

    def _install(self, source: Mapping[str, Any], began_ms: int) -> Fetched:
        """Verify a copy that is whole, and put it in its place. DonorError if it is of no use."""
        want, node, size_bytes = self._want, str(source["node"]), int(source["bytes"])
        self.view.donor, self.view.bytes = node, size_bytes
        try:
            progress = self._draft.verify(want.settings.partitions, self._tell)
            self._require_ours(progress)
        except CorruptionError as error:
            raise self._spoilt(str(source["life"]), error) from error
        except DonorError:
            # It is a checkpoint, only too old by now: a later one has most of it in common.
            self._draft.note_source({**source, "is_whole": False})
            raise
        self._draft.install(2 * want.spare_bytes)
        took_ms = self._clock.monotonic_ms() - began_ms
        log.info("fetch_ended", donor=node, bytes=size_bytes, took_ms=took_ms)
        return Fetched(node, size_bytes, took_ms, progress)

    def _spoilt(self, life: str, error: CorruptionError) -> DonorError:
        self._spoiled[life] += 1
        self._draft.clear()
        return DonorError(str(error))

    def _resumed(self, donor: "DonorCalls") -> dict[str, Any] | None:
        """Return what the snapshot is of which a part was copied; None if it has ended."""
        source = self._draft.source
        if source is None or source.get("life") != donor.member.life:
            return None
        try:
            about = self._accepted(donor.described(str(source["snapshot"])))
        except DonorError:
            return None
        self._require_room(about)
        return about

    def _begun(self, donor: "DonorCalls") -> dict[str, Any]:
        about = self._accepted(donor.begin(self._want.node))
        donor.snapshot = about["snapshot"]
        try:
            self._require_room(about)
        except DiskFullError:
            donor.end()
            raise
        source = _source(donor.member, about)
        former = self._draft.source
        if former is not None and former.get("life") == donor.member.life:
            self._draft.rebase(source)
        else:
            self._draft.begin(source)
        return about

    def _require_room(self, about: Mapping[str, Any]) -> None:
        # Twice the catalogue: LevelDB merges its tables.
        needed_bytes = about["bytes"] + 2 * about["catalogue_bytes"]
        self._draft.require_room(
            needed_bytes, self._want.spare_bytes, is_usable=self._want.is_spare
        )

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
        for partition, start in self._want.starts().items():
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
        answer = get(f"{url_of(member.admin)}/status")
        status = answer.fields() if answer else None
        if status is None or not status.get("ready"):
            unready = None if status is None else status.get("unready", "it does not say why")
            why = "does not answer" if unready is None else f"is not ready: {unready}"
            problems[name] = why
            continue
        busy = len(status.get("snapshots") or ())
        order = (is_other(member), status.get("role") == "master", busy, name)
        found.append((order, member))
    return [member for _, member in sorted(found)]


def _source(member: Member, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a copy remembers of where it comes from."""
    return {"node": member.node, "life": member.life, "snapshot": about["snapshot"]}


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
        url, headers = f"{url_of(self.member.admin)}{path}", {"authorization": asked.header}
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
