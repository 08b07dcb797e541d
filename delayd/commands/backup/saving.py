"""Making a backup: one checkpoint of a running node's wheel, as it gives it to other nodes.

    0. a share of the packs that are there is verified; nothing is taken from a damaged one
    1. the lines of the catalogue, in chunks that are the same again while their lines are
    2. plan: which bytes of each file are in the store already
    3. the others, in packs; every frame's CRC is verified on the way
    4. per file, number and digest of all frames against its line, or the whole file is copied; a
       pending reply must be where its line says
    5. the packs that it names are all there: then the manifest, which makes it a backup
    6. the packs are all there still, or the manifest is removed again

A run that is killed leaves packs, which the next one finds and uses.

Source: docs/design/storage.md, "Backups".
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from delayd import __version__
from delayd.cluster.fetching import DonorError
from delayd.commands.backup import manifest as manifests
from delayd.commands.backup.manifest import Manifest, SavedFile, SavedLines
from delayd.commands.backup.packs import (
    FOLDER,
    Blob,
    DamagedPackError,
    Kind,
    PackWriter,
    blobs_in,
    read_blob,
    read_pack,
    sum_of,
)
from delayd.commands.backup.plan import Known, Plan, Wanted, neighbours, planned, sums_of
from delayd.commands.backup.stores import NoSuchObjectError, Store
from delayd.errors import BackupError
from delayd.wheel import Entry, SegmentLine
from delayd.wheel.catalogue import PROGRESS, line_of
from delayd.wheel.counts import pending_in
from delayd.wheel.frame import BrokenFrameError, crc_of, walk
from delayd.wheel.layout import Layout, SegmentName
from delayd.wheel.segment import DIGEST_MODULO
from delayd.wheel.snapshot import Line, packed
from replication.rank import slot_of

CHUNK_BYTES: Final = 1024 * 1024
"""Of one request for bytes of files."""
BLOB_BYTES: Final = 16 * 1024 * 1024
"""A file is cut behind so many bytes."""
LINES_BYTES_MAX: Final = 1024 * 1024
LINES_CUT: Final = 0x7FF
"""Lines are cut behind a key whose CRC has these bits all zero: behind some 2,000 lines, and at the
same keys in the next backup."""
SHARES: Final = 32
"""A run reads one of so many shares of the packs that are there, and verifies them: what later
backups take from earlier ones may have rotted since."""
PACKS_PER_RUN: Final = 8
"""About so many at most, of 32 MiB."""
GAP_BYTES: Final = 4096
"""Bytes that are there already are asked for again if a request more would cost more."""

Tell = Callable[[str, int, int], None]
"""Gets the stage, the bytes that are done, and the total; of the catalogue roughly."""


class Donor(Protocol):
    """Who gives a snapshot. Raises DonorError."""

    catalogue_bytes: int

    def lines_after(self, key: bytes) -> Sequence[Line]:
        """Return some lines of the catalogue, at least one; the last of all is progress."""

    def bytes_at(self, position: int, size_bytes: int | None = None) -> bytes:
        """Return some bytes of the stream, so many at most."""


class Saved(NamedTuple):
    """A backup that was made."""

    name: str
    manifest: Manifest
    written_bytes: int
    """What was new."""
    packs: int
    """Packs that were written."""


class _MisfitError(Exception):
    """What is in the store is not the beginning of this file."""


@dataclass(slots=True)
class _Lines:
    """The lines of the catalogue, as far as they matter."""

    chunks: list[tuple[str, str, int | None]] = field(default_factory=list)
    """First key, hash, and the blob's number; None if it is in the store."""
    segments: list[SegmentLine] = field(default_factory=list)
    replies: dict[str, list[Entry]] = field(default_factory=dict)
    """Pending replies by the slot that they are in."""
    pending: int = 0
    """Pending messages."""


