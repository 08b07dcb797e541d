"""A Redis that holds what is imported.

What is taken lies under a key of the import's own, which nobody else reads and which `delayd`
never removes: it is *parked*. A key is renamed, which is one atomic step whatever it holds; a
message alone is moved by a script, which is atomic, too.

Source: docs/guides/importing.md, "Redis".
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from delayd.commands.importing.job import CUT, REFUSED
from delayd.errors import ConfigError, SourceUnreachableError

CONNECT_TIMEOUT_S: Final = 10
ANSWER_TIMEOUT_S: Final = 60
"""A script that moves many messages holds up all others for so long at most, or it is told."""
PARKED: Final = "delayd-import"

_PARK: Final = """
if redis.call('EXISTS', KEYS[2]) == 1 then return 1 end
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('RENAME', KEYS[1], KEYS[2])
redis.call('PERSIST', KEYS[2])
return 1
"""
"""A key may have an end of its life: what is parked must not."""


class RedisServer:
    """A connection, used by one thread. `client` is redis-py's; its answers are bytes."""

    def __init__(self, url: str) -> None:
        """ConfigError if it is no URL of a Redis, or there is no redis-py."""
        try:
            # An extra: nodes need none of it.
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ImportError as error:
            raise ConfigError(
                "redis-py is not installed", remedy="pip install 'delayd[import]'"
            ) from error
        self._errors = (redis.RedisError, OSError)
        self._cuts = (redis.ConnectionError, redis.TimeoutError, OSError)
        self._refusals = redis.AuthenticationError
        try:
            self.client: Any = redis.Redis.from_url(
                url,
                protocol=2,
                retry=Retry(NoBackoff(), 0),  # what takes messages is not sent twice unseen
                socket_connect_timeout=CONNECT_TIMEOUT_S,
                socket_timeout=ANSWER_TIMEOUT_S,
            )
        except ValueError as error:
            raise ConfigError(
                f"--from-url is no URL of a Redis: {error}", remedy="write redis://HOST:PORT/DB"
            ) from error
        given = self.client.connection_pool.connection_kwargs
        place = given.get("path") or f"{given.get('host')}:{given.get('port', 6379)}"
        self.database = int(given.get("db") or 0)
        self.name = f"{place}/{self.database}"
        """Without a password."""

    @contextmanager
    def asking(self) -> Iterator[Any]:
        """Lend the client. SourceUnreachableError for what it raises."""
        try:
            yield self.client
        except self._errors as error:
            is_cut = isinstance(error, self._cuts) and not isinstance(error, self._refusals)
            raise SourceUnreachableError(
                f"Redis at {self.name}: {error}", remedy=CUT if is_cut else REFUSED
            ) from error

    def close(self) -> None:
        """Close the connection."""
        self.client.close()

    def kind(self, key: str) -> str:
        """Return the type of a key: `zset`, `list` ..., `none`."""
        with self.asking() as client:
            return str(client.type(key).decode())

    def park(self, key: str, parked: str) -> bool:
        """Rename a key, unless that was done before; return whether there is what is parked."""
        with self.asking() as client:
            return bool(client.eval(_PARK, 2, key, parked))


class Parked:
    """The key of what one import has taken."""

    def __init__(self, server: RedisServer, key: str) -> None:
        self._server = server
        self._of = key
        self._token: str | None = None

    def identity(self, known: str | None) -> str:
        """Return by what the import knows its own again: a part of the key's name."""
        self._token = known or secrets.token_hex(4)
        return self._token

    @property
    def key(self) -> str | None:
        """The key; None as long as it is only looked."""
        return None if self._token is None else f"{self._of}:{PARKED}:{self._token}"

    @property
    def taken(self) -> str:
        """The key of an import that takes messages."""
        assert self.key is not None, "an import has an identity"
        return self.key

    def refuse_other(self, found: int, total: int) -> None:
        """Raise ConfigError if it holds not what it did."""
        if found != total:
            raise ConfigError(
                f"{self.key} at {self._server.name} holds {found:,} messages and not {total:,}",
                remedy="somebody changed it, or Redis has lost it: restore it, and --resume",
            )


def position_of(index: int, total: int) -> str:
    """Return the position behind so many of all."""
    return f"{index}/{total}"


def place_in(position: str) -> tuple[int, int]:
    """Return how many are behind a position, of how many."""
    index, total = map(int, position.split("/"))
    return index, total
