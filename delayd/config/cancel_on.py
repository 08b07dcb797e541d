"""Which events cancel which messages: the tables `[[cancel_on]]` of a node's configuration.

    [[cancel_on]]
    topic = "payments"
    id = "/order/id"                  # or "key", or "header:order-id"
    where = {"/status" = "paid"}      # only those; the same names

A *place* names a part of an event: its key, one of its headers, or a value in its JSON by a pointer
(RFC 6901). Not here: reading events (`delayd/node/cancel_on`).
"""

import re
from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

RULES_MAX: Final = 20
CONDITIONS_MAX: Final = 10
_PLACE: Final = re.compile(r"key|header:[^\x00]{1,249}|(?:/(?:[^~/]|~[01])*){1,32}")


def _is_place(text: str) -> str:
    if not _PLACE.fullmatch(text):
        raise ValueError(
            f"{text!r} is neither key, nor header:NAME, nor a JSON pointer such as /order/id"
        )
    return text


Place = Annotated[str, AfterValidator(_is_place)]


class CancelOn(BaseModel):
    """One rule: an event of this topic cancels what is pending under its id."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    topic: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,249}$")]
    """Where the events are."""
    id: Place
    """The place of the id."""
    where: Mapping[Place, str] = Field(default_factory=dict, max_length=CONDITIONS_MAX)
    """What other places must say, each of them; an event where one does not is none of this
    rule's."""
