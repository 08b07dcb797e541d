"""Plays the transcripts of machines that take facts and give orders: the words they are told in.

A line that begins with a number is a fact: the monotonic time in ms, the fact's name, its fields
(a leader is `nonce/lease@create-revision`, or `none`). Below it stand the orders that follow (`->`)
and the state that the machine is in from then on (`==`), if it changed. `#` and empty lines are for
people. Not here: which machine, and which facts there are.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from replication.election_facts import Ended, Leader, ResignReason
from replication.leadership_session import Failure

FLAGS = {"yes": True, "no": False}
WORDS: Mapping[str, type[Enum]] = {"reason": ResignReason, "ended": Ended, "failure": Failure}
Fact = TypeVar("Fact")


def check(transcript: Path, happened: str, is_rewritten: bool) -> None:
    """Compare, or write what happens now: `git diff` shows it, and a person judges."""
    if is_rewritten:
        transcript.write_text(happened, encoding="utf-8")
        return
    written = transcript.read_text(encoding="utf-8")
    assert happened == written, "if this is meant: pytest tests/scenarios --rewrite"


def played(
    transcript: str,
    facts: Mapping[str, type[Fact]],
    handle: Callable[[Fact], Iterable[object]],
    state: Callable[[], str] = lambda: "",
) -> str:
    """The transcript with the orders and states that its facts lead to now."""
    lines: list[str] = []
    for line in transcript.splitlines():
        if line.startswith(("  ->", "  ==")):
            continue
        lines.append(line)
        if not line or line.startswith("#"):
            continue
        before = state()
        lines += [f"  -> {shown(order)}" for order in handle(parsed(line, facts))]
        if state() != before:
            lines.append(f"  == {state()}")
    return "\n".join(lines) + "\n"


def parsed(line: str, facts: Mapping[str, type[Fact]]) -> Fact:
    now_ms, name, *words = line.split()
    given: dict[str, Any] = {"now_ms": int(now_ms)}
    for word in words:
        field, text = word.split("=")
        given[field] = value(field, text)
    return facts[name](**given)


def value(field: str, text: str) -> object:
    if field in WORDS:
        return WORDS[field](text)
    if text in FLAGS:
        return FLAGS[text]
    if field != "leader":
        return int(text)
    if text == "none":
        return None
    nonce, rest = text.split("/")
    lease_id, create_revision = rest.split("@")
    return Leader(nonce, int(lease_id), int(create_revision))


def shown(order: Any) -> str:
    words = [type(order).__name__]
    for field in fields(order):
        content = getattr(order, field.name)
        if isinstance(content, Leader):
            content = f"{content.nonce}/{content.lease_id}@{content.create_revision}"
        elif isinstance(content, Enum):
            content = content.value
        words.append(f"{field.name}={content}")
    return " ".join(words)
