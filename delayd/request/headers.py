"""The headers of a request: their names, their size, and reading them as text."""

from difflib import get_close_matches
from typing import Final

from delayd.bus import Headers
from delayd.request.reasons import Reason, RefusedError, quoted
from replication.rules import knows_local_times, knows_reschedule, knows_series, knows_wishes
from replication.settings import RULES_VERSION

HEADER_PREFIX: Final = "delayd-"
"""Prefix of header names; fixed, unlike the prefix of delayd's topics."""

SUPPORTED_HEADERS: Final = (
    "delayd-topic",
    "delayd-due",
    "delayd-delay",
    "delayd-level",
    "delayd-key",
    "delayd-partition",
    "delayd-op",
    "delayd-id",
    "delayd-redrive",
)
WISH_HEADERS: Final = ("delayd-receipt", "delayd-late", "delayd-window")
"""Headers that say how a message is handled beside its delivery, since rules version 5. To older
rules they are unknown."""

SERIES_HEADERS: Final = ("delayd-cron", "delayd-zone", "delayd-until", "delayd-catchup")
"""Headers of a series, since rules version 6."""

RESCHEDULE_HEADERS: Final = ("delayd-by",)
"""Headers of a reschedule, since rules version 7."""

DEBOUNCE_HEADERS: Final = ("delayd-max-wait",)
"""Headers of a debounce, since rules version 7."""

GROUP_HEADERS: Final = ("delayd-group",)
"""The header that names what a message belongs to, a wish since rules version 7."""

PLANNED_BEFORE_SERIES: Final = ("delayd-cron", "delayd-zone", "delayd-until")
"""Headers that the wire contract reserves, and rules older than 6 do not support."""

PLANNED_BEFORE_WISHES: Final = (*PLANNED_BEFORE_SERIES, "delayd-late")
"""The same of rules older than 5."""

INTERNAL_HEADERS: Final = (
    "delayd-continues",
    "delayd-continues-due",
    "delayd-next-due",
    "delayd-digest",
    "delayd-proof",
)
"""Headers of records that the master writes to the buffer. A record with one of them is internal,
and needs a valid proof."""

SETTLES: Final = "delayd-settles"
"""The internal header of a record of settlements (`settlements.py`); no header of any record by
rules older than 4."""

WRITTEN_HEADERS: Final = (
    "delayd-fired",
    "delayd-source",
    "delayd-origin",
    "delayd-attempt",
    "delayd-occurrence",
    "delayd-reason",
    "delayd-detail",
    "delayd-truncated",
)
"""Headers that delayd writes on deliveries and dead letters. A request that has one is such a
record, sent back unchanged."""

PLANNED_TIME: Final = "delayd-planned"
"""The same, since rules version 5; to older rules it is any unknown header."""

LOCAL_TIME: Final = "delayd-local"
"""The same, since rules version 7."""

UNREADABLE_HEADERS: Final = "delayd-unreadable-headers"
"""The header that a driver returns in place of headers whose names are not UTF-8."""

RECORD_ALLOWANCE_BYTES: Final = 128
"""Kafka's record batch header (61) and the longest record fields (36), rounded up."""

HEADER_ALLOWANCE_BYTES: Final = 10
"""The two longest length fields of a header."""

REDRIVE_MARGIN_BYTES: Final = 1024
"""How much larger a redrive may be than the request that died: it names its source, and has an
absolute due time in place of a short delay. It stays far below INTERNAL_MARGIN_BYTES, because a
retry of the redrive is an internal record."""


