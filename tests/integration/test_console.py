"""The console of real nodes in a real Chromium: what it shows, what it does, and that it says when
it is stale.

Source: docs/reference/console.md.
"""

import asyncio
import itertools
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import requests
from axe import violations
from browser import Browser, Page, running
from chromium import find_chromium
from clusters import TestCluster, make_cluster
from confluent_kafka import Producer
from hostile_http import statuses, throw
from nodes import (
    CLOCK,
    CLUSTER_KEY,
    HANGS_S,
    NodeProcess,
    delayd,
    delayd_in_process,
    master_of,
    node_group,
    wait_for,
)
from sample_reports import failed_report, ok_report
from topics_read import read_until

from delayd.audit.report import Report
from delayd.audit.showing.page import page as page_of
from delayd.bus.confluent import ConfluentBus
from delayd.cluster.admin_client import Member
from delayd.cluster.audit_reports import publish
from delayd.cluster.member_proof import MemberKeys
from delayd.cluster.topics import load_settings
from delayd.config.api_tokens import digest_of
from delayd.coordination.etcd import EtcdCoordination
from delayd.dev.cluster import LocalCluster
from delayd.dev.kafka import create_topic
from delayd.dev.ports import pick_ports
from delayd.errors import ExitCode

pytestmark = pytest.mark.real

TOKEN = "a-token-for-everything"
HOSTILE = "<img src=x onerror=\"document.title='taken over'\">"
IMAGES = Path(__file__).parents[2] / "docs" / "images"
IMAGE_BYTES_MAX = 300_000
STALE_MS_MAX = 10_000
"""The page says it after 1.5 s; its browser may stand still for a while."""
HOUR_MS = 3_600_000
_numbers = itertools.count(1)
ESCAPE, ENTER, TAB = ("Escape", 27, ""), ("Enter", 13, "\r"), ("Tab", 9, "")


@dataclass(frozen=True, slots=True)
class Site:
    """Three nodes, a target, one that is missing, and what is pending and dead."""

    cluster: TestCluster
    nodes: list[NodeProcess]
    target: str
    events: str
    """A topic whose events cancel."""


def publish_to(cluster: TestCluster, report: Report, html: str | None = None) -> str:
    """Leave a report with all nodes of a cluster; return its version, which is unique."""
    bus = ConfluentBus(cluster.bootstrap)
    realm = load_settings(bus, cluster.name, f"{cluster.name}-", 20_000).record.settings.realm
    etcd = EtcdCoordination([cluster.etcd], cluster.name)
    etcd.enter(realm)
    members = [Member.of(*each) for each in etcd.members().items()]
    etcd.close()
    mine = replace(report, cluster=cluster.name, version=f"0.2.{next(_numbers)}")
    keys = MemberKeys(CLUSTER_KEY.encode(), realm)
    assert publish(mine.to_json(), html or page_of(mine), members, keys, CLOCK) == []
    return mine.version


