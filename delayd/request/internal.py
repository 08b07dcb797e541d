"""Internal records: by them the master requeues a message into the buffer, to go on later.

    key      the id, else the key to deliver
    headers  the user's, then
             delayd-topic, delayd-due (ms, as asked); if the message has them, delayd-id,
             delayd-digest, delayd-key, delayd-partition; then
             delayd-continues      offset of the continued message, in the same partition
             delayd-continues-due  its ranking due, ms
             delayd-next-due       when it is due next, ms
             delayd-origin         source of the user's own request
             delayd-attempt        number of failed attempts; 0 if it was only deferred
             delayd-turn           of a smoothed message only: its turn (replication/smoothing.py)
                                   and its ranking due when it was first deferred, `ms/ms`
             delayd-receipt, delayd-late, delayd-window, delayd-group   if the user's request has
             them
             delayd-cron, delayd-zone, delayd-until, delayd-catchup   of a series; then also
             delayd-occurrence     its number, from 1; delayd-due is when it is due
             delayd-series         on, last or over: what comes after it (`SeriesState`)
             delayd-follows        yes if what it continues was delivered or has died: then it is
                                   the next occurrence, else the same one
             delayd-moved          of an occurrence that was fired: `Series.moved_ms`
             delayd-moved-by       of what a reschedule moves: the offset of that
             delayd-local          of a local time: as it was sent, with its zone,
                                   `2027-03-28T09:00[Europe/Berlin]`
             delayd-resolved       of it: no, expected, final or over (`LocalState`); delayd-due is
                                   what it was resolved to, or the append time of the request
             delayd-proof          last: proves that the master wrote all this, for this partition

A *barrier* switches what is behind it in its partition to another version of the rules
(`replication.rules`). `delayd upgrade rules` writes it:

    headers  delayd-rules          "<version>/<first release of delayd that knows it>"
             delayd-proof          as above

Invariants:
- a record is internal if it has a header that only internal records have; then only a valid proof
  makes it a request;
- `parse_internal` reads back exactly what `continuation` wrote, whatever the limits on users'
  requests are.

Source: docs/design, "The wire contract".
"""

from typing import Final, NamedTuple

from delayd.bus import Headers, Record
from delayd.request.bodies import (
    ASKED_DUE_MS,
    ATTEMPT,
    DIGEST,
    LOCAL,
    SERIES,
    TURN,
    WISHES,
    Body,
    asked_due_of,
    asked_to_go_on,
    attempt_of,
    id_of,
    local_of,
    origin_of,
    series_of,
)
from delayd.request.bodies import (
    wishes_of as wishes_body_of,
)
from delayd.request.grammar import (
    check_id,
    number_of,
    source_partition_of,
    target_of,
    target_partition_of,
    wishes_of,
)
from delayd.request.grammar import (
    series_of as asked_series_of,
)
from delayd.request.headers import (
    GROUP_HEADERS,
    HEADER_PREFIX,
    INTERNAL_HEADERS,
    LOCAL_TIME,
    SERIES_HEADERS,
    SETTLES,
    WISH_HEADERS,
    check_names,
    fields_of,
)
from delayd.request.local_times import STATES, local_in, shown
from delayd.request.proof import DIGEST_BYTES, is_proof, proof_of
from delayd.request.reasons import Reason, RefusedError, quoted
from delayd.request.request import (
    LocalState,
    LocalTime,
    Op,
    Request,
    RequestLimits,
    Series,
    SeriesState,
    Switch,
    Turn,
)

INTERNAL_MARGIN_BYTES: Final = 8 * 1024
"""How much larger an internal record may be than a user's; its own headers need below 1 KiB."""

_INTERNAL = frozenset(INTERNAL_HEADERS)
_FIELDS = frozenset(
    {
        *INTERNAL_HEADERS,
        "delayd-topic",
        "delayd-due",
        "delayd-id",
        "delayd-key",
        "delayd-partition",
        "delayd-origin",
        "delayd-attempt",
        # Alone it does not make a record internal, as before rules version 3: outcomes stay.
        "delayd-turn",
        *WISH_HEADERS,
        *GROUP_HEADERS,
        *SERIES_HEADERS,
        *("delayd-occurrence", "delayd-series", "delayd-follows"),
        *("delayd-moved", "delayd-moved-by"),
        *(LOCAL_TIME, "delayd-resolved"),
    }
)


_STATES: Final = {
    SeriesState.GOES_ON: "on",
    SeriesState.LAST: "last",
    SeriesState.OVER: "over",
}
_STATE_NAMED: Final = {name: state for state, name in _STATES.items()}

