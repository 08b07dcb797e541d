"""HTML and SVG, written and escaped in one place.

Nothing else in this folder writes a `<`. What a user has chosen goes through `visible`
first, so that it cannot move what stands around it either.
"""

import html
from collections.abc import Iterable
from typing import Final, TypeAlias

VOID: Final = frozenset({"meta", "input", "br"})
"""HTML elements without an end."""


class Html(str):
    """Text that is HTML already, and is not escaped again; other text is."""

    __slots__ = ()


Node: TypeAlias = str | None
Attribute: TypeAlias = str | int | float | bool | None


def element(name: str, /, *children: Node | Iterable[Node], **attributes: Attribute) -> Html:
    """Return an element. In names of attributes `_` is `-`, one at the end is nothing (`class_`);
    True is an attribute without a value, None and False are none. Sequences of children are
    flattened; None among them is nothing."""
    given = ""
    for key, value in attributes.items():
        if value is not None and value is not False:
            given += f" {key.removesuffix('_').replace('_', '-')}"
            if value is not True and value != "":
                text = number(value) if isinstance(value, float) else str(value)
                given += f'="{html.escape(text)}"'
    if name in VOID:
        assert not children, f"{name} has no content"
        return Html(f"<{name}{given}>")
    return Html(f"<{name}{given}>{_content(children)}</{name}>")


def number(value: float) -> str:
    """Return a coordinate as text, to a tenth of a pixel."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def _content(child: "Node | Iterable[Node | Iterable[Node]]") -> str:
    match child:
        case None | Html():
            return child or ""
        case str():
            return html.escape(child, quote=False)
    return "".join(map(_content, child))