def size_of(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return the bytes that count against `record_bytes_max`: those of the decompressed record and
    an allowance."""
    size = RECORD_ALLOWANCE_BYTES + HEADER_ALLOWANCE_BYTES * len(headers)
    if key is not None:
        size += len(key)
    if value is not None:
        size += len(value)
    for name, content in headers:
        size += len(name) if name.isascii() else len(name_bytes(name))
        if content is not None:
            size += len(content)
    return size


def name_bytes(name: str) -> bytes:
    """Return the bytes of a header name, even if it is not UTF-8, so that it can be counted."""
    return name.encode("utf-8", "surrogatepass")


def check_names(headers: Headers) -> None:
    """Refuse a header name that is not UTF-8."""
    for name, _ in headers:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise RefusedError(
                Reason.NOT_UTF8, f"the header name {quoted(name)} is not UTF-8: encode it as UTF-8"
            ) from error


_SUPPORTED: Final = frozenset(SUPPORTED_HEADERS)
_WITH_WISHES: Final = frozenset((*SUPPORTED_HEADERS, *WISH_HEADERS))
_WITH_SERIES: Final = frozenset((*SUPPORTED_HEADERS, *WISH_HEADERS, *SERIES_HEADERS))
_WITH_RESCHEDULE: Final = _WITH_SERIES.union(RESCHEDULE_HEADERS, GROUP_HEADERS, DEBOUNCE_HEADERS)


def headers_known(rules_version: int) -> frozenset[str]:
    """Return the headers that a request may have."""
    if knows_reschedule(rules_version):
        return _WITH_RESCHEDULE
    if knows_series(rules_version):
        return _WITH_SERIES
    return _WITH_WISHES if knows_wishes(rules_version) else _SUPPORTED


def fields_of(
    asked: Headers, known: frozenset[str], rules_version: int = RULES_VERSION
) -> dict[str, str]:
    """Return the `delayd-*` headers as text. Refuse one that is unknown, repeated, null, empty or
    not UTF-8."""
    fields: dict[str, str] = {}
    for name, content in asked:
        if name not in known:
            raise _unsupported(name, rules_version)
        if name in fields:
            raise RefusedError(
                Reason.REPEATED_HEADER, f"the header {name} is there more than once: send it once"
            )
        if not content:
            if content is None:
                raise RefusedError(
                    Reason.NULL_HEADER, f"the header {name} is null: give it a value or omit it"
                )
            raise RefusedError(
                Reason.EMPTY_HEADER, f"the header {name} is empty: give it a value or omit it"
            )
        try:
            fields[name] = content.decode()
        except UnicodeDecodeError as error:
            raise RefusedError(
                Reason.NOT_UTF8,
                f"the header {name} is not UTF-8 (byte {error.start}): encode it as UTF-8 text",
            ) from error
    return fields


def _unsupported(name: str, rules_version: int) -> RefusedError:
    if name in INTERNAL_HEADERS:
        return RefusedError(
            Reason.BAD_PROOF, f"the header {name} is the master's own: leave it out"
        )
    # As it was under older rules, for a detail is the same on all replicas.
    wishes: tuple[str, ...] = WISH_HEADERS if knows_wishes(rules_version) else ()
    planned: tuple[str, ...] = PLANNED_BEFORE_SERIES if wishes else PLANNED_BEFORE_WISHES
    if knows_series(rules_version):
        wishes, planned = WISH_HEADERS + SERIES_HEADERS, ()
    if knows_reschedule(rules_version):
        wishes += RESCHEDULE_HEADERS + GROUP_HEADERS + DEBOUNCE_HEADERS
    if name in planned:
        return RefusedError(
            Reason.NOT_SUPPORTED,
            f"the header {name} is not supported by rules version {rules_version}, which this"
            " cluster runs: leave it out, or upgrade the cluster",
        )
    is_written = name in WRITTEN_HEADERS or (wishes and name == PLANNED_TIME)
    if is_written or (knows_local_times(rules_version) and name == LOCAL_TIME):
        return RefusedError(
            Reason.UNKNOWN_HEADER,
            f"the header {name} is one that delayd writes, a request may not carry it: when you"
            " send a delivered record or a dead letter again, drop its delayd-* headers first",
        )
    if name == UNREADABLE_HEADERS:
        return RefusedError(
            Reason.NOT_UTF8,
            "a header name of the record is not UTF-8, so none of its headers can be read: encode"
            " header names as UTF-8",
        )
    supported = SUPPORTED_HEADERS + wishes
    known = [known.removeprefix(HEADER_PREFIX) for known in supported + planned]
    nearest = get_close_matches(name.removeprefix(HEADER_PREFIX)[:64].lower(), known, n=1)
    hint = (
        f"did you mean {HEADER_PREFIX}{nearest[0]}?"
        if nearest
        else f"known are {', '.join(supported)}"
    )
    return RefusedError(
        Reason.UNKNOWN_HEADER,
        f"the header {quoted(name)} is unknown, and names that start with delayd- are reserved:"
        f" {hint}",
    )
