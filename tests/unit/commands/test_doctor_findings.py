"""Faults that no cluster of the tests can be brought to, and what the doctor says of each.

Those that can be planted in a real one: tests/integration/test_doctor*.py.
Source: docs/operations.md, "The doctor".
"""

import json
import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from doctor_cases import MASTER, Ward
from manual_clock import START_MS

from delayd.bus.confluent import settings as confluent
from delayd.bus.kafka_python import settings as kafka_python
from delayd.bus.memory.kafka import BROKER_DEFAULTS
from delayd.bus.raw import Active, OpenTransaction, Place, ProducerEpoch
from delayd.cluster import status
from delayd.cluster.status import HELD_MS_MAX
from delayd.commands.doctor import transactions
from delayd.commands.doctor.brokers import TRANSACTION_TIMEOUT_MS
from delayd.commands.doctor.certificates import ends_ms
from delayd.commands.doctor.finding import Finding, Severity
from delayd.commands.doctor.nodes import OF_PROBLEMS
from delayd.config.security import Security
from delayd.dev.ports import LOOPBACK
from delayd.errors import ExitCode
from delayd.runtime.clock import SystemClock

WELL: dict[str, Any] = {
    "role": "follower",
    "ready": True,
    "unready": None,
    "kafka_problem": None,
    "failing_targets": [],
    "frontier_strays": 0,
    "version": "0.2.0",
    "now_ms": START_MS,
    "disk": {"room": "enough", "free_bytes": 10**9, "free_min_bytes": 10**8},
    "process": {"open_files": 50, "open_files_max": 1024},
}


