"""The HTTP API of a node over Kafka in memory: what it answers, and to whom.

Source: docs/reference/http-api.md.
"""

import asyncio
import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from api_node import ALL, READER, TEAM, ApiNode, Client, api_node
from httpx import Response
from one_node import wait_for

from delayd.bus import Headers
from delayd.node.monitoring.api import intake
from delayd.node.monitoring.api.desk import QUEUE_MAX, Desk
from delayd.node.monitoring.api.problems import BusyError

HOUR = {"topic": "orders", "value": "v", "delay": "1h"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiNode]:
    with api_node(tmp_path_factory.mktemp("api")) as made:
        yield made


@pytest.fixture
def ask(node: ApiNode) -> Client:
    return Client(node)


def code(answer: Response, status: int) -> str:
    """The code of a problem."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    fields = answer.json()
    assert fields["status"] == status and fields["type"] == f"urn:delayd:{fields['code']}"
    return str(fields["code"])


def known(ask: Client, id: str, **query: Any) -> list[dict[str, Any]]:
    """What is known under an id, once something is."""
    wait_for(lambda: ask("GET", f"/v1/messages/{id}").status_code == 200)
    found: list[dict[str, Any]] = ask("GET", f"/v1/messages/{id}", params=query).json()["messages"]
    return found


def all_pages(ask: Client, path: str, **query: Any) -> list[Any]:
    """All pages of a list."""
    pages = [ask("GET", path, params=query).json()]
    while pages[-1]["next"] is not None:
        pages.append(ask("GET", path, params={**query, "cursor": pages[-1]["next"]}).json())
        assert len(pages) < 1_000
    return pages


# --- Requests


def test_a_message_is_scheduled_looked_up_cancelled_and_stays_known(ask: Client) -> None:
    placed = ask("POST", "/v1/messages", json={**HOUR, "id": "one", "key": "k"})
    assert placed.status_code == 201
    [pending] = known(ask, "one", places=True)
    assert (pending["source"], pending["state"]) == (placed.json()["source"], "pending")
    assert pending["due_ms"] == placed.json()["due_ms"] and pending["topic"] == "orders"
    verdict = ask("DELETE", "/v1/messages/one", params={"wait": True})
    assert verdict.status_code == 200
    assert verdict.json()["verdict"] == "cancelled"
    assert verdict.json()["killed"] == [pending["source"]]
    again = ask("DELETE", "/v1/messages/one", params={"wait": True}).json()
    assert again["verdict"] == "cancelled"
    [gone] = known(ask, "one")
    assert gone["state"] == "cancelled" and gone["killed_by"] == verdict.json()["source"]


def test_a_message_is_moved_and_fired(ask: Client) -> None:
    placed = ask("POST", "/v1/messages", json={**HOUR, "id": "moved"}).json()
    path, wait = "/v1/messages/moved", {"wait": True}
    told = ask("POST", f"{path}/reschedule", json={"by": "+10m"}, params=wait).json()
    assert (told["verdict"], told["old_due_ms"]) == ("rescheduled", placed["due_ms"])
    assert told["due_ms"] == placed["due_ms"] + 600_000
    both = ask("POST", f"{path}/reschedule", json={"by": "+10m", "delay": "1s"})
    assert both.status_code == 422
    assert ask("POST", f"{path}/fire").status_code == 202
    told = ask("POST", f"{path}/fire", params=wait).json()
    assert told["verdict"] in ("rescheduled", "too-late")
    assert ask("POST", "/v1/messages/nothing/fire", params=wait).json()["verdict"] == "not-found"


def test_of_several_messages_the_last_one_is_pending(ask: Client) -> None:
    path = "/v1/messages/often/debounce"
    body = {"topic": "orders", "delay": "1h", "max_wait": "2h"}
    for number in range(3):
        placed = ask("POST", path, json={**body, "value": str(number)})
        assert placed.status_code == 202
    fields = placed.json()
    assert fields["due_ms"] == fields["append_ms"] + 3_600_000

    def pending() -> list[str]:
        return [each["source"] for each in known(ask, "often") if each["state"] == "pending"]

    wait_for(lambda: pending() == [fields["source"]])  # the node may be one or two behind
    for wrong in ({"max_wait": "1m"}, {"at": 5}, {"window": "1s"}, {"max_wait": None}):
        refused = ask("POST", path, json={**body, **wrong})
        assert refused.status_code in (400, 422), refused.text


def test_a_delivery_is_shown_with_its_place(ask: Client, node: ApiNode) -> None:
    body = {"topic": "orders", "value_base64": base64.b64encode(b"\xff").decode(), "delay": "0ms"}
    headers = [{"name": "x", "value": "1"}, {"name": "y"}]
    ask("POST", "/v1/messages", json={**body, "id": "soon", "headers": headers})
    wait_for(lambda: any(known(ask, "soon")[0]["state"] == "done" for _ in "1"))
    [found] = known(ask, "soon", places=True)
    assert found["state"] == "delivered" and found["at"].startswith("orders/")
    _, partition, offset = found["at"].split("/")
    record = node.kafka.topics["orders"].partitions[int(partition)].read(int(offset), 1)[0][0]
    assert record.value == b"\xff" and list(record.headers)[:2] == [("x", b"1"), ("y", None)]


def test_a_replace_answers_when_kafka_has_it_or_with_its_verdict(ask: Client) -> None:
    ask("POST", "/v1/messages", json={**HOUR, "id": "two"})
    sent = ask("PUT", "/v1/messages/two", json=HOUR)
    assert sent.status_code == 202 and sent.json()["due_ms"]
    verdict = ask("PUT", "/v1/messages/two", json=HOUR, params={"wait": True})
    assert verdict.status_code == 200 and verdict.json()["verdict"] == "replaced"


def test_a_schedule_that_waits_answers_with_its_verdict(ask: Client) -> None:
    """docs/design/wishes.md: with an id and without."""
    for id in ("four", None):
        told = ask("POST", "/v1/messages", json={**HOUR, "id": id}, params={"wait": True})
        assert (told.status_code, told.json()["verdict"]) == (201, "scheduled")
    for body, word in ((HOUR, "duplicate"), ({**HOUR, "delay": "2h"}, "conflict")):
        told = ask("POST", "/v1/messages", json={**body, "id": "four"}, params={"wait": True})
        assert (told.status_code, told.json()["verdict"]) == (200, word)


def test_a_series_is_scheduled_shown_and_cancelled(ask: Client, node: ApiNode) -> None:
    """docs/design/series.md: with its expression, wherever it is shown."""
    body = {
        "topic": "billing",
        "value": "v",
        "id": "each-year",
        "cron": "@yearly",
        "zone": "EST5EDT",
    }
    told = ask("POST", "/v1/messages", json=body, params={"wait": True})
    assert (told.status_code, told.json()["verdict"]) == (201, "scheduled")
    wait_for(lambda: known(ask, "each-year")[0]["source"] != told.json()["source"])
    [pending] = known(ask, "each-year", places=True)
    assert pending["state"] == "pending" and pending["topic"] == "billing"
    assert pending["series"] == {"cron": "@yearly", "zone": "EST5EDT", "occurrence": 1}
    node.wait_checkpointed(2)

    def listed() -> list[Any]:
        query = {"id_prefix": "each-year"}
        return [m for page in all_pages(ask, "/v1/pending", **query) for m in page["messages"]]

    wait_for(lambda: [each["occurrence"] for each in listed()] == [1])
    [item] = listed()
    assert (item["cron"], item["zone"]) == ("@yearly", "EST5EDT")
    for wrong in ({"cron": "0 0 30 2 *"}, {"zone": "Mars/Olympus"}, {"delay": "1s"}):
        answer = ask("POST", "/v1/messages", json={**body, "id": "wrong", **wrong})
        assert answer.status_code in (400, 422), answer.json()
    assert ask("DELETE", "/v1/messages/each-year", params={"wait": True}).json()["killed"]


def test_a_local_time_is_scheduled_shown_and_cancelled(ask: Client, node: ApiNode) -> None:
    """docs/design/local-times.md: with its zone and the moment that it is, wherever it is shown."""
    far = datetime.fromtimestamp(node.clock.wall_ms() // 1000, UTC) + timedelta(days=30)
    at = far.replace(tzinfo=None).isoformat(timespec="minutes")
    due_ms = int(far.replace(second=0).timestamp()) * 1_000 - 19_800_000
    body = {"topic": "billing", "value": "v", "id": "by-the-clock", "at": at}
    body["zone"] = "Asia/Kolkata"
    told = ask("POST", "/v1/messages", json=body, params={"wait": True})
    assert (told.status_code, told.json()["verdict"]) == (201, "scheduled")
    wait_for(lambda: known(ask, "by-the-clock")[0]["source"] != told.json()["source"])
    [pending] = known(ask, "by-the-clock", places=True)
    assert pending["state"] == "pending" and pending["topic"] == "billing"
    assert pending["local"] == {"at": at, "zone": "Asia/Kolkata", "due_ms": due_ms}
    node.wait_checkpointed(2)

    def listed() -> list[Any]:
        query = {"id_prefix": "by-the-clock"}
        return [m for page in all_pages(ask, "/v1/pending", **query) for m in page["messages"]]

    wait_for(lambda: [each["resolved_ms"] for each in listed()] == [due_ms])
    [item] = listed()
    assert (item["local"], item["zone"]) == (at, "Asia/Kolkata")
    assert item["due_ms"] == due_ms - 86_400_000, "a day before it is resolved again"
    for wrong in ({"zone": "Mars/Olympus"}, {"at": f"{at}:00Z"}, {"at": None, "delay": "1s"}):
        answer = ask("POST", "/v1/messages", json={**body, "id": "wrong", **wrong})
        assert answer.status_code in (400, 422), answer.json()
    assert ask("DELETE", "/v1/messages/by-the-clock", params={"wait": True}).json()["killed"]


def test_an_id_may_have_any_characters(ask: Client) -> None:
    id = "a/b c%2F?#ü"
    assert ask("POST", "/v1/messages", json={**HOUR, "id": id}).status_code == 201
    path = f"/v1/messages/{''.join(f'%{byte:02X}' for byte in id.encode())}"
    wait_for(lambda: ask("GET", path).status_code == 200)
    assert ask("GET", path).json()["id"] == id
    assert ask("DELETE", path, params={"wait": True}).json()["verdict"] == "cancelled"


def test_of_many_a_bad_one_does_not_stop_the_others(ask: Client) -> None:
    messages = [HOUR, {**HOUR, "topic": "delayd-buffer"}, {**HOUR, "delay": "41d"}, HOUR]
    answer = ask("POST", "/v1/messages/batch", json={"messages": messages}).json()
    assert answer["failed"] == 2
    assert ["source" in outcome for outcome in answer["outcomes"]] == [True, False, False, True]
    assert [each["code"] for each in answer["outcomes"][1:3]] == ["request-refused"] * 2
    assert "3456000000 ms" in answer["outcomes"][2]["detail"], "the limit is named"


@pytest.mark.parametrize(
    "more",
    [
        {"delay": None},
        {"at": 7},
        {"value_base64": "aGk="},
        {"value": None, "value_base64": "a"},
        {"topic": 7},
        {"topic": ""},
        {"partition": -1},
        {"partition": True},
        {"headers": [{"name": "delayd-due", "value": "7"}]},
        {"unknown": 1},
        {"id": ""},
        {"id": "x" * 257},
        {"delay": "soon"},
        {"delay": None, "at": "2027-01-01T00:00:00"},
        {"topic": "a/b"},
    ],
)
def test_what_makes_no_sense_is_refused_and_not_sent(
    ask: Client, node: ApiNode, more: dict[str, Any]
) -> None:
    before = len(node.read("delayd-buffer"))
    answer = ask("POST", "/v1/messages", json={**HOUR, **more})
    assert code(answer, 422) in ("http-request", "request-refused")
    assert len(node.read("delayd-buffer")) == before


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"topic": "\\ud800", "\\ud800": 1}'],
)
def test_a_body_that_is_no_object_is_refused(ask: Client, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    answer = ask("POST", "/v1/messages", content=body, headers=headers)
    assert code(answer, answer.status_code) == "http-request" and answer.status_code in (400, 422)


def test_a_body_that_is_too_large_is_refused_before_it_is_read(ask: Client) -> None:
    body = b" " * (intake.BODY_BYTES_MAX + 1)
    assert code(ask("POST", "/v1/messages", content=body), 413) == "http-request"

    async def without_length() -> Any:
        for _ in range(2 + intake.BODY_BYTES_MAX // 65_536):
            yield b" " * 65_536

    assert code(ask("POST", "/v1/messages", content=without_length()), 413) == "http-request"


def test_a_body_that_does_not_come_is_not_waited_for(
    ask: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "BODY_TIMEOUT_S", 0.05)

    async def slow() -> Any:
        yield b"{"
        await asyncio.Event().wait()

    assert code(ask("POST", "/v1/messages", content=slow()), 408) == "http-request"


def test_what_is_not_there_and_what_may_not_be_done_there_are_problems(ask: Client) -> None:
    assert code(ask("GET", "/v1"), 404) == "http-not-found"
    assert code(ask("GET", "/v1/pending/nothing"), 404) == "http-not-found"
    assert code(ask("POST", "/v1/health"), 405) == "http-request"
    assert code(ask("GET", "/v1/messages/never-heard-of"), 404) == "http-not-found"
    assert ask("GET", "/nothing").json() == {"detail": "Not Found"}, "others answer as before"


# --- Lists


def test_pages_show_each_pending_message_once_and_no_other(ask: Client, node: ApiNode) -> None:
    batch = [
        {"topic": "billing", "value": "v", "delay": f"{1 + n % 50}h", "id": f"page-{n}"}
        for n in range(120)
    ]
    ask("POST", "/v1/messages/batch", json={"messages": batch})
    for n in range(0, 120, 3):
        ask("DELETE", f"/v1/messages/page-{n}")
    wanted = {f"page-{n}" for n in range(120) if n % 3}
    wait_for(lambda: ask("GET", "/v1/pending/counts").json()["topics"].get("billing") == 80)
    node.wait_checkpointed(160)
    query = {"topic": "billing", "id_prefix": "page-"}
    pages = all_pages(ask, "/v1/pending", limit=7, **query)
    ids = [each["id"] for page in pages for each in page["messages"]]
    assert sorted(ids) == sorted(wanted)
    assert all(len(page["messages"]) <= 7 for page in pages) and len(pages) > 10
    counted = all_pages(ask, "/v1/pending/count", **query)
    assert sum(page["messages"] for page in counted) == 80
    dues = [each["due_ms"] for page in pages for each in page["messages"]]
    middle = sorted(dues)[40]
    early = all_pages(ask, "/v1/pending/count", until_ms=middle, **query)
    late = all_pages(ask, "/v1/pending/count", from_ms=middle, **query)
    assert sum(p["messages"] for p in early) == sum(due < middle for due in dues)
    assert sum(p["messages"] for p in (*early, *late)) == 80


@pytest.mark.parametrize("cursor", ["", "x", "1", "1.2.3", "-1.0.0.0", "1.2.3.4.5", "9" * 30])
def test_a_cursor_that_no_page_gave_is_refused(ask: Client, cursor: str) -> None:
    assert code(ask("GET", "/v1/pending", params={"cursor": cursor}), 422) == "http-request"


@pytest.mark.parametrize(
    "query", ["topics=orders", "topic=a&topic=b", "limit=1&limit=2", "limit=x"]
)
def test_a_filter_that_is_misspelt_or_given_twice_is_refused(ask: Client, query: str) -> None:
    assert code(ask("GET", f"/v1/pending?{query}"), 422) == "http-request"


def test_a_cursor_beyond_all_messages_has_an_empty_page(ask: Client) -> None:
    for cursor in ("999999999.0.0.0", "999999999.999999999999999.999999999999999.999999999999999"):
        page = ask("GET", "/v1/pending", params={"cursor": cursor}).json()
        assert page == {"messages": [], "next": None}


# --- Dead letters


def test_a_dead_letter_is_listed_shown_and_redriven_once(ask: Client, node: ApiNode) -> None:
    headers: Headers = [("delayd-topic", b"orders"), ("delayd-due", b"never")]
    ack = node.kafka.append("delayd-buffer", 1, b"k\xff", b"v", headers)
    source = f"{ack.partition}/{ack.offset}"
    wait_for(lambda: ask("GET", f"/v1/dead/{source}").status_code == 200)
    letter = ask("GET", f"/v1/dead/{source}").json()
    assert letter["reason"] == "bad-due" and letter["topic"] == "orders"
    assert letter["key"] == {"base64": base64.b64encode(b"k\xff").decode()}
    listed = ask("GET", "/v1/dead", params={"reason": "bad-due"}).json()
    assert source in [each["source"] for each in listed["letters"]]
    assert listed["matching"] == listed["reasons"]["bad-due"]

    def redriven(**more: Any) -> list[str]:
        body = {"sources": [source, "1/999999"], **more}
        answer = ask("POST", "/v1/dead/redrive", json=body).json()
        assert answer["complete"]
        return [each["outcome"] for each in answer["letters"]]

    assert redriven() == ["not redriven", "not found"]
    assert redriven(delay="1h", dry_run=True) == ["redriven", "not found"]
    assert redriven(delay="1h") == ["redriven", "not found"]
    assert redriven(delay="1h") == ["already redriven", "not found"]
    assert code(ask("POST", "/v1/dead/redrive", json={"sources": [source], "delay": "x"}), 422)


def test_a_filter_that_no_letter_can_match_is_refused(ask: Client) -> None:
    assert code(ask("GET", "/v1/dead", params={"reason": "none-such"}), 422) == "config"
    assert code(ask("GET", "/v1/dead", params={"since": "soon"}), 422) == "config"


# --- The cluster


def test_the_cluster_is_shown_with_its_shard_and_its_nodes(ask: Client) -> None:
    view = ask("GET", "/v1/cluster").json()
    [shard] = view["shards"]
    assert (shard["shard"], shard["leader"], shard["term"]) == (0, "n", 1)
    assert [each["node"] for each in view["nodes"]] == ["n"]
    assert not view["healthy"] and "node n does not answer" in view["problems"]
    assert ask("GET", "/v1/targets/failing").json() == view["failing_targets"]
    assert (view["lateness"], view["failovers"], view["clocks"]) == ([], [], [])
    health = ask("GET", "/v1/health").json()
    assert (health["role"], health["ready"], health["stalled"]) == ("master", True, None)


# --- Tokens


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/health", None),
        ("GET", "/v1/pending", None),
        ("GET", "/v1/messages/x", None),
        ("POST", "/v1/messages", HOUR),
        ("POST", "/v1/messages/batch", {"messages": [HOUR]}),
        ("PUT", "/v1/messages/x", HOUR),
        ("DELETE", "/v1/messages/x", None),
        ("POST", "/v1/dead/redrive", {"sources": ["0/0"]}),
    ],
)
def test_a_token_is_needed_for_everything_and_a_wrong_one_helps_nobody(
    node: ApiNode, method: str, path: str, body: object
) -> None:
    for shown in (None, "", "x", ALL[:-1], f"{ALL}x", "\u00fc"):
        client = Client(node, None)
        headers = {} if shown is None else {"authorization": f"Bearer {shown}".encode()}
        answer = client(method, path, json=body, headers=headers)
        assert code(answer, 401) == "http-token"
        assert answer.headers["www-authenticate"].startswith("Bearer")
    basic = {"authorization": "Basic " + base64.b64encode(ALL.encode()).decode()}
    assert code(Client(node, None)(method, path, json=body, headers=basic), 401)


def test_a_token_may_do_what_its_scopes_say(node: ApiNode) -> None:
    reader = Client(node, READER)
    assert reader("GET", "/v1/health").status_code == 200
    for method, path, body in (
        ("POST", "/v1/messages", HOUR),
        ("DELETE", "/v1/messages/x", None),
        ("POST", "/v1/dead/redrive", {"sources": ["0/0"]}),
    ):
        assert code(reader(method, path, json=body), 403) == "http-scope"


def test_a_token_for_some_targets_sees_and_changes_no_others(node: ApiNode, ask: Client) -> None:
    team = Client(node, TEAM)
    other = {**HOUR, "topic": "billing"}
    assert team("POST", "/v1/messages", json={**HOUR, "id": "mine"}).status_code == 201
    assert code(team("POST", "/v1/messages", json=other), 403) == "http-scope"
    batch = team("POST", "/v1/messages/batch", json={"messages": [other, HOUR]}).json()
    assert batch["failed"] == 1 and batch["outcomes"][0]["code"] == "http-scope"
    ask("POST", "/v1/messages", json={**other, "id": "theirs"})
    known(ask, "theirs")
    known(ask, "mine")
    assert code(team("GET", "/v1/messages/theirs"), 404) == "http-not-found"
    assert team("GET", "/v1/messages/mine").status_code == 200
    assert code(team("DELETE", "/v1/messages/theirs", params={"wait": True}), 403) == "http-scope"
    assert code(team("PUT", "/v1/messages/theirs", json=HOUR), 403) == "http-scope"
    assert code(team("DELETE", "/v1/messages/nobody-knows"), 403) == "http-scope"
    assert [each["state"] for each in known(ask, "theirs")] == ["pending"]
    assert team("DELETE", "/v1/messages/mine").status_code == 202
    topics = {each["topic"] for page in all_pages(team, "/v1/pending") for each in page["messages"]}
    assert topics <= {"orders", "orders-eu"}
    assert set(team("GET", "/v1/pending/counts").json()["topics"]) <= {"orders", "orders-eu"}
    assert "hours" not in json.dumps(team("GET", "/v1/dead").json())
    redrive = {"sources": ["0/0"], "topic": "billing"}
    assert code(team("POST", "/v1/dead/redrive", json=redrive), 403) == "http-scope"


def test_everybody_may_read_where_the_operator_says_so_and_nobody_may_change(
    tmp_path: Path,
) -> None:
    with api_node(tmp_path, anonymous_reads=True) as node:
        anonymous = Client(node, None)
        assert anonymous("GET", "/v1/health").status_code == 200
        assert code(anonymous("POST", "/v1/messages", json=HOUR), 401) == "http-token"
        assert code(Client(node, "wrong")("GET", "/v1/health"), 401) == "http-token"


def test_too_many_requests_are_told_to_come_back(tmp_path: Path) -> None:
    with api_node(tmp_path, requests_per_s=1) as node:
        reader, everything = Client(node, READER), Client(node)
        assert [reader("GET", "/v1/health").status_code for _ in range(2)] == [200, 200]
        late = reader("GET", "/v1/health")
        assert code(late, 429) == "http-rate" and late.headers["retry-after"] == "1"
        assert everything("GET", "/v1/health").status_code == 200, "each token has its own"
        guesses = [Client(node, f"guess {n}")("GET", "/v1/health").status_code for n in range(4)]
        assert guesses[0] == 401 and guesses[-1] == 429, "guessing is slowed down"


# --- Bounds


def test_more_work_than_threads_and_queue_hold_is_refused_at_once() -> None:
    async def run() -> None:
        desk, gate = Desk("test", 1), asyncio.Event()
        loop = asyncio.get_running_loop()

        def wait() -> int:
            asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()
            return 1

        waiting = [asyncio.create_task(desk.do(wait)) for _ in range(1 + QUEUE_MAX)]
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await desk.do(wait)
        gate.set()
        assert sum(await asyncio.gather(*waiting)) == 1 + QUEUE_MAX
        assert await desk.do(wait) == 1
        desk.stop()

    asyncio.run(run())


def test_the_page_names_each_route_and_needs_no_network(ask: Client) -> None:
    page = ask("GET", "/docs")
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    for path in ask("GET", "/openapi.json").json()["paths"]:
        assert path in page.text
    for outside in ("<script", "<link", "<img", "src=", "@import", "url("):
        assert outside not in page.text
