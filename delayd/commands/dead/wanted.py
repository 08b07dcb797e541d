"""The selection of dead letters by the options of a command."""

from collections.abc import Iterable
from dataclasses import dataclass

from delayd.errors import ConfigError
from delayd.request import Reason
from delayd.request.grammar import source_partition_of
from delayd.request.letters import Letter
from delayd.request.reasons import RefusedError
from delayd.request.times import delay_ms_of, due_ms_of


@dataclass(frozen=True, slots=True)
class Wanted:
    """A selection: a letter must match every field that is given. Times are Unix ms."""

    sources: frozenset[str] = frozenset()
    reasons: frozenset[str] = frozenset()
    topics: frozenset[str] = frozenset()
    ids: frozenset[str] = frozenset()
    since_ms: int | None = None
    until_ms: int | None = None
    """Exclusive."""

    @property
    def is_everything(self) -> bool:
        """Return whether no field is given."""
        return self == Wanted()

    def has(self, letter: Letter) -> bool:
        """Return whether this letter matches."""
        return (
            (not self.sources or letter.source in self.sources)
            and (not self.reasons or letter.reason in self.reasons)
            and (not self.topics or letter.topic in self.topics)
            and (not self.ids or letter.id in self.ids)
            and (self.since_ms is None or letter.dead_ms >= self.since_ms)
            and (self.until_ms is None or letter.dead_ms < self.until_ms)
        )


def wanted(
    now_ms: int,
    sources: Iterable[str] | None = None,
    reasons: Iterable[str] | None = None,
    topics: Iterable[str] | None = None,
    ids: Iterable[str] | None = None,
    since: str | None = None,
    until: str | None = None,
) -> Wanted:
    """Return the selection of these options. Raise ConfigError if no letter can match one."""
    made = Wanted(
        frozenset(sources or ()),
        frozenset(reasons or ()),
        frozenset(topics or ()),
        frozenset(ids or ()),
        None if since is None else _moment_ms("--since", since, now_ms),
        None if until is None else _moment_ms("--until", until, now_ms),
    )
    for source in sorted(made.sources):
        if source_partition_of(source) is None:
            raise ConfigError(
                f"{source!a} is no source", remedy="it is written like 3/4711, as in delayd-source"
            )
    known = [reason.slug for reason in Reason]
    unknown = sorted(made.reasons - set(known))
    if unknown:
        raise ConfigError(
            f"there is no reason {unknown[0]!a}", remedy=f"use one of {', '.join(known)}"
        )
    if made.since_ms is not None and made.until_ms is not None and made.since_ms >= made.until_ms:
        raise ConfigError("--until is not after --since, so no letter is meant")
    return made


def _moment_ms(option: str, text: str, now_ms: int) -> int:
    """Return the Unix ms of a due time, or of a delay before now."""
    try:
        return now_ms - delay_ms_of(text)
    except RefusedError:
        pass
    try:
        return due_ms_of(text)
    except RefusedError as error:
        raise ConfigError(
            f"{option} {text!a} is no time",
            remedy="write Unix ms, RFC 3339 with Z or an offset, or how long ago, such as 2h",
        ) from error
