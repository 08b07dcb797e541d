"""Dead letters and outcomes as text. Pure.

Invariant: a terminal gets only printable characters of a text that a stranger wrote.
"""

from collections import Counter
from datetime import UTC, datetime
from typing import Final

from delayd.client.redrive_outcomes import Outcome
from delayd.request.letters import Letter

TEXT_CHARS_MAX: Final = 80
"""How much of a stranger's text a line shows."""

VALUE_CHARS_MAX: Final = 4_000
"""How much of a value a terminal shows; the JSON has all of it, and so has a file."""


def line(letter: Letter) -> str:
    """Return a letter in one line."""
    named = f"id {shown(letter.id)}, " if letter.id is not None else ""
    topic = "-" if letter.topic is None else shown(letter.topic)
    when = time_of(letter.dead_ms)
    return f"{letter.source:12} {when}  {letter.reason:16} {topic}  {named}{letter.detail}"


def page(letter: Letter) -> str:
    """Return a letter with its record, for a terminal."""
    rows = [
        ("source", letter.source),
        ("reason", letter.reason),
        ("detail", letter.detail),
        ("dead since", time_of(letter.dead_ms)),
    ]
    if letter.origin is not None:
        rows.append(("origin", letter.origin))
    if letter.attempts:
        rows.append(("attempts", str(letter.attempts)))
    if letter.truncated_bytes is not None:
        rows.append(("truncated", f"the record had {letter.truncated_bytes} bytes"))
    rows += [(shown(name), _bytes(content, TEXT_CHARS_MAX * 4)) for name, content in letter.headers]
    rows.append(("key", _bytes(letter.key, TEXT_CHARS_MAX * 4)))
    rows.append(("value", _bytes(letter.value, VALUE_CHARS_MAX)))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:{width}}  {text}" for name, text in rows)


def outcome_line(outcome: Outcome) -> str:
    """Return an outcome in one line."""
    request = f" as {outcome.request}" if outcome.request is not None else ""
    detail = f": {outcome.detail}" if outcome.detail else ""
    return f"{outcome.source:12} {outcome.word.value}{request}{detail}"


def counted(words: Counter[str], nothing: str) -> str:
    """Return the number of each word as text."""
    return ", ".join(f"{count} {word}" for word, count in words.items()) or nothing


def time_of(ms: int) -> str:
    """Return Unix ms as RFC 3339."""
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def shown(text: str) -> str:
    """Return printable text, cut to TEXT_CHARS_MAX."""
    cut = text if len(text) <= TEXT_CHARS_MAX else f"{text[:TEXT_CHARS_MAX]}..."
    return cut if cut.isprintable() else _escaped(cut)


def _bytes(content: bytes | None, chars_max: int) -> str:
    if content is None:
        return "null"
    text = content.decode(errors="backslashreplace")
    more = f"... ({len(content)} bytes)" if len(text) > chars_max else ""
    return _escaped(text[:chars_max]) + more


def _escaped(text: str) -> str:
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )
