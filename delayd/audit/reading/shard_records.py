"""The newest frontier records of all shards as one text, which a follower keeps: that of the only
shard as in its topic, or a JSON list of theirs. Pure."""

import json
from collections.abc import Mapping, Sequence

from replication.frontier import Frontier
from replication.record import decode
from replication.shards import joint_frontier


def text_of(records: Sequence[str]) -> str:
    """Return the text of the newest record of each shard, in order."""
    return records[0] if len(records) == 1 else json.dumps(records)


def frontier_in(text: str) -> Frontier:
    """Return the frontier of all shards."""
    return joint_frontier([decode(record.encode()).frontier for record in records_in(text)])


def advanced(text: str, came: Mapping[int, str]) -> str:
    """Return the text after these records have come, by shard."""
    return text_of([came.get(shard, it) for shard, it in enumerate(records_in(text))])


def records_in(text: str) -> list[str]:
    """Return the record of each shard."""
    return list(json.loads(text)) if text.startswith("[") else [text]
