"""The results of the commands about wheels, as text and as JSON. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from delayd.commands.examine.diffing import Comparison, Side, Where
from delayd.commands.examine.inspecting import Overview, Share, frontier_of
from delayd.commands.examine.verifying import Damage, Findings
from delayd.wheel import Progress
from delayd.wheel.layout import HOUR_SLOTS, SegmentName

if TYPE_CHECKING:  # these load the Parquet library, the ingest rules and a driver
    from delayd.cluster.fetching import Fetched
    from delayd.commands.examine.exporting import Exported
    from delayd.commands.examine.repairing import Repair

HOURS_SHOWN_MAX: Final = 48
"""Hours that a histogram shows one by one; with more it has a row per day."""
ROWS_MAX: Final = 64
"""Rows of a histogram; with more days a row has several."""
BAR_CHARS: Final = 40
DAMAGE_SHOWN: Final = 50
"""Lines of damage on a terminal; the JSON has more."""
HOURS_OF_A_DAY: Final = 24

Json: TypeAlias = dict[str, Any]

DIFFERENCES_SHOWN: Final = 50
"""Differences on a terminal; the JSON has more."""

_TOLD: Final = {
    Where.ONLY_A: "only in A",
    Where.ONLY_B: "only in B",
    Where.ALTERED: "in both, and not the same",
    Where.TWICE_A: "twice in A",
    Where.TWICE_B: "twice in B",
}
_KINDS: Final = {b"w": "waiting_answers", b"i": "ids", b"k": "killed"}
"""Kinds of lines in the catalogue that are shown."""


def overview_json(overview: Overview) -> Json:
    """Return an overview as JSON; times are Unix ms."""
    return {
        **_wheel_json(overview, overview.progress),
        **asdict(overview.total),
        "pending": asdict(overview.pending),
        "mixed": asdict(overview.mixed),
        "kept": asdict(overview.kept),
        **_lines_json(overview.lines),
        "hours": [
            {"from_ms": _hour_ms(hour), **asdict(share)}
            for hour, share in sorted(overview.by_hour.items())
        ],
        "largest": [
            {"slot": size.slot, "frames": size.frames, "bytes": size.bytes}
            for size in reversed(overview.largest)
        ],
    }


def findings_json(findings: Findings, progress: Progress | None) -> Json:
    """Return the findings of a verification as JSON."""
    return {
        **_wheel_json(findings, progress),
        "ok": findings.is_whole,
        "complete": findings.is_complete,
        "slots": findings.slots,
        "hour_files": findings.hours,
        "frames": findings.messages + findings.pending_replies,
        "bytes": findings.slot_bytes,
        "messages": findings.messages,
        "answers": findings.pending_replies,
        **_lines_json(findings.lines),
        "damaged_slots": findings.damaged_slots,
        "frames_lost": findings.frames_lost,
        "frames_suspect": findings.frames_suspect,
        "damage": [damage._asdict() for damage in findings.damage],
        "damage_count": findings.damage_count,
        "behind_checkpoint": {
            "files": findings.behind_files,
            "bytes": findings.behind_bytes,
            "log_bytes": findings.torn_log_bytes,
        },
        "forgotten": {"files": findings.forgotten_files, "bytes": findings.forgotten_bytes},
        "foreign": findings.foreign,
        "foreign_count": findings.foreign_count,
    }


def overview_lines(overview: Overview) -> Iterator[str]:
    """Yield an overview as lines of text."""
    yield from _wheel_lines(overview, overview.progress)
    yield f"holds       {_share(overview.total)}"
    yield f"  pending   {_share(overview.pending)}"
    yield f"  mixed     {_share(overview.mixed)}: the frontier stands within these"
    yield f"  kept      {_share(overview.kept)}: delivered, not forgotten yet"
    yield f"catalogue   {_lines(overview.lines)}"
    if overview.by_hour:
        yield ""
        yield from histogram(overview.by_hour)
        yield ""
        yield "largest slots"
        for size in reversed(overview.largest):
            told = f"{size.frames:>12,} frames {size.bytes:>16,} bytes"
            yield f"  {size.slot:<12} {time_text(size.slot * 1000)} {told}"


def findings_lines(findings: Findings, progress: Progress | None) -> Iterator[str]:
    """Yield the findings of a verification as lines of text."""
    yield from _wheel_lines(findings, progress)
    if findings.is_complete:
        told = f"{findings.messages:,} messages and {findings.pending_replies:,} answers"
        places = f"{findings.slots:,} slots and {findings.hours:,} hour files"
        yield f"read        {told} in {places}, {findings.slot_bytes:,} bytes"
        yield f"catalogue   {_lines(findings.lines)}"
    else:
        yield "read        no slots: without its catalogue nobody knows what they must hold"
    if findings.behind_files or findings.torn_log_bytes:
        yield (
            f"unfinished  {findings.behind_bytes:,} bytes in {findings.behind_files:,} files, and "
            f"{findings.torn_log_bytes:,} of LevelDB's, came after the last checkpoint: no damage, "
            "the next start cuts them off and reads them again"
        )
    if findings.forgotten_files:
        told = f"{findings.forgotten_bytes:,} bytes in {findings.forgotten_files:,} files"
        yield f"forgotten   {told}, of delivered slots: no damage, the next start removes them"
    if findings.foreign_count:
        more = ", ..." if findings.foreign_count > len(findings.foreign) else ""
        named = ", ".join(map(ascii, findings.foreign))
        yield f"foreign     {findings.foreign_count:,} names that are not delayd's: {named}{more}"
    for damage in findings.damage[:DAMAGE_SHOWN]:
        yield f"DAMAGED     {_damage(damage)}"
    if findings.damage_count > DAMAGE_SHOWN:
        yield f"DAMAGED     and {findings.damage_count - DAMAGE_SHOWN:,} more"
    if findings.is_whole:
        yield "whole: all is as the last checkpoint left it"
        return
    if findings.is_complete:
        yield (
            f"damaged: {findings.frames_lost:,} frames are lost and {findings.frames_suspect:,} "
            f"suspect, in {findings.damaged_slots:,} slots or hour files"
        )
        yield (
            "leave the node stopped, on a healthy volume, and run `delayd wheel repair` with its "
            "configuration: what is missing is read from the buffer again"
        )
        return
    yield (
        "leave the node stopped and empty this directory, on a healthy volume: at the next start "
        "the wheel is rebuilt from the buffer, or copied from another node"
    )


def comparison_json(comparison: Comparison) -> Json:
    """Return a comparison as JSON; times are Unix ms."""
    return {
        "alike": comparison.is_alike,
        "a": _side_json(comparison.a),
        "b": _side_json(comparison.b),
        "offsets": comparison.cut.offsets,
        "different": sum(comparison.counts.values()),
        **{where.name.lower(): count for where, count in comparison.counts.items()},
        "differences": [
            {
                "due_ms": each.due_ms,
                "source": f"{each.partition}/{each.offset}",
                "what": each.what,
                "where": each.where.value,
            }
            for each in comparison.differences
        ],
        "exchanges": comparison.exchanges,
        "digests": comparison.nodes,
        "hours_read": comparison.frames_exchanges,
        "read_bytes": comparison.read_bytes,
    }


def comparison_lines(comparison: Comparison) -> Iterator[str]:
    """Yield a comparison as lines of text."""
    for name, side in (("A", comparison.a), ("B", comparison.b)):
        offsets = ", ".join(map(str, side.progress.offsets))
        yield f"{name}           {side.directory}"
        forgotten = side.forgotten
        told = "nothing" if forgotten is None else f"what step {forgotten.step} covers"
        yield f"            offsets {offsets}; has forgotten {told}"
    offsets = ", ".join(map(str, comparison.cut.offsets))
    yield f"compared    what both must hold: below offsets {offsets}, and forgotten by neither"
    told = f"{comparison.nodes:,} digests in {comparison.exchanges:,} exchanges"
    yield f"            {told}; {comparison.read_bytes:,} bytes of their files were read"
    for each in comparison.differences[:DIFFERENCES_SHOWN]:
        source = f"{each.partition}/{each.offset}"
        yield f"DIFFERENT   {each.what} {source} (due {time_text(each.due_ms)}) {_TOLD[each.where]}"
    different = sum(comparison.counts.values())
    if different > DIFFERENCES_SHOWN:
        yield f"DIFFERENT   and {different - DIFFERENCES_SHOWN:,} more"
    if comparison.is_alike:
        yield "alike: both hold the same"
        return
    counted = ", ".join(f"{n:,} {_TOLD[where]}" for where, n in comparison.counts.items() if n)
    yield f"different: {counted}"


def repair_json(outcome: "Repair") -> Json:
    """Return the result of a repair as JSON."""
    return {
        "directory": outcome.findings.directory,
        "whole": outcome.is_whole,
        "damaged": outcome.findings.damaged_slots,
        "repaired": [_named(name) for name in outcome.repaired],
        "frames": outcome.frames,
        "from_buffer": outcome.from_buffer,
        "failed": outcome.failed,
    }


def repair_lines(outcome: "Repair") -> Iterator[str]:
    """Yield the result of a repair as lines of text."""
    yield f"wheel       {outcome.findings.directory}"
    if outcome.findings.is_whole:
        yield "whole: there was nothing to repair"
        return
    for name in outcome.repaired[:DAMAGE_SHOWN]:
        yield f"repaired    {name}"
    if len(outcome.repaired) > DAMAGE_SHOWN:
        yield f"repaired    and {len(outcome.repaired) - DAMAGE_SHOWN:,} more"
    for problem in outcome.failed[:DAMAGE_SHOWN]:
        yield f"DAMAGED     {problem}"
    if outcome.repaired:
        yield (
            f"{len(outcome.repaired):,} files with {outcome.frames:,} frames were written once "
            f"more, {outcome.from_buffer:,} of the frames from the buffer"
        )
    if outcome.is_whole:
        yield "repaired: run `delayd wheel verify` to see it, then start the node"
        return
    yield (
        f"{len(outcome.failed):,} cannot be repaired: leave the node stopped and empty this "
        "directory, on a healthy volume: at the next start the wheel is rebuilt from the buffer, "
        "or copied from another node"
    )


def fetched_json(fetched: "Fetched") -> Json:
    """Return a fetch as JSON."""
    return {
        "donor": fetched.donor,
        "bytes": fetched.bytes,
        "took_ms": fetched.took_ms,
        "ingested": fetched.progress.offsets,
    }


def fetched_lines(fetched: "Fetched") -> Iterator[str]:
    """Yield a fetch as lines of text."""
    took_s = max(1, fetched.took_ms) / 1000
    yield f"fetched from {fetched.donor}: {fetched.bytes} bytes in {took_s:.1f} s, verified"
    yield f"ingested up to {', '.join(map(str, fetched.progress.offsets))}"


def exported_json(exported: "Exported") -> Json:
    """Return an export as JSON; times are Unix ms."""
    cut = exported.cut
    return {
        "directory": exported.directory,
        "file": str(exported.file),
        "rows": exported.rows,
        "bytes": exported.bytes,
        "cut": {
            "term": cut.term,
            "step": cut.step,
            "cursor_ms": cut.lowest_cursor.due_ms,
            "offsets": cut.offsets,
        },
        "newest_step": exported.newest_step,
    }


def exported_lines(exported: "Exported") -> Iterator[str]:
    """Yield an export as lines of text."""
    cut = exported.cut
    offsets = ", ".join(map(str, cut.offsets))
    cursor = time_text(cut.lowest_cursor.due_ms)
    yield f"wheel       {exported.directory}"
    yield f"cut         step {cut.step} of term {cut.term}: cursor {cursor}, offsets {offsets}"
    if cut.step != exported.newest_step:
        newest = f"step {exported.newest_step}, the newest that it knows"
        yield f"            older than {newest}: the node had not taken in all that it covers"
    yield f"pending     {exported.rows:,} messages"
    yield f"written     {exported.file}, {exported.bytes:,} bytes"


def histogram(hours: Mapping[int, Share]) -> Iterator[str]:
    """Yield a histogram of frames by hour, or by day; at most ROWS_MAX rows, empty ones too."""
    first, last = min(hours), max(hours)
    if last - first < HOURS_SHOWN_MAX:
        width, name = 1, "hour"
    else:
        first -= first % HOURS_OF_A_DAY
        days = (last - first) // HOURS_OF_A_DAY + 1
        each = -(-days // ROWS_MAX)
        width, name = each * HOURS_OF_A_DAY, "day" if each == 1 else f"{each} days"
    rows = [0] * ((last - first) // width + 1)
    for hour, share in hours.items():
        rows[(hour - first) // width] += share.frames
    most = max(rows)
    yield f"frames by {name} of their due time (UTC)"
    for index, frames in enumerate(rows):
        bar = "#" * -(-frames * BAR_CHARS // most) if most else ""
        start = datetime.fromtimestamp(_hour_ms(first + index * width) / 1000, UTC)
        shown = f"{start:%Y-%m-%d %H:%M}" if name == "hour" else f"{start:%Y-%m-%d}"
        yield f"  {shown} {frames:>14,} {bar}".rstrip()


def _wheel_json(of: Overview | Findings, progress: Progress | None) -> Json:
    return {
        "directory": of.directory,
        "format": of.format,
        "partitions": of.partitions,
        "checkpoint": None if progress is None else _progress_json(progress),
    }


def _progress_json(progress: Progress) -> Json:
    frontier = frontier_of(progress)
    return {
        "offsets": progress.offsets,
        "leader_epochs": progress.leader_epochs,
        "log_ms": progress.log_ms,
        "reached": progress.reached,
        "frontier": None
        if frontier is None
        else {
            "term": frontier.term,
            "step": frontier.step,
            "cursor_ms": frontier.lowest_cursor.due_ms,
            "offsets": frontier.offsets,
            "own_writes": frontier.own_writes,
        },
        "forgotten_ms": progress.forgotten_ms if progress.forgotten else None,
    }


def _wheel_lines(of: Overview | Findings, progress: Progress | None) -> Iterator[str]:
    yield f"wheel       {of.directory}"
    if of.format is not None:
        yield f"format      {of.format}, for a buffer of {of.partitions} partitions"
    if progress is None:
        yield "checkpoint  none that can be read"
        return
    numbers = ", ".join(map(str, progress.offsets))
    newest_ms = max(progress.log_ms, default=0)
    yield f"checkpoint  offsets {numbers}; log time {time_text(newest_ms)}"
    frontier = frontier_of(progress)
    if frontier is not None:
        cursor = time_text(frontier.lowest_cursor.due_ms)
        yield f"frontier    cursor {cursor}, term {frontier.term}, step {frontier.step}"


def _share(share: Share) -> str:
    places = f"{share.slots:,} slots and {share.hour_files:,} hour files"
    return f"{share.frames:,} frames in {places}, {share.bytes:,} bytes"


def _lines_json(lines: Mapping[bytes, int]) -> Json:
    return {name: lines.get(kind, 0) for kind, name in _KINDS.items()}


def _lines(lines: Mapping[bytes, int]) -> str:
    told = ", ".join(f"{lines.get(k, 0):,} {name}" for k, name in _KINDS.items())
    return told.replace("_", " ")


def _damage(damage: Damage) -> str:
    slot = ""
    if damage.slot is not None:
        slot = f"slot {damage.slot} ({time_text(damage.slot * 1000)}): "
    elif damage.hour is not None:
        slot = f"hour {damage.hour} ({time_text(_hour_ms(damage.hour))}): "
    if damage.first_byte is None:
        return f"{slot}{damage.file}: {damage.why}"
    return f"{slot}{damage.file}: bytes {damage.first_byte} to {damage.end_byte} {damage.why}"


def _hour_ms(hour: int) -> int:
    return hour * HOUR_SLOTS * 1000


def time_text(unix_ms: int) -> str:
    """Return a moment in UTC; a number if it is no date."""
    try:
        return f"{datetime.fromtimestamp(unix_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return f"{unix_ms} ms"


def _side_json(side: Side) -> Json:
    return {
        "directory": side.directory,
        "offsets": side.progress.offsets,
        "forgotten_step": None if side.forgotten is None else side.forgotten.step,
    }


def _named(name: SegmentName) -> Json:
    return {"hour" if name.is_hour else "slot": name.number, "generation": name.generation}
