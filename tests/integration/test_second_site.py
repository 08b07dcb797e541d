"""A site is lost for good. The other one has copies of its targets, which MirrorMaker 2 makes, and
a node of its cluster; there a new cluster goes on.

Real Kafkas, etcds, nodes and MirrorMaker, all killed at some moment of the traffic. An independent
reader counts afterwards what readers of either Kafka got. `pytest --full` plays five rounds, of
random seeds unless --seed names the first; otherwise there is none, because each takes minutes.

Source: docs/guides/second-site.md.
"""

import json
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from clusters import TestCluster, make_cluster
from mirror_maker import MirrorMaker
from nodes import CLOCK, HANGS_S, NodeProcess, delayd, master_of, node_group, wait_for
from topics_read import Seen, all_of, read_until

from delayd.client import Client
from delayd.client.outcomes import Scheduled
from delayd.dev.cluster import LocalCluster
from delayd.dev.startup import ClusterOptions
from delayd.errors import DelaydError, ExitCode

pytestmark = pytest.mark.real

ROUNDS = 5
TRAFFIC_S = (2.0, 8.0)
"""Before a node is killed, and again before all of the site is."""
RATE = 100
AHEAD_MS = 30_000
"""Messages are due up to so far ahead."""
PARTITIONS = 4
LAST = b"the last one"


@dataclass(slots=True)
class Sent:
    """What was acknowledged, by value: where it is in the first buffer."""

    places: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    last_due_ms: int = 0
    has_ended: threading.Event = field(default_factory=threading.Event)


def send(client: Client, target: str, sent: Sent, rng: random.Random) -> None:
    """Send until it is told to end. What is not acknowledged does not count."""
    number = 0
    while not sent.has_ended.wait(1 / RATE):
        value = b"m-%d" % number
        due_ms = CLOCK.wall_ms() + rng.randrange(AHEAD_MS)
        sent.last_due_ms = max(sent.last_due_ms, due_ms)

        def note(done: object, value: bytes = value) -> None:
            try:
                told = done.result()  # type: ignore[attr-defined]
            except (DelaydError, OSError):
                return
            assert isinstance(told, Scheduled)
            sent.places[value] = (told.partition, told.offset)

        named = f"id-{number}" if number % 2 else None
        client.schedule_async(
            target, value, key=b"%d" % number, at=due_ms, id=named
        ).add_done_callback(note)
        number += 1


@contextmanager
def traffic(cluster: TestCluster, target: str, rng: random.Random) -> Iterator[Sent]:
    """Send meanwhile."""
    sent = Sent()
    client = cluster.client()
    thread = threading.Thread(target=send, args=(client, target, sent, rng))
    thread.start()
    try:
        yield sent
    finally:
        sent.has_ended.set()
        thread.join()
        # Its Kafka is gone: what is still unacknowledged stays so.
        threading.Thread(target=client.close, daemon=True).start()


def values_in(bootstrap: str, topic: str) -> Counter[bytes]:
    """What a reader of a target has got of the traffic, up to the last message of all."""

    def is_all(found: list[Seen]) -> bool:
        return any(record.value == LAST for record in found)

    values = [record.value or b"" for record in read_until(bootstrap, topic, is_all)]
    assert LAST in values
    return Counter(value for value in values if value.startswith(b"m-"))


def promoted(folder: str, new: TestCluster) -> dict[str, Any]:
    """Run the move, as often as it asks for it: a transaction of the dead MirrorMaker ends by
    itself."""
    arguments = [folder, "--bootstrap", new.bootstrap, "--cluster", new.name, "--prefix",
                 f"{new.name}-", "--mirrored", "--prefer", "at-least-once", "--json",
                 "--timeout-s", str(HANGS_S)]  # fmt: skip
    until = time.monotonic() + HANGS_S
    while True:
        done = delayd("move", *arguments, "--yes")
        if "a transaction is open in" not in done.stderr or time.monotonic() > until:
            break
        time.sleep(1)
    assert done.returncode == ExitCode.FINE, done.stdout + done.stderr
    return dict(json.loads(done.stdout))


def refuse_copies(old: TestCluster, second: LocalCluster, node: NodeProcess) -> None:
    """The copies of delayd's own topics are no cluster: their offsets and topic ids are others'.
    Neither a node nor `recover frontier` takes them for one."""
    text = node.config.read_text()
    text = text.replace(old.bootstrap, second.bootstrap).replace(old.etcd, second.etcd_url)
    config = node.config.with_name("promoted.toml")
    config.write_text(text)
    started = delayd("node", "--config", str(config))
    assert started.returncode == ExitCode.PROBLEM, started.stderr
    print(started.stderr.strip().splitlines()[-1])
    told = delayd("recover", "frontier", "--config", str(config), "--yes")
    assert told.returncode == ExitCode.PROBLEM, told.stdout + told.stderr
    print(told.stderr.strip().splitlines()[-1])


