"""`delayd import` from a real Redis: sorted sets, and what the real Celery has put there.

Source: docs/guides/importing.md, "Redis".
"""

import base64
import json
import textwrap
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery_filled import celery_on, fetch_and_die
from import_runs import START, START_MS, START_S, Dying, killed_at_each_call, ran, requests
from nodes import delayd_in_process
from redis_servers import redis_server

from delayd.commands.importing import celery_queue, zset
from delayd.commands.importing import job as jobs
from delayd.commands.importing.celery_queue import CeleryRows
from delayd.commands.importing.job import look, refuse_wrong_mapping
from delayd.commands.importing.journal import About, Journal
from delayd.commands.importing.redis_server import RedisServer
from delayd.commands.importing.sources import Given, source_of
from delayd.commands.importing.zset import ZsetRows
from delayd.errors import ConfigError, SourceUnreachableError
from delayd.testing import InMemoryDelayd

KEY = "mail:later"
OF_ZSET = 'topic = "orders"\nid = "{member.id}"\ndue = "{score}"\nunit = "s"\n'
OF_CELERY = 'topic = "orders"\nid = "{id}"\ndue = "{eta}"\n'


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with redis_server() as url:
        yield url


@pytest.fixture
def client(url: str) -> Iterator[Any]:
    with closing(redis.Redis.from_url(url)) as client:
        client.flushall()
        yield client


def doom(source: ZsetRows | CeleryRows, at: int) -> None:
    source._server.client = Dying(source._server.client, at)


def filled(client: Any, members: int) -> set[str]:
    client.flushall()
    for n in range(members):
        client.zadd(KEY, {json.dumps({"id": f"m{n}"}): START_S + 60 + n / 8})
    client.pexpire(KEY, 3_600_000)
    return {f"m{n}" for n in range(members)}


# Sorted sets.


def test_members_are_taken_at_once_and_scheduled_for_their_scores(
    url: str, client: Any, tmp_path: Path
) -> None:
    wanted = filled(client, 40)
    seen = look(ZsetRows(RedisServer(url), KEY).rows(None), requests(tmp_path, OF_ZSET), print)
    assert (seen.rows, seen.malformed, client.zcard(KEY)) == (40, 0, 40), "a look takes nothing"
    source = ZsetRows(RedisServer(url), KEY)
    with InMemoryDelayd("orders", start=START) as kit:
        assert ran(kit, tmp_path, OF_ZSET, source) == {"scheduled": 40}
        due = {each.id: each.due_ms for each in kit.pending()}
        kit.clock.advance("1h")
        values = [json.loads(each.value or b"") for each in kit.delivered("orders")]
    assert due == {f"m{n}": START_MS + 60_000 + n * 125 for n in range(40)}
    assert {each["id"] for each in values} == wanted
    kept = source.kept()
    assert not client.exists(KEY) and client.zcard(kept.where) == 40
    assert client.pttl(kept.where) == -1, "what is kept has no end of its life"


def test_killed_at_each_call_of_redis_each_member_is_there_once(
    url: str, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zset, "MEMBERS_MAX", 7)
    monkeypatch.setattr(jobs, "ROWS", 5)
    runs = killed_at_each_call(
        tmp_path, lambda: ZsetRows(RedisServer(url), KEY), OF_ZSET, lambda: filled(client, 12), doom
    )
    for _ in runs:
        assert not client.exists(KEY)
        [kept] = client.scan_iter(f"{KEY}:*")
        assert client.zcard(kept) == 12


def test_what_is_written_behind_the_import_stays_with_the_old_system(
    url: str, client: Any, tmp_path: Path
) -> None:
    filled(client, 10)
    source = ZsetRows(RedisServer(url), KEY)
    with InMemoryDelayd("orders", start=START) as kit, Journal(tmp_path / "job") as journal:
        journal.begin(About("c", source.name, source.identity(), "m"), None, START_MS)
        source.disarm()
        client.zadd(KEY, {json.dumps({"id": "late"}): START_S + 90})
        journal._file.close()
        assert ran(kit, tmp_path, OF_ZSET, ZsetRows(RedisServer(url), KEY)) == {"scheduled": 10}
    assert client.zcard(KEY) == 1


