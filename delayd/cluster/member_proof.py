"""Proofs of members: a node asks another one for what only members of the cluster may have.

    authorization: Delayd AT_MS.NONCE.MAC      of a request
    x-delayd-proof: MAC                        of its answer, over all of its body

Both are made with a cluster key, for this cluster only: another cluster with the same key has other
proofs. A request names the life of the node that is asked (the nonce that it announces in etcd), so
nobody can repeat it to another node, or to the same one after a restart; and a node takes each
request once. The proof of an answer names the request, and is the checksum of what it carries.

Not here: who the members are. Whoever has a cluster key is one.
"""

import hmac
import secrets
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from delayd.runtime.clock import Clock

AGE_MAX_MS: Final = 60_000
"""How far the time in a request may be from the clock of the node that is asked."""
SCHEME: Final = "Delayd "
ANSWER_HEADER: Final = "x-delayd-proof"


class MemberKeys:
    """The cluster keys as members prove them, in one cluster."""

    def __init__(self, proof_key: bytes, realm: str) -> None:
        """`proof_key`: as `delayd.config.cluster_key.proof_key` returns it."""
        whose = f"delayd members of {realm}".encode()
        self.all: Sequence[bytes] = [
            hmac.digest(key, whose, "sha256") for key in proof_key.split(b"\n")
        ]
        """The one that signs first."""


class Asked:
    """One request of a member."""

    def __init__(self, keys: MemberKeys, method: str, path: str, life: str, clock: Clock) -> None:
        """`life`: the nonce of the node that is asked."""
        at_ms, nonce = clock.wall_ms(), secrets.token_hex(16)
        mac = _of_request(keys.all[0], method, path, life, str(at_ms), nonce)
        self.header = f"{SCHEME}{at_ms}.{nonce}.{mac}"
        """The value of `authorization`."""
        self._keys = keys
        self._nonce = nonce

    def is_answered_by(self, body: bytes, proof: str) -> bool:
        """True if a member of the cluster gave this body in answer to this request."""
        right = _of_answer(self._keys.all[0], self._nonce, body)
        return hmac.compare_digest(proof.encode(), right.encode())


class RefusedError(Exception):
    """A request that no member has made just now, to this node, for the first time."""


class Passed(NamedTuple):
    """A request that a member has made."""

    nonce: str
    key: bytes
    """The one that has signed it."""


class MemberCheck:
    """Checks the requests that one node gets in one life. Not thread safe."""

    def __init__(self, keys: MemberKeys, life: str, clock: Clock) -> None:
        self._keys = keys
        self._life = life
        self._clock = clock
        self._seen: set[str] = set()
        """Nonces of the last two AGE_MAX_MS: members alone add to them."""
        self._order: deque[tuple[int, str]] = deque()

    def check(self, method: str, path: str, header: str) -> Passed:
        """Return what `answer` needs of a request. Raise RefusedError."""
        fields = header.removeprefix(SCHEME).split(".")
        if not header.startswith(SCHEME) or len(fields) != 3 or not header.isascii():
            raise RefusedError("this is for members of the cluster: there is no proof of that")
        at, nonce, mac = fields
        proofs = {_of_request(k, method, path, self._life, at, nonce): k for k in self._keys.all}
        made = [k for proof, k in proofs.items() if hmac.compare_digest(mac, proof)]
        if not made:
            raise RefusedError(
                "the proof is of another cluster key, cluster or request, or of a node that was "
                "started again meanwhile"
            )
        now_ms = self._clock.wall_ms()
        if abs(now_ms - int(at)) > AGE_MAX_MS:
            raise RefusedError(f"the request is of {at}, and this node's clock says {now_ms}")
        if nonce in self._seen:
            raise RefusedError("the request was made before")
        self._remember(now_ms, nonce)
        return Passed(nonce, made[0])

    def _remember(self, now_ms: int, nonce: str) -> None:
        while self._order and self._order[0][0] < now_ms - 2 * AGE_MAX_MS:
            self._seen.discard(self._order.popleft()[1])
        self._seen.add(nonce)
        self._order.append((now_ms, nonce))

    def answer(self, passed: Passed, body: bytes) -> str:
        """Return the proof of an answer, by the key that the other node has."""
        return _of_answer(passed.key, passed.nonce, body)


def _of_request(key: bytes, method: str, path: str, life: str, at: str, nonce: str) -> str:
    text = "\n".join(("request", method, path, life, at, nonce))
    return hmac.digest(key, text.encode(), "sha256").hex()


def _of_answer(key: bytes, nonce: str, body: bytes) -> str:
    made = hmac.new(key, f"answer\n{nonce}\n".encode(), "sha256")
    made.update(body)
    return made.hexdigest()
