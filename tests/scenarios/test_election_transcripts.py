"""Whole stories of the election, as transcripts that people read: `election_*.txt`.

The words are explained in `facts_play.py`; states are the node's. The node's nonce is `me`.
"""

from pathlib import Path
from typing import get_args

import pytest
from facts_play import check, played

from replication.election import Election
from replication.election_facts import Event

TRANSCRIPTS = sorted(Path(__file__).parent.glob("election_*.txt"))
EVENTS: dict[str, type[Event]] = {event.__name__: event for event in get_args(Event)}


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda path: path.stem)
def test_the_election_goes_as_its_transcript_says(
    transcript: Path, request: pytest.FixtureRequest
) -> None:
    """With `--rewrite` what happens now is written."""
    election = Election("me")
    written = transcript.read_text(encoding="utf-8")
    happened = played(written, EVENTS, election.handle, lambda: election.state.name)
    check(transcript, happened, request.config.getoption("--rewrite"))


def test_there_are_transcripts() -> None:
    assert len(TRANSCRIPTS) >= 8
