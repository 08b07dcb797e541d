"""From a row of the source to a request, as the mapping of the import says. Pure.

What is one field alone, and that field is missing or null, is left out; in other texts that is a
problem of the row, and so it is for the value. Without `value` the row itself is the value.

Source: docs/guides/importing.md.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final, NamedTuple

from delayd.client.asking import Ask, Content, Moment, Options, UserHeaders, ask
from delayd.client.errors import RequestRefusedError
from delayd.config.import_mapping import ImportMapping, MissingError, Text, mapping_in
from delayd.request import Op
from delayd.request.reasons import RefusedError
from delayd.request.times import delay_ms_of, due_ms_of, is_local

PER_MS: Final = {
    "s": Decimal(1_000),
    "ms": Decimal(1),
    "us": Decimal(1) / 1_000,
    "ns": Decimal(1) / 1_000_000,
}
"""By the unit of a due time that is a number."""
DIGITS_MAX: Final = 40


class RowError(Exception):
    """A row that is no request, and why."""


class Row(NamedTuple):
    """One message of the source."""

    position: str
    """Behind it, as the source takes it."""
    name: str
    """Where it is, for people: `line 7`."""
    fields: Mapping[str, Any]
    """By name; a field may hold fields."""
    value: bytes | None
    """The row itself."""
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    """What a record of Kafka had."""
    problem: str | None = None
    """Why it cannot be read; the rest is empty then."""


def mapping_of(file: Path) -> "RowMapping":
    """Return the mapping of a file. ConfigError."""
    return RowMapping(mapping_in(file))


class RowMapping:
    """Makes requests of rows."""

    def __init__(self, mapped: ImportMapping) -> None:
        self._mapped = mapped
        self._texts = {name: Text(text) for name, text in mapped.texts().items()}
        self._headers = {name: Text(text) for name, text in mapped.headers.items()}

    def ask(self, row: Row, buffer: str, begun_ms: int) -> Ask:
        """Return the request, with its receipts. RowError; RequestRefusedError if delayd would
        reject it. A delay counts from `begun_ms`.

        It replaces: a replace that is sent twice is known again when the message is due, and when
        it has been delivered; a schedule is not."""
        if row.problem is not None:
            raise RowError(row.problem)
        try:
            return self._ask(row, buffer, begun_ms)
        except RequestRefusedError:
            raise
        except (
            RecursionError,
            TypeError,
            ValueError,
        ) as error:  # of fields that nobody would write
            raise RowError(f"it cannot be read: {error}") from error

    def _ask(self, row: Row, buffer: str, begun_ms: int) -> Ask:
        topic, id = self._needed("topic", row), self._needed("id", row)
        options = Options(receipts=True, key=self._key(row), headers=self._headers_of(row))
        if self._mapped.due is not None:
            options["at"] = self._due(row)
        else:
            options["at"] = begun_ms + self._delay_ms(row)
        for name in ("group", "late", "window"):
            if (text := self._text(name, row)) is not None:
                options[name] = text
        if (partition := self._text("partition", row)) is not None:
            if not (partition.isdigit() and partition.isascii()):
                raise RowError(f"the partition {partition[:40]!a} is no number")
            options["partition"] = int(partition)
        return ask(buffer, topic, self._value(row), id=id, op=Op.REPLACE, **options)

    def _text(self, name: str, row: Row) -> str | None:
        text = self._texts.get(name)
        return None if text is None else _filled(text, row)

    def _needed(self, name: str, row: Row) -> str:
        found = self._text(name, row)
        if not found:
            raise RowError(f"it has no {name}: {self._mapped.texts()[name]} is missing")
        return found

    def _delay_ms(self, row: Row) -> int:
        try:
            return delay_ms_of(self._needed("delay", row).strip())
        except RefusedError as error:
            raise RowError(error.detail) from error

    def _due(self, row: Row) -> Moment:
        text = self._needed("due", row).strip()
        if not text.replace(".", "", 1).isdigit():
            if is_local(text):
                raise RowError(f"the due time {text} has no offset: write it like {text}+01:00")
            return text
        if len(text) > DIGITS_MAX:
            raise RowError(f"the due time {text[:40]!a} has more than {DIGITS_MAX} digits")
        try:
            exact = Decimal(text) * PER_MS[self._mapped.unit]
        except InvalidOperation as error:
            raise RowError(f"the due time {text!a} is no number") from error
        due_ms = int(exact.to_integral_value(ROUND_CEILING))  # never early
        try:
            return due_ms_of(str(due_ms))
        except RefusedError as error:
            unit = self._mapped.unit
            raise RowError(f'the due time {text} is no time in "{unit}": is unit right?') from error

    def _key(self, row: Row) -> str | bytes | None:
        return row.key if self._mapped.key is None else self._text("key", row)

    def _value(self, row: Row) -> str | bytes | None:
        if self._mapped.value is None:
            return row.value
        text = self._text("value", row)
        if text is None:
            raise RowError(f"it has no value: {self._mapped.value} is missing")
        if self._mapped.encoding == "text":
            return text
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise RowError("its value is not base64") from error

    def _headers_of(self, row: Row) -> UserHeaders:
        pairs: list[tuple[str, Content]] = [*row.headers]
        for name, text in self._headers.items():
            if (content := _filled(text, row)) is not None:
                pairs.append((name, content))
        return pairs


def _filled(text: Text, row: Row) -> str | None:
    try:
        return text.of(row.fields)
    except MissingError as error:
        raise RowError(str(error)) from error