_RULES: Final = "delayd-rules"
"""Alone it does not make a record internal: to releases that do not know it, it is an unknown
header, and outcomes stay."""


class BufferRecord(NamedTuple):
    """A record to produce to this partition of the buffer."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def continuation(
    body: Body,
    *,
    partition: int,
    offset: int,
    rank_due_ms: int,
    next_due_ms: int,
    limits: RequestLimits,
    is_retry: bool = True,
    turn: Turn | None = None,
    follows: bool = False,
    moved_by: int = -1,
) -> BufferRecord:
    """Return the record that requeues the message `body` until `next_due_ms`: for its next retry,
    or only deferred, perhaps to its turn; or, of a series, the next occurrence if it `follows`; or
    because the reschedule at offset `moved_by` says so.

    `partition`, `offset` and `rank_due_ms` are of the message that is continued.
    """
    key, value, headers = asked_to_go_on(body)
    if id_of(body) is not None:
        headers.append(("delayd-digest", body[DIGEST].hex().encode()))
    headers.append(("delayd-continues", b"%d" % offset))
    headers.append(("delayd-continues-due", b"%d" % rank_due_ms))
    headers.append(("delayd-next-due", b"%d" % next_due_ms))
    headers.append(("delayd-origin", origin_of(body, partition, offset).encode()))
    headers.append(("delayd-attempt", b"%d" % (attempt_of(body) + is_retry)))
    if turn is not None:
        headers.append(("delayd-turn", b"%d/%d" % turn))
    if (series := series_of(body)) is not None:
        headers.append(("delayd-occurrence", b"%d" % series.occurrence))
        headers.append(("delayd-series", _STATES[SeriesState(series.state)].encode()))
        if follows:
            headers.append(("delayd-follows", b"yes"))
        if series.moved_ms is not None:
            headers.append(("delayd-moved", b"%d" % series.moved_ms))
    if moved_by >= 0:
        headers.append(("delayd-moved-by", b"%d" % moved_by))
    if (local := local_of(body)) is not None:
        headers.append((LOCAL_TIME, shown(local).encode()))
        headers.append(("delayd-resolved", STATES[LocalState(local.state)].encode()))
    return signed(partition, key, value, headers, limits)


def occurrence_body(body: Body, series: Series, due_ms: int) -> Body:
    """Return the message body of an occurrence of a series: `body` is of the one before, or of the
    request."""
    fields = list(body)
    fields[ASKED_DUE_MS], fields[ATTEMPT], fields[SERIES] = due_ms, 0, series
    return fields


def resolved_body(body: Body, local: LocalTime, due_ms: int) -> Body:
    """Return the message body of a local time, resolved to `due_ms`."""
    fields = list(body)
    fields[ASKED_DUE_MS], fields[LOCAL] = due_ms, local
    return fields


def moved_body(body: Body, due_ms: int) -> Body:
    """Return the message body with another due time: exactly then, without its window, and with a
    new turn if its target has a rate. An occurrence keeps its place in its series. A local time is
    none any more."""
    if local_of(body) is not None:
        body = body[:SERIES]
    fields = list(body)
    if len(fields) > TURN:
        fields[TURN] = None
    if len(fields) > WISHES:
        fields[WISHES] = wishes_body_of(body)._replace(window_ms=None)
    series = series_of(body)
    if series is None or series.state == SeriesState.OVER:
        fields[ASKED_DUE_MS] = due_ms
    elif series.occurrence == 0:
        fields[SERIES] = series._replace(moved_ms=due_ms)
    else:
        own_ms = asked_due_of(body) if series.moved_ms is None else series.moved_ms
        fields[ASKED_DUE_MS], fields[SERIES] = due_ms, series._replace(moved_ms=own_ms)
    return fields


def barrier(partition: int, switch: Switch, limits: RequestLimits) -> BufferRecord:
    """Return the record that switches what is behind it in this partition."""
    headers: Headers = [(_RULES, f"{switch.version}/{switch.release}".encode())]
    return signed(partition, None, None, headers, limits)


def signed(
    partition: int, key: bytes | None, value: bytes | None, headers: Headers, limits: RequestLimits
) -> BufferRecord:
    """Return the record with these headers and, behind them, its proof."""
    proof = proof_of(limits, partition, key, value, headers)
    return BufferRecord(partition, key, value, [*headers, ("delayd-proof", proof)])


def is_internal(asked: Headers) -> bool:
    """Return whether one of a record's `delayd-*` headers makes it internal."""
    return any(name in _INTERNAL for name, _ in asked)


