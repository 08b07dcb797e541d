"""What of a file is in a store already. Pure: nothing is read here.

Files only grow, so the bytes of an earlier backup are the beginning of a file. Whether they are
cannot be seen from its name: nodes have the frames of one file in different orders, and a file may
have been removed and made again. So what is taken here is a guess, which counts only if in the end
number and digest of all frames are those of the catalogue's line (`saving.py`).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from delayd.commands.backup.packs import Blob

USED_MIN: Final = 0.5
"""The part of a pack that a backup must need, or it takes nothing from it: so that all packs of one
backup together are at most twice as large as what it needs of them."""


class Wanted(NamedTuple):
    """The bytes of a file that belong to a checkpoint."""

    file: str
    start: int
    end: int


class Known:
    """All blobs that a store holds, except those in damaged packs."""

    def __init__(
        self, blobs: Iterable[Blob], number: int = 1, damaged: frozenset[str] = frozenset()
    ) -> None:
        """`number` is that of the next backup."""
        self.number = number
        self.damaged = damaged
        self._all = [blob for blob in blobs if blob.pack not in damaged]
        self._by_begin: dict[tuple[str, int], list[Blob]] = {}
        self.lines: dict[str, Blob] = {}
        """By hash."""
        self.pack_bytes: dict[str, int] = {}
        """What blobs take in each pack."""
        seen: set[tuple[str, int]] = set()
        for blob in self._all:
            if (blob.pack, blob.at) in seen:
                continue
            seen.add((blob.pack, blob.at))
            self.pack_bytes[blob.pack] = self.pack_bytes.get(blob.pack, 0) + blob.size
            if blob.kind.lines:
                self.lines.setdefault(blob.kind.lines, blob)
            else:
                self._by_begin.setdefault((blob.kind.file, blob.kind.first), []).append(blob)

    def without(self, pack: str) -> "Known":
        """Return the same except for a pack that is damaged."""
        return Known(self._all, self.number, self.damaged | {pack})

    def chain(self, wanted: Wanted) -> list[Blob]:
        """Return blobs that may be the file's bytes from its start on, the longest ones first."""
        found: list[Blob] = []
        at = wanted.start
        while True:
            fitting = [b for b in self._by_begin.get((wanted.file, at), ()) if b.end <= wanted.end]
            if not fitting or at == wanted.end:
                break
            found.append(max(fitting, key=lambda blob: (blob.size, blob.pack)))
            at = found[-1].end
        # What is about to be added takes the smaller ones before it in: a file that grows a little
        # with each of N backups is in some log N pieces.
        tail = wanted.end - at
        while found and tail and found[-1].size <= tail:
            tail += found.pop().size
        return found


class Plan(NamedTuple):
    """What to take from a store."""

    chains: Sequence[Sequence[Blob]]
    """By file: its bytes from its start on, as far as they are there."""
    worn: frozenset[str]
    """Packs from which nothing is to be taken."""


def planned(known: Known, wanted: Sequence[Wanted], lines: Iterable[str]) -> Plan:
    """Return what to take, given the hashes of the catalogue's lines."""
    chains = [known.chain(each) for each in wanted]
    lines_kept = [known.lines[each] for each in set(lines) if each in known.lines]
    used: dict[str, int] = {}
    for blob in (*(b for chain in chains for b in chain), *lines_kept):
        used[blob.pack] = used.get(blob.pack, 0) + blob.size
    worn = {pack for pack, size in known.pack_bytes.items() if used.get(pack, 0) < USED_MIN * size}
    for chain in chains:
        for at, blob in enumerate(chain):
            if blob.pack in worn:
                del chain[at:]
                break
    return Plan(chains, frozenset(worn))


def sums_of(chain: Iterable[Blob]) -> tuple[int, int]:
    """Return number and digest of the frames in a chain."""
    count = digest = 0
    for blob in chain:
        count += blob.kind.frames
        digest += blob.kind.digest
    return count, digest


def neighbours(needed: Sequence[tuple[int, int]], gap_bytes: int) -> Mapping[int, int]:
    """Return runs of the stream, begin and end, that hold these (position, end), ascending; bytes
    between two that are closer than the gap are in one run with them."""
    runs: dict[int, int] = {}
    begin = end = -1
    for first, last in needed:
        if begin >= 0 and first <= end + gap_bytes:
            end = max(end, last)
        else:
            begin, end = first, last
        runs[begin] = end
    return runs