def test_what_is_kept_must_stay_as_it_is(url: str, client: Any, tmp_path: Path) -> None:
    filled(client, 10)
    source = ZsetRows(RedisServer(url), KEY)
    source.identity()
    place = source.disarm()
    client.zremrangebyrank(source.kept().where, 0, 0)
    with pytest.raises(ConfigError, match="holds 9 messages and not 10"):
        next(source.rows(place))


def test_nothing_is_taken_if_no_row_is_a_request(url: str, client: Any, tmp_path: Path) -> None:
    """A mapping of another source would leave all of them kept and none scheduled."""
    filled(client, 10)
    wrong = OF_ZSET.replace("member.id", "member.absent")
    with pytest.raises(ConfigError, match="nothing was taken: member 1: it has no id"):
        refuse_wrong_mapping(ZsetRows(RedisServer(url), KEY), requests(tmp_path, wrong))
    command = ("import", f"zset:{KEY}", "--from-url", url, "--mapping", str(tmp_path / "map.toml"))
    (tmp_path / "map.toml").write_text(OF_ZSET)
    refuse_wrong_mapping(ZsetRows(RedisServer(url), KEY), requests(tmp_path, OF_ZSET))
    done = delayd_in_process(*command, "--resume", "--bootstrap", "127.0.0.1:1")
    assert done.returncode != 0 and client.zcard(KEY) == 10, "nor if there is no Kafka"


def test_payloads_are_fields_of_a_hash_or_keys(url: str, client: Any) -> None:
    """A hash for all, as home-made queues have it; a key for each, as RQ and BullMQ have it."""
    client.zadd(KEY, {"a": 1, "b": 2, "gone": 3, b"\xff": 4.5})
    client.hset("jobs", mapping={"a": '{"to": "Ann"}', "b": "text", b"\xff": b"\xfe"})
    rows = list(ZsetRows(RedisServer(url), KEY, "jobs").rows(None))
    assert [each.value for each in rows] == [b'{"to": "Ann"}', b"text", b"gone", b"\xfe"]
    assert [each.problem for each in rows] == [None, None, "it has no payload in jobs", None]
    assert rows[0].fields["payload"] == {"to": "Ann"}
    assert rows[3].fields["member_base64"] == base64.b64encode(b"\xff").decode()
    assert rows[3].fields["score"] == 4.5 and rows[0].fields["score"] == 1
    client.hset("job:a", mapping={"data": b"\x78\xff", "to": "Ann"})
    client.set("job:b", "plain")
    rows = list(ZsetRows(RedisServer(url), KEY, "job:{member}").rows(None))
    assert rows[0].fields["payload"] == {"to": "Ann", "data_base64": "eP8="}
    assert [each.value for each in rows[1:]] == [b"plain", b"gone", b"\xff"]
    assert [bool(each.problem) for each in rows] == [False, False, True, True]


def test_a_key_that_is_none_or_another_is_refused(url: str, client: Any) -> None:
    client.rpush("queue", "x")
    with pytest.raises(ConfigError, match="is a list, no sorted set"):
        ZsetRows(RedisServer(url), "queue")
    source = ZsetRows(RedisServer(url), "absent")
    source.identity()
    for use in (source.disarm, lambda: list(source.rows(None))):
        with pytest.raises(ConfigError, match="no such key"):
            use()
    with pytest.raises(ConfigError, match="write redis://"):
        RedisServer("http://host")
    with pytest.raises(ConfigError, match="--from-url"):
        source_of("zset:a", Given("b", None, None, None, None, False))
    with pytest.raises(SourceUnreachableError, match="nothing is lost"):
        ZsetRows(RedisServer("unix:///nowhere?db=0"), "a")
    with pytest.raises(SourceUnreachableError, match="mend what it refuses"):
        ZsetRows(RedisServer(url.replace("unix://", "unix://:wrong@")), "a")


def test_a_member_that_cannot_be_read_stops_no_import(
    url: str, client: Any, tmp_path: Path
) -> None:
    filled(client, 20)
    for n in range(20):
        client.hset(json.dumps({"id": f"m{n}"}), "data", "x")
    client.zadd(KEY, {"list": START_S + 900, "half": START_S + 901})
    client.rpush("list", "x")
    client.hset("half", "data", '{"name": "\\ud83d"}')
    text = OF_ZSET.replace("{member.id}", "{_sha256}") + 'key = "{payload.data.name}"\n'
    source = ZsetRows(RedisServer(url), KEY, "{member}")
    with InMemoryDelayd("orders", start=START) as kit:
        assert ran(kit, tmp_path, text, source) == {"scheduled": 20, "malformed": 2}