def parse_internal(record: Record, asked: Headers, limits: RequestLimits) -> Request:
    """Return the request of an internal record. Refuse one that the master cannot have written.

    `asked` are its `delayd-*` headers. The proof is checked first: a forged record is not read.
    """
    check_proof(record, limits)
    check_names(record.headers)
    for name, content in asked:
        if name == _RULES:
            switch = _switch((content or b"").decode(errors="replace"))
            return Request(Op.SWITCH, None, 0, 0, None, None, [], switch=switch)
    fields = fields_of(asked, _FIELDS)
    id = fields.get("delayd-id")
    check_id(id, Op.CONTINUE, record, limits.partitions)
    topic = target_of(fields, limits.prefix)
    key = fields.get("delayd-key")
    user = [header for header in record.headers if not header[0].startswith(HEADER_PREFIX)]
    return Request(
        Op.CONTINUE,
        topic,
        _number(fields, "delayd-due"),
        _number(fields, "delayd-next-due"),
        record.key if key is None else key.encode(),
        record.value,
        user,
        target_partition_of(fields),
        id,
        _digest(fields),
        _origin(fields),
        _number(fields, "delayd-attempt"),
        (_number(fields, "delayd-continues-due"), _number(fields, "delayd-continues")),
        turn=_turn(fields),
        wishes=wishes_of(fields),
        series=_series(fields),
        moved_by=_number(fields, "delayd-moved-by") if "delayd-moved-by" in fields else -1,
        follows="delayd-follows" in fields,
        local=_local(fields),
    )


def check_proof(record: Record, limits: RequestLimits) -> None:
    """Refuse an internal record that the master did not write for this partition."""
    [*others, (name, proof)] = record.headers
    proved = (limits, record.partition, record.key, record.value, others)
    if name == "delayd-proof" and proof is not None and is_proof(proof, *proved):
        return
    named = next(name for name, _ in record.headers if name in _INTERNAL or name == SETTLES)
    raise RefusedError(
        Reason.BAD_PROOF,
        f"the header {named} is of records that delayd's own master writes, and this one lacks"
        f" their proof for cluster {quoted(limits.cluster)}, partition {record.partition}: send a"
        " plain request without it; if the master wrote this, give all nodes the same cluster key",
    )


def _number(fields: dict[str, str], name: str) -> int:
    number = number_of(fields.get(name, ""))
    if number is None:
        raise _not_as_written(name)
    return number


def _origin(fields: dict[str, str]) -> str:
    origin = fields.get("delayd-origin", "")
    if source_partition_of(origin) is None:
        raise _not_as_written("delayd-origin")
    return origin


def _turn(fields: dict[str, str]) -> Turn | None:
    text = fields.get("delayd-turn")
    if text is None:
        return None
    turn_ms, _, since_ms = text.partition("/")
    numbers = number_of(turn_ms), number_of(since_ms)
    if numbers[0] is None or numbers[1] is None:
        raise _not_as_written("delayd-turn")
    return Turn(numbers[0], numbers[1])


def _series(fields: dict[str, str]) -> Series | None:
    if "delayd-cron" not in fields:
        return None
    asked = asked_series_of({name: fields[name] for name in SERIES_HEADERS if name in fields})
    state = _STATE_NAMED.get(fields.get("delayd-series", ""))
    if asked is None or state is None:
        raise _not_as_written("delayd-series")
    moved_ms = _number(fields, "delayd-moved") if "delayd-moved" in fields else None
    number = _number(fields, "delayd-occurrence")
    return asked._replace(occurrence=number, state=state, moved_ms=moved_ms)


def _local(fields: dict[str, str]) -> LocalTime | None:
    if LOCAL_TIME not in fields:
        return None
    local = local_in(fields[LOCAL_TIME], fields.get("delayd-resolved", ""))
    if local is None:
        raise _not_as_written(LOCAL_TIME)
    return local


def _switch(text: str) -> Switch:
    version, _, release = text.partition("/")
    number = number_of(version)
    if number is None or not release:
        raise _not_as_written(_RULES)
    return Switch(number, release)


def _digest(fields: dict[str, str]) -> bytes:
    text = fields.get("delayd-digest")
    if (text is None) != ("delayd-id" not in fields):
        raise _not_as_written("delayd-digest")
    if text is None:
        return b""
    try:
        digest = bytes.fromhex(text)
    except ValueError as error:
        raise _not_as_written("delayd-digest") from error
    if len(digest) != DIGEST_BYTES:
        raise _not_as_written("delayd-digest")
    return digest


def _not_as_written(name: str) -> RefusedError:
    return RefusedError(
        Reason.BAD_PROOF,
        f"the proof is right, but the header {name} is not as this version writes it: another"
        " program has the cluster key, or the nodes run versions that do not belong together",
    )
