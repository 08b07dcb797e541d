"""What the doctor finds: one thing that is wrong, and what mends it."""

import re
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

COMMANDED: Final = re.compile(r"; (?:run|start it again with) `([^`]+)`$")


class Severity(StrEnum):
    """How soon somebody must act."""

    CRITICAL = "critical"
    """Now: delivery has stopped, or something may be lost."""
    WARNING = "warning"
    """Soon: the next failure, or time alone, makes it critical."""
    ADVICE = "advice"
    """Nothing is wrong. It could be better."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    code: str
    """A stable slug: docs/operations.md, "The doctor"."""
    severity: Severity
    what: str
    mend: str
    """The command that mends it, with names to fill in as capitals; or what to do, where no command
    can."""

    @classmethod
    def told(cls, code: str, severity: Severity, text: str, mend: str = "") -> "Finding":
        """Return the finding of a text that may end with the command which mends it."""
        found = COMMANDED.search(text)
        what, command = (text, mend) if found is None else (text[: found.start()], found[1])
        return cls(code, severity, what, command)

    @property
    def is_wrong(self) -> bool:
        """False for advice."""
        return self.severity is not Severity.ADVICE

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)
