"""Are objects what Kubernetes takes, with no field that it does not know?

Its own kinds by the package kubernetes-validate, which carries the schemas of its releases; those
of the Prometheus operator by schemas of ours, which know only what k8s/ uses.
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


_SPAN: Final = {"type": "string", "pattern": "^([0-9]+(ms|s|m|h))+$"}
_RULE: Final = _closed(
    {
        "alert": {"type": "string", "pattern": "^Delayd[A-Za-z]+$"},
        "expr": {"type": "string", "minLength": 1},
        "for": _SPAN,
        "labels": _closed({"severity": {"enum": ["info", "warning", "critical"]}}),
        "annotations": _closed(
            {"summary": {"type": "string"}, "description": {"type": "string"}},
        ),
    },
    "for",
)
CUSTOM: Final[Mapping[str, Mapping[str, Any]]] = {
    "ServiceMonitor": _custom(
        "ServiceMonitor",
        _closed(
            {
                "selector": _closed({"matchLabels": _TEXTS}),
                "endpoints": {
                    "type": "array",
                    "minItems": 1,
                    "items": _closed(
                        {
                            "port": {"type": "string"},
                            "path": {"type": "string", "pattern": "^/"},
                            "interval": _SPAN,
                            "scrapeTimeout": _SPAN,
                        }
                    ),
                },
            }
        ),
    ),
    "PrometheusRule": _custom(
        "PrometheusRule",
        _closed(
            {
                "groups": {
                    "type": "array",
                    "minItems": 1,
                    "items": _closed(
                        {
                            "name": {"type": "string"},
                            "rules": {"type": "array", "minItems": 1, "items": _RULE},
                        }
                    ),
                }
            }
        ),
    ),
}


def problems_of(each: Mapping[str, Any]) -> Iterator[str]:
    """What Kubernetes would not take, or not know."""
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
