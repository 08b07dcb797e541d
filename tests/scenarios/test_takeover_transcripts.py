"""Whole stories of takeovers and steps, as transcripts that people read: `takeover_*.txt`.

Lines at the margin are commands; below them stand what the node is seen to ask of Kafka and of its
wheel (`->`), and what came of it (`==`). What another node does inside a call is indented. `#` and
empty lines are for people. Nodes are `a` and `b`; times are ms from the start.
"""

import re
from collections.abc import Callable
from functools import partial
from itertools import groupby
from pathlib import Path

import pytest
from facts_play import check
from takeover_play import Play

from replication.settings import AT_LEAST_ONCE, EXACTLY_ONCE

TRANSCRIPTS = sorted(Path(__file__).parent.glob("takeover_*.txt"))
EFFECT = re.compile(r" +(->|==) ")
SHARD = "delayd-c/id-2-shard-0"
WITHOUT_TRANSACTIONS = "\n# The brokers have no transactions.\n"


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda path: path.stem)
def test_the_takeover_goes_as_its_transcript_says(
    transcript: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """With `--rewrite` what happens now is written: `git diff` shows it, and a person judges."""
    written = transcript.read_text(encoding="utf-8")
    check(transcript, played(written, tmp_path), request.config.getoption("--rewrite"))


def test_there_are_transcripts() -> None:
    assert len(TRANSCRIPTS) >= 8


def played(transcript: str, folder: Path) -> str:
    """The transcript with what its commands lead to now."""
    guarantee = AT_LEAST_ONCE if WITHOUT_TRANSACTIONS in transcript else EXACTLY_ONCE
    play = Play(folder, guarantee)
    lines: list[str] = []
    try:
        for line in transcript.splitlines():
            if EFFECT.match(line):
                continue
            lines.append(line)
            if line and not line.startswith("#"):
                play.lines.clear()
                parsed(play, line)()
                lines += shortened(play.lines)
    finally:
        play.close()
    return "\n".join(lines) + "\n"


def shortened(lines: list[str]) -> list[str]:
    """What is said many times in a row is said once, with its count."""
    short: list[str] = []
    for line, same in groupby(lines):
        count = len(list(same))
        short.append(line if count == 1 else f"{line} ({count} times)")
    return short


def parsed(play: Play, line: str) -> Callable[[], None]:
    """The command of a line; raises ValueError if there is no such command."""
    for pattern, make in COMMANDS:
        found = re.fullmatch(pattern, line)
        if found is not None:
            return partial(make, play, *found.groups())
    raise ValueError(f"no such command: {line}")


def schedule(play: Play, topic: str, due_ms: str, id: str | None) -> None:
    due = b"%d" % (play.start_ms + int(due_ms))
    play.request([("delayd-topic", topic.encode()), ("delayd-due", due)], id)


def when(play: Play, moment: str, call: str, command: str) -> None:
    play.when(call, moment == "before", parsed(play, command))


COMMANDS: list[tuple[str, Callable[..., None]]] = [
    (r"a user schedules (\w+) at (-?\d+) ms(?: as (\w+))?", schedule),
    (r"a user cancels (\w+)", lambda play, id: play.request([("delayd-op", b"cancel")], id)),
    (r"(\d+) ms pass", lambda play, by_ms: play.pass_time(int(by_ms))),
    (r"([ab]) reads", lambda play, name: play.nodes[name].read()),
    (r"([ab]) reads one record", lambda play, name: play.nodes[name].read(1)),
    (r"([ab]) wins", lambda play, name: play.nodes[name].win()),
    (
        r"([ab]) wins for (\d+) ms",
        lambda play, name, lease_ms: play.nodes[name].win(int(lease_ms)),
    ),
    (r"([ab]) steps", lambda play, name: play.nodes[name].step()),
    (r"([ab]) loses its lease", lambda play, name: play.nodes[name].lose_lease()),
    (r"([ab]) dies", lambda play, name: play.nodes[name].die()),
    (r"([ab]) starts again", lambda play, name: play.nodes[name].start()),
    (
        r"the clock of ([ab]) is wrong by (-?\d+) ms",
        lambda play, name, skew_ms: play.set_skew(name, int(skew_ms)),
    ),
    (
        r"the next commit is applied, and its answer lost",
        lambda play: play.kafka.fail_next_commit(SHARD, applied=True),
    ),
    (
        r"the next commit is lost",
        lambda play: play.kafka.fail_next_commit(SHARD, applied=False),
    ),
    (
        r"the next marker of the frontier is lost",
        lambda play: play.kafka.lose_next_marker("delayd-frontier", 0),
    ),
    (
        r"the leader of ([\w-]+) is cut off",
        lambda play, topic: play.kafka.isolate_leader(topic, 0),
    ),
    (
        r"new clients of ([ab]) meet it",
        lambda play, name: play.nodes[name].meet_zombies(),
    ),
    (r"it hears that another leads", lambda play: play.kafka.end_zombies()),
    (r"the frontier topic is empty", lambda play: play.lose_frontier()),
    (
        r"the frontier topic is made again, and grows to offset (\d+)",
        lambda play, end: play.replace_frontier(int(end)),
    ),
    (r"(before|after) (.+?): (.+)", when),
    (r"what is in (\w+)", lambda play, topic: play.show(topic)),
]
