"""docs/guides shows the programs that tests/guides runs, at the versions that it installs."""

import json
import re
from pathlib import Path

import pytest
from connect_workers import DEBEZIUM_VERSION
from registries import APICURIO_VERSION

from delayd.dev.jars import KAFKA_VERSION

GUIDES = Path(__file__).parents[3] / "docs" / "guides"
EXAMPLES = GUIDES / "examples"
CLIENTS = GUIDES.parents[1] / "clients"
PROGRAMS = {"java": "Reminders.java", "go": "main.go", "node": "reminders.js"}
SHOWN_BEFORE = {
    "java": (
        CLIENTS / "java" / "src" / "test" / "java" / "orders" / "Orders.java",
        CLIENTS / "spring" / "src" / "test" / "resources" / "application.yaml",
        CLIENTS / "spring" / "src" / "test" / "java" / "orders" / "OrderService.java",
    )
}
"""Examples of libraries, which test_clients.py in tests/guides runs."""


def test_each_example_has_a_page_and_each_page_an_example() -> None:
    assert {path.name for path in EXAMPLES.iterdir()} == set(PROGRAMS)
    without_program = {
        "README",
        "cancel-on-event",
        "coming-from",
        "moving",
        "groups",
        "limiting",
        "pausing",
        "debouncing",
        "importing",
        "outbox",
        "python-client",
        "recurring",
        "second-site",
        "serializers",
        "testing",
        "tracing",
    }
    assert {path.stem for path in GUIDES.glob("*.md")} - without_program == set(PROGRAMS)


@pytest.mark.parametrize("language", PROGRAMS)
def test_a_page_shows_its_program_as_it_is_run(language: str) -> None:
    page = (GUIDES / f"{language}.md").read_text()
    blocks = re.findall(r"^```\w+\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    shown = (*SHOWN_BEFORE.get(language, ()), EXAMPLES / language / PROGRAMS[language])
    assert blocks == [file.read_text() for file in shown]


def test_the_java_page_names_the_client_that_is_run() -> None:
    assert f"org.apache.kafka:kafka-clients:{KAFKA_VERSION}`" in (GUIDES / "java.md").read_text()


def test_the_pages_of_connect_and_registries_name_the_versions_that_are_run() -> None:
    outbox = (GUIDES / "outbox.md").read_text()
    assert f"Kafka Connect {KAFKA_VERSION}, Debezium {DEBEZIUM_VERSION}," in outbox
    registry = f"Registry {APICURIO_VERSION.removesuffix('.Final')},"
    assert registry in (GUIDES / "serializers.md").read_text()


def test_the_go_page_names_the_client_that_is_run() -> None:
    [version] = re.findall(r"franz-go (v\S+)$", (EXAMPLES / "go" / "go.mod").read_text(), re.M)
    assert f"github.com/twmb/franz-go {version}`" in (GUIDES / "go.md").read_text()


def test_the_node_page_names_the_client_that_is_run() -> None:
    wanted = json.loads((EXAMPLES / "node" / "package.json").read_text())["dependencies"]
    locked = json.loads((EXAMPLES / "node" / "package-lock.json").read_text())["packages"]
    name = "@platformatic/kafka"
    assert locked[f"node_modules/{name}"]["version"] == wanted[name], "pinned, not a range"
    assert f"`{name}` {wanted[name]}," in (GUIDES / "node.md").read_text()


def test_the_node_example_says_which_versions_of_node_run_it() -> None:
    engines = json.loads((EXAMPLES / "node" / "package.json").read_text())["engines"]
    locked = json.loads((EXAMPLES / "node" / "package-lock.json").read_text())["packages"]
    of_client = locked["node_modules/@platformatic/kafka"]["engines"]["node"]
    assert set(re.findall(r"\d+\.\d+", engines["node"])) == set(re.findall(r"\d+\.\d+", of_client))
    assert "on Node 22.22 or 24.6 and newer" in (GUIDES / "node.md").read_text()


def test_the_node_lock_has_a_checksum_for_each_package_and_no_registry() -> None:
    """A registry's address would bind every checkout to the one that made the lock."""
    locked = json.loads((EXAMPLES / "node" / "package-lock.json").read_text())["packages"]
    packages = [package for path, package in locked.items() if path]
    assert packages
    assert all("integrity" in package and "resolved" not in package for package in packages)
