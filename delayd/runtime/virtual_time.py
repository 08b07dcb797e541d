"""Virtual time: what time it is in a local cluster whose clock a test moves.

    virtual(t) = t + the shift of the last change with `at_ms` <= t

t is real time, Unix ms. It is a pure function of t, and it never steps back: shifts only grow. So
all processes agree on each append time of a broker, whenever they map it, and replicas that
compute from mapped times stay alike.

The changes stand in one file, which all processes of one machine read:

    {"format": 1, "changes": [[at_ms, shift_ms]...], "announced_ms": ms or null, "cluster": id}

`cluster` is the id of the frontier topic of the cluster whose time it is, "" before there is one.

A change is written in two steps, under an exclusive lock:
1. Announce it for a moment that lies ahead. If that moment has come before the announcement stood
   in the file, withdraw it and begin again: nobody has used it.
2. Replace the announcement by the change.
Whoever maps a time at or after an announced moment waits for the lock, and reads again: an
announcement that nobody holds the lock for was withdrawn, since its writer has died. So a change is
never seen by one process and missed by another, however long any of them stands still.

Only times that have passed may be mapped: a later change may concern all others.

Not here: which times are mapped (`delayd.runtime.clock`, `delayd.bus.virtual`), and who moves the
clock (`delayd.dev.advancing`).
Source: docs/adr/0028-virtual-clusters.md.
"""

import fcntl
import json
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

from delayd.errors import ConfigError

VARIABLE: Final = "DELAYD_VIRTUAL_TIME"
"""Names the file, in the environment of each process that belongs to a virtual cluster."""

LEAD_MS: Final = 20
"""How far a change lies ahead when it is announced; twice as far each time that was too little."""

_FORMAT: Final = 1
_READS_MAX: Final = 100
"""How often a file is read again because others move the clock meanwhile."""