def known_in(store: Store, tell: Tell) -> Known:
    """Return what is in a store: by its backups, and by packs that no backup names; and which packs
    are damaged, by the newest backup and by a share that is verified. A backup or a pack that says
    nothing legible counts for nothing. BackupError if the store does not answer."""
    there = store.names(FOLDER)
    blobs: list[Blob] = []
    named: set[str] = set()
    number = 0
    damaged: frozenset[str] = frozenset()
    names = manifests.names_of(store)
    for at, name in enumerate(reversed(names)):
        tell("reading what is there", at, len(names))
        try:
            found = manifests.read_manifest(store, name)
        except BackupError:
            continue
        if found.number > number:
            number, damaged = found.number, found.damaged_packs & there
        named |= found.packs
        blobs += [blob for blob in found.blobs() if blob.pack in there]
    damaged |= _damaged_among(store, there - damaged, number + 1, tell)
    for name in sorted(there - named - damaged):
        try:
            blobs += blobs_in(store, name)
        except BackupError:
            continue
    return Known(blobs, number + 1, damaged)


def _damaged_among(store: Store, packs: set[str], number: int, tell: Tell) -> frozenset[str]:
    """Read the share of the packs that is this run's, and return which are damaged. Each pack is
    read by one of SHARES consecutive runs, or of a power of two times as many if they are many."""
    shares = SHARES
    while len(packs) > shares * PACKS_PER_RUN:
        shares *= 2
    due = sorted(pack for pack in packs if (crc_of([pack.encode()]) - number) % shares == 0)
    damaged = set()
    for at, pack in enumerate(due):
        tell("verifying a share", at, len(due))
        try:
            read_pack(store, pack)
        except DamagedPackError:
            damaged.add(pack)
        except NoSuchObjectError:
            # Another run has removed it. Whether this one needs it shows in the end.
            continue
    return frozenset(damaged)


def save(
    store: Store, known: Known, donor: Donor, tell: Tell, about: Mapping[str, Any], made_ms: int
) -> Saved:
    """Make a backup, as `Saving.run`, that takes nothing from packs which turn out to be damaged:
    what they held is copied again."""
    while True:
        try:
            return Saving(store, known, donor, tell).run(about, made_ms)
        except DamagedPackError as error:
            if error.pack in known.damaged:
                raise
            known = known.without(error.pack)


