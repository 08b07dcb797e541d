"""Headers of a batch of records, all at once: whose they are, their text, what is wrong. Pure.

Everything is flat: one entry per header, in the order of records and of headers in each. The rules
are those of docs/reference/requests.md, written down a second time: an audit that used the node's
parser would share its mistakes.

A header of delayd's is *readable*, and then its text is in `control`, if it is there once, not
empty, and UTF-8. `flaw` is the first problem of those that are delayd's, in their order; of one
header the name is judged first, then whether it was there before, then its content:

| role | whose names are allowed | slugs |
|---|---|---|
| `buffer` | requests'; of the master's own records, theirs | the reasons of rejects |
| `target` | delivered records' | the same; `misplaced-header` if not last or in order |
| `dead` | only what was appended is judged | the same; `no-letter` if that is incomplete |
| `receipts`, `frontier` | any | the same |

Requests are judged four times: `older_flaw` is by rules older than 5, which know fewer headers,
`flaw_of_5` and `flaw_of_6` by these.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from delayd.audit.tables import CONTROL_HEADERS, INTERNAL_HEADERS

Bools: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.int64]

PREFIX: Final = "delayd-"
UNREADABLE: Final = f"{PREFIX}unreadable-headers"
"""In place of all headers of a record with a name that is not UTF-8."""

UNREAD: Final = f"{PREFIX}\0unread"
"""The only header of what stands for an unreadable batch. No record has it: the name would end at
its NUL."""

_REQUEST: Final = ("topic", "due", "delay", "level", "key", "partition", "op", "id", "redrive")
_WISHES: Final = ("receipt", "late", "window")
"""Requests may have them since rules version 5."""
_SERIES: Final = ("cron", "zone", "until", "catchup")
"""Requests may have them since rules version 6."""
_MOVES: Final = ("by", "max-wait")
_GROUP: Final = ("group",)
"""Requests may have these since rules version 7."""
_PLANNED: Final = ("cron", "zone", "until", "late")
_CONTINUED: Final = (
    *("topic", "due", "id", "key", "partition", "origin", "attempt", "turn"),
    *("occurrence", "series", "follows", "moved", "moved-by", "local", "resolved"),
)
_DELIVERED: Final = (
    *("id", "group", "due", "planned", "fired", "source", "origin", "attempt", "occurrence"),
    "local",
)
_APPENDED: Final = ("reason", "detail", "source", "truncated", "origin", "attempt", "occurrence")
_APPENDED_ALWAYS: Final = 3

_CODE: Final = {name: code for code, name in enumerate(CONTROL_HEADERS)}
_UNKNOWN: Final = len(CONTROL_HEADERS)
_NO_NAME: Final = _UNKNOWN + 1
_USER: Final = _NO_NAME + 1
_UNREAD: Final = _USER + 1
_CODES: Final = _UNREAD + 1

SLUGS: Final = (
    *("", "unknown-header", "not-supported", "not-utf8"),
    *("repeated-header", "null-header", "empty-header", "misplaced-header", "no-letter"),
    "unreadable-batch",
)
_SLUG: Final = {slug: number for number, slug in enumerate(SLUGS)}
_SLUG_TEXTS: Final = pa.array([None, *SLUGS[1:]], pa.utf8())


def _by_name(allowed: Iterable[str], planned: Iterable[str] = ()) -> Ints:
    """Return what is wrong with a header by its name alone, for each code."""
    wrong = np.full(_CODES, _SLUG["unknown-header"], np.int64)
    wrong[[_CODE[name] for name in planned]] = _SLUG["not-supported"]
    wrong[[_CODE[name] for name in allowed]] = 0
    wrong[_NO_NAME] = _SLUG["not-utf8"]
    wrong[_USER] = 0
    wrong[_UNREAD] = _SLUG["unreadable-batch"]
    return wrong


_OF_REQUESTS: Final = _by_name((*_REQUEST, *_WISHES, *_SERIES, *_MOVES, *_GROUP))
_OF_REQUESTS_OF_6: Final = _by_name((*_REQUEST, *_WISHES, *_SERIES))
_OF_REQUESTS_OF_5: Final = _by_name((*_REQUEST, *_WISHES), _PLANNED)
_OF_OLDER_REQUESTS: Final = _by_name(_REQUEST, _PLANNED)
_OF_INTERNAL: Final = _by_name(
    (*INTERNAL_HEADERS, *_CONTINUED, *_WISHES, *_SERIES, *_GROUP, "rules", "hold", "quota")
)
_OF_DELIVERED: Final = _by_name(_DELIVERED)
_OF_ANY: Final = _by_name(CONTROL_HEADERS)

_IS_INTERNAL: Final = np.isin(np.arange(_CODES), [_CODE[name] for name in INTERNAL_HEADERS])
_RANK: Final = np.zeros(_CODES, np.int64)
"""Of a delivered record's own headers: which comes when."""
_RANK[[_CODE[name] for name in _DELIVERED]] = range(len(_DELIVERED))


