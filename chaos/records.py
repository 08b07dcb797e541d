"""A committed record, as every judge here reads it."""

from typing import NamedTuple

PREFIX = "delayd-"


class Logged(NamedTuple):
    """A committed record. `append_ms` is the broker's clock if the topic has LogAppendTime."""

    topic: str
    partition: int
    offset: int
    append_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def is_frontier(self) -> bool:
        """Whether a record of the frontier topic is one: under another key than that of its shard,
        whose number is the partition's, it is none."""
        return self.key == b"shard-%d" % self.partition

    @property
    def place(self) -> str:
        """`partition/offset`; of a record of the buffer, its source."""
        return f"{self.partition}/{self.offset}"

    @property
    def own(self) -> tuple[tuple[str, bytes | None], ...]:
        """The user's headers."""
        return tuple(header for header in self.headers if not header[0].startswith(PREFIX))

    @property
    def fields(self) -> dict[str, str]:
        """delayd's headers as text, without their prefix; of a repeated one the last."""
        return {
            name.removeprefix(PREFIX): (content or b"").decode(errors="replace")
            for name, content in self.headers
            if name.startswith(PREFIX)
        }

    @property
    def is_settlement(self) -> bool:
        """True of a master's note of what cancels came to, and of a request that looks like one."""
        return self.fields.keys() == {"settles", "proof"}

    @property
    def is_barrier(self) -> bool:
        """True of a record that switches its partition to newer rules, if its proof is true."""
        return self.fields.keys() == {"rules", "proof"}

    @property
    def is_order(self) -> bool:
        """True of a record that pauses a target or limits it, if it is obeyed, and of a gate."""
        return set(self.fields) in ({"hold", "proof"}, {"quota", "proof"})

    def header(self, name: str) -> str | None:
        """Return the last header of that name as text; None if there is none."""
        found = [content for header, content in self.headers if header == name]
        return (found[-1] or b"").decode(errors="replace") if found else None
