"""HTML and SVG as values: built from elements, written out in one place, escaped there.

Nothing else in this folder writes a `<`. What a user has chosen goes through `words.visible`
first, so that it cannot move what stands around it either.
"""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

VOID: Final = frozenset({"meta", "input", "br"})
"""HTML elements without an end."""


@dataclass(frozen=True, slots=True)
class Verbatim:
    """The content of a `style` or `script` of our own, which is not escaped."""

    text: str


@dataclass(frozen=True, slots=True)
class Element:
    """One element; None among the children is nothing."""

    name: str
    attributes: tuple[tuple[str, str], ...]
    children: tuple["Node", ...]


Node: TypeAlias = Element | Verbatim | str | None
Attribute: TypeAlias = str | int | float | bool | None


def element(name: str, /, *children: "Node | Iterable[Node]", **attributes: Attribute) -> Element:
    """Return an element. In names of attributes `_` is `-`, one at the end is nothing (`class_`);
    True is an attribute without a value, None and False are none. Sequences of children are
    flattened."""
    given = [
        (key.removesuffix("_").replace("_", "-"), "" if value is True else _attribute(value))
        for key, value in attributes.items()
        if value is not None and value is not False
    ]
    return Element(name, tuple(given), tuple(_flat(children)))


def number(value: float) -> str:
    """Return a coordinate as text, to a tenth of a pixel."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def render(node: Node) -> str:
    """Return a node as text."""
    parts: list[str] = []
    _write(node, parts)
    return "".join(parts)


def _attribute(value: str | int | float) -> str:
    return number(value) if isinstance(value, float) else str(value)


def _flat(children: "Sequence[Node | Iterable[Node]]") -> Iterable[Node]:
    for child in children:
        if child is None or isinstance(child, Element | Verbatim | str):
            yield child
        else:
            yield from child


def _write(node: Node, parts: list[str]) -> None:
    match node:
        case None:
            return
        case str():
            parts.append(html.escape(node, quote=False))
        case Verbatim():
            parts.append(node.text)
        case Element():
            said = "".join(
                f" {key}" if value == "" else f' {key}="{html.escape(value)}"'
                for key, value in node.attributes
            )
            parts.append(f"<{node.name}{said}>")
            if node.name in VOID:
                assert not node.children, f"{node.name} has no content"
                return
            for child in node.children:
                _write(child, parts)
            parts.append(f"</{node.name}>")
