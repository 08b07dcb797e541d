"""The mapping file of `delayd import`: how a row of another system becomes a request.

    topic = "orders"            id = "legacy-{id}"          due = "{run_at}"      unit = "s"
    key = "{customer.id}"       value = "{payload}"         encoding = "base64"
    [headers]
    origin = "legacy"

A value is a text with fields of the row in braces; `{{` and `}}` are braces. A field of a field is
`{a.b}`.

Source: docs/guides/importing.md.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from string import Formatter
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from delayd.config.security import problems_of, read_toml
from delayd.errors import ConfigError


class MissingError(Exception):
    """A row lacks a field of a text that is more than this field."""


class Text:
    """A text with fields of a row."""

    def __init__(self, text: str) -> None:
        """ValueError if braces do not match, or hold more than a name."""
        self._parts: list[tuple[str, str | None]] = []
        for literal, name, spec, conversion in Formatter().parse(text):
            if spec or conversion or name == "":
                raise ValueError(f"{text!r}: braces hold the name of a field, and nothing else")
            self._parts.append((literal, name))

    @property
    def is_one_field(self) -> bool:
        """Return whether it is one field, and nothing else."""
        return len(self._parts) == 1 and self._parts[0][0] == "" and self._parts[0][1] is not None

    def of(self, fields: Mapping[str, Any]) -> str | None:
        """Return the text; None if it is one field, which is missing. MissingError."""
        made = []
        for literal, name in self._parts:
            made.append(literal)
            if name is None:
                continue
            found = _field(fields, name)
            if found is None:
                if self.is_one_field:
                    return None
                raise MissingError(f"the field {name} is missing")
            made.append(found if isinstance(found, str) else _json(found))
        return "".join(made)


class ImportMapping(BaseModel):
    """The file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    topic: str
    id: str
    due: str | None = None
    delay: str | None = None
    unit: Literal["s", "ms", "us", "ns"] = "ms"
    key: str | None = None
    value: str | None = None
    encoding: Literal["text", "base64"] = "text"
    group: str | None = None
    late: str | None = None
    window: str | None = None
    partition: str | None = None
    headers: dict[str, str] = {}

    @model_validator(mode="after")
    def _has_one_time(self) -> "ImportMapping":
        if (self.due is None) == (self.delay is None):
            raise ValueError("give exactly one of due and delay")
        for text in (*self.headers.values(), *self.texts().values()):
            Text(text)
        return self

    def texts(self) -> dict[str, str]:
        """Return the texts by name, without headers."""
        fixed = {"unit", "encoding", "headers"}
        return self.model_dump(exclude=fixed, exclude_none=True)


def mapping_in(file: Path) -> ImportMapping:
    """Return the mapping of a file. ConfigError."""
    values = read_toml(file)
    try:
        return ImportMapping(**values)
    except ValidationError as error:
        raise ConfigError(
            f"{file}: {'; '.join(problems_of(error))}",
            remedy="correct it; docs/guides/importing.md has the keys",
        ) from error


def _field(fields: Mapping[str, Any], name: str) -> Any:
    if name in fields:  # a name may have dots itself
        return fields[name]
    first, _, rest = name.partition(".")
    inner = fields.get(first)
    return _field(inner, rest) if rest and isinstance(inner, Mapping) else None


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
