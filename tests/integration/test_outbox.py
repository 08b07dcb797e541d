"""The outbox: transactions in a real PostgreSQL, Debezium in a worker of Kafka Connect, which is
killed meanwhile, and a node that delivers.

Table, worker and connector are those that docs/guides/outbox.md shows.
"""

import json
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from clusters import TestCluster
from confluent_kafka import Producer
from connect_workers import ConnectWorker
from nodes import NodeProcess, running, wait_for
from postgres_servers import Postgres, postgres_server
from topics_read import all_of

from delayd.cluster.lookup import pending_of
from delayd.errors import NodeUnreachableError

pytestmark = pytest.mark.real

GUIDE: Final = Path(__file__).parents[2] / "docs" / "guides" / "outbox.md"
CONNECTOR: Final = "delayd-outbox"
PARTITIONS: Final = 3
"""Of the buffer."""
ORDERS: Final = 400
PAUSE_S: Final = 0.01
"""Between two orders, so that the connector takes them in many batches."""


def shown(language: str) -> str:
    """The one block of this language in the guide."""
    [block] = re.findall(rf"^```{language}\n(.*?)^```$", GUIDE.read_text(), re.M | re.S)
    return str(block)


@pytest.fixture
def database() -> Iterator[Postgres]:
    with postgres_server() as server:
        server.run(shown("sql"))
        server.run("CREATE TABLE orders (id text PRIMARY KEY)")
        yield server


def worker_of(cluster: TestCluster, folder: Path) -> ConnectWorker:
    """The guide's worker, with names of this test."""
    settings = dict(line.split("=", 1) for line in shown("properties").splitlines())
    for name, value in settings.items():
        if name.endswith(".replication.factor"):
            settings[name] = "1"
        elif "outbox-connect" in value:
            settings[name] = value.replace("outbox-connect", f"{cluster.name}-connect")
    return ConnectWorker(folder / "connect", cluster.bootstrap, settings)


def connector_of(cluster: TestCluster, database: Postgres) -> dict[str, str]:
    """The guide's connector, with addresses and names of this test."""
    text = shown("json").replace('"delayd-buffer"', f'"{cluster.buffer}"')
    ours = {"database.port": str(database.port), "topic.prefix": f"{cluster.name}-outbox"}
    return {**json.loads(text), **ours}


@contextmanager
def connecting(
    cluster: TestCluster, database: Postgres, folder: Path, others: Mapping[str, str] | None = None
) -> Iterator[ConnectWorker]:
    """A worker whose connector reads the log; `others`: its settings that differ. What the worker
    logged is printed if the test fails."""
    worker = worker_of(cluster, folder)
    try:
        worker.start()
        worker.create(CONNECTOR, {**connector_of(cluster, database), **(others or {})})
        wait_for(lambda: slot(database, "active") == "t", "the connector reads the log")
        yield worker
    except BaseException:
        print(worker.log[-20_000:])
        raise
    finally:
        worker.kill()


def pending_on(node: NodeProcess) -> int:
    """How many messages wait; -1 if the node does not say."""
    try:
        return int(pending_of((node.url,))["total"])
    except NodeUnreachableError:
        return -1


def slot(database: Postgres, column: str) -> str:
    """What PostgreSQL says of Debezium's slot."""
    return database.run(f"SELECT {column} FROM pg_replication_slots").strip()


SOON: Final = "now() + random() * interval '4 seconds'"
FAR: Final = "now() + interval '30 days'"