# Celery.


@pytest.fixture
def app(url: str, client: Any) -> Iterator[Celery]:
    with closing(celery_on(url)) as app:
        yield app


def due_at(n: int) -> datetime:
    return START + timedelta(hours=1, seconds=n, microseconds=n * 1000)


def sent(app: Celery, client: Any, later: int, now: int) -> set[str]:
    """Tasks with an ETA between others without, some of them fetched by a worker that died."""
    client.flushall()
    for n in range(max(later, now)):
        if n < now:
            app.send_task("mail.now", args=(n,), task_id=f"now-{n}")
        if n < later:
            priority = 3 if n % 4 == 3 else None
            app.send_task(
                "mail.send",
                (n,),
                {"to": "Ann"},
                task_id=f"later-{n}",
                eta=due_at(n),
                priority=priority,
            )
    fetch_and_die(app, later // 2)
    return {f"later-{n}" for n in range(later)}


def ids_in(client: Any, key: str) -> list[str]:
    return [json.loads(each)["headers"]["id"] for each in client.lrange(key, 0, -1)]


def test_tasks_with_an_eta_are_taken_from_queues_and_dead_workers(
    url: str, client: Any, app: Celery, tmp_path: Path
) -> None:
    wanted = sent(app, client, 12, 5)
    assert client.hlen("unacked") == 6
    waiting = ids_in(client, "celery")
    source = CeleryRows(RedisServer(url), "celery")
    seen = look(source.rows(None), requests(tmp_path, OF_CELERY), print)
    assert (seen.rows, seen.malformed) == (12, 0)
    with InMemoryDelayd("orders", start=START) as kit:
        assert ran(kit, tmp_path, OF_CELERY, source) == {"scheduled": 12}
        due = {each.id: each.due_ms for each in kit.pending()}
        kit.clock.advance("2h")
        values = [json.loads(each.value or b"") for each in kit.delivered("orders")]
    assert set(due) == wanted
    assert due == {f"later-{n}": int(due_at(n).timestamp()) * 1000 + n for n in range(12)}
    assert ids_in(client, "celery") == [each for each in waiting if each.startswith("now")]
    assert not any(each.startswith("later") for each in unacked(client))
    assert client.zcard("unacked_index") == client.hlen("unacked")
    put_back(client, values)
    assert arguments_of(app, len(values)) == {f"later-{n}": n for n in range(12)}


def unacked(client: Any) -> list[str]:
    return [json.loads(each)[0]["headers"]["id"] for each in client.hvals("unacked")]


def put_back(client: Any, values: list[dict[str, Any]]) -> None:
    """What the guide has a consumer do when a task is due."""
    for task in values:
        task["headers"]["eta"] = None
        client.lpush("celery", json.dumps(task))


def arguments_of(app: Celery, many: int) -> dict[str, int]:
    """Fetch tasks as a worker does; the first argument of each that was due later."""
    found: dict[str, int] = {}
    with app.connection() as connection, connection.channel() as channel:
        while (message := channel.basic_get("celery")) is not None:
            message = channel.message_to_python(message)
            if message.headers["id"].startswith("later"):
                assert message.headers["eta"] is None
                found[message.headers["id"]] = message.decode()[0][0]
            message.ack()
    assert len(found) == many
    return found


def test_killed_at_each_call_of_redis_each_task_is_there_once(
    url: str, client: Any, app: Celery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(celery_queue, "MESSAGES_MAX", 3)
    monkeypatch.setattr(celery_queue, "PRIORITIES", 4)
    sent(app, client, 6, 3)
    dump = {key: client.dump(key) for key in client.scan_iter()}
    wanted = {f"later-{n}" for n in range(6)}
    others = [each for each in ids_in(client, "celery") if each.startswith("now")]

    def fill() -> set[str]:
        client.flushall()
        for key, content in dump.items():
            client.restore(key, 0, content)
        return wanted

    def open_() -> CeleryRows:
        return CeleryRows(RedisServer(url), "celery", has_no_workers=True)

    for _ in killed_at_each_call(tmp_path, open_, OF_CELERY, fill, doom):
        assert ids_in(client, "celery") == others, "in their order"
        assert not any(each.startswith("later") for each in unacked(client))
        assert len([*client.scan_iter("celery:delayd-import:*")]) == 1


def test_workers_that_run_are_refused(url: str, client: Any, app: Celery) -> None:
    sent(app, client, 2, 0)
    source = CeleryRows(RedisServer(url), "celery")
    source.identity()
    with closing(client.pubsub()) as subscriber:
        subscriber.psubscribe("/0.celery.pidbox")
        assert subscriber.get_message(timeout=10) is not None
        with pytest.raises(ConfigError, match="look like workers"):
            source.disarm()
        assert len(ids_in(client, "celery")) + len(unacked(client)) == 2
        stopped = CeleryRows(RedisServer(url), "celery", has_no_workers=True)
        stopped.identity()
        assert stopped.disarm() == "0/2"


def test_what_celery_did_not_write_is_left_or_named(url: str, client: Any) -> None:
    client.rpush("celery", "{", '{"headers": {"id": "a"}}', '{"headers": {"eta": "x", "id": "b"}}')
    client.hset("unacked", "t", "[1]")
    source = CeleryRows(RedisServer(url), "celery")
    source.identity()
    assert source.disarm() == "0/1"
    assert client.lrange("celery", 0, -1) == [b"{", b'{"headers": {"id": "a"}}']
    [row] = source.rows("0/1")
    assert row.fields["eta"] == "x" and row.problem is None
    client.zadd("other", {"a": 1})
    with pytest.raises(ConfigError, match="is a zset, no queue of Celery"):
        list(CeleryRows(RedisServer(url), "other").rows(None))


def test_a_task_that_cannot_be_read_stops_no_import(
    url: str, client: Any, app: Celery, tmp_path: Path
) -> None:
    """Half a character, in what was lost of a text that somebody cut."""
    sent(app, client, 6, 0)
    for id in ('"odd"', '"\\ud83d"'):
        odd = f'{{"headers": {{"id": {id}, "eta": "{due_at(0).isoformat()}", "x": "\\ud83d"}}}}'
        client.lpush("celery", odd)
        client.hset("unacked", f"tag-{id}", f'[{odd}, "\\ud83d", "celery"]')
    client.lpush("celery", odd.replace("}}", '}, "body": "\\ud83d"}'))
    verdicts = {"scheduled": 7, "malformed": 2}
    with InMemoryDelayd("orders", start=START) as kit:
        found = ran(kit, tmp_path, OF_CELERY, CeleryRows(RedisServer(url), "celery"))
        assert found == verdicts
        kit.clock.advance("2h")
        [value] = [each.value for each in kit.delivered("orders") if b"odd" in (each.value or b"")]
    assert json.loads(value or b"")["headers"]["x"] == "\ud83d"


def test_a_queue_of_which_there_is_nothing_is_refused(url: str, client: Any, app: Celery) -> None:
    sent(app, client, 4, 0)
    source = CeleryRows(RedisServer(url), "celrey")
    source.identity()
    for use in (source.disarm, lambda: list(source.rows(None))):
        with pytest.raises(ConfigError, match="there are no messages"):
            use()


def test_a_sort_that_fails_on_its_way_loses_nothing(url: str, client: Any) -> None:
    """Redis does not roll a script back."""
    client.rpush("from", "a", "b")
    client.set("parked", "no list")
    with pytest.raises(redis.ResponseError):
        client.eval(celery_queue._SORT, 3, "from", "parked", "queue", "01")
    assert client.lrange("from", 0, -1) == [b"b"] and client.lrange("queue", 0, -1) == [b"a"]


def test_the_way_back_of_the_guide_gives_all_back(
    url: str, client: Any, app: Celery, tmp_path: Path
) -> None:
    """What was there meanwhile stays."""
    page = (Path(__file__).parents[2] / "docs/guides/importing.md").read_text()
    [loop] = [each for each in page.split("\n\n") if "redis.lindex(parked" in each]
    sent(app, client, 4, 6)
    source = CeleryRows(RedisServer(url), "celery")
    source.identity()
    source.disarm()
    parked = source.kept().where
    there = ids_in(client, "celery")
    exec(textwrap.dedent(loop), {"redis": client, "json": json, "parked": parked})
    assert there and ids_in(client, "celery")[-len(there) :] == there
    assert {*ids_in(client, "celery")} == {*there} | {f"later-{n}" for n in range(4)}
    assert not client.exists(parked)
