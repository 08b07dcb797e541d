"""What a job asks for each id of a group. Pure."""

from enum import Enum
from typing import Any, Final, NamedTuple

from delayd.client.asking import Ask, ask_cancel, ask_fire, ask_reschedule

REPEATABLE: Final = frozenset({"cancel", "reschedule"})
"""Operations that may be asked for again under an id, for a series too: the second time changes
nothing more. A second fire would fire the next occurrence."""


class Kind(Enum):
    """How a reschedule says when."""

    AT = "at"
    """All at one time."""
    BY = "by"
    """Each so much later than it is due by the list, or earlier."""


class Change(NamedTuple):
    """What is asked for each message."""

    op: str
    """cancel, fire or reschedule."""
    kind: Kind | None = None
    """Of a reschedule."""
    ms: int = 0
    """Unix ms, or by how much (ms)."""
    text: str = ""
    """As it was given, such as `--by +1h`: a later run must say the same."""

    def at_ms(self, due_ms: int) -> int | None:
        """Return when a message that is due at `due_ms` is to be due; None: nothing of that."""
        if self.kind is None:
            return None
        return self.ms if self.kind is Kind.AT else max(0, due_ms + self.ms)

    def ask(self, id: str, at_ms: int | None) -> Ask:
        """Return the request for one id."""
        if self.op == "cancel":
            return ask_cancel(id)
        if self.op == "fire":
            return ask_fire(id)
        return ask_reschedule(id, at=at_ms)

    def may_repeat(self, is_series: bool) -> bool:
        """Return whether a request that may have been sent is sent again."""
        return not is_series or self.op in REPEATABLE

    def fields(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"op": self.op, "when": self.text}
