"""The whole document of the HTTP API, played by Schemathesis: no 5xx, and no answer that the
document does not allow, whether a request is as documented or not."""

from collections.abc import Iterator
from typing import Any

import pytest
from api_node import ALL, ApiNode, api_node
from hypothesis import HealthCheck, assume, given, settings

from delayd.node.monitoring.api.writes import WAIT_MS_MAX

pytestmark = pytest.mark.long

EXAMPLES = 12
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
)
OPERATIONS = (
    *("health", "cluster", "failing_targets", "look_up"),
    *("count_pending", "count_matching", "list_pending"),
    *("schedule", "schedule_many", "replace", "debounce", "cancel", "fire", "reschedule"),
    *("list_dead", "show_dead", "redrive"),
    *("target_limits", "limit_target", "unlimit_target"),
    *("list_audits", "show_audit", "audit_page"),
    *("paused_targets", "pause_target", "resume_target"),
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiNode]:
    with api_node(tmp_path_factory.mktemp("api")) as made:
        yield made


@pytest.fixture(scope="module")
def schema(node: ApiNode) -> Any:
    # Its import takes seconds, which no other test shall pay.
    import schemathesis

    return schemathesis.openapi.from_asgi("/openapi.json", node.app)


def test_each_operation_of_the_api_is_played(schema: Any) -> None:
    found = {
        operation["operationId"]
        for path, methods in schema.raw_schema["paths"].items()
        if path.startswith("/v1/")
        for operation in methods.values()
    }
    assert found == set(OPERATIONS)
    assert schema.raw_schema["openapi"].startswith("3.1")


@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_request_meets_a_fault_or_an_answer_that_is_not_in_the_document(
    schema: Any, operation: str, mode: str
) -> None:
    import schemathesis
    from schemathesis.checks import CHECKS as KNOWN

    played = schema.find_operation_by_id(operation)
    checks = KNOWN.get_by_names(list(CHECKS))
    texts = _texts(played.definition.raw)
    count = 0

    @given(case=played.as_strategy(generation_mode=schemathesis.GenerationMode(mode)))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def play(case: Any) -> None:
        nonlocal count
        # An empty list or object is nothing on the wire: what is sent is as documented.
        assume(all(value not in ([], {}) for value in (case.query or {}).values()))
        # A number is text as well on the wire.
        assume(not any(isinstance((case.query or {}).get(name), int | float) for name in texts))
        count += 1
        # A verdict comes at once, on a machine that has time.
        if mode == "positive" and (case.query or {}).get("wait"):
            case.query["timeout_ms"] = WAIT_MS_MAX
        case.call_and_validate(headers={"Authorization": f"Bearer {ALL}"}, checks=checks)

    play()
    assert count >= 1


def _texts(operation: dict[str, Any]) -> set[str]:
    """Return the names in a query whose values are texts, or lists of such."""
    found = set()
    for each in operation.get("parameters", ()):
        shapes = each["schema"].get("anyOf", [each["schema"]])
        kinds = {shape.get("items", shape).get("type") for shape in shapes}
        if each["in"] == "query" and "string" in kinds:
            found.add(each["name"])
    return found