def seeds(config: pytest.Config) -> list[int]:
    if not config.getoption("--full"):
        return []
    first = config.getoption("--seed")
    first = random.randrange(10**6) if first is None else int(first)
    return [first + number for number in range(ROUNDS)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("seed", seeds(metafunc.config))


def test_the_second_site_goes_on(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    with (
        LocalCluster(tmp_path / "first", ClusterOptions(nodes=0)) as first,
        LocalCluster(tmp_path / "second", ClusterOptions(nodes=0)) as second,
    ):
        old = make_cluster(first, tmp_path / "old", PARTITIONS)
        new = make_cluster(second, tmp_path / "new", PARTITIONS)
        target = old.target("later", PARTITIONS)
        topics = rf"{old.name}-.*,target\\..*"
        mirror = MirrorMaker(tmp_path / "mirror", old.bootstrap, new.bootstrap, topics)
        members = [old.node(number, export_hold_s=900) for number in range(3)]
        with node_group(members), node_group([new.node(9)]) as [heir]:
            try:
                sent, ingested = disaster(first, old, new, target, mirror, members, rng)
            except BaseException:
                print(mirror.log[-5000:])
                raise
            finally:
                mirror.kill()
            disaster_ms = CLOCK.wall_ms()
            refuse_copies(old, second, members[2])
            heir.start()
            master_of([heir])
            told = promoted(str(members[2].data), new)
            took_ms = CLOCK.wall_ms() - disaster_ms
            with new.client() as client:
                last_ms = max(sent.last_due_ms, CLOCK.wall_ms()) + 1_000
                client.schedule(target, LAST, at=last_ms, key=b"last")
            there = values_in(new.bootstrap, target)
            moved = {each.value for each in all_of(new.bootstrap, new.buffer, PARTITIONS)}
            first.restart("broker-1")
            before = {each.value for each in all_of(old.bootstrap, target, PARTITIONS)}
    lost = {value: place for value, place in sent.places.items() if value not in there}
    doubled = sum(count - 1 for count in there.values())
    both = len(before & moved)
    in_doubt, unmirrored = told["in_doubt"]["count"], told["not_mirrored"]["count"]
    print(
        f"seed {seed}: acknowledged {len(sent.places)}, read at the second site {len(there)}, lost "
        f"{len(lost)}, doubled {doubled}; moved {told['written']} (in doubt {in_doubt}, not "
        f"mirrored {unmirrored}), delivered at the first site too {both}; {took_ms} ms"
    )
    assert doubled == 0
    assert all(offset >= ingested[partition] for partition, offset in lost.values()), lost
    assert unmirrored <= both <= unmirrored + in_doubt


def disaster(
    first: LocalCluster,
    old: TestCluster,
    new: TestCluster,
    target: str,
    mirror: MirrorMaker,
    members: list[NodeProcess],
    rng: random.Random,
) -> tuple[Sent, list[int]]:
    """Let traffic begin, kill a node of the first site, then all of it. The last of the members
    lives at the second site, and is stopped in good order. Return what was sent, and how far that
    member had read the buffer."""
    for node in members:
        node.start()
    for node in members:
        node.wait_ready()
    mirror.start()
    with old.client() as client:
        client.schedule(target, b"first", at=0)
        wait_for(lambda: bool(read_until(new.bootstrap, target, bool, 5)), "a copy")
    with traffic(old, target, rng) as sent:
        wait_for(lambda: len(sent.places) > RATE, "traffic")
        time.sleep(rng.uniform(*TRAFFIC_S))
        hit = next((node for node in members[:2] if node.is_master()), members[0])
        hit.kill()
        hit.start()
        time.sleep(rng.uniform(*TRAFFIC_S))
        ingested = members[2].status()["ingested"]
        kills: list[Callable[[], object]] = [
            mirror.kill,
            members[0].kill,
            members[1].kill,
            lambda: first.kill("broker-1"),
            lambda: first.kill("etcd"),
        ]
        rng.shuffle(kills)
        for kill in kills:
            kill()
    members[2].signal(signal.SIGTERM)
    members[2].wait_exit()
    return sent, ingested
