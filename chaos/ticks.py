"""Series that come every few seconds: none of their occurrences is left out, or invented. Pure.

It knows expressions of the form `*/N * * * * *` alone, where N divides 60. What became of each
occurrence, judge.py says; the audit evaluates every expression.
Source: docs/reference/requests.md, "Series".
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise

from chaos.records import Logged

EXPRESSION = re.compile(r"\*/(\d+)( \*){5}")


def tick_faults(requests: Iterable[Logged]) -> list[str]:
    """Return a sentence for each series whose occurrences are not those that it asks for."""
    requests = list(requests)
    cancelled = {r.fields["id"] for r in requests if r.fields.get("op") == "cancel"}
    occurrences: dict[str, dict[int, Mapping[str, str]]] = defaultdict(dict)
    for record in sorted(requests, key=lambda each: (each.partition, each.offset)):
        fields = record.fields
        if {"cron", "occurrence"} <= fields.keys():
            # The last record of an occurrence counts: a later one takes the place of those missed.
            occurrences[fields["origin"]][int(fields["occurrence"])] = fields
    faults = []
    for record in requests:
        cron = EXPRESSION.fullmatch(record.fields.get("cron", ""))
        if cron is not None and "origin" not in record.fields:
            is_cut = record.fields.get("id") in cancelled
            told = _problem(record, int(cron[1]) * 1_000, occurrences[record.place], is_cut)
            faults += [f"{record.place}: {told}: {record.fields}"] if told else []
    return faults


def _problem(
    record: Logged, step_ms: int, found: Mapping[int, Mapping[str, str]], is_cut: bool
) -> str:
    """Return what is wrong with the occurrences of a series; nothing if nothing is. `is_cut`:
    something cancels it."""
    dues_ms = [int(found[number]["due"]) for number in sorted(found)]
    until_ms = int(record.fields["until"])
    if [*found] != [*range(1, len(found) + 1)]:
        return f"its occurrences are {[*found]}"
    if any(due_ms % step_ms or due_ms > until_ms for due_ms in dues_ms):
        return f"it is not due at {dues_ms}"
    if any(later <= earlier for earlier, later in pairwise([record.append_ms, *dues_ms])):
        return f"it does not go forward: {dues_ms}"
    first_ms = record.append_ms - record.append_ms % step_ms + step_ms
    if record.fields.get("catchup") == "all":
        wanted = [*range(first_ms, until_ms + 1, step_ms)]
        if dues_ms != (wanted[: len(dues_ms)] if is_cut else wanted):
            return f"it is due at {wanted}, and not {dues_ms}"
    if not is_cut and dues_ms[-1:] != [until_ms - until_ms % step_ms]:
        return f"it ends with {dues_ms[-1:]}"
    return ""