class Application:
    """Its transactions, and what must come of them."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self.sent: Counter[tuple[str, str]] = Counter()
        """Ids and operations of the rows that are committed."""
        self.delivered: Counter[str] = Counter()
        self.verdicts: Counter[tuple[str, str]] = Counter()

    def orders(self, numbers: range) -> str:
        """Transactions of these orders, a moment apart: Debezium takes them in many batches."""
        pause = f"DO $$ BEGIN PERFORM pg_sleep({PAUSE_S}); END $$;"
        return "\n".join(f"{self._order(number)} {pause}" for number in numbers)

    def _order(self, number: int) -> str:
        name = f"order-{number}"
        order = f"INSERT INTO orders VALUES ('{name}');"
        match number % 8:
            case 2:
                self._expect(name, "schedule", verdict="duplicate")
                self._expect(name, "schedule", "cancel", verdict="cancelled")
                twice = [self._schedule(name, FAR)] * 2
                return transaction(order, *twice, cancel(name))
            case 3:
                return transaction(order, self._schedule(name, SOON), ends="ROLLBACK")
            case 4:
                self._expect(name, "schedule", "cancel", verdict="cancelled")
                return transaction(order, self._schedule(name, FAR)) + transaction(cancel(name))
            case 5:
                self._expect(name, "schedule", value=name)
                changed_mind = transaction(cancel(name), ends="ROLLBACK")
                return transaction(order, self._schedule(name, SOON)) + changed_mind
            case 6:
                self._expect(name, "schedule", "replace", verdict="replaced", value=f"{name} paid")
                paid = insert(name, self._topic, SOON, f"{name} paid", "replace")
                return transaction(order, self._schedule(name, FAR)) + transaction(paid)
            case 7:
                self._expect(name, "schedule", "cancel", verdict="cancelled")
                return transaction(order, self._schedule(name, FAR), cancel(name))
            case _:
                self._expect(name, "schedule", value=name)
                return transaction(order, self._schedule(name, SOON))

    def _schedule(self, name: str, due: str) -> str:
        return insert(name, self._topic, due, name)

    def _expect(self, name: str, *ops: str, verdict: str = "", value: str = "") -> None:
        self.sent.update((name, op) for op in ops)
        self.delivered.update([value] if value else [])
        self.verdicts.update([(name, verdict)] if verdict else [])


def insert(message_id: str, topic: str, due: str, payload: str, op: str = "schedule") -> str:
    return (
        "INSERT INTO delayd_outbox (message_id, op, topic, due, payload) VALUES"
        f" ('{message_id}', '{op}', '{topic}', {due}, '{payload}');"
    )


def cancel(message_id: str) -> str:
    return f"INSERT INTO delayd_outbox (message_id, op) VALUES ('{message_id}', 'cancel');"


def transaction(*statements: str, ends: str = "COMMIT") -> str:
    return f"BEGIN; {' '.join(statements)} {ends};"


def sent_to(cluster: TestCluster) -> Counter[tuple[str, str]]:
    """Ids and operations in the buffer, as often as they are there."""
    records = all_of(cluster.bootstrap, cluster.buffer, PARTITIONS)
    headers = [dict(record.headers) for record in records]
    return Counter(
        ((each["delayd-id"] or b"").decode(), (each["delayd-op"] or b"").decode())
        for each in headers
        if "delayd-op" in each
    )


def verdicts_of(cluster: TestCluster) -> Counter[tuple[str, str]]:
    """What the receipts say of each id."""
    records = all_of(cluster.bootstrap, cluster.receipts, PARTITIONS)
    told = [json.loads(record.value or b"") for record in records]
    return Counter((each["id"], each["verdict"]) for each in told)


def test_each_committed_row_counts_once_though_the_connector_is_killed(
    cluster: TestCluster, database: Postgres, tmp_path: Path
) -> None:
    target = cluster.target("reminders", PARTITIONS)
    application = Application(target)
    first, second = (
        application.orders(range(begin, begin + ORDERS // 2)) for begin in (0, ORDERS // 2)
    )
    with running([cluster.node(0)]) as node, connecting(cluster, database, tmp_path) as worker:
        with database.psql() as psql:
            writing = threading.Thread(target=psql.communicate, args=(first,))
            writing.start()
            wait_for(lambda: sent_to(cluster).total() > ORDERS // 8, "requests are in the buffer")
            worker.kill()
            print(f"killed after {sent_to(cluster).total()} of {application.sent.total()} requests")
            writing.join()
        assert psql.returncode == 0
        database.run(second)
        worker.start()
        wait_for(lambda: sent_to(cluster) >= application.sent, "all requests are in the buffer")
        assert sent_to(cluster) == application.sent
        wait_for(lambda: verdicts_of(cluster) >= application.verdicts, "all cancels are answered")
        wait_for(lambda: pending_on(node) == 0, "all is delivered or cancelled")
    assert verdicts_of(cluster) == application.verdicts
    found = all_of(cluster.bootstrap, target, PARTITIONS)
    assert Counter((record.value or b"").decode() for record in found) == application.delivered
    assert all_of(cluster.bootstrap, cluster.dead, PARTITIONS) == []


def test_the_slot_keeps_no_log_of_other_tables_and_a_new_worker_goes_on_from_there(
    cluster: TestCluster, database: Postgres, tmp_path: Path
) -> None:
    soon = {"heartbeat.interval.ms": "1000", "status.update.interval.ms": "1000"}
    with connecting(cluster, database, tmp_path, soon) as worker:
        database.run(insert("before", "t", FAR, "v"))
        wait_for(lambda: sent_to(cluster).total() == 1, "the request is in the buffer")
        database.run("CREATE TABLE others AS SELECT repeat('x', 99) FROM generate_series(1, 9999)")
        end = database.run("SELECT pg_current_wal_lsn()").strip()
        is_past = f"confirmed_flush_lsn >= '{end}'"
        wait_for(lambda: slot(database, is_past) == "t", "the slot lets go of the log")
        worker.kill()
        database.run(insert("after", "t", FAR, "v"))
        worker.start()
        wait_for(lambda: sent_to(cluster).total() > 1, "the next request is in the buffer")
    assert sent_to(cluster) == Counter({("before", "schedule"): 1, ("after", "schedule"): 1})


def test_a_timestamp_without_a_zone_is_refused_as_microseconds(
    cluster: TestCluster, database: Postgres, tmp_path: Path
) -> None:
    database.run("ALTER TABLE delayd_outbox ALTER due TYPE timestamp")
    with running([cluster.node(0)]), connecting(cluster, database, tmp_path):
        database.run(insert("order-1", cluster.target("reminders"), FAR, "v"))
        wait_for(lambda: bool(verdicts_of(cluster)), "the request is refused")
    [letter] = all_of(cluster.bootstrap, cluster.dead, PARTITIONS)
    detail = dict(letter.headers)["delayd-detail"]
    assert detail is not None and b"looks like microseconds" in detail


def test_bytes_arrive_as_they_are(cluster: TestCluster, database: Postgres, tmp_path: Path) -> None:
    database.run(
        "ALTER TABLE delayd_outbox DROP CONSTRAINT delayd_outbox_check,"
        " ALTER payload TYPE bytea USING payload::bytea"
    )
    converter = {"value.converter": "io.debezium.converters.BinaryDataConverter"}
    with connecting(cluster, database, tmp_path, converter):
        database.run(insert("order-1", "t", FAR, r"\x00ff0a"))
        wait_for(lambda: sent_to(cluster).total() == 1, "the request is in the buffer")
    records = all_of(cluster.bootstrap, cluster.buffer, PARTITIONS)
    assert [record.value for record in records if record.key == b"order-1"] == [b"\x00\xff\n"]


def poll(cluster: TestCluster, database: Postgres, *, dies: bool) -> int:
    """One round of the guide's recipe for polling, up to the deletion if it dies. Return how many
    rows it has sent."""
    [query] = re.findall(r"^ +(SELECT \* FROM delayd_outbox .*)$", GUIDE.read_text(), re.M)
    rows = json.loads(database.run(f"SELECT coalesce(json_agg(r), '[]') FROM ({query}) r"))
    names = {"bootstrap.servers": cluster.bootstrap, "transactional.id": f"{cluster.name}-poll"}
    producer = Producer({**names, "partitioner": "murmur2_random"})
    producer.init_transactions()
    producer.begin_transaction()
    for row in rows:
        columns = {"id": "message_id", "op": "op", "topic": "topic", "due": "due"}
        headers = {f"delayd-{name}": row[column] for name, column in columns.items()}
        given = [(name, value) for name, value in headers.items() if value is not None]
        producer.produce(cluster.buffer, row["payload"], row["message_id"], headers=given)
    producer.commit_transaction()
    if rows and not dies:
        numbers = ", ".join(str(row["id"]) for row in rows)
        database.run(f"DELETE FROM delayd_outbox WHERE id IN ({numbers})")
    return len(rows)


def test_what_a_poller_sends_again_counts_once(cluster: TestCluster, database: Postgres) -> None:
    target = cluster.target("reminders", PARTITIONS)
    with running([cluster.node(0)]) as node:
        for number in range(20):
            database.run(insert(f"due-{number}", target, "now()", "v", "replace"))
            kept = transaction(insert(f"off-{number}", target, FAR, "v", "replace"))
            database.run(kept + transaction(cancel(f"off-{number}")))
        for dying in (40, 20):
            assert poll(cluster, database, dies=True) == dying
            wait_for(
                lambda: len(all_of(cluster.bootstrap, target, PARTITIONS)) == 20, "all is delivered"
            )
            assert poll(cluster, database, dies=False) == dying
        assert poll(cluster, database, dies=False) == 0
        answers = 2 * (40 + 20)
        wait_for(lambda: verdicts_of(cluster).total() == answers, "each request is answered")
        wait_for(lambda: pending_on(node) == 0, "all is delivered or cancelled")
    found = all_of(cluster.bootstrap, target, PARTITIONS)
    wanted = {f"due-{number}".encode() for number in range(20)}
    assert Counter(record.key for record in found) == Counter(wanted)
    cancelled = {(f"off-{number}", "cancelled"): 2 for number in range(20)}
    assert verdicts_of(cluster) >= Counter(cancelled)


def test_the_table_refuses_what_would_become_a_dead_letter(database: Postgres) -> None:
    for columns in (
        "(message_id, topic, payload) VALUES ('i', 't', 'v')",
        "(message_id, due, payload) VALUES ('i', now(), 'v')",
        "(message_id, topic, due) VALUES ('i', 't', now())",
        "(message_id, topic, due, payload) VALUES ('i', 't', now(), ' ')",
        "(message_id, topic, due, payload) VALUES ('', 't', now(), 'v')",
        "(message_id, topic, due, payload) VALUES ('i', '', now(), 'v')",
        "(message_id, topic, due, payload) VALUES ('i', 't', 'infinity', 'v')",
        "(message_id, topic, due, payload) VALUES ('i', 't', now(), repeat('v', 900001))",
        "(topic, due, payload) VALUES ('t', now(), 'v')",
        "(message_id, op, topic, due, payload) VALUES ('i', 'fire', 't', now(), 'v')",
        "(message_id, op, topic) VALUES ('i', 'cancel', 't')",
        "(message_id, op, payload) VALUES ('i', 'cancel', 'v')",
    ):
        with pytest.raises(AssertionError, match="violates"):
            database.run(f"INSERT INTO delayd_outbox {columns}")
