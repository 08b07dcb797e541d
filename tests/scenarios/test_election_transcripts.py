"""Whole stories of the election, as transcripts that people read: `election_*.txt`.

A line that begins with a number is a fact: the monotonic time in ms, the fact's name, its fields
(a leader is `nonce/lease@create-revision`, or `none`). Below it stand the orders that follow
(`->`) and the state that the node is in from then on (`==`), if it changed. `#` and empty lines are
for people. The node's nonce is `me`.
"""

from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest

from replication.election import Election
from replication.election_facts import Effect, Event, Leader, ResignReason

TRANSCRIPTS = sorted(Path(__file__).parent.glob("election_*.txt"))
EVENTS: dict[str, type[Event]] = {event.__name__: event for event in get_args(Event)}
FLAGS = {"yes": True, "no": False}


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda path: path.stem)
def test_the_election_goes_as_its_transcript_says(
    transcript: Path, request: pytest.FixtureRequest
) -> None:
    """With `--rewrite` what happens now is written: `git diff` shows it, and a person judges."""
    written = transcript.read_text(encoding="utf-8")
    happened = played(written)
    if request.config.getoption("--rewrite"):
        transcript.write_text(happened, encoding="utf-8")
    else:
        assert happened == written, "if this is meant: pytest tests/scenarios --rewrite"


def test_there_are_transcripts() -> None:
    assert len(TRANSCRIPTS) >= 8


def played(transcript: str) -> str:
    """The transcript with the orders and states that its facts lead to now."""
    election = Election("me")
    lines: list[str] = []
    for line in transcript.splitlines():
        if line.startswith(("  ->", "  ==")):
            continue
        lines.append(line)
        if not line or line.startswith("#"):
            continue
        before = election.state
        effects = election.handle(parsed(line))
        lines += [f"  -> {shown(effect)}" for effect in effects]
        if election.state is not before:
            lines.append(f"  == {election.state.name}")
    return "\n".join(lines) + "\n"


def parsed(line: str) -> Event:
    now_ms, name, *words = line.split()
    event = EVENTS[name]
    given: dict[str, Any] = {"now_ms": int(now_ms)}
    for word in words:
        field, text = word.split("=")
        given[field] = value(field, text)
    return event(**given)


def value(field: str, text: str) -> object:
    match field:
        case "leader":
            if text == "none":
                return None
            nonce, rest = text.split("/")
            lease_id, create_revision = rest.split("@")
            return Leader(nonce, int(lease_id), int(create_revision))
        case "reason":
            return ResignReason(text)
        case "behind":
            return FLAGS[text]
        case _:
            return int(text)


def shown(effect: Effect) -> str:
    words = [type(effect).__name__]
    for field in fields(effect):
        content = getattr(effect, field.name)
        if isinstance(content, Leader):
            content = f"{content.nonce}/{content.lease_id}@{content.create_revision}"
        elif isinstance(content, ResignReason):
            content = content.value
        words.append(f"{field.name}={content}")
    return " ".join(words)
