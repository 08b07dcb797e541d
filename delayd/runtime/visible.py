"""Text from outside, made harmless for a terminal and for a page. Pure."""

import unicodedata
from typing import Final

TEXT_CHARS_MAX: Final = 300
"""Of one piece of text from outside: an id has at most 256 bytes, a topic's name 249."""

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories that show nothing, or move, colour or cut what stands around them."""

_JOINERS: Final = "\u200c\u200d"
"""Formats that words and emoji of some scripts need, and that move nothing."""


def visible(text: str, chars_max: int = TEXT_CHARS_MAX) -> str:
    """Return text from outside, made harmless for a terminal and for what stands beside it: what
    shows nothing (escapes, marks that turn the reading direction, halves of surrogates) is written
    as its code; what is then longer than `chars_max` is cut, and says so."""
    shown = "".join(map(_shown, text[: chars_max + 1]))
    return shown if len(shown) <= chars_max else f"{shown[: chars_max - 1]}…"


def _shown(char: str) -> str:
    if char in _JOINERS or unicodedata.category(char) not in _HIDDEN:
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
