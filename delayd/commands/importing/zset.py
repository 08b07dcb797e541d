"""Rows of a sorted set of Redis: each member is a message, or names one, and its score is the time.

Source: docs/guides/importing.md, "Sorted sets of Redis".
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Any, Final

from delayd.commands.importing.contents import fields_of
from delayd.commands.importing.job import Kept
from delayd.commands.importing.mapping import Row
from delayd.commands.importing.redis_server import Parked, RedisServer, place_in, position_of
from delayd.errors import ConfigError

MEMBERS_MAX: Final = 500
"""Read at once."""
MEMBER: Final = "{member}"
KIND: Final = "zset"


class ZsetRows:
    """The members of a sorted set, in the order of their scores. The position is how many are
    behind, of how many: `500/100000`."""

    def __init__(self, server: RedisServer, key: str, payload: str | None = None) -> None:
        """`payload`: a hash with a field for each member, or a key with `{member}` in its name.
        ConfigError if a key has another type."""
        self._server = server
        self._key = key
        self._payload = payload
        self._parked = Parked(server, key)
        self.name = f"{KIND}:{key} at {server.name}"
        self.start: str | None = None
        self.disarms = True
        self._refuse_other_type(key)

    def identity(self, known: str | None = None) -> str:
        """Return by what the parked set is known again."""
        return self._parked.identity(known)

    def disarm(self) -> str:
        """Rename the set. ConfigError if there is none."""
        parked = self._parked.taken
        if not self._server.park(self._key, parked):
            raise self._absent()
        self._refuse_other_type(parked)
        return position_of(0, self._held_in(parked))

    def kept(self) -> Kept:
        """Return what is parked."""
        return Kept(self._parked.taken, self._held_in(self._parked.taken))

    def close(self) -> None:
        """Close the connection."""
        self._server.close()

    def rows(self, after: str | None) -> Iterator[Row]:
        """Yield the members behind a position. ConfigError if the set is not what it was."""
        key = self._parked.taken if after else self._where()
        total = self._held_in(key)
        index = 0
        if after is not None:
            index, then = place_in(after)
            self._parked.refuse_other(total, then)
        while True:
            with self._server.asking() as client:
                members = client.zrange(key, index, index + MEMBERS_MAX - 1, withscores=True)
            if not members:
                return
            payloads = self._payloads([member for member, _ in members])
            for (member, score), payload in zip(members, payloads, strict=True):
                index += 1
                yield self._row(index, total, member, score, payload)

    def _where(self) -> str:
        parked = self._parked.key
        if parked is not None and self._server.kind(parked) != "none":
            return parked
        if self._server.kind(self._key) == "none":
            raise self._absent()
        return self._key

    def _absent(self) -> ConfigError:
        return ConfigError(
            f"{self.name}: there is no such key", remedy="name the sorted set as Redis has it"
        )

    def _held_in(self, key: str) -> int:
        with self._server.asking() as client:
            return int(client.zcard(key))

    def _refuse_other_type(self, key: str) -> None:
        if (kind := self._server.kind(key)) not in (KIND, "none"):
            raise ConfigError(
                f"{key} at {self._server.name} is a {kind}, no sorted set",
                remedy="name the key of the sorted set; a queue of Celery is celery:QUEUE",
            )

    def _payloads(self, members: list[bytes]) -> list[Any]:
        """Return what Redis holds for each: bytes, the fields of a hash, None, or why not."""
        if self._payload is None:
            return [None] * len(members)
        with self._server.asking() as client, client.pipeline(transaction=False) as asked:
            if MEMBER not in self._payload:
                for member in members:
                    asked.hget(self._payload, member)
                return list(asked.execute(raise_on_error=False))
            keys = [self._payload.encode().replace(MEMBER.encode(), member) for member in members]
            for key in keys:
                asked.type(key)
            for key, kind in zip(keys, asked.execute(), strict=True):
                asked.hgetall(key) if kind == b"hash" else asked.get(key)
            return list(asked.execute(raise_on_error=False))

    def _row(self, index: int, total: int, member: bytes, score: float, payload: Any) -> Row:
        problem, value = None, member
        given = {"member": member}
        fields: dict[str, Any] = {
            "score": int(score) if score.is_integer() else score,
            "_sha256": hashlib.sha256(member).hexdigest(),
        }
        if isinstance(payload, bytes):
            given["payload"] = value = payload
        elif isinstance(payload, Exception):
            problem = f"its payload in {self._payload} cannot be read: {payload}"
        elif payload:
            fields["payload"] = fields_of({_name(name): each for name, each in payload.items()})
            value = json.dumps(fields["payload"]).encode()
        elif self._payload is not None:
            problem = f"it has no payload in {self._payload}"
        fields |= fields_of(given)
        return Row(position_of(index, total), f"member {index}", fields, value, problem=problem)


def _name(name: bytes) -> str:
    return name.decode(errors="backslashreplace")
