"""The files of the console, and the stream behind it, over Kafka in memory.

What the page does in a browser: tests/integration/test_console.py.
"""

import asyncio
import gc
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_node import TEAM, ApiNode, Client, api_node
from one_node import wait_for

from delayd.config.api_tokens import ANONYMOUS
from delayd.node.monitoring.api import live, looking, services
from delayd.node.monitoring.api.live import DUE_SLOTS, Live
from delayd.node.monitoring.api.problems import BusyError
from delayd.node.monitoring.api.services import Services


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiNode]:
    with api_node(tmp_path_factory.mktemp("console")) as made:
        yield made


@pytest.fixture
def ask(node: ApiNode) -> Client:
    return Client(node)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream ends after two events."""
    monkeypatch.setattr(live, "EVENT_S", 0.2)
    monkeypatch.setattr(live, "STREAM_S", 0.4)


def events(ask: Client) -> list[dict[str, Any]]:
    """What is told until the stream ends."""
    answer = ask("GET", "/v1/live")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    parts = answer.text.split("\n\n")
    assert parts.pop() == ""
    return [json.loads(part.removeprefix("data: ")) for part in parts]


def test_the_page_may_run_its_own_scripts_only_and_none_is_in_it(ask: Client) -> None:
    page = ask("GET", "/")
    assert page.headers["content-type"].startswith("text/html")
    policy = dict(
        part.split(" ", 1) for part in page.headers["content-security-policy"].split("; ")
    )
    assert policy["default-src"] == policy["frame-ancestors"] == policy["form-action"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"
    for unwanted in ("<style", "style=", "onclick", "http://", "https://"):
        assert unwanted not in page.text
    assert page.text.count("<script") == 1 and '<script type="module" src="/console/' in page.text


def test_each_file_of_the_console_is_served_as_what_it_is_and_names_no_other_host(
    ask: Client,
) -> None:
    files = Path(live.__file__).parents[1].joinpath("console").iterdir()
    served = [each for each in files if each.suffix in (".html", ".css", ".js")]
    assert len(served) > 5
    for each in served:
        answer = ask("GET", f"/console/{each.name}")
        assert answer.content == each.read_bytes()
        kind = {".html": "html", ".css": "css", ".js": "javascript"}[each.suffix]
        assert answer.headers["content-type"].startswith(f"text/{kind}")
        assert "content-security-policy" in answer.headers
        said = answer.text.replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://[a-z]", said), each.name
        for markup in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert markup not in answer.text, each.name


@pytest.mark.parametrize(
    "path", ["/console/__init__.py", "/console/..%2fhttp.py", "/console/none.js", "/console/"]
)
def test_nothing_else_is_served(ask: Client, path: str) -> None:
    assert ask("GET", path).status_code == 404


@pytest.mark.usefixtures("short")
def test_an_event_says_how_the_node_and_the_cluster_are(node: ApiNode, ask: Client) -> None:
    sent = ask("POST", "/v1/messages", json={"topic": "orders", "value": "v", "delay": "30s"})
    assert sent.status_code == 201
    wait_for(lambda: sum(node.view.due_soon(DUE_SLOTS)) == 1)
    first, last = events(ask)
    assert (
        first["node"] == node.view.config.node
        and first["role"] == "master"
        and first["problem"] is None
    )
    assert len(first["due"]) == DUE_SLOTS and sum(first["due"]) == 1
    assert last["at_ms"] > first["at_ms"]
    assert last["cluster"]["shards"][0]["leader"] == "n"
    assert last["cluster_problem"] is None and last["cluster_ms"] <= last["at_ms"]


@pytest.mark.usefixtures("short")
def test_a_token_for_some_targets_does_not_see_what_is_due_for_others(node: ApiNode) -> None:
    assert [event["due"] for event in events(Client(node, TEAM))] == [None, None]


def test_a_stream_needs_a_token_and_the_page_does_not(node: ApiNode) -> None:
    nobody = Client(node, None)
    assert nobody("GET", "/v1/live").status_code == 401
    assert nobody("GET", "/").status_code == nobody("GET", "/console/dom.js").status_code == 200


@pytest.mark.usefixtures("short")
def test_a_kafka_that_is_away_ends_no_stream(node: ApiNode, ask: Client) -> None:
    assert events(ask)[-1]["cluster"] is not None
    node.bus.link.up = False
    try:
        events(ask)
        wait_for(lambda: events(ask)[-1]["cluster_problem"] is not None)
        last = events(ask)[-1]
    finally:
        node.bus.link.up = True
    assert "no answer" in last["cluster_problem"] and last["cluster"] is not None
    wait_for(lambda: events(ask)[-1]["cluster_problem"] is None)


def test_so_many_listen_and_no_more_and_they_share_one_look(
    node: ApiNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[object] = []
    report_of = services.report_of

    def counted(asked: Services) -> dict[str, Any]:
        looks.append(asked)
        return report_of(asked)

    monkeypatch.setattr(services, "report_of", counted)
    monkeypatch.setattr(looking, "LOOK_MS", 10**9)
    monkeypatch.setattr(node.services.look, "_taken_ms", None)
    monkeypatch.setattr(node.services.look, "report", None)
    monkeypatch.setattr(live, "FIRST_LOOK_S", 60)

    async def play() -> None:
        shared = Live(node.services)
        streams = [shared.events(ANONYMOUS) for _ in range(live.LISTENERS_MAX)]
        with pytest.raises(BusyError):  # They count before they begin.
            shared.events(ANONYMOUS)
        await asyncio.gather(*(anext(stream) for stream in streams))
        assert len(looks) == 1
        with pytest.raises(BusyError):
            shared.events(ANONYMOUS)
        await streams.pop().aclose()
        streams.append(shared.events(ANONYMOUS))
        with pytest.raises(BusyError):
            shared.events(ANONYMOUS)
        del streams[-1]
        gc.collect()
        streams.append(shared.events(ANONYMOUS))
        for stream in streams:
            await stream.aclose()

    asyncio.run(play())
