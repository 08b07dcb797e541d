"""How long deliveries were late after each strike. Pure: records in, times out.

Judged by the broker's clock: the append time of a record in a target (which must be LogAppendTime)
against its due time, with a window its planned time, or the append time of its request if that is
later. An outage is when most of what is due within a BIN_MS comes late: single messages do because
a user's open transaction hides them. By due times and not by arrivals: what has waited comes
together with what is just due, which may be more. Retried ones are left aside, for their targets
were at fault.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from chaos.asked import read_asked
from chaos.records import Logged

LATE_MS: Final = 1_000
"""What comes later than this is late."""

BIN_MS: Final = 250


@dataclass(frozen=True, slots=True)
class Recovery:
    """After a strike, until the next: how long the outage was, and how late the latest message."""

    strike: str
    at_ms: int
    late_for_ms: int
    """From the strike to the last delivery of the late bins; 0 if there are none."""
    lateness_max_ms: int


def recoveries(
    strikes: Sequence[tuple[str, int]], requests: Iterable[Logged], delivered: Iterable[Logged]
) -> list[Recovery]:
    """Return one for each strike (what, Unix ms), which are in order."""
    asked = {record.place: record for record in requests}
    times = [at_ms for _, at_ms in strikes]
    bins: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    lateness_ms = [0] * len(times)
    for record in delivered:
        request = asked.get(record.header("delayd-source") or "")
        if request is None or request.header("delayd-origin") is not None:
            continue
        due_ms, *_ = read_asked(request, int(request.header("delayd-due") or "")).rank
        late_ms = record.append_ms - due_ms
        number = bisect_right(times, record.append_ms) - 1
        if number < 0:
            continue
        lateness_ms[number] = max(lateness_ms[number], late_ms)
        bins[number, due_ms // BIN_MS].append((late_ms, record.append_ms))
    late_for_ms = [0] * len(times)
    for (number, _), came in bins.items():
        if quantile([late_ms for late_ms, _ in came], 0.5) > LATE_MS:
            last_ms = max(append_ms for _, append_ms in came)
            late_for_ms[number] = max(late_for_ms[number], last_ms - times[number])
    return [
        Recovery(what, at_ms, late_for_ms[number], lateness_ms[number])
        for number, (what, at_ms) in enumerate(strikes)
    ]


def quantile(values: Sequence[int], share: float) -> int:
    """Return the nearest rank; 0 of nothing."""
    return sorted(values)[round(share * (len(values) - 1))] if values else 0
