"""Another node as a side of a comparison, over its admin port; and who the other nodes are.

Each request carries the proof of a member over its path, which has the digest of the question; each
answer carries one over its body (`delayd.cluster.member_proof`).
"""

import hashlib
import http.client
import json
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from delayd.cluster.admin_client import Member, get, opened, url_of
from delayd.cluster.member_proof import ANSWER_HEADER, Asked, MemberKeys
from delayd.errors import DelaydError
from delayd.node.comparing.side import (
    About,
    Checkpoint,
    ComparisonError,
    HeldFrame,
    Side,
    Source,
    Value,
)
from delayd.node.comparing.wire import packed, unpacked
from delayd.runtime.clock import Clock
from delayd.wheel.comparing.digest_tree import Digest, Level

TIMEOUT_S: Final = 15.0
PATIENCE_MS: Final = 600_000
"""How long a node may work on one question, at its pace."""
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
AGAIN: Final = 202


class Peers:
    """The other nodes of the cluster."""

    def __init__(
        self,
        members: Callable[[], Mapping[str, str]],
        keys: MemberKeys,
        clock: Clock,
        *,
        node: str,
        stopping: threading.Event,
    ) -> None:
        """`members` returns the member keys of the cluster in etcd."""
        self._members = members
        self._keys = keys
        self._clock = clock
        self._node = node
        self._stopping = stopping

    def ready(self) -> list[str]:
        """Return the nodes that could take over now, but this one: followers first. Raise
        ComparisonError if etcd does not answer."""
        found: list[tuple[bool, str]] = []
        for name, member in self._known().items():
            answer = get(f"{url_of(member.admin)}/status")
            status = answer.fields() if answer else None
            if status is not None and status.get("ready"):
                found.append((status.get("role") == "master", name))
        return [name for _, name in sorted(found)]

    def announced(self) -> Collection[str]:
        """Return all that are announced, but this one. ComparisonError."""
        return self._known().keys()

    def side(self, name: str) -> Side:
        """Return a node as a side, with its checkpoint of now. ComparisonError."""
        member = self._known().get(name)
        if member is None:
            raise ComparisonError(f"{name} is not announced in etcd")
        return PeerSide(member, self._node, self._keys, self._clock, self._stopping)

    def tell(self, side: Side, hour: int) -> None:
        """Tell a node that it is wrong in an hour, for all that this one knows. ComparisonError."""
        assert isinstance(side, PeerSide), "only other nodes are told"
        side.tell(hour)

    def _known(self) -> dict[str, Member]:
        try:
            members = self._members()
        except DelaydError as error:
            raise ComparisonError(str(error)) from error
        known = {}
        for name, value in members.items():
            if name != self._node:
                with _reading_of(name):
                    known[name] = Member.of(name, value)
        return known


class PeerSide:
    """Another node's checkpoint. Used by one thread."""

    def __init__(
        self,
        member: Member,
        node: str,
        keys: MemberKeys,
        clock: Clock,
        stopping: threading.Event,
    ) -> None:
        """Have it hold its checkpoint for this node. ComparisonError."""
        self._member = member
        self._keys = keys
        self._clock = clock
        self._stopping = stopping
        self._is_ended = False
        with _reading_of(member.node):
            self._id, fields = self._request(f"/comparisons/{node}", b"")
        try:
            with _reading_of(member.node):
                *told, replayed, checkpoint = fields
                sources = tuple((int(partition), int(offset)) for partition, offset in replayed)
                self.about = About._make([*told, sources, Checkpoint.read(checkpoint)])
        except ComparisonError:
            self.end()
            raise

    def agree(self, checkpoints: Sequence[Checkpoint]) -> None:
        """See `Side`."""
        self._ask("cut", list(checkpoints))

    def digests(self, level: Level, parents: Sequence[int]) -> Mapping[int, Digest]:
        """See `Side`."""
        answer = self._ask("digests", int(level), list(parents))
        with _reading_of(self._member.node):
            return {number: Digest(*digest) for number, digest in answer}

    def frames(
        self, hour: int, slots: Collection[int], turn: int, turns: int
    ) -> Sequence[HeldFrame]:
        """See `Side`."""
        answer = self._ask("frames", hour, sorted(slots), turn, turns)
        with _reading_of(self._member.node):
            return [
                HeldFrame(Source(*source), Value(*value), lane, id)
                for source, value, lane, id in answer
            ]

    def kill_digests(self, first_hour: int) -> tuple[Mapping[int, Digest], int | None]:
        """See `Side`."""
        answer = self._ask("kills", first_hour)
        with _reading_of(self._member.node):
            digests, next_hour = answer
            return {hour: Digest(*digest) for hour, digest in digests}, next_hour

    def tell(self, hour: int) -> None:
        """Tell it to look at an hour."""
        self._ask("look", hour)

    def end(self) -> None:
        """See `Side`."""
        if self._is_ended:
            return
        self._is_ended = True
        try:
            self._ask("end")
        except ComparisonError:
            return  # It lets go by itself, some minutes later.

    def _ask(self, *question: Any) -> Any:
        body = packed(question)
        digest = hashlib.sha256(body).hexdigest()
        return self._request(f"/comparisons/{self._id}/{digest}", body)

    def _request(self, path: str, body: bytes) -> Any:
        deadline_ms = self._clock.monotonic_ms() + PATIENCE_MS
        while not self._stopping.is_set() or self._is_ended:
            try:
                answer = self._request_once(path, body)
                if answer is not None:
                    return unpacked(answer)
            except (OSError, ValueError, http.client.HTTPException) as error:
                raise ComparisonError(f"{self._member.node}: {error}") from error
            if self._clock.monotonic_ms() >= deadline_ms:
                raise ComparisonError(f"{self._member.node} takes too long")
        raise ComparisonError("this node is being stopped")

    def _request_once(self, path: str, body: bytes) -> bytes | None:
        """Return the answer; None if it is worked on."""
        asked = Asked(self._keys, "POST", path, self._member.life, self._clock)
        url, headers = f"{url_of(self._member.admin)}{path}", {"authorization": asked.header}
        with opened(url, TIMEOUT_S, "POST", body, headers) as response:
            answer = response.read(ANSWER_BYTES_MAX)
            if response.status == AGAIN:
                return None
            if response.status != http.client.OK:
                raise ComparisonError(f"{self._member.node}: {_problem(answer, response.status)}")
            if not asked.is_answered_by(answer, response.headers.get(ANSWER_HEADER, "")):
                raise ComparisonError(
                    f"{self._member.node}: its answer was damaged on the way, or is not a member's"
                )
            return answer


@contextmanager
def _reading_of(node: str) -> Iterator[None]:
    """Raise ComparisonError for what is not as this release writes it."""
    try:
        yield
    except (ValueError, TypeError, AttributeError) as error:
        raise ComparisonError(
            f"{node}: what it says cannot be read ({error}): is it of another release?"
        ) from error


def _problem(answer: bytes, status: int) -> str:
    try:
        return str(json.loads(answer)["problem"])
    except (ValueError, KeyError, TypeError):
        return f"answers {status}"