@contextmanager
def a_server(
    answers: dict[str, Any], date: str | None = None, tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """`host:port` of a server that gives these answers by path, and nothing else."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers.get(self.path)
            body = answer if isinstance(answer, str) else json.dumps(answer)
            self.send_response_only(404 if answer is None else 200)
            self.send_header("Date", date or self.date_time_string())
            self.end_headers()
            self.wfile.write(body.encode())

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer((LOOPBACK, 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"{LOOPBACK}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def with_nodes(*statuses: dict[str, Any]) -> dict[str, Finding]:
    """What is found in a cluster with these nodes; each once."""
    ward = Ward()
    lease = ward.etcd.grant_lease(10)
    with _served(list(statuses)) as addresses:
        for number, at in enumerate(addresses):
            ward.etcd.put_member(f"n{number}", json.dumps({"admin": at}), lease.id)
        findings = ward.examine().findings
    assert len({(each.code, each.mend) for each in findings}) == len(findings)
    return {each.code: each for each in findings}


@contextmanager
def _served(statuses: list[dict[str, Any]]) -> Iterator[list[str]]:
    if not statuses:
        yield []
        return
    answers = {"/status": statuses[0], "/pending": {"topics": {}, "hours": []}}
    with a_server(answers) as at, _served(statuses[1:]) as others:
        yield [at, *others]


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ("disk-slow", {"checkpoint_took_ms": 6_000}),
        ("node-not-ready", {"ready": False, "unready": "it has not caught up"}),
        ("releases-differ", {"version": "0.1.0"}),
        ("node-clock", {"now_ms": START_MS + 300}),
        ("broker-clock", {"log_ms": [START_MS + 300, 0]}),
        ("broker-clock", {"clock_drift_ms": -300}),
        ("open-files", {"process": {"open_files": 800, "open_files_max": 1024}}),
        ("kafka-refuses", {"kafka_problem": "authentication failed"}),
        ("hears-nothing", {"ingest_problem": "partition 0"}),
        ("buffer-held", {"buffer_held_ms": {"2": 60_001}}),
        ("etcd-away", {"etcd_problem": "no answer for 3 s"}),
        ("target-hangs", {"spared_partitions": [{"topic": "t", "partition": 0}]}),
        (
            "wheels-differ",
            {"compared": {"differs": 1, "messages": [{"source": "0/1", "wrong": ["n1"]}]}},
        ),
        (
            "wheel-repair",
            {"compared": {"repair": {"state": "failed", "problem": "the log is not enough"}}},
        ),
    ],
)
def test_what_a_node_says_of_itself_becomes_a_finding(code: str, wrong: dict[str, Any]) -> None:
    before = set(with_nodes(WELL, WELL))
    found = with_nodes(WELL, {**WELL, **wrong})
    assert set(found) - before == {code}
    assert found[code].is_wrong and found[code].mend


def test_each_problem_that_status_knows_has_a_severity_and_a_remedy() -> None:
    text = (Path(status.__file__)).read_text()
    assert set(re.findall(r'Problem\(\s*"([a-z-]+)"', text)) == set(OF_PROBLEMS)


def test_each_code_is_in_the_operations_page_and_no_other_is() -> None:
    sources = Path(transactions.__file__).parent.glob("*.py")
    made = re.compile(
        r'(?:Finding|Finding\.told)\(\s*"([a-z-]+)"|code = "([a-z-]+)"|else "([a-z-]+)"'
    )
    codes = {code for each in sources for code in made.findall(each.read_text())}
    page = Path("docs/operations.md").read_text()
    section = page.partition("\n## The doctor\n")[2].partition("\n## ")[0]
    _, _, table = section.partition("| code | what is wrong |")
    named = {
        code
        for row in table.splitlines()
        for code in re.findall(r"`([a-z-]+)`", row.split("|")[1] if "|" in row else "")
    }
    assert named == {code for found in codes for code in found if code} | set(OF_PROBLEMS)


@pytest.mark.parametrize(
    ("setting", "value", "code", "severity"),
    [
        ("broker.session.timeout.ms", "18000", "broker-session", Severity.WARNING),
        ("unclean.leader.election.enable", "true", "broker-setting", Severity.WARNING),
        ("transaction.partition.verification.enable", "false", "broker-setting", Severity.WARNING),
        ("transaction.max.timeout.ms", "5000", "transactions-refused", Severity.CRITICAL),
    ],
)
def test_a_setting_of_the_brokers_that_is_wrong(
    setting: str, value: str, code: str, severity: Severity
) -> None:
    ward = Ward()
    before = set(ward.found())
    ward.kafka.broker_settings = {**BROKER_DEFAULTS, setting: value}
    found = ward.found()
    assert set(found) - before == {code}
    assert found[code].severity is severity and f"{setting} = {value}" in found[code].what


def test_masters_ask_for_the_time_out_that_the_doctor_takes_them_to_ask_for() -> None:
    asked = {confluent.TRANSACTION_TIMEOUT_MS, kafka_python.TRANSACTION_TIMEOUT_MS}
    assert asked == {TRANSACTION_TIMEOUT_MS}


def test_features_that_brokers_know_and_the_cluster_does_not_run() -> None:
    ward = Ward()
    ward.log.levels = {"transaction.version": (1, 2), "group.version": (0, 1)}
    found = ward.found()["kafka-features"]
    assert found.mend.endswith("upgrade --feature transaction.version=2")


@pytest.mark.parametrize(
    ("producer", "mend"),
    [
        (MASTER, "delayd recover marker --bootstrap b:9092"),
        (MASTER + 1, "kafka-transactions.sh --bootstrap-server b:9092 abort --topic delayd-buffer"),
    ],
)
def test_a_transaction_that_no_coordinator_knows(producer: int, mend: str) -> None:
    """An abort of a master's could lose what it has delivered."""
    ward = Ward()
    place = Place("delayd-buffer", 0)
    ward.log.active = {place: (Active(ProducerEpoch(producer, 0), 0, START_MS, 5),)}
    found = ward.found()["transaction-hanging"]
    assert found.mend.startswith(mend) and "since offset 5" in found.what
    began_ms = START_MS - HELD_MS_MAX
    ward.log.known = {producer: OpenTransaction("shop", "Ongoing", began_ms)}
    assert "transaction-hanging" not in ward.found() and "transaction-open" not in ward.found()
    ward.clock.now_ms += 1  # type: ignore[attr-defined]
    assert "'shop'" in ward.found()["transaction-open"].what


def test_inodes_of_the_volume_of_a_node_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ward = Ward(file={"data_dir": str(tmp_path)})
    assert "inodes" not in ward.found()

    class Few:
        f_files, f_favail = 1_000, 49

    monkeypatch.setattr("os.statvfs", lambda path: Few() if path == tmp_path else None)
    assert ward.found()["inodes"].mend.startswith(f"df -i {tmp_path}")


ETCD = {
    "/version": {"etcdserver": "3.5.21"},
    "/health": {"health": "true"},
    "/metrics": "etcd_mvcc_db_total_size_in_bytes 1000\netcd_server_quota_backend_bytes 1e+09\n"
    "etcd_debugging_mvcc_current_revision 2e+06\netcd_debugging_mvcc_compact_revision 1.9e+06\n",
    "/v3/cluster/member/list": {"members": []},
}


@pytest.mark.parametrize(
    ("code", "wrong", "behind_s"),
    [
        ("etcd-clock", {}, 2),
        ("etcd-clock", {}, -2),
        (
            "etcd-uncompacted",
            {"/metrics": ETCD["/metrics"].replace("1.9e+06", "-1")},  # type: ignore[attr-defined]
            0,
        ),
        ("etcd-room", {"/metrics": "etcd_mvcc_db_total_size_in_bytes 9\n"
                                   "etcd_server_quota_backend_bytes 10\n"}, 0),
        ("etcd-unreachable", {"/version": "<html>"}, 0),
    ],
)  # fmt: skip
def test_what_a_server_of_etcd_says_of_itself_becomes_a_finding(
    code: str, wrong: dict[str, Any], behind_s: int
) -> None:
    date = formatdate(START_MS / 1000 - behind_s, usegmt=True)
    with a_server(ETCD, formatdate(START_MS / 1000, usegmt=True)) as at:
        before = set(Ward(etcd=(f"http://{at}",)).found())
    with a_server({**ETCD, **wrong}, date) as at:
        found = Ward(etcd=(f"http://{at}",)).examine()
    codes = {each.code for each in found.findings}
    assert codes - before == {code}
    assert found.exit_code is (
        ExitCode.UNREACHABLE if code == "etcd-unreachable" else ExitCode.PROBLEM
    )


def test_certificates_in_files_and_those_that_brokers_show(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")  # It lasts a day, and so do its leaves.
    leaf = authority.leaf("broker")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(leaf.cert, leaf.key)
    security = Security(kafka_security_protocol="SSL", kafka_ca_file=authority.file)
    with a_server({}, tls=context) as at, suppress(OSError):
        ward = Ward(clock=SystemClock(), security=security)
        means = ward.means.__class__(
            **{name: getattr(ward.means, name) for name in ward.means.__slots__} | {"bootstrap": at}
        )
        ward.means = means
        findings = [each for each in ward.examine().findings if each.code == "certificate"]
    assert [each.severity for each in findings] == [Severity.WARNING] * 2
    [of_file, shown] = [each.what for each in findings]
    assert f"kafka_ca_file ({authority.file}) ends" in of_file
    assert f"the broker {at} ends" in shown


def test_the_end_of_a_certificate_is_read_as_openssl_reads_it(tmp_path: Path) -> None:
    leaf = Authority(tmp_path, "authority").leaf("leaf")
    pem = leaf.cert.read_text()
    [said] = [ssl._ssl._test_decode_cert(str(leaf.cert))["notAfter"]]  # type: ignore[attr-defined]
    assert ends_ms(ssl.PEM_cert_to_DER_cert(pem)) == ssl.cert_time_to_seconds(said) * 1000


def test_a_kafka_that_is_away_is_said_once(tmp_path: Path) -> None:
    ward = Ward()
    ward.bus.link.up = False
    found = ward.examine()
    assert [each.code for each in found.findings] == ["kafka-unreachable"]
    assert found.exit_code is ExitCode.UNREACHABLE and found.rebuilding is None


def test_a_cluster_that_has_delivered_nothing_since_it_was_made() -> None:
    ward = Ward()
    assert "nothing-delivered" not in ward.found()
    ward.clock.now_ms += status.CURSOR_AGE_MAX_MS + 1  # type: ignore[attr-defined]
    assert ward.found()["nothing-delivered"].severity is Severity.CRITICAL


def test_a_cluster_that_was_never_made() -> None:
    ward = Ward()
    ward.kafka.topics.clear()
    assert [each.code for each in ward.examine().findings] == ["not-initialised"]


def test_what_the_same_command_mends_is_said_once() -> None:
    nodes = [{**WELL, "topic_warnings": ["topic b: x; run `kafka-configs.sh y`"]}] * 2
    assert with_nodes(*nodes)["buffer-endangered"].mend == "kafka-configs.sh y"
