"""What bytes of another system are as fields of a row. Pure."""

import base64
import json
from collections.abc import Mapping
from typing import Any


def text_of(content: bytes | None) -> str | None:
    """Return it as text; None if it is none."""
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        return None


def content_of(content: bytes | None) -> Any:
    """Return it as JSON if it is an object, else as text; None if it is no text."""
    text = text_of(content)
    if text is None or not text.lstrip().startswith("{"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def fields_of(contents: Mapping[str, bytes]) -> dict[str, Any]:
    """Return each by its name, as `content_of` has it; what is no text as `NAME_base64`."""
    fields: dict[str, Any] = {}
    for name, content in contents.items():
        if (made := content_of(content)) is None:
            fields[f"{name}_base64"] = base64.b64encode(content).decode()
        else:
            fields[name] = made
    return fields
