"""Whether a node that lost its disk now would get its wheel back, and from what."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

from delayd.commands.doctor.case import Case
from delayd.commands.doctor.finding import Finding, Severity
from delayd.errors import BufferTrimmedError
from delayd.node.trimmed_start import provable_beginnings


@dataclass(frozen=True, slots=True)
class Rebuilding:
    """The two ways: the log alone, and a copy of another node's wheel."""

    from_log: bool
    from_peer: bool
    why: str
    """Why the log alone is not enough; empty if it is."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


def rebuilding_of(case: Case) -> Rebuilding:
    """Return what a lost disk could be rebuilt from now."""
    ready = [node for node in case.nodes if node.get("ready")]
    why = _missing_in_log(case)
    # One that is lost has another one to copy from.
    return Rebuilding(from_log=not why, from_peer=len(ready) > 1, why=why)


def look_at_rebuilding(found: Rebuilding) -> Iterator[Finding]:
    """Yield whether a disk that is lost now is lost for good."""
    if not found.from_log and not found.from_peer:
        what = f"a node that loses its disk now cannot rebuild its wheel: {found.why}"
        mend = "start a second node while this one runs, and make a backup: delayd backup"
        yield Finding("not-rebuildable", Severity.CRITICAL, what, mend)


def _missing_in_log(case: Case) -> str:
    means, settings = case.means, case.settings
    with closing(means.bus.cluster()) as kafka:
        starts = kafka.start_offsets(settings.buffer.name, means.timeout_ms)
    try:
        provable_beginnings(means.bus, settings, starts, case.seen, means.clock, means.timeout_ms)
    except BufferTrimmedError as error:
        return error.message
    return ""
