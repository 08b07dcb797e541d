"""The test kit, used as a team would use it."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

import delayd
from delayd.client.outcomes import Verdict
from delayd.errors import ConfigError
from delayd.testing import InMemoryDelayd, fixtures
from replication.quotas import RATE_MAX

in_memory_delayd = fixtures.in_memory_delayd
START = datetime(2027, 1, 31, 9, tzinfo=UTC)
START_MS = int(START.timestamp() * 1_000)
DAY_MS = 86_400_000


@pytest.fixture
def kit() -> Iterator[InMemoryDelayd]:
    with InMemoryDelayd(start=START) as made:
        yield made


def values(kit: InMemoryDelayd, topic: str) -> list[bytes | None]:
    return [record.value for record in kit.delivered(topic)]


def test_a_message_is_delivered_when_the_clock_comes_to_it_and_not_before(
    kit: InMemoryDelayd,
) -> None:
    sent = kit.client().schedule("reminders", "renew", in_="30d", id="order-7", headers={"a": "b"})
    assert sent.due_ms == START_MS + 30 * DAY_MS
    kit.clock.advance(30 * DAY_MS - 1)
    assert kit.delivered("reminders") == []
    [waiting] = kit.pending()
    assert (waiting.topic, waiting.id, waiting.due_ms) == ("reminders", "order-7", sent.due_ms)
    kit.clock.advance(1)
    [record] = kit.delivered("reminders")
    assert (record.key, record.value, record.timestamp_ms) == (b"order-7", b"renew", sent.due_ms)
    assert ("a", b"b") in record.headers
    assert record.header("delayd-source") == sent.source
    assert record.header("delayd-fired") == str(sent.due_ms)
    assert not kit.pending() and not kit.dead()


def test_each_message_is_delivered_at_its_own_due_time_however_far_the_clock_jumps(
    kit: InMemoryDelayd,
) -> None:
    client = kit.client()
    dues = [client.schedule("t", str(n), in_=f"{17 * n + 1}h").due_ms for n in reversed(range(20))]
    kit.clock.advance("365d")
    assert [record.timestamp_ms for record in kit.delivered("t")] == sorted(dues)
    assert kit.clock.now == START + timedelta(days=365)


def test_a_series_comes_each_day_whatever_the_clock_of_its_zone_does(kit: InMemoryDelayd) -> None:
    client = kit.client()
    client.schedule("t", "v", cron="30 2 * * *", zone="Europe/Berlin", id="daily")
    kit.clock.advance("300d")
    records = kit.delivered("t")
    assert len(records) == 300
    assert [record.header("delayd-occurrence") for record in records] == [
        str(number) for number in range(1, 301)
    ]
    hours = {(record.timestamp_ms - START_MS) % DAY_MS / 3_600_000 for record in records}
    assert hours == {16.5, 15.5, 16.0}, "winter, summer, and at once on 28 March"
    [waiting] = kit.pending()
    assert client.cancel("daily").verdict == "cancelled" and not kit.pending(), waiting


def test_a_local_time_comes_when_the_clock_of_its_zone_shows_it(kit: InMemoryDelayd) -> None:
    client = kit.client()
    at = (START + timedelta(days=40)).replace(tzinfo=None, microsecond=0)
    told = client.schedule("t", "v", at=at, zone="Asia/Kolkata", id="by-the-clock")
    due_ms = START_MS // 1_000 * 1_000 + 40 * DAY_MS - 19_800_000
    assert told.due_ms == due_ms
    client.schedule("t", "past", at="2020-01-01T00:00", zone="Europe/Berlin")
    kit.clock.advance("39d")
    assert [record.value for record in kit.delivered("t")] == [b"past"]
    kit.clock.advance("1d")
    [_, found] = kit.delivered("t")
    assert (found.timestamp_ms, found.header("delayd-due")) == (due_ms, str(due_ms))
    assert found.header("delayd-local") == f"{at.isoformat()}[Asia/Kolkata]"
    assert not kit.pending()


def test_what_is_pending_is_fired_or_moved(kit: InMemoryDelayd) -> None:
    client = kit.client()
    for id in ("a", "b"):
        client.schedule("t", id, in_="1h", id=id)
    told = client.reschedule("a", by="-30m")
    assert (told.verdict, told.old_due_ms) == ("rescheduled", START_MS + 3_600_000)
    assert client.fire("b").verdict == "rescheduled"
    assert [record.value for record in kit.delivered("t")] == [b"b"]
    kit.clock.advance("30m")
    assert [record.value for record in kit.delivered("t")] == [b"b", b"a"]
    assert client.fire("b").verdict == "too-late"
    assert client.fire("c").verdict == "not-found"


def test_every_answer_is_that_of_a_cluster(kit: InMemoryDelayd) -> None:
    client = kit.client()
    due = START + timedelta(hours=1)
    assert client.schedule("t", "a", at=due, id="x", wait=True).verdict == "scheduled"
    assert client.schedule("t", "b", at=due, id="x", wait=True).verdict == "conflict"
    assert client.replace("x", "t", "c", in_=timedelta(hours=2)).verdict == "replaced"
    assert client.cancel("nobody").verdict == "not-found"
    kit.clock.advance("2h")
    assert values(kit, "t") == [b"c"]
    assert client.cancel("x").verdict == "too-late"
    assert client.schedule("t", "d", in_="1h", id="y", wait=True).verdict == "scheduled"
    assert client.cancel("y").verdict == "cancelled"
    kit.clock.advance("1d")
    assert values(kit, "t") == [b"c"]


def test_a_target_that_is_missing_is_retried_and_then_dead() -> None:
    with InMemoryDelayd("orders", start=START, retry_delays_ms=(60_000,)) as kit:
        kit.client().schedule("misspelt", "v", in_="1h")
        kit.clock.advance("1h")
        [waiting] = kit.pending()
        assert (waiting.attempts, waiting.due_ms) == (1, START_MS + 3_660_000)
        kit.clock.advance("1m")
        [letter] = kit.dead()
        assert letter.header("delayd-reason") == "dead"
        with pytest.raises(ConfigError, match="does not exist"):
            kit.delivered("misspelt")
        kit.client().schedule("orders", "v", in_="1h")
        kit.delete_target("orders")
        kit.clock.advance("2h")
        assert len(kit.dead()) == 2


def test_a_consumer_that_fails_gets_its_record_again(kit: InMemoryDelayd) -> None:
    client = kit.client()
    client.schedule("t", "v", in_="1s")
    kit.clock.advance("1s")
    policy = delayd.RetryPolicy(delays=("10s",))
    for _ in range(2):
        client.retry(kit.delivered("t")[-1], ValueError("no"), policy)
        kit.clock.advance("10s")
    first, second = kit.delivered("t")
    assert second.timestamp_ms - first.timestamp_ms == 10_000
    assert values(kit, "t-dead") == [b"v"]


def test_raw_records_are_taken_as_those_of_other_languages(kit: InMemoryDelayd) -> None:
    good = kit.send("v", {"delayd-topic": "t", "delayd-delay": "5s"})
    bad = kit.send("v", [("delayd-topic", "t"), ("delayd-delay", "soon")])
    kit.clock.advance(timedelta(seconds=5))
    assert [record.header("delayd-source") for record in kit.delivered("t")] == [good]
    [letter] = kit.dead()
    assert (letter.header("delayd-source"), letter.header("delayd-reason")) == (bad, "bad-delay")


def test_a_list_shows_what_is_pending_by_due_time_and_by_topic(kit: InMemoryDelayd) -> None:
    client = kit.client()
    for number in range(50):
        client.schedule(f"t{number % 2}", "v", in_=f"{50 - number}h", id=f"id-{number}")
    client.cancel("id-0")
    everything = kit.pending()
    assert [each.id for each in everything] == [f"id-{n}" for n in range(49, 0, -1)]
    assert {each.topic for each in kit.pending("t1")} == {"t1"}
    kit.clock.advance("25h")
    assert [each.id for each in kit.pending()] == [f"id-{n}" for n in range(24, 0, -1)]


def test_an_asynchronous_program_uses_it_too(kit: InMemoryDelayd) -> None:
    async def program() -> str:
        async with kit.async_client() as client:
            await client.schedule("t", "v", in_="1h", id="x")
            return (await client.cancel("x")).verdict

    assert asyncio.run(program()) == "cancelled"


def test_the_clock_refuses_what_it_cannot_do(kit: InMemoryDelayd) -> None:
    for bad, word in (("soon", "no duration"), (-1, "negative"), ("-1s", "no duration")):
        with pytest.raises(ConfigError, match=word):
            kit.clock.advance(bad)
    with pytest.raises(ConfigError, match="1000 ms later"):
        kit.clock.advance_to(START - timedelta(seconds=1))
    with pytest.raises(ConfigError, match="time zone"):
        kit.clock.advance_to(datetime(2027, 2, 1))
    kit.clock.advance_to(START + timedelta(days=1))
    assert kit.clock.now == START + timedelta(days=1)


def test_its_defaults_are_now_and_topics_as_they_are_named(
    in_memory_delayd: InMemoryDelayd,
) -> None:
    """By the fixture that every test of a program gets."""
    assert abs((in_memory_delayd.clock.now - datetime.now(UTC)).total_seconds()) < 600
    assert in_memory_delayd.delivered("nothing-yet") == []
    at = in_memory_delayd.clock.now + timedelta(minutes=1)
    in_memory_delayd.client().schedule("t", "v", at=at)
    in_memory_delayd.clock.advance_to(at)
    assert values(in_memory_delayd, "t") == [b"v"]


def test_a_target_may_refuse_large_records(kit: InMemoryDelayd) -> None:
    kit.create_target("small", max_message_bytes="200")
    kit.client().schedule("small", "v" * 1_000, in_="1s")
    kit.clock.advance("1s")
    assert [each.attempts for each in kit.pending()] == [1]


def test_years_pass_in_a_moment(kit: InMemoryDelayd) -> None:
    client = kit.client()
    for _ in range(12):
        client.schedule("t", "v", in_="30d")
        kit.clock.advance("30d")
    assert len(kit.delivered("t")) == 12


def test_a_group_is_seen_and_cancelled(kit: InMemoryDelayd) -> None:
    client = kit.client()
    for number in range(4):
        group = "customer-42" if number % 2 else None
        client.schedule("t", "v", in_="1h", id=f"id-{number}", group=group)
    assert {each.id for each in kit.pending(group="customer-42")} == {"id-1", "id-3"}
    assert kit.cancel_group("customer-42") == {"cancelled": 2}
    assert kit.cancel_group("customer-42") == {}
    assert {each.id for each in kit.pending()} == {"id-0", "id-2"}
    client.replace("id-0", "t", "v", in_="1h", group="another")
    kit.clock.advance("2h")
    found = {
        record.header("delayd-id"): record.header("delayd-group") for record in kit.delivered("t")
    }
    assert found == {"id-0": "another", "id-2": None}


def test_an_asynchronous_client_names_a_group(kit: InMemoryDelayd) -> None:
    async def program() -> None:
        async with kit.async_client() as client:
            await client.schedule("t", "v", in_="1h", id="a", group="g")
            await client.replace("a", "t", "w", in_="1h", group="h")

    asyncio.run(program())
    assert [each.group for each in kit.pending()] == ["h"]


def test_a_target_is_paused_and_resumed(kit: InMemoryDelayd) -> None:
    client = kit.client()
    kit.pause("orders", "1h", rate=1_000)
    for number in range(5):
        client.schedule("orders", b"%d" % number, in_=f"{number + 1}m")
    kit.clock.advance("30m")
    assert kit.delivered("orders") == []
    kit.resume("orders")
    kit.clock.advance("5m")
    assert [each.value for each in kit.delivered("orders")] == [b"%d" % n for n in range(5)]
    kit.pause("orders", "10m")
    client.schedule("orders", b"last", in_="1m")
    kit.clock.advance("9m")
    assert len(kit.delivered("orders")) == 5
    kit.clock.advance("2m")
    assert kit.delivered("orders")[-1].value == b"last"
    with pytest.raises(ConfigError, match="at most 24 h"):
        kit.pause("orders", "25h")
    with pytest.raises(ConfigError, match="write it like"):
        kit.pause("orders", "soon")


def test_a_target_is_limited(kit: InMemoryDelayd) -> None:
    client = kit.client()
    kit.limit("orders", 2)
    told = [
        client.schedule("orders", b"v", in_="1m", id=f"id-{number}", wait=True)
        for number in range(3)
    ]
    assert [each.verdict for each in told] == ["scheduled", "scheduled", "over-quota"]
    kit.clock.advance("2m")
    assert len(kit.delivered("orders")) == 2
    assert client.schedule("orders", b"v", in_="1m", id="later", wait=True).verdict == "scheduled"
    kit.limit("orders", 0)
    for number in range(5):
        client.schedule("orders", b"v", in_="1m", id=f"free-{number}")
    kit.clock.advance("2m")
    assert len(kit.delivered("orders")) == 8
    with pytest.raises(ConfigError, match="at least 1"):
        kit.limit("orders", -1)


def test_the_requests_a_second_for_a_target_are_limited(kit: InMemoryDelayd) -> None:
    """As a mean of ten seconds: of a rate of 2, the 21st at once is one too many."""
    client = kit.client()

    def asked(name: str) -> Verdict:
        return client.schedule("orders", b"v", in_="1h", id=name, wait=True)

    kit.limit("orders", rate=2)
    told = [asked(f"id-{number}") for number in range(21)]
    assert [each.verdict for each in told] == ["scheduled"] * 20 + ["over-quota"]
    assert "2 requests a second are taken for orders" in told[-1].detail
    assert client.schedule("bills", b"v", in_="1h", id="b", wait=True).verdict == "scheduled"
    assert client.cancel("id-0").verdict == "cancelled"
    kit.clock.advance("11s")
    assert asked("later").verdict == "scheduled"
    kit.limit("orders", rate=2, max_pending=20)
    assert "20 messages may be pending for orders" in asked("both").detail
    kit.limit("orders")
    assert {asked(f"free-{number}").verdict for number in range(30)} == {"scheduled"}
    kit.clock.advance("2h")
    assert len(kit.delivered("orders")) == 50 and len(kit.dead()) == 2
    for rate in (-1, RATE_MAX + 1):
        with pytest.raises(ConfigError):
            kit.limit("orders", rate=rate)
