"""docs/alerts.md and the dashboard: each alert is explained, and each query asks for what there is.

Source: k8s/components/service-monitor.
"""

import json
import re
from typing import Any

import pytest
import yaml
from test_docs import COMMANDS, ROOT, anchor, coded, headings, page, section

FOLDER = ROOT / "k8s" / "components" / "service-monitor"
RULES = [
    rule
    for group in yaml.safe_load((FOLDER / "rules.yaml").read_text())["spec"]["groups"]
    for rule in group["rules"]
]
PAGE = "docs/alerts.md"
PARTS = ("Means", "First", "Ends", "Rehearse")
SUFFIXES = {"histogram": ("_bucket", "_count", "_sum"), "counter": ("",), "gauge": ("",)}
OF_KUBERNETES = {"pod", "namespace", "le"}


def documented_metrics() -> dict[str, set[str]]:
    """The labels of each series of docs/reference/metrics.md."""
    rows = re.findall(
        r"^\| `(delayd_\w+)` \| (\w+) \| ([^|]*)\|", page("docs/reference/metrics.md"), re.M
    )
    return {
        f"{name}{suffix}": set(coded(labels))
        for name, kind, labels in rows
        for suffix in SUFFIXES[kind]
    }


def queries(node: Any) -> list[str]:
    """All of a dashboard."""
    if isinstance(node, dict):
        own = [node["expr"]] if "expr" in node else []
        return own + [each for value in node.values() for each in queries(value)]
    return [each for value in node for each in queries(value)] if isinstance(node, list) else []


def problems_of(query: str) -> list[str]:
    """Metrics and labels of a query that there are not."""
    known, found = documented_metrics(), []
    names = re.findall(r"\bdelayd_\w+", query)
    found += [f"there is no {name}" for name in names if name not in known]
    labels = {label for name in names for label in known.get(name, ())} | OF_KUBERNETES
    asked = [
        label
        for inner in re.findall(r"\{([^}]*)\}", query)
        for label in re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", inner)
    ]
    asked += [
        each.strip()
        for inner in re.findall(r"\bby \(([^)]*)\)", query)
        for each in inner.split(",")
    ]
    return found + [f"{query}: no label {label}" for label in asked if label not in labels]


def test_each_alert_has_a_section_and_each_section_an_alert() -> None:
    found = [text for text in headings(page(PAGE)) if text.startswith("Delayd")]
    assert found == [rule["alert"] for rule in RULES]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_section_says_what_it_means_what_to_do_first_when_it_ends(rule: dict[str, Any]) -> None:
    parts = re.findall(r"^- \*\*(\w+):\*\* (.{7,})$", section(PAGE, rule["alert"]), re.M)
    assert tuple(name for name, _ in parts) == PARTS
    assert "`" in dict(parts)["First"], "a command"
    assert rule["annotations"]["runbook"] == f"{PAGE}#{anchor(rule['alert'])}"


def test_each_command_of_the_page_is_one_that_there_is() -> None:
    said = [each for each in coded(page(PAGE)) if each.startswith("delayd ")]
    assert len(said) > 15
    unknown = [
        each
        for each in said
        if not any(each == known or each.startswith(f"{known} ") for known in COMMANDS)
    ]
    assert unknown == []


def test_each_query_of_the_dashboard_asks_for_metrics_and_labels_that_there_are() -> None:
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    found = queries(dashboard)
    assert len(found) > 15
    assert [problem for query in found for problem in problems_of(query)] == []
    assert all('namespace=~"$namespace"' in query for query in found)
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))


def test_a_query_for_what_is_not_there_is_found() -> None:
    assert problems_of('sum by (topic) (rate(delayd_lateness_seconds_bucket{topic="a"}[5m]))') == []
    assert problems_of("delayd_lateness_seconds")
    assert problems_of("rate(delayd_nothing_total[5m])")
    assert problems_of('delayd_ready{topic="a"}') and problems_of("sum by (topic) (delayd_ready)")


def test_each_alert_of_the_operations_page_has_the_same_name_as_its_rule() -> None:
    alerts = set(re.findall(r"\bDelayd[A-Z]\w+", page("docs/operations.md")))
    assert len(alerts) > 8 and alerts <= {rule["alert"] for rule in RULES}
