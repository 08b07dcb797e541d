"""Nodes and commands whose Kafka and etcd let in not everybody, and what is said when they do not.

Source: docs/operations.md, "Getting into Kafka and etcd".
"""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import guarded_etcd
import guarded_kafka
import pytest
from guarded_etcd import GuardedEtcd
from guarded_kafka import GuardedKafka
from nodes import CLUSTER_KEY, NodeProcess, delayd, master_of, node_group, wait_for
from scraping import scrape
from topics_read import all_of

from chaos.processes.startup import FEW_FETCHES
from delayd.bus.confluent import ConfluentBus
from delayd.client import Client
from delayd.client.driver import DriverName
from delayd.cluster.admin_client import get
from delayd.config.security import Security
from delayd.dev.kafka import create_topic

pytestmark = [pytest.mark.real, pytest.mark.timeout(1_200)]

EXPORT_TOKEN = "7c1f0b5e4d9a4f0c"
SECRETS = (*guarded_kafka.SECRETS, guarded_etcd.PASSWORD, CLUSTER_KEY, EXPORT_TOKEN)
TARGET = "letters"


@dataclass(frozen=True, slots=True)
class Site:
    """A Kafka and an etcd that are guarded, a cluster in them, and the way in."""

    kafka: GuardedKafka
    etcd: GuardedEtcd
    folder: Path
    keys: dict[str, Any]
    """With each secret in a file of its own."""

    @property
    def env(self) -> dict[str, str]:
        """The way in, for commands."""
        places = {"bootstrap": self.kafka.sasl, "etcd": self.etcd.url, "prefix": "safe-"}
        said = {**self.keys, **places, "cluster": "safe", "export_token": EXPORT_TOKEN}
        return {f"DELAYD_{key.upper()}": str(value) for key, value in said.items()}

    def node(self, name: str, **settings: object) -> NodeProcess:
        """A node of the cluster, not started yet."""
        return NodeProcess(
            self.folder,
            name,
            cluster="safe",
            bootstrap=self.kafka.sasl,
            etcd=self.etcd.url,
            settings={
                "connect_timeout_s": 20,
                "lease_ttl_s": 2,
                "export_token": EXPORT_TOKEN,
                "kafka": FEW_FETCHES,
                **self.keys,
                **settings,
            },
        )

    def delivered(self) -> list[str]:
        """What stands in the target now."""
        return [(each.value or b"").decode() for each in all_of(self.kafka.plain, TARGET, 1)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("security")
    (folder / "etcd").mkdir()
    (folder / "kafka").mkdir()
    with (
        guarded_etcd.guarded_etcd(folder / "etcd") as etcd,
        guarded_kafka.guarded_kafka(folder / "kafka") as kafka,
    ):
        keys = {**kafka.keys(), **etcd.keys()}
        for name in ("kafka_password", "etcd_password"):
            file = folder / name
            file.write_text(f"{keys.pop(name)}\n")
            keys[f"{name}_file"] = str(file)
        found = Site(kafka, etcd, folder, keys)
        made = delayd(
            *("topics", "create", "--partitions", "1", "--cluster-key", CLUSTER_KEY),
            env=found.env,
        )
        assert made.returncode == 0, made.stderr
        create_topic(ConfluentBus(kafka.plain), TARGET)
        yield found


def secrets_in(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret in text]


def status_of(site: Site) -> subprocess.CompletedProcess[str]:
    """What `delayd status --json` says."""
    return delayd("status", "--json", env=site.env)


def names_of(status: subprocess.CompletedProcess[str]) -> list[str]:
    """The nodes that etcd knows."""
    return [node["node"] for node in json.loads(status.stdout)["nodes"]]


def command_line(node: NodeProcess) -> str:
    assert node.process is not None
    return Path(f"/proc/{node.process.pid}/cmdline").read_text()


def test_nodes_with_each_driver_deliver_commands_work_and_no_secret_is_shown(
    site: Site, tmp_path: Path
) -> None:
    node = site.node("confluent")
    other = site.node("pure", driver="kafka-python")
    shown = ""
    with node_group([node, other]):
        master_of([node.start_program()], 60)
        sent = delayd("send", "--topic", TARGET, "--in", "10ms", "one", env=site.env)
        assert sent.returncode == 0, sent.stderr
        wait_for(lambda: site.delivered() == ["one"], "the first message is delivered")
        shown += json.dumps(node.status()) + command_line(node)
        node.kill()
        master_of([other.start_program()], 60)
        # By a file here, and not by the environment.
        file = tmp_path / "way-in.toml"
        file.write_text("".join(f"{key} = {value!r}\n" for key, value in site.keys.items()))
        places = ("--bootstrap", site.kafka.sasl, "--prefix", "safe-", "--config", str(file))
        sent = delayd("send", *places, "--topic", TARGET, "--in", "10ms", "two")
        assert sent.returncode == 0, sent.stderr
        wait_for(lambda: site.delivered() == ["one", "two"], "the second one is delivered")
        shown += json.dumps(other.status()) + command_line(other)
        # Until etcd has forgotten the killed node, an audit misses its export.
        wait_for(lambda: names_of(status_of(site)) == ["pure"], "the killed node is forgotten")
        status = status_of(site)
        assert json.loads(status.stdout)["master"] == "pure", status.stderr
        page = tmp_path / "report.html"
        audit = delayd(
            *("audit", "--json", "--html", str(page), "--work", str(tmp_path / "work")),
            timeout_s=900,
            env={**site.env, "DELAYD_CLUSTER_KEY": CLUSTER_KEY},
        )
        assert audit.returncode == 0, audit.stdout + audit.stderr
        assert json.loads(audit.stdout)["delivered"] == 2
        shown += audit.stdout + audit.stderr + page.read_text()
        listed = delayd("dead", "list", "--json", env=site.env)
        assert json.loads(listed.stdout)["letters"] == []
    left = [file for file in (tmp_path / "work").rglob("*") if file.is_file()]
    assert not [file for file in left if secrets_in(file.read_bytes().decode("latin-1"))]
    assert secrets_in(shown + node.log + other.log + sent.stdout + status.stdout) == []


@pytest.mark.parametrize("driver", ["confluent", "kafka-python"])
def test_the_client_of_each_library_gets_in(site: Site, driver: DriverName) -> None:
    with Client(
        site.kafka.sasl, driver=driver, buffer="safe-buffer", security=Security(**site.keys)
    ) as client:
        assert client.schedule("nowhere", b"x", in_="30d").append_ms > 0


@pytest.mark.parametrize(
    ("settings", "code", "says"),
    [
        (
            {"kafka_password_file": "{wrong}"},
            "kafka-unreachable",
            "correct kafka_user, kafka_password",
        ),
        (
            {"kafka_password_file": "{wrong}", "driver": "kafka-python"},
            "kafka-unreachable",
            "correct kafka_user, kafka_password",
        ),
        ({"kafka_ca_file": "{other_ca}"}, "kafka-unreachable", "in kafka_ca_file"),
        (
            {"etcd_password_file": "{wrong}"},
            "etcd-unreachable",
            "correct etcd_user and etcd_password",
        ),
    ],
    ids=["confluent", "kafka-python", "authority", "etcd"],
)
def test_a_node_that_is_not_let_in_says_why_and_exits_with_3(
    site: Site, tmp_path: Path, settings: dict[str, str], code: str, says: str
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text(guarded_kafka.WRONG)
    files = {"wrong": wrong, "other_ca": site.kafka.other_ca}
    changed = {key: value.format(**files) for key, value in settings.items()}
    node = site.node(f"refused-{os.urandom(4).hex()}", **{"connect_timeout_s": 4, **changed})
    with node_group([node]):
        assert node.start().wait_exit() == 3, node.log
    [line] = [line for line in node.log.splitlines() if line.startswith("delayd: ")]
    assert says in line and f"[{code}]" in line
    assert secrets_in(node.log) == []


REFUSED = "correct kafka_user, kafka_password"


@pytest.mark.rehearsal
def test_running_nodes_say_that_they_are_refused_stay_alive_and_go_on_when_let_in_again(
    site: Site,
) -> None:
    """docs/operations.md, "Getting into Kafka and etcd": one line in the log when it begins."""
    nodes = [site.node("one"), site.node("two", driver="kafka-python")]
    with node_group(nodes):
        for node in nodes:
            node.start()
        for node in nodes:
            node.wait_ready()
        before = site.delivered()
        site.kafka.change_password(guarded_kafka.WRONG)
        for node in nodes:
            # At first the brokers may be away: to change the password they are started again.
            wait_for(
                lambda: REFUSED in (node.status().get("kafka_problem") or ""),  # noqa: B023
                "it says so",
            )
            assert scrape(node.port).all("delayd_kafka_up") == [0]
            wait_for(lambda: "kafka_refuses" in node.log, "its log says so")  # noqa: B023
            assert node.log.count("kafka_refuses") == 1, node.log
            answer = get(f"http://127.0.0.1:{node.port}/livez")
            assert answer is not None and answer.status == 200
        site.kafka.change_password(guarded_kafka.PASSWORD)
        sent = delayd("send", "--topic", TARGET, "--in", "10ms", "three", env=site.env)
        assert sent.returncode == 0, sent.stderr
        wait_for(lambda: site.delivered() == [*before, "three"], "delivery goes on")
        for node in nodes:
            wait_for(lambda: "kafka_answers" in node.log, "it says that it is over")  # noqa: B023
            wait_for(
                lambda: scrape(node.port).all("delayd_kafka_up") == [1],  # noqa: B023
                "it shows that it is over",
            )
            assert node.status()["kafka_problem"] is None
            assert secrets_in(node.log) == []


def test_a_command_that_is_told_nonsense_says_so_and_exits_with_2(site: Site) -> None:
    refused = delayd("status", env={**site.env, "DELAYD_KAFKA_USER": ""})
    assert refused.returncode == 2 and "kafka_user" in refused.stderr
    assert "[config]" in refused.stderr
    assert secrets_in(refused.stdout + refused.stderr) == []
