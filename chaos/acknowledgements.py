"""Comparison of the log with its acknowledgements. Pure: a history and records in, faults out.

    acknowledged, alone or in a committed transaction   in the log, at its place, as it was sent
    in an aborted transaction                           not in the log
    doubtful, or the transaction's end is unknown       in the log or not
    in the log                                          sent by somebody, at least as often, or
                                                        written by the bridge (bridges.py)
    received                                            not before it was due; never taken back

Not here: what became of a request that is in the log (judge.py).
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from chaos.bridges import CAUSE
from chaos.history import NO_TRANSACTION, History, Sent, What
from chaos.records import Logged

Content = tuple[bytes | None, bytes | None]
"""Key and value: what tells requests apart."""


def acknowledgement_faults(history: History, requests: Iterable[Logged]) -> list[str]:
    """Return a sentence for each fault; `requests` are the committed records of the buffer."""
    own = {r.place: r for r in requests if r.header("delayd-origin") is None}
    faults = []
    sent: Counter[Content] = Counter()
    for request in history.requests():
        sent[request.key, request.value] += 1
        faults += _of_one(history, request, own)
    asked = [r for r in own.values() if not (r.is_settlement or r.is_barrier or r.is_order)]
    asked = [record for record in asked if record.header(CAUSE) is None]
    logged = Counter((r.key, r.value) for r in asked)
    faults += [
        f"{key!r} {value!r} is {count} times in the log, and was sent {sent[key, value]} times"
        for (key, value), count in logged.items()
        if count > sent[key, value]
    ]
    return faults


def _of_one(history: History, request: Sent, own: Mapping[str, Logged]) -> list[str]:
    if request.place is None:
        return []
    found = own.get(request.place)
    is_it = found is not None and (found.key, found.value) == (request.key, request.value)
    how = What.COMMITTED
    if request.transaction != NO_TRANSACTION:
        how = history.transaction(request.transaction)
    told = f"{request.place}: {request.key!r} {request.value!r} of {request.client}"
    if how is What.COMMITTED and not is_it:
        return [f"{told} was acknowledged, and the log has there {found}"]
    if how is What.ABORTED and is_it:
        return [f"{told} was taken back, and is in the log"]
    return []


def reception_faults(
    history: History, due_ms_of: Mapping[str, int], committed: Iterable[Logged]
) -> list[str]:
    """Return a sentence for each fault. `due_ms_of` is by source, retries too; `committed` is
    all that consumers may have received."""
    there = {(record.topic, record.place) for record in committed}
    faults = []
    for at_ms, client, topic, place, source in history.receipts():
        if (topic, place) not in there:
            faults.append(f"{topic} {place}: {client} received it, and it is not there")
        if (early_ms := due_ms_of.get(source or "", 0) - at_ms) > 0:
            faults.append(f"{source}: early: {client} received it {early_ms} ms before it was due")
    return faults
