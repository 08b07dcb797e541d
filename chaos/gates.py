"""Which requests a full target refuses, by the gates in the buffer. Pure.

Whether a gate is where it should be, the audit judges.
Source: docs/design/quotas.md.
"""

from dataclasses import dataclass, field
from typing import Final

from chaos.records import Logged

SHUT: Final = ("full", "fast")


@dataclass(slots=True)
class Gates:
    """Which topics are shut in which partition, as far as the log was read. Each partition is read
    in order."""

    _shut: set[tuple[int, str]] = field(default_factory=set)

    def refuses(self, record: Logged) -> bool:
        """Take the next record; return whether it is a request that would add a message to a topic
        that is shut."""
        fields = record.fields
        if record.is_order and "quota" in fields:
            kind, *_, topic = fields["quota"].split("/")
            place = (record.partition, topic)
            if kind in SHUT:
                self._shut.add(place)
            elif kind == "open":
                self._shut.discard(place)
            return False
        is_own = "origin" in fields
        return not is_own and (record.partition, fields.get("topic", "")) in self._shut
