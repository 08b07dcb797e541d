"""The script of a node's first container, which creates topics, beside a delayd that the test
scripts."""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from policy import containers, pod_spec
from rendering import has_kubectl, render

pytestmark = pytest.mark.skipif(
    not has_kubectl(), reason="kubectl, whose kustomize renders k8s/, is not installed"
)

NEVER: Final = "echo 'this cluster was never initialised, or the topic was lost'; exit 1"
AWAY: Final = "echo 'delayd: no broker [kafka-unreachable]' >&2; exit 3"
WRONG: Final = "echo 'topic delayd-buffer: retention.ms is 5: too short'; exit 1"
FINE: Final = "echo 'all topics are as they should be'"
MADE: Final = "echo made > made"


@dataclass(frozen=True)
class Outcome:
    """The script's exit status, its output with delayd's, and how often it asked delayd."""

    status: int
    said: str
    checks: int
    creates: list[str]


def run(folder: Path, *, number: int, check: str, create: str = "exit 9") -> Outcome:
    """Run the script as a container of node `number`. `check` and `create` are the shell lines of
    `delayd topics check` and `create`. A sleep only moves the clock that the script reads."""
    [found] = [
        each
        for each in render("dev")
        if each["kind"] == "StatefulSet" and each["metadata"]["name"] == "delayd"
    ]
    container = containers(pod_spec(found))[0]
    (folder / "key").write_text("the-key\n")
    (folder / "clock").write_text("0\n")
    commands = {
        "delayd": f"case $2 in check) echo x >> checks; {check} ;;\n"
        f'create) echo "$DELAYD_CLUSTER_KEY $*" >> creates; {create} ;; esac',
        "sleep": "echo $(($(cat clock) + $1)) > clock",
        "date": "cat clock",
    }
    for name, lines in commands.items():
        (folder / name).write_text(f"#!/bin/sh\n{lines}\n")
        (folder / name).chmod(0o755)
    shell, option, script, name = container["command"]
    script = script.replace("/run/secrets/delayd/cluster-key", "key")
    done = subprocess.run(
        [shell, option, script, name, *container["args"]],
        cwd=folder,
        env={"PATH": f"{folder}:/usr/bin:/bin", "NUMBER": str(number)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    checks, creates = _lines(folder / "checks"), _lines(folder / "creates")
    return Outcome(done.returncode, done.stdout + done.stderr, len(checks), creates)


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def test_topics_that_are_as_they_should_be_are_left_alone(tmp_path: Path) -> None:
    outcome = run(tmp_path, number=0, check=FINE)
    assert (outcome.status, outcome.checks, outcome.creates) == (0, 1, [])


def test_the_first_node_makes_them_with_the_key(tmp_path: Path) -> None:
    outcome = run(tmp_path, number=0, check=NEVER, create=MADE)
    assert outcome.status == 0
    assert outcome.creates == ["the-key topics create --partitions=4 --max-delay-days=40"]


def test_the_other_nodes_wait_for_it(tmp_path: Path) -> None:
    later = f"test $(cat clock) -lt 5 || exit 0; {NEVER}"
    outcome = run(tmp_path, number=1, check=later, create=MADE)
    assert (outcome.status, outcome.checks, outcome.creates) == (0, 6, [])


def test_kafka_may_come_later(tmp_path: Path) -> None:
    later = f"test $(cat clock) -lt 5 && {{ {AWAY}; }}; {NEVER}"
    outcome = run(tmp_path, number=0, check=later, create=MADE)
    assert outcome.status == 0 and len(outcome.creates) == 1
    gone = f"test $(cat clock) -lt 7 && {{ {AWAY}; }}; {MADE}"
    (tmp_path / "creates").unlink()
    outcome = run(tmp_path, number=0, check=later, create=gone)
    assert outcome.status == 0 and len(outcome.creates) == 3


def test_after_a_minute_the_node_itself_says_what_is_wrong(tmp_path: Path) -> None:
    outcome = run(tmp_path, number=1, check=NEVER)
    assert (outcome.status, outcome.checks, outcome.creates) == (0, 60, [])


@pytest.mark.parametrize("number", [0, 1])
def test_a_kafka_that_does_not_answer_is_said_in_one_line_within_15_s(
    number: int, tmp_path: Path
) -> None:
    """It becomes the status of the pod; Kubernetes runs the container again."""
    outcome = run(tmp_path, number=number, check=f"echo 'a word before' >&2; {AWAY}")
    assert (outcome.status, outcome.checks, outcome.creates) == (3, 16, [])
    assert outcome.said == "delayd: no broker [kafka-unreachable]\n"


def test_the_first_node_never_gives_up_making_topics(tmp_path: Path) -> None:
    """A container that fails is run again; one that ends well never is, and then no topics come."""
    outcome = run(tmp_path, number=0, check=NEVER, create="exit 3")
    assert (outcome.status, outcome.checks) == (1, 60)


def test_whatever_else_is_wrong_the_node_itself_says(tmp_path: Path) -> None:
    outcome = run(tmp_path, number=0, check=WRONG)
    assert (outcome.status, outcome.checks, outcome.creates) == (0, 1, [])
    assert "retention.ms is 5" in outcome.said


def test_topics_that_cannot_be_made_are_told_here(tmp_path: Path) -> None:
    outcome = run(tmp_path, number=0, check=NEVER, create="echo 'a weak key [config]'; exit 2")
    assert (outcome.status, len(outcome.creates)) == (2, 1)
    assert outcome.said.endswith("a weak key [config]\n")
