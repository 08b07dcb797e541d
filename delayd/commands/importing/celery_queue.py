"""Rows of a queue of Celery on Redis: its messages with an ETA, fetched by a worker or not.

Kombu keeps a message in the list of its queue, `QUEUE` or `QUEUE\\x06\\x16PRIORITY`, and what a
worker has fetched in the hash `unacked`, by a tag that is in the sorted set `unacked_index`, too.
A message with an ETA is fetched at once and waits in the worker: that one must be stopped.

Taken are the messages with an ETA. All others stay, or are put back in their order.

Source: docs/guides/importing.md, "Celery on Redis"; kombu/transport/redis.py;
the message protocol of Celery, version 2.
"""

import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from delayd.commands.importing.contents import fields_of, text_of
from delayd.commands.importing.job import Kept
from delayd.commands.importing.mapping import Row
from delayd.commands.importing.redis_server import Parked, RedisServer, place_in, position_of
from delayd.errors import ConfigError

MESSAGES_MAX: Final = 500
"""Read and moved at once."""
KIND: Final = "celery"
UNACKED: Final = "unacked"
INDEX: Final = "unacked_index"
PRIORITY: Final = "\x06\x16"
"""Between the name of a queue and a priority."""
PRIORITIES: Final = 256

_PARK_UNACKED: Final = """
for _, tag in ipairs(ARGV) do
  local message = redis.call('HGET', KEYS[1], tag)
  if message then
    redis.call('RPUSH', KEYS[3], message)
    redis.call('HDEL', KEYS[1], tag)
    redis.call('ZREM', KEYS[2], tag)
  end
end
"""
_SORT: Final = """
for i = 1, #ARGV[1] do
  local message = redis.call('LINDEX', KEYS[1], 0)
  if not message then return end
  local is_due_later = string.sub(ARGV[1], i, i) == '1'
  redis.call('RPUSH', is_due_later and KEYS[2] or KEYS[3], message)
  redis.call('LPOP', KEYS[1])
end
"""
"""The first of a list is the latest, and workers take the last. A script that fails on its way is
not rolled back: so a message is there before it is gone here."""


