"""The features that a reader of delayd's durable records must know, and since which release. Pure.

A record that an older release would misread lists features in `needs`, each with the first release
that knows it: `{"<feature>": "<release>"}`. A reader that does not know one of them stops, and can
say which release does. Whatever else it does not know in a record is optional: it reads on.

Whoever adds a field asks: may a node that does not know it go on? If so, the field is optional. If
not, it gets a feature here, which is listed only in records that have the field: nodes of older
releases go on beside newer ones until then.

Source: docs/design/frontier.md, "Optional fields".
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

BARRIERS: Final = "barriers"
"""The records of `replication.rules`, which a frontier record names."""

MOVED: Final = "moved"
"""The last record of a cluster whose pending messages went to another one: nobody delivers."""

HOLDS: Final = "holds"
"""Topics that are paused (`replication.holds`): who does not know them would deliver there."""

QUOTAS: Final = "quotas"
"""Topics of which only so many messages may be pending (`replication.quotas`): who does not know
them would forget them."""
SHARDS: Final = "shards"
"""The frontier is that of one of several shards: who does not know them would deliver all."""
RESHARDING: Final = "resharding"
"""The number of shards is about to change (`replication.resharding`): who does not know it would go
on."""
VIRTUAL: Final = "virtual"
"""Its times are no real ones (`Settings.virtual`): who does not know that would deliver by real
ones."""

FEATURES: Final[Mapping[str, str]] = {
    BARRIERS: "0.2.0",
    MOVED: "0.2.0",
    HOLDS: "0.2.0",
    QUOTAS: "0.2.0",
    SHARDS: "0.2.0",
    RESHARDING: "0.2.0",
    VIRTUAL: "0.2.0",
    "rules-3": "0.1.0",
    "rules-4": "0.2.0",
    "rules-5": "0.2.0",
    "rules-6": "0.2.0",
    "rules-7": "0.2.0",
}
"""All features, and the first release of delayd that knows each."""


def rules_feature(version: int) -> str:
    """Return the feature of whoever ingests by a version of the rules."""
    return f"rules-{version}"


def refuse_unknown(needs: Mapping[str, Any], what: str, error: Callable[..., Exception]) -> None:
    """Raise `error(message, since=release)` if a record needs a feature that is not in FEATURES."""
    unknown = {name: str(release) for name, release in needs.items() if name not in FEATURES}
    if unknown:
        since = max(unknown.values(), key=_numbers)
        raise error(
            f"{what} needs {', '.join(sorted(unknown))}, which delayd knows since {since} and this"
            " version does not",
            since=since,
        )


def _numbers(release: str) -> tuple[int, ...]:
    """Return the numbers of a release, to compare it by."""
    return tuple(int(part) for part in release.split(".") if part.isdecimal())