def real_now_ms() -> int:
    """Return what time it is, Unix ms."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Changes:
    """The contents of the file. Both tuples are as long, and grow from entry to entry."""

    at_ms: tuple[int, ...] = ()
    shift_ms: tuple[int, ...] = ()
    announced_ms: int | None = None
    cluster: str = ""

    def virtual_ms(self, real_ms: int) -> int:
        """Return what time it was then in the cluster."""
        return real_ms + self._shift_of(bisect_right(self.at_ms, real_ms))

    def real_ms(self, virtual_ms: int) -> int:
        """Return the first real time at which it was this late in the cluster, or later."""
        for number in range(len(self.at_ms), -1, -1):
            begun_ms = self.at_ms[number - 1] if number else None
            found_ms = virtual_ms - self._shift_of(number)
            if begun_ms is None or found_ms >= begun_ms:
                break
        ended_ms = self.at_ms[number] if number < len(self.at_ms) else None
        return found_ms if ended_ms is None else min(found_ms, ended_ms)

    def after(self, at_ms: int, by_ms: int) -> "Changes":
        """Return the same with a change: from `at_ms` on it is so much later."""
        assert by_ms >= 0, "virtual time does not step back"
        assert not self.at_ms or at_ms > self.at_ms[-1], "a change follows those before it"
        shift_ms = self._shift_of(len(self.at_ms)) + by_ms
        return Changes((*self.at_ms, at_ms), (*self.shift_ms, shift_ms), None, self.cluster)

    def announcing(self, at_ms: int | None) -> "Changes":
        """Return the same with a change announced, or with none."""
        return replace(self, announced_ms=at_ms)

    def text(self) -> str:
        """Return what stands in the file."""
        pairs = [[*pair] for pair in zip(self.at_ms, self.shift_ms, strict=True)]
        fields = {"changes": pairs, "announced_ms": self.announced_ms, "cluster": self.cluster}
        return json.dumps({"format": _FORMAT, **fields})

    @classmethod
    def read_from(cls, text: str) -> "Changes":
        """Invert `text`. Raises ValueError."""
        try:
            fields = json.loads(text)
            if fields["format"] != _FORMAT:
                raise ValueError(f"format {fields['format']!r} is not known")
            at_ms = tuple(int(at) for at, _ in fields["changes"])
            shift_ms = tuple(int(shift) for _, shift in fields["changes"])
            announced = fields["announced_ms"]
            announced_ms = None if announced is None else int(announced)
            found = cls(at_ms, shift_ms, announced_ms, str(fields.get("cluster", "")))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a file of virtual time: {error!r}") from error
        if list(at_ms) != sorted(set(at_ms)) or list(shift_ms) != sorted(shift_ms):
            raise ValueError("virtual time does not step back")
        return found

    def _shift_of(self, number: int) -> int:
        """Return the shift after so many changes."""
        return self.shift_ms[number - 1] if number else 0


class VirtualTime:
    """The file, read again whenever it was replaced. Any thread may map times.

    All methods raise ConfigError if the file is missing or damaged.
    """

    def __init__(self, file: Path, real_now_ms: Callable[[], int] = real_now_ms) -> None:
        """`real_now_ms`: the clock of this machine, Unix ms."""
        self.file = file
        self._real_now_ms = real_now_ms
        self._known: tuple[tuple[int, ...], Changes] | None = None

    @classmethod
    def create(cls, file: Path) -> "VirtualTime":
        """Write a new file, of a cluster in which it is as late as it is."""
        file.write_text(Changes().text())
        return cls(file)

    @property
    def cluster(self) -> str:
        """Return the id of the frontier topic of the cluster whose time it is; "" if it has none
        yet."""
        return self._read().cluster

    def belong_to(self, cluster: str) -> None:
        """Be the time of this cluster."""
        with self._lock(fcntl.LOCK_EX):
            self._replace(replace(self._read(), cluster=cluster))

    def changes_until(self, real_ms: int) -> Changes:
        """Return the changes, by which times until then may be mapped. That time has passed."""
        for _ in range(_READS_MAX):
            changes = self._read()
            announced_ms = changes.announced_ms
            if announced_ms is None or real_ms < announced_ms:
                return changes
            with self._lock(fcntl.LOCK_SH):
                changes = self._read()
            if changes.announced_ms == announced_ms:
                return changes.announcing(None)  # Its writer has died.
        raise ConfigError(
            f"{self.file} was changed all the time",
            remedy="move the clock of a cluster from one program only",
        )

    def virtual_ms(self, real_ms: int) -> int:
        """Return what time it was in the cluster at a real time that has passed."""
        return self.changes_until(real_ms).virtual_ms(real_ms)

    def real_ms(self, virtual_ms: int) -> int:
        """Return the first real time at which it was this late in the cluster, or later."""
        return self.changes_until(self._real_now_ms()).real_ms(virtual_ms)

    def now_ms(self) -> int:
        """Return what time it is in the cluster."""
        return self.virtual_ms(self._real_now_ms())

    def advance_to(self, virtual_ms: int) -> None:
        """Let it be that late soon: from LEAD_MS on, or a little later. Does nothing if it will be
        later anyway."""
        lead_ms = LEAD_MS
        with self._lock(fcntl.LOCK_EX):
            kept = self._read().announcing(None)
            while True:
                at_ms = self._real_now_ms() + lead_ms
                if kept.at_ms and at_ms <= kept.at_ms[-1]:
                    raise ConfigError(
                        "this machine's clock was set back, to before virtual time was last moved",
                        remedy="begin with a new cluster: `delayd dev up --virtual --fresh`",
                    )
                by_ms = virtual_ms - kept.virtual_ms(at_ms)
                if by_ms <= 0:
                    self._replace(kept)
                    return
                self._replace(kept.announcing(at_ms))
                if self._real_now_ms() < at_ms:
                    break
                self._replace(kept)
                lead_ms *= 2
            self._replace(kept.after(at_ms, by_ms))
        while self._real_now_ms() < at_ms:
            time.sleep(lead_ms / 4000)

    def _read(self) -> Changes:
        try:
            stands = _stamp(self.file.stat())
            known = self._known
            if known is not None and known[0] == stands:
                return known[1]
            with self.file.open() as opened:
                stands = _stamp(os.fstat(opened.fileno()))
                changes = Changes.read_from(opened.read())
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{self.file} does not say what time it is in the cluster: {error}",
                remedy=f"{VARIABLE} names the file that `delayd dev env` prints, of a cluster that "
                "was made with `delayd dev up --virtual`; unset it for any other cluster",
            ) from error
        self._known = (stands, changes)
        return changes

    def _replace(self, changes: Changes) -> None:
        draft = self.file.with_name(f".{self.file.name}.new")
        draft.write_text(changes.text())
        draft.replace(self.file)

    @contextmanager
    def _lock(self, kind: int) -> Iterator[None]:
        lock = self.file.with_name(f"{self.file.name}.lock")
        try:
            held = lock.open("a")
        except OSError as error:
            raise ConfigError(
                f"{lock} cannot be opened: {error.strerror}",
                remedy="run this as the user who made the cluster",
            ) from error
        with held:
            fcntl.flock(held, kind)
            yield


def virtual_time_of(environment: Mapping[str, str]) -> VirtualTime | None:
    """Return the virtual time of a process with this environment; None if it lives in real time."""
    name = environment.get(VARIABLE)
    return _shared(Path(name)) if name else None


@cache
def _shared(file: Path) -> VirtualTime:
    """Return what all of a process read one file with."""
    return VirtualTime(file)


def _stamp(found: os.stat_result) -> tuple[int, ...]:
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