class CeleryRows:
    """The messages with an ETA of one queue. The position is how many are behind, of how many."""

    def __init__(self, server: RedisServer, queue: str, *, has_no_workers: bool = False) -> None:
        """`has_no_workers`: somebody says so, whatever it looks like."""
        self._server = server
        self._queue = queue
        self._parked = Parked(server, queue)
        self._has_no_workers = has_no_workers
        self.name = f"{KIND}:{queue} at {server.name}"
        self.start: str | None = None
        self.disarms = True

    def identity(self, known: str | None = None) -> str:
        """Return by what the parked list is known again."""
        return self._parked.identity(known)

    def disarm(self) -> str:
        """Move messages into the parked list. ConfigError if workers seem to run.

        First what is `unacked`: what somebody puts back from there is found in the queue."""
        self._refuse_workers()
        self._refuse_absent()
        parked = self._parked.taken
        tags: list[bytes] = []
        for tag, message in self._unacked():
            if _is_due_later(_message_in(message)):
                tags.append(tag)
        for at in range(0, len(tags), MESSAGES_MAX):
            some = tags[at : at + MESSAGES_MAX]
            with self._server.asking() as client:
                client.eval(_PARK_UNACKED, 3, UNACKED, INDEX, parked, *some)
        for key in self._keys(self._queue):
            self._server.park(key, self._unsorted(key))
        for key in self._keys(self._unsorted(self._queue)):
            self._sort(key, parked)
        return position_of(0, self._held_in(parked))

    def kept(self) -> Kept:
        """Return what is parked."""
        return Kept(self._parked.taken, self._held_in(self._parked.taken))

    def close(self) -> None:
        """Close the connection."""
        self._server.close()

    def rows(self, after: str | None) -> Iterator[Row]:
        """Yield the messages behind a position. ConfigError if the list is not what it was."""
        if after is None:
            yield from self._rows_of_now()
            return
        index, total = place_in(after)
        self._parked.refuse_other(self._held_in(self._parked.taken), total)
        for message in self._list(self._parked.taken, index):
            index += 1
            yield _row(message, position_of(index, total), f"message {index}")

    def _rows_of_now(self) -> Iterator[Row]:
        """Yield what is there, wherever it is."""
        self._refuse_absent()
        count = 0
        keys = self._lists()
        for message in chain(
            (message for _, message in self._unacked()),
            *(self._list(key) for key in keys),
        ):
            if _is_due_later(_message_in(message)):
                count += 1
                yield _row(message, position_of(count, 0), f"message {count}")

    def _lists(self) -> list[str]:
        """Return the lists that hold messages, wherever an import has put them."""
        lists = [self._queue]
        if self._parked.key is not None:
            lists += [self._parked.key, self._unsorted(self._queue)]
        return [each for key in lists for each in self._keys(key)]

    def _refuse_absent(self) -> None:
        """Raise ConfigError if there is nothing of the queue: its name may be wrong."""
        if not self._lists() and next(self._unacked(), None) is None:
            raise ConfigError(
                f"{self.name}: there are no messages, in a list or with a worker",
                remedy="name the queue as Celery has it, and the database of Redis in --from-url",
            )

    def _unsorted(self, key: str) -> str:
        """Return the name under which a list of the queue waits to be sorted."""
        return key.replace(self._queue, f"{self._parked.taken}:unsorted", 1)

    def _keys(self, queue: str) -> list[str]:
        """Return the lists of a queue that there are: without a priority, and with each."""
        names = [queue, *(f"{queue}{PRIORITY}{n}" for n in range(PRIORITIES))]
        with self._server.asking() as client, client.pipeline(transaction=False) as asked:
            for name in names:
                asked.type(name)
            kinds = dict(zip(names, asked.execute(), strict=True))
        for name, kind in kinds.items():
            if kind not in (b"list", b"none"):
                raise ConfigError(
                    f"{name} at {self._server.name} is a {kind.decode()}, no queue of Celery",
                    remedy="name the queue; a sorted set is zset:KEY",
                )
        return [name for name, kind in kinds.items() if kind == b"list"]

    def _sort(self, key: str, parked: str) -> None:
        queue = key.replace(self._unsorted(self._queue), self._queue, 1)
        while True:
            with self._server.asking() as client:
                messages = client.lrange(key, 0, MESSAGES_MAX - 1)
                if not messages:
                    return
                flags = "".join("01"[_is_due_later(_message_in(each))] for each in messages)
                client.eval(_SORT, 3, key, parked, queue, flags)

    def _list(self, key: str, index: int = 0) -> Iterator[bytes]:
        while True:
            with self._server.asking() as client:
                messages = client.lrange(key, index, index + MESSAGES_MAX - 1)
            if not messages:
                return
            yield from messages
            index += len(messages)

    def _held_in(self, key: str) -> int:
        with self._server.asking() as client:
            return int(client.llen(key))

    def _unacked(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield tag and message of what workers have fetched from this queue."""
        queues: dict[str, set[str]] = {}
        cursor = 0
        while True:
            with self._server.asking() as client:
                cursor, held = client.hscan(UNACKED, cursor, count=MESSAGES_MAX)
            for tag, message in held.items():
                exchange, key = _address_of(message)
                if exchange not in queues:
                    queues[exchange] = self._bound_to(exchange)
                if key == self._queue or key in queues[exchange]:
                    yield tag, message
            if cursor == 0:
                return

    def _bound_to(self, exchange: str) -> set[str]:
        """Return the routing keys by which an exchange leads to this queue and no other."""
        with self._server.asking() as client:
            bindings = client.smembers(f"_kombu.binding.{exchange}")
        found: dict[str, set[str]] = {}
        for binding in bindings:
            key, _, queue = (text_of(binding) or "").split(PRIORITY, 2)
            found.setdefault(key, set()).add(queue)
        return {key for key, names in found.items() if names == {self._queue}}

    def _refuse_workers(self) -> None:
        if self._has_no_workers:
            return
        with self._server.asking() as client:
            clients = client.client_list()
        at_work = [
            each["addr"]
            for each in clients
            if each.get("db") == str(self._server.database)
            and (each.get("cmd") == "brpop" or int(each.get("psub", 0)) > 0)
        ]
        if at_work:
            raise ConfigError(
                f"{len(at_work)} clients of Redis look like workers of Celery, {at_work[0]} for"
                " one: they have messages in memory, and would run them as well",
                remedy="stop all workers until the import says that it has taken the messages,"
                " and --resume; with --workers-stopped nobody is asked",
            )


def _message_in(content: bytes) -> Mapping[str, Any] | None:
    """Return the message, of a queue or as `unacked` has it; None if it is none."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if isinstance(found, list) and len(found) == 3:
        found = found[0]
    return found if isinstance(found, dict) else None


def _address_of(content: bytes) -> tuple[str, str]:
    """Return exchange and routing key of what is `unacked`."""
    try:
        _, exchange, key = json.loads(content)
        str(exchange).encode()  # Redis has no name with half a character
        return str(exchange), str(key)
    except (ValueError, TypeError, RecursionError):
        return "", ""


def _is_due_later(message: Mapping[str, Any] | None) -> bool:
    headers = None if message is None else message.get("headers")
    return isinstance(headers, dict) and bool(headers.get("eta"))


def _row(content: bytes, position: str, name: str) -> Row:
    message = _message_in(content)
    if message is None or not _is_due_later(message):
        return Row(position, name, {}, None, problem="it is no message of Celery with an ETA")
    value = json.dumps(message, separators=(",", ":")).encode()
    headers = message["headers"]
    properties = message.get("properties")
    fields: dict[str, Any] = {**headers, "headers": headers, "properties": properties}
    if (body := _body_of(message, properties)) is not None:
        fields |= fields_of({"body": body}) | _arguments_in(body)
    return Row(position, name, fields, value)


def _body_of(message: Mapping[str, Any], properties: Any) -> bytes | None:
    body = message.get("body")
    if not isinstance(body, str):
        return None
    if not isinstance(properties, dict) or properties.get("body_encoding") != "base64":
        return body.encode(errors="surrogatepass")
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        return None


def _arguments_in(body: bytes) -> dict[str, Any]:
    try:
        found: Sequence[Any] = json.loads(body)
    except (ValueError, RecursionError):
        return {}  # pickle, for instance
    if isinstance(found, list) and len(found) == 3:
        return {"args": found[0], "kwargs": found[1]}
    return {}
