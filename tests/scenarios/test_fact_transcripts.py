"""Whole stories of the election and of leadership sessions, as transcripts that people read.

The words are explained in `facts_play.py`; states are the node's. The node's nonce is `me`.
"""

from pathlib import Path
from typing import get_args

import pytest
from facts_play import check, played

from replication import election_facts, leadership_session
from replication.election import Election
from replication.leadership_session import LeadershipSession

FOLDER = Path(__file__).parent
ELECTIONS = sorted(FOLDER.glob("election_*.txt"))
SESSIONS = sorted(FOLDER.glob("leadership_session_*.txt"))


@pytest.mark.parametrize("transcript", ELECTIONS, ids=lambda path: path.stem)
def test_the_election_goes_as_its_transcript_says(
    transcript: Path, request: pytest.FixtureRequest
) -> None:
    """With `--rewrite` what happens now is written."""
    election = Election("me")
    facts = {fact.__name__: fact for fact in get_args(election_facts.Event)}
    written = transcript.read_text(encoding="utf-8")
    happened = played(written, facts, election.handle, lambda: election.state.name)
    check(transcript, happened, request.config.getoption("--rewrite"))


@pytest.mark.parametrize("transcript", SESSIONS, ids=lambda path: path.stem)
def test_the_leadership_session_goes_as_its_transcript_says(
    transcript: Path, request: pytest.FixtureRequest
) -> None:
    """With `--rewrite` what happens now is written."""
    session = LeadershipSession()
    facts = {fact.__name__: fact for fact in get_args(leadership_session.Fact)}
    written = transcript.read_text(encoding="utf-8")
    happened = played(written, facts, lambda fact: [session.handle(fact)])
    check(transcript, happened, request.config.getoption("--rewrite"))


def test_there_are_transcripts() -> None:
    assert len(ELECTIONS) >= 8 and len(SESSIONS) >= 3
