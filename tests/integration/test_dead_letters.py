"""`delayd dead` as a person uses it, on real Kafka with a real node: list, show, redrive, once."""

import base64
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from clusters import TestCluster, make_cluster
from confluent_kafka import Producer
from nodes import HANGS_S, NodeProcess, delayd_in_process, running, wait_for
from topics_read import Seen, read_until

from delayd.bus import Headers
from delayd.bus.confluent import ConfluentBus
from delayd.bus.murmur2 import partition_of
from delayd.client.redriving import UNDER_WAY_MAX
from delayd.dev.cluster import LocalCluster
from delayd.request import source_of

PARTITIONS = 3
DIES_WITHIN_S = 40
USER: Headers = [("trace", b"1"), ("trace", b"\xff\x00"), ("null", None)]

pytestmark = pytest.mark.real


@dataclass
class Desk:
    """A cluster with one node, and a user of it."""

    cluster: TestCluster
    node: NodeProcess
    producer: Producer

    @property
    def common(self) -> tuple[str, ...]:
        return ("--bootstrap", self.cluster.bootstrap, "--prefix", f"{self.cluster.name}-")

    def topic(self, name: str) -> str:
        """The name of a target, which need not exist."""
        return f"target.{self.cluster.name}.{name}"

    def send(
        self, key: bytes | None, value: bytes, *headers: tuple[str, bytes | None], partition: int
    ) -> str:
        """A record into the buffer; its source."""
        [source] = self.send_all(key, [value], *headers, partition=partition)
        return source

    def send_all(
        self,
        key: bytes | None,
        values: list[bytes],
        *headers: tuple[str, bytes | None],
        partition: int,
    ) -> list[str]:
        """Records that differ by their values only."""
        placed: list[str] = []

        def done(error: object, message: Any) -> None:
            assert error is None, error
            placed.append(source_of(message.partition(), message.offset()))

        for value in values:
            self.producer.produce(
                self.cluster.buffer,
                value,
                key,
                partition=partition,
                headers=[*USER, *headers],
                on_delivery=done,
            )
        assert self.producer.flush(HANGS_S) == 0
        return placed

    def schedule(
        self, name: str, value: bytes, *headers: tuple[str, bytes | None], id: str | None = None
    ) -> str:
        """An ordinary request that is due at once; its source."""
        key = b"k\xff" if id is None else id.encode()
        named = [] if id is None else [("delayd-id", key)]
        topic = ("delayd-topic", self.topic(name).encode())
        partition = partition_of(key, PARTITIONS)
        return self.send(
            key, value, topic, ("delayd-delay", b"0ms"), *named, *headers, partition=partition
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `delayd dead` for this cluster."""
        return delayd_in_process("dead", *arguments, *self.common)

    def listed(self, *filters: str) -> dict[str, Any]:
        done = self.run("list", "--json", *filters)
        assert done.returncode == 0, done.stderr
        fields: dict[str, Any] = json.loads(done.stdout)
        return fields

    def dead(self, name: str, count: int = 1) -> list[dict[str, Any]]:
        """The dead letters for a target, once there are so many."""
        topic = ("delayd-topic", self.topic(name).encode())
        self.letters(lambda seen: sum(topic in each.headers for each in seen) >= count)
        found: list[dict[str, Any]] = self.listed("--topic", self.topic(name), "--limit", "10000")[
            "letters"
        ]
        assert len(found) == count
        return found

    def letters(self, enough: Callable[[list[Seen]], bool]) -> None:
        """Wait until enough is in the dead-letter topic."""
        seen = read_until(self.cluster.bootstrap, self.cluster.dead, enough, DIES_WITHIN_S)
        assert enough(seen), seen

    def redriven(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        """Exit code and what is said of each letter, by its source."""
        done = self.run("redrive", "--json", *arguments)
        assert done.stdout, done.stderr
        fields = json.loads(done.stdout)
        return done.returncode, {each["source"]: each for each in fields["letters"]}

    def arrived(self, name: str, count: int) -> list[Seen]:
        """All that is in a target, of which there should be so many."""
        # The receipts are read behind what they tell of, so nothing more can come late.
        return read_until(self.cluster.bootstrap, self.topic(name), lambda seen: len(seen) >= count)

    def nothing_more(self, name: str, count: int) -> None:
        """A later message to the same target arrives, and with it nothing else."""
        self.schedule(name, b"fence")
        seen = read_until(
            self.cluster.bootstrap,
            self.topic(name),
            lambda seen: any(each.value == b"fence" for each in seen),
        )
        assert len([each for each in seen if each.value != b"fence"]) == count, seen


def producer_of(cluster: TestCluster) -> Producer:
    return Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0, "log_level": 0})


@pytest.fixture(scope="module")
def desk(kafka_and_etcd: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    cluster = make_cluster(
        kafka_and_etcd, tmp_path_factory.mktemp("dead"), PARTITIONS, retry_delays_ms=(500, 500)
    )
    node = cluster.node(1, lease_ttl_s=20)  # nobody takes over, and it is stopped for a while
    with running([node]):
        yield Desk(cluster, node, producer_of(cluster))


@dataclass(frozen=True)
class Died:
    """Messages that died for want of their targets, all at once because that takes its time."""

    plain: str
    with_id: str
    many: list[str]
    again: str


MANY = 8 * UNDER_WAY_MAX
"""More than are under way at a time."""


@pytest.fixture(scope="module")
def died(desk: Desk) -> Died:
    desk.schedule("plain", b"\xfe plain", ("delayd-key", b"dk"))
    desk.schedule("ids", b"with id", id="order-7")
    for partition in range(PARTITIONS):
        desk.send_all(
            b"k",
            [b"%d" % number for number in range(MANY) if number % PARTITIONS == partition],
            ("delayd-topic", desk.topic("many").encode()),
            ("delayd-delay", b"0ms"),
            partition=partition,
        )
    desk.schedule("again", b"again")
    return Died(
        plain=desk.dead("plain")[0]["source"],
        with_id=desk.dead("ids")[0]["source"],
        many=[letter["source"] for letter in desk.dead("many", MANY)],
        again=desk.dead("again")[0]["source"],
    )


def test_a_letter_is_listed_and_shown_with_its_record(
    desk: Desk, died: Died, tmp_path: Path
) -> None:
    [letter] = desk.listed("--reason", "dead", "--source", died.plain, "--since", "1h")["letters"]
    assert (letter["reason"], letter["topic"], letter["attempts"]) == (
        "dead",
        desk.topic("plain"),
        3,
    )
    assert "does not exist" in letter["detail"]
    assert desk.listed("--source", died.plain, "--until", "1h")["letters"] == []
    newest = desk.listed("--reason", "dead", "--limit", "2")
    assert len(newest["letters"]) == 2 and newest["matching"] == newest["reasons"]["dead"]
    assert newest["matching"] >= MANY + 3
    written = tmp_path / "value"
    shown = desk.run("show", died.plain, "--json", "--value-to", str(written))
    fields = json.loads(shown.stdout)
    assert (shown.returncode, written.read_bytes()) == (0, b"\xfe plain")
    assert base64.b64decode(fields["value"]["base64"]) == b"\xfe plain"
    assert fields["headers"][2] == ["null", None] and fields["key"] == "dk"
    text = desk.run("show", died.plain).stdout
    assert "\\xfe plain" in text and "does not exist" in text
    line = desk.run("list", "--source", died.plain).stdout
    assert line.startswith(died.plain) and desk.topic("plain") in line
    missing = desk.run("show", "0/999999", "--json")
    assert (missing.returncode, json.loads(missing.stdout)) == (1, {"found": False})


def test_a_dead_letter_is_redriven_once(desk: Desk, died: Died) -> None:
    """With key, value and headers as they were; a second redrive is refused."""
    desk.cluster.create_topic(desk.topic("plain"))
    tried = desk.redriven("--topic", desk.topic("plain"), "--dry-run")
    assert tried == (0, {died.plain: tried[1][died.plain]})
    code, outcomes = desk.redriven("--topic", desk.topic("plain"))
    assert (code, outcomes[died.plain]["outcome"]) == (0, "redriven")
    [seen] = desk.arrived("plain", 1)
    assert (seen.key, seen.value, seen.headers[: len(USER)]) == (b"dk", b"\xfe plain", USER)
    counts = outcomes[died.plain]["request"]
    assert seen.header("delayd-source") == counts
    assert [name for name, _ in seen.headers[len(USER) :]] == [
        *("delayd-due", "delayd-fired", "delayd-source")
    ]
    code, outcomes = desk.redriven(died.plain)
    assert (code, outcomes[died.plain]["outcome"]) == (1, "already redriven")
    assert outcomes[died.plain]["request"] == counts, "the redrive that was sent"
    desk.nothing_more("plain", 1)


def test_a_dead_letter_with_an_id_keeps_it(desk: Desk, died: Died) -> None:
    desk.cluster.create_topic(desk.topic("ids"))
    code, outcomes = desk.redriven("--id", "order-7", "--in", "1h")
    assert (code, outcomes[died.with_id]["outcome"]) == (0, "redriven")
    cancelled = delayd_in_process("cancel", "order-7", "--wait", "--json", *desk.common)
    assert json.loads(cancelled.stdout)["killed"] == [outcomes[died.with_id]["request"]]
    code, outcomes = desk.redriven("--id", "order-7")
    assert (code, outcomes[died.with_id]["outcome"]) == (1, "already redriven")
    desk.nothing_more("ids", 0)


def test_a_redrive_that_dies_again_can_be_redriven_again(desk: Desk, died: Died) -> None:
    """By a filter both letters are meant: the first stays refused, the second goes out."""
    code, _ = desk.redriven(died.again)
    assert code == 0
    letters = desk.dead("again", 2)
    [second] = [each["source"] for each in letters if each["source"] != died.again]
    desk.cluster.create_topic(desk.topic("again"))
    code, outcomes = desk.redriven("--topic", desk.topic("again"))
    assert {source: each["outcome"] for source, each in outcomes.items()} == {
        died.again: "already redriven",
        second: "redriven",
    }
    assert code == 1
    [seen] = desk.arrived("again", 1)
    assert (seen.value, seen.headers[: len(USER)]) == (b"again", USER)
    desk.nothing_more("again", 1)


def test_letters_of_one_id_each_get_their_own_answer(desk: Desk) -> None:
    target = ("delayd-topic", desk.cluster.target("one-id").encode())
    partition = partition_of(b"same", PARTITIONS)
    sources = desk.send_all(
        b"same",
        [b"%d" % number for number in range(MANY)],
        *(target, ("delayd-delay", b"1h"), ("delayd-id", b"same")),
        partition=partition,
    )
    conflicts = set(sources[1:])
    desk.letters(lambda seen: sum(("delayd-reason", b"conflict") in s.headers for s in seen) >= 1)
    wait_for(lambda: desk.listed("--id", "same")["matching"] == len(conflicts), "conflicts")
    code, outcomes = desk.redriven("--id", "same", "--reason", "conflict", "--in", "0s")
    assert (code, set(outcomes)) == (0, conflicts)
    requests = {each["request"] for each in outcomes.values()}
    seen = desk.arrived("one-id", len(conflicts))
    assert {each.header("delayd-source") for each in seen} == requests
    assert [int(each.value or b"") for each in seen] == list(range(1, MANY)), "in their order"


def test_letters_that_cannot_be_sent_again_say_why(desk: Desk) -> None:
    topic = ("delayd-topic", desk.topic("rejects").encode())
    delay = ("delayd-delay", b"1ms")
    wrong = (partition_of(b"i", PARTITIONS) + 1) % PARTITIONS
    sources = {
        "truncated": desk.send(b"k", bytes(985_000), topic, delay, partition=0),
        "cancel": desk.send(b"k", b"", ("delayd-op", b"cancel"), partition=0),
        "typo": desk.send(b"k", b"t", topic, delay, ("delayd-kee", b"x"), partition=0),
        "id": desk.send(b"i", b"with id", topic, delay, ("delayd-id", b"i"), partition=wrong),
        "target": desk.send(b"k", b"no target", delay, partition=0),
    }
    wanted = {source.encode() for source in sources.values()}
    desk.letters(lambda seen: wanted <= {dict(each.headers)["delayd-source"] for each in seen})
    code, outcomes = desk.redriven(*sources.values(), "0/999999")
    assert code == 1
    assert outcomes["0/999999"]["outcome"] == "not found"
    details = {}
    for name, source in sources.items():
        assert outcomes[source]["outcome"] == "not redriven"
        assert outcomes[source]["request"] is None, "nothing was sent"
        details[name] = outcomes[source]["detail"]
    assert "its value is not in the letter" in details["truncated"]
    assert "it is a cancel" in details["cancel"]
    assert details["typo"].startswith("unknown-header: ")
    assert "cannot keep its id" in details["id"]
    assert details["target"].startswith("missing-topic: ")
    desk.cluster.create_topic(desk.topic("rejects"))
    code, outcomes = desk.redriven(
        *(sources["id"], sources["target"]), "--without-id", "--to", desk.topic("rejects")
    )
    assert code == 0, outcomes
    assert "without its id" in outcomes[sources["id"]]["detail"]
    seen = desk.arrived("rejects", 2)
    assert {(each.key, each.value) for each in seen} == {(b"i", b"with id"), (b"k", b"no target")}


def test_without_any_filter_nothing_is_redriven(desk: Desk) -> None:
    done = desk.run("redrive", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "every dead letter" in done.stderr
    for wrong in (["--reason", "dedd"], ["4711"], ["--since", "soon"], ["--in", "1x", "0/1"]):
        done = desk.run("redrive", *wrong)
        assert (done.returncode, done.stdout) == (2, ""), wrong


def test_many_are_redriven_once_by_runs_that_are_killed_and_runs_at_the_same_time(
    desk: Desk, died: Died
) -> None:
    """kill -9 between sending and answer; then several runs at once: each arrives once."""
    desk.cluster.create_topic(desk.topic("many"))
    arguments = ["dead", "redrive", "--topic", desk.topic("many"), *desk.common]
    command = [sys.executable, "-m", "delayd.commands.cli", *arguments]
    before = _end_of(desk)
    desk.node.signal(signal.SIGSTOP)  # so that no answer can come
    try:
        killed = subprocess.Popen(command, stdout=subprocess.PIPE)
        wait_for(lambda: _end_of(desk) > before, "the first redrive is in the buffer")
        killed.kill()
        assert killed.communicate(timeout=HANGS_S)[0] == b""
    finally:
        desk.node.signal(signal.SIGCONT)
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3)]
    said: dict[str, list[str]] = {source: [] for source in died.many}
    for run in runs:
        out, _ = run.communicate(timeout=HANGS_S)
        for line in out.decode().splitlines():
            source, _, rest = line.partition(" ")
            said[source].append(rest.strip().partition(" as ")[0])
    for source, words in said.items():
        assert len(words) == len(runs) and words.count("redriven") <= 1, (source, words)
        assert set(words) <= {"redriven", "already redriven"}, (source, words)
    seen = desk.arrived("many", MANY)
    assert sorted(int(each.value or b"") for each in seen) == list(range(MANY))
    code, outcomes = desk.redriven("--topic", desk.topic("many"))
    assert {each["outcome"] for each in outcomes.values()} == {"already redriven"}
    assert (code, len(outcomes)) == (1, MANY)
    desk.nothing_more("many", MANY)


def _end_of(desk: Desk) -> int:
    cluster = ConfluentBus(desk.cluster.bootstrap).cluster()
    try:
        return sum(cluster.end_offsets(desk.cluster.buffer, 10_000, committed=False).values())
    finally:
        cluster.close()


def test_without_a_master_the_outcome_is_unknown_and_asking_again_is_safe(
    kafka_and_etcd: LocalCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(kafka_and_etcd, tmp_path, PARTITIONS)
    node = cluster.node(1)
    desk = Desk(cluster, node, producer_of(cluster))
    source = desk.send(b"k", b"late", ("delayd-delay", b"1ms"), partition=1)
    with running([node]):
        desk.letters(bool)
        node.kill()
        desk.cluster.create_topic(desk.topic("late"))
        to = ("--to", desk.topic("late"))
        code, outcomes = desk.redriven(source, *to, "--timeout-s", "0.5")
        assert (code, outcomes[source]["outcome"]) == (1, "unknown")
        assert "redrive it again" in outcomes[source]["detail"]
        node.start()
        done = desk.run("redrive", source, *to)
        assert done.returncode == 1
        assert done.stdout.startswith(f"{source:12} already redriven as "), done.stderr
        desk.nothing_more("late", 1)