class Saving:
    """One backup from one donor; `run` carries it out, once."""

    def __init__(self, store: Store, known: Known, donor: Donor, tell: Tell) -> None:
        self._store = store
        self._known = known
        self._donor = donor
        self._tell = tell
        self._packs = PackWriter(store)
        self._lines = _Lines()
        self._runs: Mapping[int, int] = {}
        """Begin and end of what is to be asked for."""
        self._begins: Sequence[int] = ()
        self._read_at = 0
        self._read = b""
        """What was read last, and from where."""

    def run(self, about: Mapping[str, Any], made_ms: int) -> Saved:
        """Copy what is missing, and make it a backup. `about` is what the manifest says of it.

        Raises DamagedPackError if it would need what is in one; DonorError if the donor gives
        nothing more; BackupError and DiskFullError of the store. Then there is no backup, and what
        was copied is of use for the next run.
        """
        self._copy_lines()
        wanted = [
            Wanted(_path_of(line.name), line.start, line.info.bytes)
            for line in self._lines.segments
        ]
        plan = planned(self._known, wanted, [sum_ for _, sum_, _ in self._lines.chunks])
        chains = [
            self._believed(each, chain) for each, chain in zip(wanted, plan.chains, strict=True)
        ]
        files = self._copy_files(wanted, chains)
        lines = self._settled(plan)
        self._packs.flush()
        counts = {
            "number": self._known.number,
            # One that this run has written again is whole again.
            "damaged_packs": sorted(
                self._known.damaged - {blob.pack for blob in self._packs.blobs.values()}
            ),
            "pending": self._lines.pending,
            "frames": sum(line.info.count for line in self._lines.segments),
        }
        manifest = Manifest(
            made_ms=made_ms,
            about={**about, **counts, "release": __version__},
            lines=[
                SavedLines(key, number if isinstance(number, Blob) else self._packs.blobs[number])
                for key, number in lines
            ],
            files=[
                SavedFile(
                    *each, tuple(b if isinstance(b, Blob) else self._packs.blobs[b] for b in f)
                )
                for each, f in zip(wanted, files, strict=True)
            ],
        )
        if lost := self._lost(manifest):
            raise _removed_meanwhile(lost)
        name = manifests.write_manifest(self._store, manifest)
        # A removal beside this run that had not seen the manifest yet: a store without locks.
        if lost_now := self._lost(manifest):
            self._store.remove(f"{manifests.FOLDER}/{name}")
            raise _removed_meanwhile(lost_now)
        return Saved(name, manifest, self._packs.written_bytes, self._packs.packs)

    def _lost(self, manifest: Manifest) -> str:
        """Return a pack that it names and that is not there; empty if all are."""
        return min(manifest.packs - self._store.names(FOLDER), default="")

    # The catalogue.

    def _copy_lines(self) -> None:
        key, done = b"", 0
        chunk: list[Line] = []
        size = 0
        while key != PROGRESS:
            for line in self._donor.lines_after(key):
                key = line[0]
                chunk.append(line)
                size += len(line[0]) + len(line[1])
                self._note(*line)
                if size >= LINES_BYTES_MAX or not crc_of([key]) & LINES_CUT:
                    self._add_lines(chunk)
                    done, size, chunk = done + size, 0, []
            self._tell("catalogue", done, max(done, self._donor.catalogue_bytes))
        if chunk:
            self._add_lines(chunk)

    def _note(self, key: bytes, value: bytes) -> None:
        match line_of(key, value):
            case SegmentLine() as line:
                self._lines.segments.append(line)
            case Entry() as entry:
                slot = f"{slot_of(entry.due_ms)}"
                self._lines.replies.setdefault(slot, []).append(entry)
            case _:
                self._lines.pending += pending_in(key, value)

    def _add_lines(self, chunk: Sequence[Line]) -> None:
        data = packed(chunk)
        sum_ = sum_of(data)
        number = None
        if sum_ not in self._known.lines:
            number = self._packs.add(Kind("", lines=sum_), data)
        self._lines.chunks.append((chunk[0][0].hex(), sum_, number))

    def _settled(self, plan: Plan) -> list[tuple[str, int | Blob]]:
        """Return where the lines are; write those again that lie in worn packs."""
        found: list[tuple[str, int | Blob]] = []
        for key, sum_, number in self._lines.chunks:
            place: int | Blob
            if number is not None:
                place = number
            else:
                place = self._known.lines[sum_]
                if place.pack in plan.worn:
                    place = self._packs.add(place.kind, read_blob(self._store, place))
            found.append((key, place))
        return found

    # The files.

    def _believed(self, wanted: Wanted, chain: Sequence[Blob]) -> Sequence[Blob]:
        """Return the chain, or nothing if a pending reply is not where its line says."""
        slot = wanted.file.rpartition("/")[2].partition(".")[0]
        replies = self._lines.replies.get(slot, ())
        for blob in chain:
            inside = [each for each in replies if blob.kind.first <= each.position < blob.end]
            data = read_blob(self._store, blob) if inside else b""
            for each in inside:
                at = each.position - blob.kind.first
                if _source_of(data[at : at + each.length]) != (each.partition, each.offset):
                    return ()
        return chain

    def _copy_files(
        self, wanted: Sequence[Wanted], chains: Sequence[Sequence[Blob]]
    ) -> list[list[int | Blob]]:
        firsts, position = [], 0
        for each in wanted:
            firsts.append(position - each.start)
            position += each.end - each.start
        needed = [
            (first + _end_of(each, chain), first + each.end)
            for each, chain, first in zip(wanted, chains, firsts, strict=True)
            if _end_of(each, chain) < each.end
        ]
        self._runs = neighbours(needed, GAP_BYTES)
        self._begins = list(self._runs)
        total = sum(end - first for first, end in needed)
        files: list[list[int | Blob]] = []
        done = 0
        for each, chain, first, line in zip(
            wanted, chains, firsts, self._lines.segments, strict=True
        ):
            files.append(self._copy_file(each, chain, first, line))
            done += each.end - _end_of(each, chain)
            self._tell("files", done, total)
        return files

    def _copy_file(
        self, wanted: Wanted, chain: Sequence[Blob], first: int, line: SegmentLine
    ) -> list[int | Blob]:
        """Return the blobs of a file, of which the byte 0 is at `first` of the stream."""
        if chain:
            try:
                return [*chain, *self._taken(wanted, chain, first, line)]
            except _MisfitError:
                pass
        try:
            return [*self._taken(wanted, (), first, line)]
        except _MisfitError as error:
            raise DonorError(f"{line.name} differs from its line in its catalogue") from error

    def _taken(
        self, wanted: Wanted, chain: Sequence[Blob], first: int, line: SegmentLine
    ) -> list[int]:
        """Copy what comes behind the chain. _MisfitError if that and the chain are not the file."""
        count, digest = sums_of(chain)
        numbers: list[int] = []
        at = _end_of(wanted, chain)
        while at < wanted.end:
            data, kind = self._next_blob(wanted, first, at)
            numbers.append(self._packs.add(kind, data))
            count, digest, at = count + kind.frames, digest + kind.digest, at + len(data)
        if count != line.info.count or (digest - line.info.digest) % DIGEST_MODULO:
            raise _MisfitError
        return numbers

    def _next_blob(self, wanted: Wanted, first: int, at: int) -> tuple[bytes, Kind]:
        """Return whole frames of a file from this byte on. _MisfitError if there is none."""
        held = bytearray()
        whole = count = digest = 0
        while whole < BLOB_BYTES and at + len(held) < wanted.end:
            held += self._bytes_at(first + at + len(held), first + wanted.end)
            behind = bytes(memoryview(held)[whole:])
            before = whole
            try:
                for *_, end, crc in walk(behind, at + whole):
                    whole, count, digest = before + end, count + 1, digest + crc
            except BrokenFrameError as error:
                raise _MisfitError from error
        if not whole:
            raise _MisfitError
        return bytes(held[:whole]), Kind(wanted.file, at, count, digest)

    def _bytes_at(self, position: int, end: int) -> bytes:
        """Return some bytes of the stream from here on, none behind `end`."""
        if not self._read_at <= position < self._read_at + len(self._read):
            number = bisect_right(self._begins, position) - 1
            stop = max(end, self._runs[self._begins[number]] if number >= 0 else end)
            self._read = self._donor.bytes_at(position, min(CHUNK_BYTES, stop - position))
            self._read_at = position
            if not self._read:
                raise DonorError(f"it gives no bytes at {position}")
        at = position - self._read_at
        return self._read[at : at + end - position]


def _removed_meanwhile(pack: str) -> BackupError:
    return BackupError(
        f"{FOLDER}/{pack} was removed meanwhile; no backup was made",
        remedy="another run has removed it, by --keep: run one backup at a time, then run this one "
        "again: it goes on",
    )


def _end_of(wanted: Wanted, chain: Sequence[Blob]) -> int:
    return chain[-1].end if chain else wanted.start


def _path_of(name: SegmentName) -> str:
    return Layout("").segment_file(name).removeprefix("/")


def _source_of(data: bytes) -> tuple[int, int] | None:
    """Return the source of the one frame that these bytes are; None if they are no frame."""
    try:
        found = [(partition, offset) for _, partition, offset, *_, end, _ in walk(data, 0)]
    except BrokenFrameError:
        return None
    return found[0] if len(found) == 1 else None
