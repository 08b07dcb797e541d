"""The commands about single messages, as a user calls them."""

import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from answering import DUE_MS, Answering, id_of, op_of
from clusters import TestCluster
from nodes import delayd_in_process as delayd
from nodes import running, wait_for

from delayd.bus import Record
from delayd.dev.cluster import LocalCluster

UNUSED_PORT = "127.0.0.1:1"

pytestmark = pytest.mark.real


@pytest.fixture
def master(kafka_and_etcd: LocalCluster) -> Answering:
    return Answering(kafka_and_etcd.bootstrap)


def where(master: Answering) -> tuple[str, ...]:
    prefix = master.buffer.removesuffix("buffer")
    return ("--bootstrap", master.bootstrap, "--prefix", prefix)


@contextmanager
def node(answers: dict[str, dict[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    """The admin port of a node that knows these ids; and the paths that it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the library's name
            asked.append(self.path)
            id = urllib.parse.unquote(self.path.removeprefix("/ids/"))
            body = json.dumps(answers.get(id, {})).encode()
            self.send_response(200 if id in answers else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def answer_of(live: list[dict[str, Any]], killed: list[dict[str, Any]]) -> dict[str, Any]:
    common = {"partition": 1, "log_ms": 1, "frontier_step": 7}
    return {"id": "order-7", "live": live, "killed": killed, **common}


def test_a_message_is_sent_with_an_id(master: Answering) -> None:
    done = delayd(
        *("send", "v", "--topic", "orders", "--at", str(DUE_MS), "--id", "order-7", "--key", "k"),
        *(*where(master), "--json"),
    )
    assert done.returncode == 0, done.stderr
    [record] = master.read(1)
    assert json.loads(done.stdout) == {
        "source": f"{record.partition}/{record.offset}",
        "append_ms": record.append_ms,
        "due_ms": DUE_MS,
    }
    headers = dict(record.headers)
    assert (record.key, headers["delayd-id"], headers["delayd-key"]) == (b"order-7",) * 2 + (b"k",)


@pytest.mark.parametrize(
    ("word", "code"), [("cancelled", 0), ("too-late", 1), ("not-found", 1), ("rejected", 1)]
)
def test_the_exit_code_of_a_cancel_that_waits_is_its_verdict(
    master: Answering, word: str, code: int
) -> None:
    def answer(record: Record) -> None:
        source = f"{record.partition}/{record.offset}"
        master.write(source, id_of(record), word, killed=("2/9",), detail="because")

    with master.answering(answer):
        done = delayd("cancel", "order-7", "--wait", *where(master))
        as_json = delayd("cancel", "order-7", "--wait", "--json", *where(master))
    assert (done.returncode, done.stdout) == (code, f"{word}, killed 2/9: because\n"), done.stderr
    assert as_json.returncode == code
    verdict = json.loads(as_json.stdout)
    assert (verdict["verdict"], verdict["killed"], verdict["due_ms"]) == (word, ["2/9"], DUE_MS)


@pytest.mark.parametrize(("word", "code"), [("replaced", 0), ("scheduled", 0), ("too-late", 1)])
def test_the_exit_code_of_a_replace_that_waits_is_its_verdict(
    master: Answering, word: str, code: int
) -> None:
    def answer(record: Record) -> None:
        master.write(f"{record.partition}/{record.offset}", id_of(record), word, op=op_of(record))

    with master.answering(answer):
        done = delayd(
            *("replace", "order-7", "new", "--topic", "orders", "--in", "10m", "--wait"),
            *where(master),
        )
    assert (done.returncode, done.stdout) == (code, f"{word}\n"), done.stderr
    [record] = master.read(1)
    assert (record.value, dict(record.headers)["delayd-delay"]) == (b"new", b"10m")


@pytest.mark.parametrize(
    ("word", "code"), [("scheduled", 0), ("duplicate", 0), ("conflict", 1), ("rejected", 1)]
)
def test_the_exit_code_of_a_send_that_waits_is_its_verdict(
    master: Answering, word: str, code: int
) -> None:
    def answer(record: Record) -> None:
        source = f"{record.partition}/{record.offset}"
        master.write(source, source, word, op="schedule")

    with master.answering(answer):
        done = delayd("send", "v", "--topic", "orders", "--in", "1h", "--wait", *where(master))
    assert (done.returncode, done.stdout) == (code, f"{word}\n"), done.stderr
    [record] = master.read(1)
    assert ("delayd-receipt", b"yes") in record.headers


def test_without_wait_nobody_needs_to_answer(master: Answering) -> None:
    cancelled = delayd("cancel", "order-7", *where(master))
    replaced = delayd(
        *("replace", "order-7", "new", "--topic", "orders", "--at", "7", "--json", *where(master))
    )
    records = master.read(2)
    sources = [f"{record.partition}/{record.offset}" for record in records]
    assert (cancelled.returncode, cancelled.stdout) == (0, f"sent as {sources[0]}\n")
    assert replaced.returncode == 0
    assert (json.loads(replaced.stdout)["source"], json.loads(replaced.stdout)["due_ms"]) == (
        sources[1],
        7,
    )


def test_an_unknown_outcome_ends_with_1_and_says_how_to_ask_again(master: Answering) -> None:
    done = delayd("cancel", "order-7", "--wait", "--timeout-s", "0.5", *where(master))
    assert (done.returncode, done.stdout) == (1, "")
    assert "a repeated cancel gets a true answer" in done.stderr
    assert done.stderr.rstrip().endswith("[verdict-unknown]")


def test_show_reads_live_messages_from_the_buffer_and_what_a_node_knows_of_them(
    master: Answering,
) -> None:
    id = "order/7 ü?"
    for value in ("one", "two"):
        delayd("send", value, "--topic", "orders", "--in", "1h", "--id", id, *where(master))
    first, second = master.read(2)
    sources = [f"{record.partition}/{record.offset}" for record in (first, second)]
    gone = f"{first.partition}/99"
    live = [
        {"source": sources[0], "due_ms": 1, "done": True},
        {"source": sources[1], "due_ms": 2, "done": False},
        {"source": gone, "due_ms": 3, "done": False},
    ]
    killed = {"source": "1/3", "due_ms": 4, "killed_by": "1/5", "state": "cancelled"}
    killed |= {"decided_ms": 5}
    with node({id: answer_of(live, [killed])}) as (port, _):
        done = delayd("show", id, "--admin", port, "--json", *where(master))
        text = delayd("show", id, "--admin", port, *where(master))
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["known"] and shown["node"] == port
    assert [m.items() >= killed.items() for m in shown["killed"]] == [True]
    assert [(m["source"], m["state"], m["topic"]) for m in shown["live"]] == [
        (sources[0], "done", "orders"),
        (sources[1], "pending", "orders"),
        (gone, "pending", None),
    ]
    assert shown["live"][0]["bytes"] > len("one") and "not in" in shown["live"][2]["problem"]
    lines = text.stdout.splitlines()
    # Each time has this machine's own beside it.
    plain = [re.sub(r" \(\d{4}-\d\d-\d\d [^)]*\)", "", line) for line in lines]
    assert plain != lines
    assert plain[0].startswith(f"done      {sources[0]}, due at 1, to orders, ")
    assert plain[3] == "cancelled 1/3, due at 4, by 1/5 at 5"


def test_show_of_what_nobody_knows_ends_with_1(master: Answering) -> None:
    with node({}) as (port, asked):
        done = delayd("show", "order-7", "--admin", port, *where(master))
        as_json = delayd("show", "order-7", "--admin", port, "--json", *where(master))
    assert (done.returncode, done.stdout) == (1, "nothing is known of order-7\n")
    assert json.loads(as_json.stdout) == {"id": "order-7", "known": False}
    assert asked == ["/ids/order-7"] * 2


def test_show_without_a_node_that_answers_ends_with_3(master: Answering) -> None:
    done = delayd("show", "order-7", "--admin", UNUSED_PORT, *where(master))
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.rstrip().endswith("[node-unreachable]")
    assert delayd("show", "order-7", *where(master)).returncode == 2


def test_the_commands_work_with_a_real_node(cluster: TestCluster) -> None:
    target = cluster.target("orders")
    common = ("--bootstrap", cluster.bootstrap, "--prefix", f"{cluster.name}-")
    to_show = (*common, "--etcd", cluster.etcd, "--cluster", cluster.name, "--json")
    with running([cluster.node(1)]):
        delayd("send", "v", "--topic", target, "--in", "1h", "--id", "a/b", *common)
        shown: dict[str, Any] = {}

        def known() -> bool:
            shown.update(json.loads(delayd("show", "a/b", *to_show).stdout or "{}"))
            return bool(shown.get("live"))

        wait_for(known, "the node knows the id")
        [live] = shown["live"]
        assert (live["state"], live["topic"]) == ("pending", target)
        cancelled = delayd("cancel", "a/b", "--wait", "--json", *common)
        assert cancelled.returncode == 0, cancelled.stderr
        assert json.loads(cancelled.stdout)["killed"] == [live["source"]]
        again = delayd("cancel", "a/b", "--wait", *common)
        assert (again.returncode, again.stdout) == (
            0,
            f"cancelled, killed {live['source']}: an earlier request cancelled it\n",
        )
        after = json.loads(delayd("show", "a/b", *to_show).stdout)
        assert not after["live"] and [k["source"] for k in after["killed"]] == [live["source"]]
        late = delayd("cancel", "never", "--wait", *common)
        assert (late.returncode, late.stdout.split(":")[0].strip()) == (1, "not-found")