@pytest.fixture(scope="module")
def site(kafka_and_etcd: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    cluster = make_cluster(kafka_and_etcd, tmp_path_factory.mktemp("console"))
    tokens = cluster.folder / "tokens.toml"
    tokens.write_text(
        f'[[token]]\nname = "all"\nsha256 = "{digest_of(TOKEN)}"\n'
        'scopes = ["read", "schedule", "operate"]\n'
    )
    events = f"events-{cluster.name}"
    create_topic(ConfluentBus(cluster.bootstrap), events, partitions=1)
    more = {
        "api_tokens_file": str(tokens),
        "api_anonymous_reads": True,
        "cancel_on": [{"topic": events, "id": "key"}],
    }
    nodes = [cluster.node(number, **more) for number in range(3)]
    target = cluster.target("well")
    with node_group(nodes), cluster.client() as client:
        for node in nodes:
            node.start()
        master_of(nodes)
        for number in range(20):
            client.schedule(target, b"v", in_=f"{number + 1}h")
        stranger = Producer({"bootstrap.servers": cluster.bootstrap})
        headers: Any = [("delayd-topic", target), ("delayd-delay", HOSTILE)]
        stranger.produce(cluster.buffer, b"refused", headers=headers)
        stranger.flush(HANGS_S)
        assert read_until(cluster.bootstrap, cluster.dead, bool)
        for node in nodes:
            node.wait_ready()
        publish_to(cluster, replace(ok_report(), made_ms=CLOCK.wall_ms() - 30 * HOUR_MS))
        yield Site(cluster, nodes, target, events)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running(find_chromium(), tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.fixture
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    opened = browser.page()
    request.node.user_properties.append(("browser", browser.name))
    yield opened
    complaints = opened.events("Runtime.exceptionThrown")
    opened.close()
    assert complaints == []


def text(page: Page, id: str) -> str:
    """The words of an element."""
    return str(page.evaluate(f"document.getElementById({id!r}).innerText"))


def wait_text(page: Page, id: str, *wanted: str) -> str:
    """The words of an element, once these are among them."""
    try:
        wait_for(
            lambda: all(each in text(page, id) for each in wanted), f"{wanted} in {id} of the page"
        )
    except AssertionError as error:
        raise AssertionError(f"{error}; it says: {text(page, id)!r}") from error
    return text(page, id)


def click(page: Page, words: str, within: str = "body") -> None:
    """Press the button with these words, once it is there."""
    find = (
        f"Array.from(document.querySelectorAll('{within} button'))"
        f".find((each) => each.textContent === {words!r})"
    )
    wait_for(lambda: bool(page.evaluate(f"Boolean({find})")), f"a button {words!r}")
    page.evaluate(f"void {find}.click()")


def fill(page: Page, form: str, **fields: str) -> None:
    """Write into a form's fields."""
    for name, value in fields.items():
        place = f"document.querySelector('{form} [name={name}]')"
        page.evaluate(f"void ({place}.value = {value!r})")


def submit(page: Page, form: str, **fields: str) -> None:
    fill(page, form, **fields)
    page.evaluate(f"document.querySelector('{form}').requestSubmit()")


def open_console(page: Page, node: NodeProcess, **how: Any) -> None:
    page.open(f"{node.url}/", **{"width": 1280, **how})
    wait_text(page, "fresh", "Live from")
    wait_text(page, "nodes", "n0", "n1", "n2")


def test_it_shows_who_leads_the_nodes_and_what_is_pending(site: Site, page: Page) -> None:
    open_console(page, site.nodes[0])
    master = master_of(site.nodes)
    assert master.name in wait_text(page, "leader", "leads since", "term")
    wait_for(lambda: "?" not in text(page, "leader"), "it knows since when")
    assert "20 messages pending" in wait_text(page, "pending", site.target)
    cells = page.evaluate(
        "Array.from(document.querySelectorAll('#heat td')).map((each) => Number(each.textContent))"
    )
    assert sum(cells) == 20 and max(cells) <= 2
    wait_text(page, "flow", "delivered / s", "0")
    assert "in the next 60 s" in text(page, "due-caption")
    asked = [each["request"]["url"] for each in page.events("Network.requestWillBeSent")]
    origins = {url.split("/")[2] for url in asked if url.startswith("http")}
    assert origins == {site.nodes[0].url.removeprefix("http://")}
    assert page.events("Log.entryAdded") == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_axe_finds_nothing_and_nothing_is_wider_than_a_phone(
    site: Site, page: Page, scheme: str, width: int
) -> None:
    open_console(page, site.nodes[0], width=width, scheme=scheme)
    wait_text(page, "pending", "pending")
    wait_text(page, "audits", "Report")
    submit(page, "#dead-search")
    wait_text(page, "letters", "1 letter")
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    click(page, "Redrive …")
    wait_text(page, "dialog", "What would come of it")
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_words_of_others_are_text(site: Site, page: Page) -> None:
    open_console(page, site.nodes[1])
    submit(page, "#dead-search", reason="bad-delay")
    wait_text(page, "letters", "bad-delay", "onerror")
    click(page, "Show")
    wait_text(page, "letter", "onerror")
    assert page.evaluate("document.images.length") == 0
    assert "taken over" not in page.evaluate("document.title")


def with_token(page: Page) -> None:
    click(page, "Token", "header")
    submit(page, "#dialog form", token=TOKEN)
    wait_text(page, "dialog", "goes along with every request")
    click(page, "Close")


@pytest.mark.parametrize("id", ["..", "order/../order-9", "./order-9"])
def test_an_id_that_a_browser_would_take_for_another_is_refused(
    site: Site, page: Page, id: str
) -> None:
    with site.cluster.client() as client:
        client.schedule(site.target, b"v", in_="1h", id="order-9")
    open_console(page, site.nodes[0])
    submit(page, "#look-up", id=id)
    assert "order-9" not in wait_text(page, "known", "A browser cannot ask for an id with")


def test_an_id_is_cancelled_and_replaced_by_whoever_has_a_token(site: Site, page: Page) -> None:
    with site.cluster.client() as client:
        client.schedule(site.target, b"v", in_="1h", id="order/7 ü")
        client.schedule(site.target, b"v", in_="1h", id="order-8")
    open_console(page, site.nodes[2])
    submit(page, "#look-up", id="order/7 ü")
    wait_text(page, "known", "pending", site.target)
    click(page, "Cancel …")
    assert "this cannot be undone" in wait_text(page, "dialog", "order/7 ü is due")
    click(page, "Cancel the message")
    wait_text(page, "dialog", "this needs a token")
    click(page, "Close")
    with_token(page)
    click(page, "Cancel …")
    click(page, "Cancel the message")
    wait_text(page, "dialog", "cancelled (request ")
    click(page, "Close")
    wait_text(page, "known", "cancelled")

    submit(page, "#look-up", id="order-8")
    click(page, "Replace …")
    fill(page, "#dialog form", delay="2s", value="another")
    click(page, "Replace the message")
    wait_text(page, "dialog", "replaced (request ")
    click(page, "Close")
    seen = read_until(
        site.cluster.bootstrap, site.target, lambda seen: b"another" in [r.value for r in seen]
    )
    assert [record.value for record in seen] == [b"another"]


def test_what_is_pending_is_moved_and_fired_by_whoever_has_a_token(site: Site, page: Page) -> None:
    with site.cluster.client() as client:
        client.schedule(site.target, b"moved, then fired", in_="5h", id="order-20")
    open_console(page, site.nodes[1])
    with_token(page)
    submit(page, "#look-up", id="order-20")
    click(page, "Reschedule …")
    assert "so much later or earlier" in wait_text(page, "dialog", "Reschedule order-20?")
    fill(page, "#dialog form", by="+2h")
    click(page, "Move the message")
    wait_text(page, "dialog", "rescheduled: ", " has another due time (request ")
    click(page, "Close")
    wait_text(page, "known", "pending")
    click(page, "Fire …")
    assert "now, once, and this cannot be undone" in wait_text(page, "dialog", "Fire order-20?")
    click(page, "Deliver it now")
    wait_text(page, "dialog", "rescheduled: ", " has another due time (request ")
    click(page, "Close")
    wanted = b"moved, then fired"
    seen = read_until(
        site.cluster.bootstrap, site.target, lambda seen: wanted in [r.value for r in seen]
    )
    assert [record.value for record in seen].count(wanted) == 1


def test_a_message_is_scheduled_listed_and_looked_up(site: Site, page: Page) -> None:
    with site.cluster.client() as client:
        client.schedule(site.target, b"v", in_="3h", id="of-a-group", group="customer-42")
    open_console(page, site.nodes[0])
    with_token(page)
    click(page, "Schedule …")
    fill(page, "#dialog form", topic=site.target, id="each-day", when="0 9 * * *", value="v")
    fill(page, "#dialog form", zone="Europe/Paris")
    click(page, "Schedule it")
    wait_text(page, "dialog", "scheduled", "(request ")
    click(page, "Close")
    wait_text(page, "known", "0 9 * * *, Europe/Paris, occurrence", "pending")

    def of_the_group() -> bool:
        submit(page, "#pending-list", group="customer-42")
        return all(each in text(page, "listed") for each in ("of-a-group", "customer-42"))

    wait_for(of_the_group, "the message of the group in a checkpoint, and so in the list")
    assert "each-day" not in wait_text(page, "listed", "of-a-group", "customer-42", site.target)

    def is_listed() -> bool:
        submit(page, "#pending-list", group="", id_prefix="each-")
        return "0 9 * * *, Europe/Paris" in text(page, "listed")

    wait_for(is_listed, "a checkpoint has it")
    click(page, "each-day", "#listed")
    wait_text(page, "known", "occurrence")
    submit(page, "#pending-list", id_prefix="nobody-has-this")
    wait_text(page, "listed", "Nothing that is pending matches.")


def test_a_target_is_paused_resumed_and_limited_by_whoever_has_a_token(
    site: Site, page: Page
) -> None:
    topic = site.cluster.target("held")
    open_console(page, site.nodes[1])
    fill(page, "#target", topic=topic)
    click(page, "Pause …")
    says = wait_text(page, "dialog", f"Pause {topic}?")
    assert "What becomes due waits in its order" in says
    click(page, "Pause the target")
    wait_text(page, "dialog", "this needs a token")
    click(page, "Close")
    with_token(page)
    click(page, "Pause …")
    wait_text(page, "dialog", f"Pause {topic}?")
    fill(page, "#dialog form", lasting="25h")
    click(page, "Pause the target")
    wait_text(page, "dialog", "24 h")
    fill(page, "#dialog form", lasting="2h", rate="100")
    click(page, "Pause the target")
    wait_text(page, "dialog", f"{topic}: paused, until ")
    click(page, "Close")
    assert "100" in wait_text(page, "paused", topic, "paused")
    with site.cluster.client() as client:
        client.schedule(topic, b"held back", in_=0)
    click(page, "Resume …")
    click(page, "Resume the target")
    wait_text(page, "dialog", topic, ".")
    click(page, "Close")
    seen = read_until(site.cluster.bootstrap, topic, bool)
    assert [record.value for record in seen] == [b"held back"]

    click(page, "Limit …")
    wait_text(page, "dialog", f"Limit {topic}?")
    fill(page, "#dialog form", max_pending="7", rate="50")
    click(page, "Set the limit")
    wait_text(page, "dialog", f"{topic}: open, 0 of 7 pending, 50 a second.")
    click(page, "Close")
    wait_text(page, "limits", topic, "7")
    click(page, "Limit …")
    wait_for(lambda: "0 of 7" not in text(page, "dialog"), "it asks anew")
    assert "0 ends that limit" in wait_text(page, "dialog", "refused as over-quota")
    fill(page, "#dialog form", max_pending="0", rate="0")
    click(page, "Set the limit")
    wait_text(page, "dialog", f"{topic}: unlimited.")


def test_each_shard_has_a_line(kafka_and_etcd: LocalCluster, page: Page, tmp_path: Path) -> None:
    cluster = make_cluster(kafka_and_etcd, tmp_path, partitions=3, shards=3)
    with node_group([node := cluster.node(0, api_anonymous_reads=True)]):
        node.start()
        node.wait_ready()
        page.open(f"{node.url}/", width=360)
        rows = (
            "Array.from(document.querySelectorAll('#shards tbody tr'))"
            ".map((row) => Array.from(row.cells).slice(0, 3).map((cell) => cell.innerText))"
        )
        wait_for(
            lambda: [row[:2] for row in page.evaluate(rows)] == [[f"{n}", "n0"] for n in range(3)],
            "it leads all",
        )
        wait_for(
            lambda: all(since.startswith("20") for _, _, since in page.evaluate(rows)),
            "it says since when",
        )
        wait_text(page, "audits-said", "No audit is known", "delayd audit --etcd URL makes one")
        assert "without a leader\n0" in wait_text(page, "leader", "shards\n3")
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_events_that_cancel_are_counted_by_topic(site: Site, page: Page) -> None:
    open_console(page, site.nodes[0])
    wait_text(page, "events", site.events)
    stranger = Producer({"bootstrap.servers": site.cluster.bootstrap})
    stranger.produce(site.events, b"paid", b"nobody-waits-for-this")
    stranger.produce(site.events, b"paid", None)
    stranger.flush(HANGS_S)
    row = "Array.from(document.querySelectorAll('#events tbody tr')).map((r) => r.innerText)"
    wait_for(
        lambda: page.evaluate(row) == [f"{site.events}\t0\t1\t1\t0\t"], "both events are counted"
    )


def test_a_dead_letter_is_redriven_after_it_was_said_what_will_come_of_it(
    site: Site, page: Page
) -> None:
    missing = f"target.{site.cluster.name}.missing"
    with site.cluster.client() as client:
        client.schedule(missing, b"late but there", in_=0)
    open_console(page, site.nodes[0])
    wait_text(page, "failing", missing, "does not exist")

    def is_dead() -> bool:
        submit(page, "#dead-search", topic=missing)
        return "1 letter" in text(page, "letters")

    wait_for(is_dead, "it is given up")
    site.cluster.create_topic(missing)
    with_token(page)
    click(page, "Redrive …")
    wait_text(page, "dialog", "What would come of it: redriven")
    click(page, "Redrive the letter")
    wait_text(page, "dialog", "redriven (request ")
    seen = read_until(site.cluster.bootstrap, missing, bool)
    assert [record.value for record in seen] == [b"late but there"]


def test_the_keyboard_is_enough(site: Site, page: Page) -> None:
    with site.cluster.client() as client:
        client.schedule(site.target, b"v", in_="1h", id="by-keys")
    open_console(page, site.nodes[0])

    def focus() -> str:
        return str(
            page.evaluate("document.activeElement.name || document.activeElement.textContent")
        )

    def tab_to(wanted: str) -> None:
        for _ in range(60):
            if focus() == wanted:
                return
            page.press(*TAB)
        raise AssertionError(f"60 times Tab, and never at {wanted!r}")

    page.press(*TAB)
    assert focus() == "Skip to content"
    tab_to("id")
    page.type("by-keys")
    page.press(*ENTER)
    wait_text(page, "known", "pending")
    tab_to("Cancel …")
    page.press(*ENTER)
    wait_text(page, "dialog", "Cancel by-keys?")
    page.press(*ESCAPE)
    wait_for(lambda: not page.evaluate("document.getElementById('dialog').open"), "it is closed")
    assert "pending" in wait_text(page, "known", "pending")


def addresses(browser: Browser) -> list[str]:
    """What is open in the browser."""
    return [each["url"] for each in browser.call("Target.getTargets")["targetInfos"]]


def link_to(page: Page, version: str) -> str:
    """The address of a report, by the release of its audit."""
    find = (
        "(Array.from(document.querySelectorAll('#audits tr'))"
        f".find((row) => row.innerText.includes({version!r}))?.querySelector('a')?.href ?? '')"
    )
    wait_for(lambda: bool(page.evaluate(find)), f"the audit of {version} is listed")
    return str(page.evaluate(find))


def test_an_audit_is_listed_and_its_report_opens_also_after_a_restart(
    site: Site, page: Page, browser: Browser
) -> None:
    node = next(node for node in site.nodes if not node.is_master())
    old = publish_to(site.cluster, replace(ok_report(), made_ms=CLOCK.wall_ms() - 28 * HOUR_MS))
    open_console(page, node)
    link_to(page, old)
    said = wait_text(page, "audits-said", "The last audit was ok, 28 h ago: longer ago than 26 h")
    assert "so of what came since it says nothing" in said
    made = replace(failed_report(), made_ms=CLOCK.wall_ms())
    new = publish_to(site.cluster, made)
    wait_text(page, "audits-said", "The last audit was not ok (", "s ago.")
    fault, count = made.found[0]
    assert f"{fault} {count:,}" in wait_text(page, "audits", new, "not ok", "Report")
    link_to(page, new)
    # A link that has the focus keeps it while its ticket is renewed.
    page.evaluate("void document.querySelector('#audits a').focus()")
    before = page.evaluate("document.activeElement.href")
    wait_for(lambda: page.evaluate("document.activeElement.href") != before, "it is renewed")
    link = str(page.evaluate("document.activeElement.href"))
    page.press(*ENTER)
    wait_for(lambda: link in addresses(browser), "a tab of its own")
    page.open(link, width=360)
    assert "Verdict: failed" in page.evaluate("document.body.innerText")
    assert page.evaluate("getComputedStyle(document.body).margin") != "8px", "it has its style"

    node.kill()
    node.start()
    node.wait_ready()
    open_console(page, node, width=360)
    again = link_to(page, new)
    page.open(again, width=1280)
    assert "Verdict: failed" in page.evaluate("document.body.innerText")
    answer = requests.get(link, timeout=HANGS_S)
    assert answer.status_code == 404 and "open the report from the console" in answer.text


def test_a_hostile_report_acts_in_nobodys_name(site: Site, page: Page, browser: Browser) -> None:
    """docs/security.md: scripts, events, forms, frames, refreshes and loads, all in one page."""
    node = site.nodes[0]
    ways = """<!doctype html><title>a report</title><body onload="document.title='taken over'">
      <script>document.title = 'taken over'; sessionStorage.setItem('delayd-token', 'stolen');
        fetch('/v1/audits'); window.opener?.location.reload()</script>
      <script type="module" src="/console/console.js"></script>
      <img src="/status" onerror="document.title='taken over'">
      <svg onload="document.title='taken over'"></svg>
      <link rel="stylesheet" href="/console/console.css"><style>@import "/console/dom.js";</style>
      <meta http-equiv="refresh" content="0;url=/?taken-over">
      <iframe src="/"></iframe><object data="/"></object><embed src="/">
      <iframe srcdoc="<script>parent.document.title='taken over'</script>"></iframe>
      <form action="/v1/targets/orders/pause" method="post"><button autofocus>Go</button></form>
      <a id="script" href="javascript:document.title='taken over'">click</a>
      <p id="said">words</p>"""
    version = publish_to(site.cluster, replace(ok_report(), made_ms=CLOCK.wall_ms()), ways)
    open_console(page, node)
    link = link_to(page, version)
    page.open(link, width=1280)
    assert page.evaluate("document.getElementById('said').innerText") == "words", "it is shown"
    assert page.evaluate("self.origin") == "null"
    page.evaluate("void document.querySelector('form button').click()")
    page.evaluate("void document.getElementById('script').click()")
    own = "(() => { try { return sessionStorage.length } catch (error) { return error.name } })()"
    assert page.evaluate(own) == "SecurityError"
    read = "fetch('/v1/audits').then(() => 'read', (error) => error.name)"
    assert page.evaluate(read) == "TypeError", "also to one that could run a script"
    wait_for(lambda: bool(page.events("Log.entryAdded")), "the browser says what it has refused")
    assert page.evaluate("document.title") == "a report"
    assert page.evaluate("location.href") == link
    got = {each["response"]["url"] for each in page.events("Network.responseReceived")}
    assert {url for url in got if url.startswith("http")} <= {link, f"{node.url}/favicon.ico"}
    assert not [url for url in addresses(browser) if "taken-over" in url]


def throw_all(site: Site, count: int) -> None:
    seed = random.randrange(10**9)
    print("seed", seed)
    node = master_of(site.nodes)
    port = int(node.url.rpartition(":")[2])
    with site.cluster.client() as client:
        for number in range(30):
            client.schedule(
                site.target, b"beside %d of %d" % (number, count), in_=f"{100 * number}ms"
            )
    lines = asyncio.run(throw(port, random.Random(seed), count))
    assert {b"400", b"401", b"403", b"404", b"413"} <= statuses(lines)
    assert not [line for line in lines if line and line.split()[1] >= b"500"]
    wanted = {b"beside %d of %d" % (number, count) for number in range(30)}

    def has_all(seen: list[Any]) -> bool:
        return wanted <= {record.value for record in seen}

    seen = read_until(site.cluster.bootstrap, site.target, has_all)
    beside = [record.value for record in seen if record.value in wanted]
    assert sorted(beside) == sorted(wanted), "each once"
    assert b"x" not in [record.value for record in seen]
    known = requests.get(f"{node.url}/v1/messages/hostile", timeout=HANGS_S)
    assert known.status_code == 404


def test_hostile_requests_to_a_real_node_have_no_effect(site: Site) -> None:
    throw_all(site, 1_000)


@pytest.mark.rehearsal
def test_ten_thousand_hostile_requests_to_a_real_node_have_no_effect(site: Site) -> None:
    throw_all(site, 10_000)


def test_a_page_says_within_two_seconds_that_its_node_is_gone_and_goes_on_when_it_is_back(
    site: Site, page: Page, shot: Callable[[str], None]
) -> None:
    """The page measures the time itself."""
    served = master_of(site.nodes)
    with site.cluster.client() as client:
        for number in range(300):
            client.schedule(site.target, b"v", in_=f"{200 * number}ms")
    open_console(page, served)
    wait_for(lambda: "…" not in text(page, "flow"), "it has seen the cluster twice")
    page.evaluate(
        """(() => {
          window.heard = performance.now();
          window.gaps = [];
          const seen = () => !document.getElementById("stale").hidden;
          new MutationObserver(() => (window.heard = performance.now()))
            .observe(document.getElementById("due"), {childList: true});
          let was = false;
          setInterval(() => {
            if (seen() && !was) window.gaps.push(performance.now() - window.heard);
            was = seen();
          }, 20);
        })()"""
    )
    shot("console-before.png")
    served.kill()
    wait_for(lambda: bool(page.evaluate("window.gaps.length")), "it says that it is stale")
    said = wait_text(page, "stale", f"{served.name} does not answer", "Ask another node")
    assert "Stale since" in said
    shot("console-stale.png")
    [gap_ms, *_] = page.evaluate("window.gaps")
    print(f"the page called itself stale {gap_ms:.0f} ms after it had last heard something")
    assert 1_000 <= gap_ms < STALE_MS_MAX, "after more than the pause between two events"
    others = page.evaluate("Array.from(document.querySelectorAll('#stale a')).map((a) => a.href)")
    assert set(others) == {f"{node.url}/" for node in site.nodes if node is not served}
    served.start()
    wait_for(lambda: bool(page.evaluate("document.getElementById('stale').hidden")), "it is live")
    wait_text(page, "fresh", f"Live from {served.name}")
    successor = master_of(site.nodes)
    wait_text(page, "failovers", served.name, successor.name, " ms")
    wait_text(page, "lateness", site.target, "99 %")
    shot("console-after.png")


def test_a_page_of_a_frozen_node_is_stale_and_recovers(site: Site, page: Page) -> None:
    node = next(node for node in site.nodes if not node.is_master())
    open_console(page, node)
    node.signal(signal.SIGSTOP)
    try:
        wait_text(page, "stale", f"{node.name} does not answer")
    finally:
        node.signal(signal.SIGCONT)
    wait_text(page, "fresh", f"Live from {node.name}")


def test_the_command_opens_the_console_of_a_node_and_prints_its_address(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_cluster = ("console", "--etcd", site.cluster.etcd, "--cluster", site.cluster.name)
    addresses = {f"{node.url}/" for node in site.nodes}
    assert delayd_in_process(*of_cluster, "--print").stdout.strip() in addresses
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}\n')
    browser.chmod(0o755)
    done = delayd(*of_cluster, env={"BROWSER": str(browser)})
    assert done.returncode == 0 and opened.read_text() == done.stdout.strip()
    assert opened.read_text() in addresses
    nobody = delayd_in_process("console", "--admin", f"127.0.0.1:{pick_ports(1)[0]}")
    assert nobody.returncode == ExitCode.UNREACHABLE and "node-unreachable" in nobody.stderr


@pytest.fixture
def shot(request: pytest.FixtureRequest, page: Page) -> Callable[[str], None]:
    """Takes a picture for the docs, with `--rewrite`; they are there."""

    def take(name: str) -> None:
        if request.config.getoption("--rewrite"):
            (IMAGES / name).write_bytes(page.screenshot(1280, 1180))
        assert (IMAGES / name).stat().st_size <= IMAGE_BYTES_MAX

    return take
