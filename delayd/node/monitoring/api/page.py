"""`/docs`: the OpenAPI document as one page, without scripts, fonts or network. Pure."""

import json
from html import escape
from typing import Any, Final

HEADERS: Final = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'",
    "x-content-type-options": "nosniff",
}

_STYLE: Final = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font-family: ui-monospace, monospace; font-size: .9em; }
pre { overflow-x: auto; padding: .75rem; border: 1px solid #8885; border-radius: .4rem; }
summary { cursor: pointer; } details { margin: .5rem 0; }
table { border-collapse: collapse; } td, th { text-align: left; padding: .2rem .8rem .2rem 0;
  vertical-align: top; }
"""


def page(document: dict[str, Any]) -> str:
    """Return the page of an OpenAPI document."""
    info = document["info"]
    parts = [
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>",
        '<p>The same for programs: <a href="/openapi.json">/openapi.json</a>.</p>',
        *(
            _operation(path, method, operation)
            for path, methods in document["paths"].items()
            for method, operation in methods.items()
        ),
        "<h2>Objects</h2>",
        *(_object(name, each) for name, each in sorted(_schemas(document).items())),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(info['title'])}</title><style>{_STYLE}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>"
    )


def _schemas(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document.get("components", {}).get("schemas", {})
    return found


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    said = escape(operation.get("description") or operation.get("summary") or "")
    rows = [
        f"<tr><td><code>{escape(each['name'])}</code></td><td>{escape(each['in'])}"
        f"{', required' if each.get('required') else ''}</td>"
        f"<td>{escape(each.get('description', ''))}</td></tr>"
        for each in operation.get("parameters", ())
    ]
    table = f"<table>{''.join(rows)}</table>" if rows else ""
    body = (
        f"<p>Body: {_content(operation['requestBody'])}</p>" if "requestBody" in operation else ""
    )
    answers = "".join(
        f"<tr><td>{escape(status)}</td><td>{escape(each.get('description', ''))}</td>"
        f"<td>{_content(each)}</td></tr>"
        for status, each in operation.get("responses", {}).items()
    )
    return (
        f"<h2><code>{escape(method.upper())} {escape(path)}</code></h2><p>{said}</p>"
        f"{table}{body}<table>{answers}</table>"
    )


def _content(of: dict[str, Any]) -> str:
    """Return what a body or an answer holds."""
    return next((_link(each.get("schema", {})) for each in of.get("content", {}).values()), "")


def _object(name: str, schema: dict[str, Any]) -> str:
    return (
        f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>'
        f"<pre>{escape(json.dumps(schema, indent=2))}</pre></details>"
    )


def _link(schema: dict[str, Any]) -> str:
    """Return what an answer or a body is, with a link to each object that it names."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}"><code>{name}</code></a>'
    if "anyOf" in schema:
        return " or ".join(_link(each) for each in schema["anyOf"])
    if schema.get("type") == "array":
        return f"a list of {_link(schema.get('items', {}))}"
    return escape(str(schema.get("type", "")))
