"""Schemas of objects: would Kubernetes accept them, and does it know every field?

The package kubernetes-validate carries the schemas of Kubernetes' own kinds, by release. Our own
schemas for kinds of the Prometheus operator know only the fields that k8s/ uses.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

import jsonschema
import kubernetes_validate

VERSION: Final = "1.34"

_TEXTS: Final[Mapping[str, Any]] = {"type": "object", "additionalProperties": {"type": "string"}}


def _closed(properties: Mapping[str, Any], *optional: str) -> Mapping[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": [name for name in properties if name not in optional],
    }


def _custom(kind: str, spec: Mapping[str, Any]) -> Mapping[str, Any]:
    text = {"type": "string"}
    metadata = _closed({"name": text, "namespace": text, "labels": _TEXTS})
    version = {"const": "monitoring.coreos.com/v1"}
    return _closed(
        {"apiVersion": version, "kind": {"const": kind}, "metadata": metadata, "spec": spec}
    )


def _like(pattern: str) -> Mapping[str, Any]:
    return {"type": "string", "pattern": pattern}


def _some(items: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"type": "array", "minItems": 1, "items": items}


_TEXT: Final = _like(".")
_SPAN: Final = _like("^([0-9]+(ms|s|m|h))+$")
_ENDPOINT: Final = {"port": _TEXT, "path": _like("^/"), "interval": _SPAN, "scrapeTimeout": _SPAN}
_RULE: Final = {
    "alert": _like("^Delayd[A-Za-z]+$"),
    "expr": _TEXT,
    "for": _SPAN,
    "labels": _closed({"severity": {"enum": ["info", "warning", "critical"]}}),
    "annotations": _closed({"summary": _TEXT, "description": _TEXT, "runbook": _TEXT}),
}
_GROUP: Final = {"name": _TEXT, "rules": _some(_closed(_RULE, "for"))}
_SELECTOR: Final = _closed({"matchLabels": _TEXTS})
_SPECS: Final = {
    "ServiceMonitor": {"selector": _SELECTOR, "endpoints": _some(_closed(_ENDPOINT))},
    "PrometheusRule": {"groups": _some(_closed(_GROUP))},
}
CUSTOM: Final = {kind: _custom(kind, _closed(spec)) for kind, spec in _SPECS.items()}


def problems_of(each: Mapping[str, Any]) -> Iterator[str]:
    """Yield the fields and values that Kubernetes would refuse or ignore."""
    where = f"{each['kind']}/{each['metadata']['name']}"
    yield from (f"{where}: {problem}" for problem in _problems(json.dumps(each, sort_keys=True)))


@cache
def _problems(text: str) -> tuple[str, ...]:
    each = json.loads(text)
    try:
        if each["kind"] in CUSTOM:
            jsonschema.validate(each, CUSTOM[each["kind"]])
        else:
            kubernetes_validate.validate(each, VERSION, strict=True)
    except jsonschema.ValidationError as error:
        return (f"{'.'.join(map(str, error.path))}: {error.message}",)
    except kubernetes_validate.SchemaNotFoundError as error:
        return (str(error.message),)
    return ()
