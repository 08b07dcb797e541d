"""What nodes do with a grant, as transcripts that people read: `leadership_session_*.txt`.

The words are explained in `facts_play.py`.
"""

from pathlib import Path
from typing import get_args

import pytest
from facts_play import check, played

from replication.leadership_session import Fact, LeadershipSession, Order

TRANSCRIPTS = sorted(Path(__file__).parent.glob("leadership_session_*.txt"))
FACTS: dict[str, type[Fact]] = {fact.__name__: fact for fact in get_args(Fact)}


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda path: path.stem)
def test_the_leadership_session_goes_as_its_transcript_says(
    transcript: Path, request: pytest.FixtureRequest
) -> None:
    """With `--rewrite` what happens now is written."""
    session = LeadershipSession()

    def handle(fact: Fact) -> list[Order]:
        return [session.handle(fact)]

    happened = played(transcript.read_text(encoding="utf-8"), FACTS, handle)
    check(transcript, happened, request.config.getoption("--rewrite"))


def test_there_are_transcripts() -> None:
    assert len(TRANSCRIPTS) >= 3
