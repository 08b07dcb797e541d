"""`delayd import` from a real RabbitMQ: queues in which messages wait for the end of their lives.

Source: docs/guides/importing.md, "RabbitMQ".
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pika
import pytest
from import_runs import START, START_MS, START_S, Dying, killed_at_each_call, ran, requests
from nodes import wait_for
from rabbit_servers import rabbit_server

from delayd.commands.importing import rabbit_parked, rabbit_queue
from delayd.commands.importing.amqp_server import AmqpServer
from delayd.commands.importing.job import look
from delayd.commands.importing.rabbit_queue import RabbitRows
from delayd.commands.importing.sources import Given, source_of
from delayd.errors import ConfigError, SourceUnreachableError
from delayd.testing import InMemoryDelayd

QUEUE, WORK = "wait", "work"
TTL_MS = 7_200_000
OF_RABBIT = 'topic = "orders"\nid = "{message_id}"\ndue = "{due_ms}"\n'


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with rabbit_server() as url:
        yield url


@pytest.fixture
def channel(url: str) -> Iterator[Any]:
    with closing(pika.BlockingConnection(pika.URLParameters(url))) as connection:
        channel = connection.channel()
        for queue in (QUEUE, WORK):
            channel.queue_delete(queue)
        channel.queue_declare(WORK, durable=True)
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": WORK}
        channel.queue_declare(QUEUE, durable=True, arguments={**dead, "x-message-ttl": TTL_MS})
        channel.confirm_delivery()
        yield channel


@pytest.fixture
def rows_of(url: str) -> Iterator[Callable[..., RabbitRows]]:
    """Opens sources, and closes them."""
    with ExitStack() as stack:

        def open_(queue: str = QUEUE, ttl_ms: int | None = None) -> RabbitRows:
            server = AmqpServer(url)
            stack.callback(server.close)
            return RabbitRows(server, queue, ttl_ms)

        yield open_


def published(channel: Any, many: int, **more: Any) -> set[str]:
    for queue in (QUEUE, WORK):
        channel.queue_purge(queue)
    for n in range(many):
        given = {
            "message_id": f"m{n}",
            "expiration": str(3_600_000 + n),
            "delivery_mode": 2,
            "headers": {"timestamp_in_ms": START_MS + n, "CC": [WORK] * (n == 1), "trace": b"\xff"},
            **more,
        }
        channel.basic_publish("", QUEUE, b"\0%d" % n, pika.BasicProperties(**given))
    channel.queue_purge(WORK)
    return {f"m{n}" for n in range(many)}


def ready(channel: Any, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def test_messages_are_taken_and_scheduled_for_the_end_of_their_lives(
    rows_of: Callable[..., RabbitRows],
    channel: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rabbit_queue, "MESSAGES_MAX", 7)
    wanted = published(channel, 30)
    source = rows_of(QUEUE, TTL_MS)
    seen = look(source.rows(None), requests(tmp_path, OF_RABBIT), print)
    assert (seen.rows, seen.malformed) == (30, 0)
    wait_for(lambda: ready(channel, QUEUE) == 30, "a look gives all back")
    with InMemoryDelayd("orders", start=START) as kit:
        assert ran(kit, tmp_path, OF_RABBIT, source) == {"scheduled": 30}
        due = {each.id: each.due_ms for each in kit.pending()}
        kit.clock.advance("2h")
        values = {each.header("delayd-id"): each.value for each in kit.delivered("orders")}
    assert due == {f"m{n}": START_MS + 3_600_000 + 2 * n for n in range(30)}
    assert values == {f"m{n}": b"\0%d" % n for n in range(30)} and set(values) == wanted
    assert (ready(channel, QUEUE), ready(channel, WORK)) == (0, 0)
    assert ready(channel, source.kept().where) == 30


def test_killed_at_each_call_of_rabbitmq_each_message_is_there_once(
    rows_of: Callable[..., RabbitRows],
    channel: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rabbit_queue, "MESSAGES_MAX", 2)
    monkeypatch.setattr(rabbit_queue, "POLL_MS", 10)
    doomed: list[RabbitRows] = []

    def open_() -> RabbitRows:
        for each in doomed:
            each._server._connection.close()  # as the end of a process does
            wait_for(lambda: _all_are_ready(channel, doomed[0], 3), "what it had fetched is back")
            doomed.clear()
        return rows_of(QUEUE, TTL_MS)

    def doom(source: RabbitRows, at: int) -> None:
        lend, left = source._server.channel, [at]

        @contextmanager
        def dying() -> Iterator[Any]:
            with lend() as whole:
                each = Dying(whole, left[0])
                try:
                    yield each
                finally:
                    left[0] = each.left

        monkeypatch.setattr(source._server, "channel", dying)
        doomed.append(source)

    runs = killed_at_each_call(tmp_path, open_, OF_RABBIT, lambda: published(channel, 3), doom)
    count = 0
    for _ in runs:
        count += 1
        assert (ready(channel, QUEUE), ready(channel, WORK)) == (0, 0)
    assert count > 20


def _all_are_ready(channel: Any, source: RabbitRows, many: int) -> bool:
    """Whether each message is in one of two queues, and in one only."""
    if source._token is None:
        return ready(channel, QUEUE) == many
    name = source._parked
    asked = channel.connection.channel()
    try:
        kept = int(asked.queue_declare(name, passive=True).method.message_count)
        asked.close()
    except pika.exceptions.ChannelClosedByBroker:
        kept = 0
    return ready(channel, QUEUE) + kept == many


def test_what_is_fetched_and_not_taken_keeps_its_expiry(
    rows_of: Callable[..., RabbitRows], channel: Any
) -> None:
    """A crash before the commit: RabbitMQ delivers it, when it is due."""
    published(channel, 3, expiration="1500")
    source = rows_of(QUEUE)
    rows = source.rows(None)
    assert next(rows).fields["expiration"] == "1500"
    time.sleep(2)  # its time to live
    rows.close()  # type: ignore[attr-defined]
    wait_for(lambda: ready(channel, WORK) == 3, "they are due")


@pytest.mark.parametrize(
    ("properties", "ttl_ms", "due_ms"),
    [
        ({"timestamp": START_S, "headers": None}, None, START_MS + 1_000 + 3_600_000),
        ({"timestamp": START_S, "headers": None}, 60_000, START_MS + 1_000 + 60_000),
        ({"expiration": None}, 60_000, START_MS + 60_000),
        ({"expiration": None}, None, None),
        ({"headers": {"run_at": START + timedelta(seconds=1)}}, 60_000, None),
    ],
)
def test_a_due_time_is_that_of_the_publisher_and_the_shorter_life(
    rows_of: Callable[..., RabbitRows],
    channel: Any,
    properties: dict[str, Any],
    ttl_ms: int | None,
    due_ms: int | None,
) -> None:
    """Without a timestamp nobody can tell; what the application wrote may."""
    published(channel, 1, **properties)
    [row] = rows_of(QUEUE, ttl_ms).rows(None)
    assert row.fields["due_ms"] == due_ms
    if properties.get("headers"):
        assert row.fields["headers"]["run_at"].startswith("2027-01-01")


def test_what_is_no_queue_of_waiting_messages_is_refused(
    rows_of: Callable[..., RabbitRows], url: str, channel: Any
) -> None:
    with pytest.raises(ConfigError, match="no such queue"):
        rows_of("absent")
    channel.basic_consume(QUEUE, lambda *_: None)
    source = rows_of(QUEUE)
    source.identity()
    with pytest.raises(ConfigError, match="has 1 consumers"):
        source.disarm()
    with pytest.raises(ConfigError, match="write amqp://"):
        AmqpServer("redis://host")
    with pytest.raises(ConfigError, match="write it like 15m"):
        source_of("rabbitmq:a", Given("b", None, url, None, "soon", False))
    with pytest.raises(SourceUnreachableError, match=r"refused.*nothing is lost"):
        AmqpServer("amqp://127.0.0.1:1/x")
    with pytest.raises(SourceUnreachableError, match="mend what it refuses"):
        AmqpServer(url.replace("guest:guest", "guest:wrong"))


@pytest.mark.parametrize(("silent_s", "heartbeat_s"), [(0, 60), (30, 120)])
def test_a_connection_that_is_cut_is_noticed_and_one_that_is_silent_stays(
    url: str, silent_s: float, heartbeat_s: int
) -> None:
    with closing(AmqpServer(url, silent_s)) as server:
        assert server._connection._impl.params.heartbeat == heartbeat_s


def test_what_is_kept_must_stay_as_it_is(
    rows_of: Callable[..., RabbitRows], channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rabbit_queue, "STILL_MS", 1_000)
    published(channel, 5)
    source = rows_of(QUEUE)
    source.identity()
    places = [each.position for each in source.rows(source.disarm())]
    assert [len(list(source.rows(each))) for each in places] == [4, 3, 2, 1, 0]
    method, *_ = channel.basic_get(source.kept().where)
    channel.basic_ack(method.delivery_tag)
    with pytest.raises(ConfigError, match="holds 4 messages and not 5"):
        next(source.rows(places[0]))
    channel.basic_publish("", source.kept().where, b"another", pika.BasicProperties())
    wait_for(lambda: ready(channel, source.kept().where) == 5, "it is there")
    with pytest.raises(ConfigError, match="another order"):
        list(source.rows(places[0]))


def test_a_queue_that_goes_with_its_last_consumer_stays(
    rows_of: Callable[..., RabbitRows], channel: Any
) -> None:
    channel.queue_declare("fleeting", auto_delete=True)
    for n in range(3):
        channel.basic_publish("", "fleeting", b"%d" % n, pika.BasicProperties(expiration="3600000"))
    source = rows_of("fleeting")
    assert len(list(source.rows(None))) == 3
    wait_for(lambda: ready(channel, "fleeting") == 3, "a look gives all back")
    source.identity()
    assert source.disarm() == "0/3/0"
    assert ready(channel, "fleeting") == 0 and source.kept()[1:] == (3, "")
    channel.queue_delete("fleeting")


@pytest.mark.parametrize(
    ("limit", "lasts"),
    [
        ({"x-max-length": 5}, False),
        ({"x-max-length": 5, "x-overflow": "drop-head"}, False),
        ({"x-max-length-bytes": 9, "x-overflow": "drop-head"}, False),
        ({"x-message-ttl": 0}, False),
        ({"x-max-length": 10}, True),
    ],
)
def test_what_rabbitmq_would_not_keep_is_not_taken(
    rows_of: Callable[..., RabbitRows],
    channel: Any,
    monkeypatch: pytest.MonkeyPatch,
    limit: dict[str, Any],
    lasts: bool,
) -> None:
    """A policy may be for queues of all names. Each run tries all that is there."""
    monkeypatch.setattr(rabbit_parked, "ARGUMENTS", {**rabbit_parked.ARGUMENTS, **limit})
    monkeypatch.setattr(rabbit_parked, "SETTLES_MS", 500)
    monkeypatch.setattr(rabbit_queue, "MESSAGES_MAX", 3)
    published(channel, 10)
    if lasts:
        source = rows_of(QUEUE)
        source.identity()
        assert source.disarm() == "0/10/0" and source.kept()[1:] == (10, "")
        return
    token, left = None, 10 if "x-message-ttl" in limit else 7
    for _ in range(2):
        source = rows_of(QUEUE)
        token = source.identity(token)
        with pytest.raises(ConfigError, match="does not keep"):
            source.disarm()
        assert ready(channel, source._parked) == 10 - left
        wait_for(lambda: ready(channel, QUEUE) == left, "what was fetched is back")


def test_what_is_lost_by_a_move_is_told(
    rows_of: Callable[..., RabbitRows], channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rabbit_parked, "SETTLES_MS", 500)
    monkeypatch.setattr(rabbit_parked.Parking, "try_", lambda *_: None)
    limit = {"x-max-length": 3, "x-overflow": "drop-head"}
    for given in ({}, {"x-overflow": "drop-head"}):
        arguments = {**rabbit_parked.ARGUMENTS, **limit, **given}
        monkeypatch.setattr(rabbit_parked, "ARGUMENTS", arguments)
        published(channel, 10)
        source = rows_of(QUEUE)
        source.identity()
        with pytest.raises(ConfigError, match=r"of 10 messages .* 3 are there"):
            source.disarm()


def test_what_is_kept_has_a_name_by_which_no_policy_of_the_queue_is_for_it(
    rows_of: Callable[..., RabbitRows], channel: Any
) -> None:
    published(channel, 1)
    source = rows_of(QUEUE)
    source.identity()
    source.disarm()
    assert QUEUE not in source.kept().where


def test_a_time_to_live_counts_from_the_last_dead_lettering(
    rows_of: Callable[..., RabbitRows], channel: Any
) -> None:
    """A retry: work, which rejects it, and a queue in which it waits. RabbitMQ writes when a queue
    has dead-lettered a message for the first time, and no more."""
    retried = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": QUEUE}
    channel.queue_declare("retried", durable=True, arguments=retried)
    before_ms = time.time() * 1000
    old = pika.BasicProperties(timestamp=START_S // 2, message_id="m")
    channel.queue_purge(QUEUE)
    channel.basic_publish("", "retried", b"x", old)
    for is_known in (True, False):
        wait_for(lambda: ready(channel, "retried") == 1, "it is there")
        method, properties, body = channel.basic_get("retried")
        if not is_known:
            time.sleep(2)
        channel.basic_reject(method.delivery_tag, requeue=False)
        wait_for(lambda: ready(channel, QUEUE) == 1, "it waits")
        [row] = rows_of(QUEUE, 60_000).rows(None)
        if is_known:
            assert before_ms <= row.fields["due_ms"] - 60_000 <= time.time() * 1000 + 1_000
        else:
            assert row.fields["due_ms"] is None
        wait_for(lambda: ready(channel, QUEUE) == 1, "it is back")
        method, properties, body = channel.basic_get(QUEUE)
        channel.basic_publish("", "retried", body, properties)
        channel.basic_ack(method.delivery_tag)
    channel.queue_delete("retried")


def test_a_message_that_is_stamped_anew_when_it_is_parked_keeps_its_time(
    rows_of: Callable[..., RabbitRows], channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(channel, 1)
    publish = pika.adapters.blocking_connection.BlockingChannel.basic_publish

    def stamped(self: Any, exchange: str, key: str, body: bytes, properties: Any = None) -> None:
        """What `message_interceptors.incoming.set_header_timestamp.overwrite` does."""
        if properties is not None:
            properties.headers["timestamp_in_ms"] = START_MS + 10_000
            properties.timestamp = START_S + 10
        publish(self, exchange, key, body, properties)

    monkeypatch.setattr(pika.adapters.blocking_connection.BlockingChannel, "basic_publish", stamped)
    source = rows_of(QUEUE)
    source.identity()
    [row] = source.rows(source.disarm())
    assert row.fields["due_ms"] == START_MS + 3_600_000
    again = rows_of(source.kept().where)
    again.identity()
    [row] = again.rows(again.disarm())
    assert row.fields["due_ms"] == START_MS + 3_600_000


def test_what_comes_back_behind_the_import_is_told(
    rows_of: Callable[..., RabbitRows], channel: Any, url: str
) -> None:
    published(channel, 5)
    with closing(pika.BlockingConnection(pika.URLParameters(url))) as other:
        holding = other.channel()
        for _ in range(2):
            holding.basic_get(QUEUE)
        source = rows_of(QUEUE)
        source.identity()
        assert source.disarm() == "0/3/0"
    wait_for(lambda: ready(channel, QUEUE) == 2, "they are back")
    assert source.kept().rest == "2 messages and 0 consumers"


def test_a_message_that_is_no_text_stops_no_import(
    rows_of: Callable[..., RabbitRows], channel: Any, tmp_path: Path
) -> None:
    published(channel, 4)
    odd = pika.BasicProperties(message_id=b"\xff", expiration="1000", headers={})
    channel.basic_publish("", QUEUE, b"x", odd)
    with InMemoryDelayd("orders", start=START) as kit:
        verdicts = ran(kit, tmp_path, OF_RABBIT + 'key = "{headers}"\n', rows_of(QUEUE))
    assert verdicts == {"scheduled": 4, "malformed": 1}