@dataclass(frozen=True, slots=True)
class Flat:
    """The headers of a batch of records."""

    names: Any
    """Arrow text: each different name."""
    name_of: Ints
    """By header: its place in `names`."""
    contents: Any
    """Arrow binary, by header."""
    counts: Ints
    """By record: how many headers it has."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What the headers of a batch come down to."""

    is_user: Bools
    """By header."""
    is_appended: Bools
    """By header: delayd put it behind those of a dead letter's record."""
    control: list[Any]
    """For each of CONTROL_HEADERS: Arrow text by record."""
    flaw: Any
    """Arrow text by record."""
    older_flaw: Any
    """The same of the buffer, by rules older than 5."""
    flaw_of_5: Any
    """The same by rules 5."""
    flaw_of_6: Any
    """The same by rules 6."""
    is_internal: Bools
    """By record: it says that it is the master's own."""
    ends_with_proof: Bools
    """By record: as the master's own do."""


def judge_headers(flat: Flat, role: str) -> Judged:
    """Sort out the headers of a batch of records that have this role."""
    rows = len(flat.counts)
    row_of = np.repeat(np.arange(rows), flat.counts)
    ends = np.cumsum(flat.counts)
    code = _codes(flat.names)[flat.name_of]
    is_user = code == _USER
    is_appended = _appended(code, ends, flat.counts) if role == "dead" else code == _UNREAD
    is_judged = is_appended if role == "dead" else ~is_user

    is_internal = np.zeros(rows, np.bool_)
    is_internal[row_of[_IS_INTERNAL[code]]] = True
    problem = np.zeros(len(code), np.int64)
    control = _texts(flat, code, row_of, is_judged & (code < _UNKNOWN), problem)
    if role == "buffer":
        wrong = np.where(is_internal[row_of], _OF_INTERNAL[code], _OF_REQUESTS[code])
    elif role == "dead":
        wrong = np.zeros_like(code)  # the record's own headers may be wrong: that is why it is dead
    else:
        wrong = (_OF_DELIVERED if role == "target" else _OF_ANY)[code]
    flaw = _first(np.where(wrong != 0, wrong, problem), row_of, rows)
    older_flaw = flaw_of_5 = flaw_of_6 = np.zeros(rows, np.int64)
    if role == "buffer":
        older = np.where(is_internal[row_of], wrong, _OF_OLDER_REQUESTS[code])
        older_flaw = _first(np.where(older != 0, older, problem), row_of, rows)
        of_5 = np.where(is_internal[row_of], wrong, _OF_REQUESTS_OF_5[code])
        flaw_of_5 = _first(np.where(of_5 != 0, of_5, problem), row_of, rows)
        of_6 = np.where(is_internal[row_of], wrong, _OF_REQUESTS_OF_6[code])
        flaw_of_6 = _first(np.where(of_6 != 0, of_6, problem), row_of, rows)
    if role == "target":
        _fill(flaw, "misplaced-header", _misplaced(code, row_of))
    elif role == "dead":
        for name in _APPENDED[:_APPENDED_ALWAYS]:
            missing = np.ones(rows, np.bool_)
            missing[row_of[is_appended & (code == _CODE[name])]] = False
            _fill(flaw, "no-letter", np.flatnonzero(missing))
    has_any = flat.counts > 0
    last = (ends - 1)[has_any]
    ends_with_proof = np.zeros(rows, np.bool_)
    is_null = problem[last] == _SLUG["null-header"]
    ends_with_proof[has_any] = (code[last] == _CODE["proof"]) & ~is_null
    return Judged(
        is_user,
        is_appended,
        control,
        _SLUG_TEXTS.take(pa.array(flaw)),
        _SLUG_TEXTS.take(pa.array(older_flaw)),
        _SLUG_TEXTS.take(pa.array(flaw_of_5)),
        _SLUG_TEXTS.take(pa.array(flaw_of_6)),
        is_internal,
        ends_with_proof,
    )


