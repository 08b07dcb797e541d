"""What a rehearsal of a disaster says of what came. Source: chaos/README.md."""

from collections import Counter

import pytest

from chaos.__main__ import main
from chaos.rehearsals.course import CANCELLED
from chaos.rehearsals.rehearsing import judged

CANCEL = min(CANCELLED)
SENT = ["2", "3", CANCEL]


def test_a_rehearsal_in_which_each_message_came_once_is_well() -> None:
    for came in (["2", "3"], ["2", "3", CANCEL]):
        assert judged(SENT, Counter(came), {})["ok"], "a cancel may come too late"
    assert judged(SENT, Counter(["2", "3"]), {})["cancelled_in_time"] == len(CANCELLED)


@pytest.mark.parametrize(
    ("came", "found", "what"),
    [
        (["2"], {}, "lost"),
        (["2", "3", "3"], {}, "doubled"),
        (["2", "3", CANCEL, CANCEL], {}, "doubled"),
        (["2", "3", "4"], {}, "unknown"),
        (["2", "3"], {"lost": 1}, "audit"),
    ],
)
def test_a_rehearsal_fails_by_the_count_or_by_the_audit(
    came: list[str], found: dict[str, int], what: str
) -> None:
    verdict = judged(SENT, Counter(came), found)
    assert verdict[what] and not verdict["ok"]


def test_a_disaster_that_is_not_known_is_not_rehearsed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rehearse", "flood"]) == 2
    assert "lost-frontier" in capsys.readouterr().err
