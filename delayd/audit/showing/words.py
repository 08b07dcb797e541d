"""Numbers, times and other people's text, as the table and the page both write them. Pure."""

from datetime import UTC, datetime, timedelta
from typing import Final

from delayd.audit.judging.faults import Fault
from delayd.audit.report import Fates, Report
from delayd.runtime.visible import visible

NAME_CHARS_MAX: Final = 64
"""Of nodes and sources, in tables and where the mouse rests."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def count_text(count: int) -> str:
    """Return a count with thousands apart: 1,234,567."""
    return f"{count:,}"


def short_count(count: float) -> str:
    """Return a count for axes and narrow places: 950, 1.2k, 34k, 5.6M."""
    for unit, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size * 0.9995:
            scaled = count / size
            text = f"{scaled:.1f}".removesuffix(".0") if scaled < 9.95 else f"{scaled:.0f}"
            return text + unit
    return f"{count:.0f}" if count >= 10 or count == int(count) else f"{count:.1f}"


def large_count(count: int) -> str:
    """Return a count for a heading: exact below a million, three digits above it."""
    if count < 1_000_000:
        return count_text(count)
    for unit, size in (("M", 10**6), ("G", 10**9), ("T", 10**12)):
        if count < 999.5 * size:
            return f"{count / size:.3g}{unit}"
    return f"{count / 10**12:.0f}T"


def duration_text(ms: int) -> str:
    """Return the two largest units that matter: 0 ms, 12 ms, 1.25 s, 3 min 12 s, 2 h 5 min, 3 d 4
    h."""
    if ms < 0:
        return f"-{duration_text(-ms)}"
    if ms < 1000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms / 1000:.3g} s" if ms < 59_950 else "60 s"
    seconds = round(ms / 1000)
    for larger, size, smaller, part in (
        ("d", 86_400, "h", 3600),
        ("h", 3600, "min", 60),
        ("min", 60, "s", 1),
    ):
        if seconds >= size:
            rest = seconds % size // part
            return f"{seconds // size} {larger}" + (f" {rest} {smaller}" if rest else "")
    return f"{seconds} s"


def moment_of(ms: int) -> datetime | None:
    """Return the time, UTC; None if it is beyond what a calendar has (a target's headers may say
    anything)."""
    try:
        return _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return None


def time_text(ms: int) -> str:
    """Return 2026-11-21 19:30:12.345, in UTC; the bare number if no calendar has it."""
    moment = moment_of(ms)
    if moment is None:
        return f"{ms} ms"
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}"


def second_text(ms: int) -> str:
    """Return the time without its fraction."""
    return time_text(ms).rsplit(".", 1)[0]


def span_text(from_ms: int, to_ms: int) -> str:
    """Return 2026-11-21 10:30:00 to 11:00:00 UTC."""
    first, last = second_text(from_ms), second_text(to_ms)
    return f"{first} to {last[11:] if first[:10] == last[:10] else last} UTC"


_FATES: Final = (
    ("delivered", "delivered", "It is in its target."),
    ("cancelled", "cancelled", "A cancel came in time."),
    ("replaced", "replaced", "A replace came in time."),
    ("rejected", "rejected", "It broke a rule, and was dead-lettered with the reason."),
    ("duplicate", "refused as duplicate", "The same was pending under the id, or redriven before."),
    ("conflict", "refused as conflict", "Something else was pending under the id."),
    ("expired", "expired", "A step came to it later than `delayd-late` allows."),
    ("dead", "dead", "Its target refused it until the retries were used up."),
    (
        "recurring",
        "recurring",
        "It asked for a series; each occurrence counts by itself.",
    ),
    ("pending", "pending", "Not due yet at the cut."),
    ("lost", "lost", "It was due, and it is nowhere."),
    ("unproven", "unproven", "Kafka may have deleted what would prove it."),
)


def fates_of(fates: Fates) -> list[tuple[str, str, int, str]]:
    """Return (field of Fates, name for people, count, meaning), in the order of the table."""
    return [(field, name, getattr(fates, field), meaning) for field, name, meaning in _FATES]


def gap_text(gap_ms: int | None) -> str:
    """Return for how long no master delivered."""
    return "no delivery since" if gap_ms is None else duration_text(gap_ms)


MUST_BE_0: Final = (("lost", "lost"), ("duplicate", "doubled"), ("early", "early"))
"""The faults that everybody asks for, and their names for people."""
ALWAYS_SAID: Final = ("delivered", "cancelled")


def verdict_sentence(report: Report) -> str:
    """Return what became of all requests, and the three numbers that must be 0, in one sentence."""
    fates = report.fates
    came_to = [
        f"{count_text(count)} {name}"
        for field, name, count, _ in fates_of(fates)
        if field != "lost" and (count or field in ALWAYS_SAID)
    ]
    wrong = [f"{count_text(report.count(fault))} {name}" for fault, name in MUST_BE_0]
    plural = "request" if fates.accepted == 1 else "requests"
    return f"{count_text(fates.accepted)} {plural}: {', '.join([*came_to, *wrong])}."


def wrong_sentence(report: Report) -> str:
    """Return how much is wrong, or that nothing is."""
    if report.ok:
        return "Nothing is wrong."
    total, kinds = sum(count for _, count in report.found), len(report.found)
    findings = "1 finding" if total == 1 else f"{count_text(total)} findings"
    return f"{findings} of {'1 kind' if kinds == 1 else f'{kinds} kinds'}."


def meaning_of(slug: str) -> str:
    """Return what a fault means; nothing of one that this version does not know."""
    return next((fault.meaning for fault in Fault if fault.slug == slug), "")


def owner_name(owner: str) -> str:
    """Return the node of an owner, which is `node/nonce`."""
    return visible(owner.rsplit("/", 1)[0], NAME_CHARS_MAX)


def place_text(topic: str | None, partition: int | None, offset: int | None) -> str:
    """Return topic/partition@offset, as far as it is known."""
    text = "" if topic is None else visible(topic)
    if partition is not None:
        text += f"/{partition}"
    return text if offset is None else f"{text}@{offset}"