def _codes(names: Any) -> Ints:
    codes = []
    for name in names.to_pylist():
        if not name.startswith(PREFIX):
            codes.append(_USER)
        elif name == UNREAD:
            codes.append(_UNREAD)
        elif name == UNREADABLE:
            codes.append(_NO_NAME)
        else:
            codes.append(_CODE.get(name[len(PREFIX) :], _UNKNOWN))
    return np.array(codes, np.int64)


def _appended(code: Ints, ends: Ints, counts: Ints) -> Bools:
    """Return what delayd wrote behind a record's headers: of its names, from the end, each once."""
    is_appended = np.zeros(len(code), np.bool_)
    at, begins = ends.copy(), ends - counts
    for name in reversed(_APPENDED):
        open_rows = np.flatnonzero(at > begins)
        found = open_rows[code[at[open_rows] - 1] == _CODE[name]]
        at[found] -= 1
        is_appended[at[found]] = True
    return is_appended


def _texts(flat: Flat, code: Ints, row_of: Ints, is_own: Bools, problem: Ints) -> list[Any]:
    """Return the control columns; put into `problem` what is wrong with contents, by header."""
    rows = len(flat.counts)
    own = np.flatnonzero(is_own)
    contents = flat.contents.take(pa.array(own))
    lengths = np.asarray(pc.fill_null(pc.binary_length(contents), -1))
    problem[own[lengths < 0]] = _SLUG["null-header"]
    problem[own[lengths == 0]] = _SLUG["empty-header"]
    texts = _decoded(contents, own, problem)

    place = row_of[own] * _CODES + code[own]
    times = np.bincount(place, minlength=rows * _CODES)
    is_readable = (problem[own] == 0) & (times[place] == 1)
    if len(times) and times.max() > 1:
        repeated = np.ones(len(own), np.bool_)
        repeated[np.unique(place, return_index=True)[1]] = False
        problem[own[repeated]] = _SLUG["repeated-header"]

    control = [pa.nulls(rows, pa.utf8())] * len(CONTROL_HEADERS)
    own_code = code[own]
    for number in np.flatnonzero(np.bincount(own_code, minlength=_CODES)):
        chosen = np.flatnonzero((own_code == number) & is_readable)
        index = np.full(rows, -1)
        index[row_of[own[chosen]]] = chosen
        control[number] = texts.take(pa.array(index, mask=index < 0))
    return control


def _decoded(contents: Any, own: Ints, problem: Ints) -> Any:
    try:
        return contents.cast(pa.utf8())
    except pa.ArrowInvalid:
        values = contents.to_pylist()
        for at, value in enumerate(values):
            try:
                values[at] = None if value is None else value.decode()
            except UnicodeDecodeError:
                values[at] = None
                problem[own[at]] = _SLUG["not-utf8"]
        return pa.array(values, pa.utf8())


def _first(problem: Ints, row_of: Ints, rows: int) -> Ints:
    """Return the first problem of each record, 0 if there is none."""
    flaw = np.zeros(rows, np.int64)
    at = np.flatnonzero(problem)
    if len(at):
        found, first = np.unique(row_of[at], return_index=True)
        flaw[found] = problem[at[first]]
    return flaw


def _misplaced(code: Ints, row_of: Ints) -> Ints:
    """Return the records in which something foreign follows a header of delayd's."""
    same = row_of[1:] == row_of[:-1]
    before, after = code[:-1], code[1:]
    wrong = same & (before != _USER) & ((after == _USER) | (_RANK[after] <= _RANK[before]))
    misplaced: Ints = row_of[1:][wrong]
    return misplaced


def _fill(flaw: Ints, slug: str, rows: Ints) -> None:
    flaw[rows[flaw[rows] == 0]] = _SLUG[slug]
