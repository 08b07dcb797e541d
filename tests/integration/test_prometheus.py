"""The alert rules and the dashboard's queries in a real Prometheus that scrapes real nodes.

Runs where `prometheus` and `promtool` are on the PATH (Debian: `apt-get install prometheus`).
Source: k8s/components/service-monitor, docs/alerts.md.
"""

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from clusters import TestCluster
from confluent_kafka import Producer
from nodes import HANGS_S, NodeProcess, master_of, running, wait_for

from delayd.dev.ports import LOOPBACK, pick_ports

pytestmark = [pytest.mark.real, pytest.mark.rehearsal]

FOLDER = Path(__file__).parents[2] / "k8s" / "components" / "service-monitor"
NAMESPACE = "shop"
INTERVAL = "1s"
MAYBE_EMPTY = ("delayd_lease_margin", "delayd_clock_drift", "delayd_dead_letters")
"""What a cluster that is well may have nothing of, or one node only."""


def rules() -> dict[str, Any]:
    """The groups of the PrometheusRule, as Prometheus takes them."""
    found: dict[str, Any] = yaml.safe_load((FOLDER / "rules.yaml").read_text())["spec"]
    return found


def queries(panels: Any) -> Iterator[str]:
    """Of the dashboard, for all namespaces."""
    for panel in panels:
        for target in panel.get("targets", ()):
            yield target["expr"].replace("$namespace", ".*")
        yield from queries(panel.get("panels", ()))


class Prometheus:
    """One that runs."""

    def __init__(self, port: int) -> None:
        self._at = f"http://{LOOPBACK}:{port}/api/v1"

    def ask(self, path: str, **parameters: str) -> Any:
        url = f"{self._at}/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            said = json.load(answer)
        assert said["status"] == "success", said
        return said["data"]

    def values(self, query: str) -> list[float]:
        return [float(each["value"][1]) for each in self.ask("query", query=query)["result"]]

    def alerts(self) -> set[str]:
        """Those that fire."""
        found = self.ask("alerts")["alerts"]
        return {each["labels"]["alertname"] for each in found if each["state"] == "firing"}


@contextmanager
def prometheus(folder: Path, nodes: list[NodeProcess]) -> Iterator[Prometheus]:
    """Scrapes nodes with the labels that a ServiceMonitor adds. Alerts do not wait."""
    program = shutil.which("prometheus")
    if program is None or shutil.which("promtool") is None:
        pytest.skip("prometheus and promtool are not on the PATH")
    written = rules()
    for group in written["groups"]:
        group["rules"] = [{**rule, "for": "0s"} for rule in group["rules"]]
    (folder / "rules.yaml").write_text(yaml.safe_dump(written))
    targets = [
        {
            "targets": [f"{LOOPBACK}:{node.port}"],
            "labels": {"namespace": NAMESPACE, "pod": node.name},
        }
        for node in nodes
    ]
    config = {
        "global": {"scrape_interval": INTERVAL, "evaluation_interval": INTERVAL},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [{"job_name": "delayd-nodes", "static_configs": targets}],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    checked = subprocess.run(
        ["promtool", "check", "config", str(folder / "prometheus.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    [port] = pick_ports(1)
    command = [program, f"--config.file={folder / 'prometheus.yaml'}"]
    command += [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={LOOPBACK}:{port}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        found = Prometheus(port)
        wait_for(lambda: _answers(found), "Prometheus answers")
        yield found
    finally:
        process.terminate()
        process.wait(HANGS_S)


def _answers(found: Prometheus) -> bool:
    try:
        return found.values("sum(up)") != []
    except OSError:
        return False


def test_rules_and_dashboard_are_understood_and_an_alert_fires_and_ends(
    cluster: TestCluster, tmp_path: Path
) -> None:
    nodes = [cluster.node(0), cluster.node(1)]
    with running(nodes), prometheus(tmp_path, nodes) as prom, cluster.client() as client:
        master = master_of(nodes)
        target = cluster.target("orders")
        client.schedule(target, b"v", in_="1ms")
        wait_for(lambda: prom.values("sum(delayd_ready)") == [2], "both nodes are ready")
        wait_for(
            lambda: prom.values("sum(delayd_lateness_seconds_count)") == [1], "a message is seen"
        )

        loaded = [rule for group in prom.ask("rules")["groups"] for rule in group["rules"]]
        assert len(loaded) == sum(len(group["rules"]) for group in rules()["groups"])
        wait_for(
            lambda: (
                {rule["health"] for group in prom.ask("rules")["groups"] for rule in group["rules"]}
                == {"ok"}
            ),
            "each rule was evaluated",
        )
        dashboard = json.loads((FOLDER / "dashboard.json").read_text())
        asked = list(queries(dashboard["panels"]))
        assert len(asked) > 15
        wait_for(lambda: prom.alerts() == set(), "nothing is wrong")
        needed = [each for each in asked if not any(name in each for name in MAYBE_EMPTY)]
        # A rate needs two scrapes of a series.
        wait_for(lambda: all(map(prom.values, needed)), "each query finds something")
        for each in asked:
            prom.values(each)

        shop = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": cluster.name})
        shop.init_transactions(HANGS_S)
        shop.begin_transaction()
        shop.produce(cluster.buffer, b"", partition=1)
        shop.flush(HANGS_S)
        held = 'max by (partition) (delayd_buffer_held_seconds{partition="1"})'
        wait_for(lambda: (prom.values(held) or [0])[0] > 2, "the partition is held")
        shop.abort_transaction(HANGS_S)
        wait_for(lambda: prom.values(held) == [0], "it is not any more")

        [other] = [node for node in nodes if node is not master]
        other.kill()
        wait_for(lambda: "DelaydNodeCannotTakeOver" in prom.alerts(), "the alert fires")
        other.start().wait_ready()
        wait_for(lambda: prom.alerts() == set(), "the alert ends")
