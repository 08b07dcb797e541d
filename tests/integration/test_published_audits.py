"""A real audit of a real cluster, as its nodes keep it and as people get it from them."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import standing_spark
from nodes import HANGS_S, delayd_in_process, wait_for

from delayd.client import Client
from delayd.dev.cluster import LocalCluster
from delayd.dev.startup import ClusterOptions

pytestmark = pytest.mark.real


def kept_by(node: dict[str, Any], token: str) -> list[dict[str, Any]]:
    """The audits that a node lists."""
    headers = {"authorization": f"Bearer {token}"}
    answer = httpx.get(f"{node['admin']}/v1/audits", headers=headers, timeout=HANGS_S)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()
    return found


def test_an_audit_of_a_folder_is_kept_by_each_of_its_nodes_also_when_one_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalCluster(tmp_path / "dev", ClusterOptions(nodes=3)) as cluster:
        variables = cluster.variables()
        token, here = variables["DELAYD_API_TOKEN"], ("--dir", str(cluster.directory))
        with Client(cluster.bootstrap) as client:
            client.schedule("orders", b"v", in_="2h")
        nodes = cluster.status()["nodes"]
        told = standing_spark.audit("--json", *here, "--no-publish")
        assert told.returncode == 0, told.stdout + told.stderr
        assert [kept_by(node, token) for node in nodes] == [[], [], []]

        told = standing_spark.audit("--json", *here)
        assert told.returncode == 0 and "the report" not in told.stderr, told.stderr
        report = json.loads(told.stdout)
        assert report["nodes"] and not any(node["problem"] for node in report["nodes"])
        lists = [kept_by(node, token) for node in nodes]
        [[listed], [second], [third]] = lists
        assert listed["id"] == second["id"] == third["id"]
        assert (listed["verdict"], listed["messages"]) == ("ok", 1)
        assert (listed["nodes"], listed["compared"]) == (3, 3)

        monkeypatch.setenv("DELAYD_API_TOKEN", token)
        at = ("--etcd", cluster.etcd_url, "--cluster", variables["DELAYD_CLUSTER"])
        shown = delayd_in_process("audits", "--json", *at)
        [found] = json.loads(shown.stdout)["audits"]
        assert found["id"] == listed["id"]
        shown = delayd_in_process("audits", listed["id"], *at)
        assert json.loads(shown.stdout) == report
        page = tmp_path / "report.html"
        assert delayd_in_process("audits", listed["id"], "--html", str(page), *at).returncode == 0
        assert "Verdict: ok" in page.read_text(encoding="utf-8")

        follower = next(node for node in nodes if node["name"] != cluster.status()["master"])
        cluster.kill(follower["name"])
        told = standing_spark.audit("--json", *here)
        assert told.returncode == 1, "a node is absent, and that is all it says"
        assert json.loads(told.stdout)["found"] == {"replica-absent": 1}
        others = [node for node in nodes if node is not follower]
        assert [len(kept_by(node, token)) for node in others] == [2, 2]
        cluster.restart(follower["name"])
        wait_for(
            lambda: [each["id"] for each in kept_by(follower, token)] == [listed["id"]],
            "what it kept is there",
        )
