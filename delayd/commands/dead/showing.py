"""Dead letters and outcomes as text and as JSON. Pure.

Invariant: a terminal gets only printable characters of a text that a stranger wrote. The JSON loses
nothing: bytes that are not UTF-8 are base64.
"""

import base64
import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from delayd.commands.dead.redriving import Outcome
from delayd.request.letters import Letter

TEXT_CHARS_MAX: Final = 80
"""How much of a stranger's text a line shows."""

VALUE_CHARS_MAX: Final = 4_000
"""How much of a value a terminal shows; the JSON has all of it, and so has a file."""

Json: TypeAlias = dict[str, Any]

_SUMMARY: Final = (
    *("source", "reason", "detail", "dead_ms", "topic", "id"),
    *("origin", "attempts", "truncated_bytes"),
)


def newest(letters: Iterable[Letter], letters_max: int) -> tuple[list[Letter], Counter[str]]:
    """Return the newest letters, oldest first, as `slim` leaves them, and how many have a reason.

    Memory: `letters_max` letters.
    """
    reasons: Counter[str] = Counter()

    def counted_letters() -> Iterator[tuple[int, int, Letter]]:
        for number, letter in enumerate(letters):
            reasons[letter.reason] += 1
            yield letter.dead_ms, number, slim(letter)

    kept = heapq.nlargest(letters_max, counted_letters())
    return [letter for _, _, letter in reversed(kept)], reasons


def slim(letter: Letter) -> Letter:
    """Return a letter with only what `line` needs."""
    named = [h for h in letter.headers if h[0] in ("delayd-topic", "delayd-id")]
    return letter._replace(key=None, value=None, headers=named)


def line(letter: Letter) -> str:
    """Return a letter in one line."""
    named = f"id {shown(letter.id)}, " if letter.id is not None else ""
    topic = "-" if letter.topic is None else shown(letter.topic)
    when = time_of(letter.dead_ms)
    return f"{letter.source:12} {when}  {letter.reason:16} {topic}  {named}{letter.detail}"


def summary(letter: Letter) -> Json:
    """Return a letter without its record, as JSON."""
    return {name: getattr(letter, name) for name in _SUMMARY}


def whole(letter: Letter) -> Json:
    """Return a letter with its record, as JSON."""
    return {
        **summary(letter),
        "key": _content(letter.key),
        "value": _content(letter.value),
        "headers": [[name, _content(content)] for name, content in letter.headers],
    }


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


def outcome_json(outcome: Outcome) -> Json:
    """Return an outcome as JSON."""
    return {
        "source": outcome.source,
        "outcome": outcome.word.value,
        "request": outcome.request,
        "detail": outcome.detail,
    }


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


def _content(content: bytes | None) -> Any:
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}
