"""The disasters, each mended as docs/disaster-recovery.md says: by commands, and with no look at
what they found.

A disaster gets a course whose cluster is up and has its targets. It returns with nodes running that
deliver what is left, and the course of the cluster that delivers it.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from chaos.faults import pause
from chaos.history import now_ms
from chaos.rehearsals.course import (
    COUNT,
    LATE,
    LEAD_MS,
    NODES,
    PARTITIONS,
    SPREAD_MS,
    TARGETS,
    Course,
    made,
    wait_for,
)
from chaos.rehearsals.lost_markers import ends_with_marker, lose_last_marker, lose_tail
from delayd.bus.confluent import ConfluentBus
from delayd.cluster.frontier_log import FrontierLog
from delayd.dev.nodes import CLUSTER_NAME
from delayd.dev.supervision import environment_for

BROKER: Final = "broker-1"
TIMEOUT_S: Final = 60
PASSED_S: Final = 300
"""Until the new master has passed what was moved, on a machine with other work."""
LATE_EVERY: Final = 10
CHANGING_S: Final = 1.0
"""How long somebody goes on at most who has closed the first shard."""
POLL_MS: Final = 20
OLD_MS: Final = 60_000
"""`recover frontier` trusts clocks to a minute: what a target has received before that is old."""
CLUSTER: Final = ("--cluster", CLUSTER_NAME, "--prefix", "delayd-")


def lose_frontier(course: Course) -> Course:
    """The frontier topic is deleted, with all nodes dead."""
    course.warm_up()
    # Targets whose first record is younger than the last known frontier may have been made again.
    course.first_ms = now_ms() + OLD_MS + LEAD_MS
    course.send(range(COUNT))
    course.strike_at()
    course.kill()
    stopped_ms = now_ms()
    admin = AdminClient({"bootstrap.servers": course.bootstrap})
    admin.delete_topics(["delayd-frontier"])["delayd-frontier"].result(TIMEOUT_S)
    with closing(ConfluentBus(course.bootstrap).cluster()) as kafka:
        wait_for(
            lambda: not kafka.survey(["delayd-frontier"], TIMEOUT_S * 1_000).states,
            "the topic is gone",
        )
    node = course.chance.choice(NODES)
    options = ("--config", course.config(node), "--stopped-at", str(stopped_ms), "--yes")
    course.run("recover", "frontier", *options)
    course.start()
    return course


def lose_markers(course: Course) -> Course:
    """A broker loses commit markers of a random choice of partitions."""
    course.first_ms = now_ms() + LEAD_MS
    course.send(range(COUNT), late_every=LATE_EVERY)
    course.strike_at()
    course.kill()
    return _mend_markers(course)


def tear_shards(course: Course) -> Course:
    """Whoever changes the number of shards is killed meanwhile, and all nodes; markers are lost."""
    course.first_ms = now_ms() + LEAD_MS
    course.send(range(COUNT), late_every=LATE_EVERY)
    course.strike_at()
    command = ("-m", "delayd.commands.cli", "shards", "set", str(2 * course.shards))
    where = ("--bootstrap", course.bootstrap, *CLUSTER)
    env = environment_for({}, course.cluster.directory)
    with subprocess.Popen((sys.executable, *command, *where), env=env) as person:
        _await_closing(course.bootstrap, lambda: person.poll() is None)
        with suppress(subprocess.TimeoutExpired):
            person.wait(course.chance.uniform(0, CHANGING_S))
        person.kill()
    course.kill()
    return _mend_markers(course)


def _await_closing(bootstrap: str, goes_on: Callable[[], bool]) -> None:
    """Wait until the first shard is closed, or the change of shards has come to its end."""
    with closing(FrontierLog(ConfluentBus(bootstrap), "delayd-frontier", 0)) as log:
        log.open(TIMEOUT_S * 1_000)
        while goes_on() and not (log.newest and log.newest.record.resharding):
            log.poll(POLL_MS)


def _mend_markers(course: Course) -> Course:
    course.cluster.stop(BROKER)
    lost: list[str] = []
    while not lost:  # A choice may be of nothing.
        lost = _lose(course.data / BROKER, course.chance)
    course.tell(f"lost the markers of {', '.join(lost)}")
    course.cluster.start(BROKER)
    course.run(
        *("recover", "marker", "--bootstrap", course.bootstrap, "--etcd", course.cluster.etcd_url),
        *(*CLUSTER, "--yes"),
    )
    course.make_targets((LATE,))
    course.start()
    return course


def _lose(data: Path, chance: Random) -> list[str]:
    topics = (*TARGETS, *(f"delayd-{kind}" for kind in ("buffer", "dead", "receipts")))
    places = [(topic, number) for topic in topics for number in range(PARTITIONS)]
    lost = []
    shards = len([*data.glob("delayd-frontier-*")])
    for topic, number in [*places, *(("delayd-frontier", shard) for shard in range(shards))]:
        if chance.random() < 0.5:
            continue
        if chance.random() < 0.7 and ends_with_marker(data, topic, number):
            lose_tail(data, topic, number)
            lost.append(f"{topic}/{number}")
        elif lose_last_marker(data, topic, number):
            lost.append(f"{topic}/{number} before its end")
    return lost


def lose_disks(course: Course) -> Course:
    """All nodes lose their disks, and the buffer was trimmed up to the last backup."""
    target = course.directory / "backups"
    target.mkdir()
    course.first_ms = now_ms() + LEAD_MS
    course.send(range(COUNT // 2), late_every=LATE_EVERY)
    pause(course.first_ms + int(SPREAD_MS * course.chance.uniform(0, 0.4)) - now_ms())
    backup = course.run("backup", str(target), "--config", course.config(NODES[0]))
    course.first_ms = max(course.first_ms, now_ms())
    course.send(range(COUNT // 2, COUNT), late_every=LATE_EVERY)
    course.strike_at()
    course.kill()
    for node in NODES:
        shutil.rmtree(course.data / node)
    _trim(course.bootstrap, dict(enumerate(backup["reached"])))
    into = ("--into", str(course.data / NODES[0]), "--config", course.config(NODES[0]))
    course.run("restore", str(target), *into, "--yes")
    course.make_targets((LATE,))
    course.start()
    return course


def _trim(bootstrap: str, offsets: Mapping[int, int]) -> None:
    """Delete the buffer below these offsets, as retention does."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    below = [TopicPartition("delayd-buffer", number, at) for number, at in offsets.items()]
    for done in admin.delete_records(below).values():
        done.result(TIMEOUT_S)


def move(course: Course) -> Course:
    """What is pending goes into another cluster, with a Kafka of its own."""
    course.first_ms = now_ms() + LEAD_MS
    course.send(range(COUNT))
    wheel = course.chance.choice(NODES)
    course.reach(wheel)
    course.cluster.stop(wheel)
    course.strike_at()
    course.kill([node for node in NODES if node != wheel])
    new = replace(course, cluster=made(course.directory / "new", course.stack, course.shards))
    new.make_targets()
    new.run(
        *("move", str(course.data / wheel), "--bootstrap", new.bootstrap, *CLUSTER),
        *("--frontier-from", course.bootstrap, "--timeout-s", str(PASSED_S), "--yes"),
    )
    return new


DISASTERS: Final[Mapping[str, Callable[[Course], Course]]] = {
    "lost-frontier": lose_frontier,
    "lost-marker": lose_markers,
    "torn-shards": tear_shards,
    "lost-disks": lose_disks,
    "move": move,
}
