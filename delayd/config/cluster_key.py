"""The cluster key: the secret by which nodes know the records that a master wrote for them.

`delayd topics create` makes it, every node is given it, and clients never see it. The cluster's
settings hold its fingerprint only, so that a node with another key stops before it would reject
its own master's records and disagree with every other node.

A key can be replaced while the cluster runs: wherever a key is given, it may be several lines. The
first line is the key that signs; what any of the others has signed is accepted too.

Not here: the proof itself, which is a matter of the request.
Source: docs/operations.md, "The cluster key".
"""

import hmac
import secrets

from delayd.errors import ConfigError, WrongClusterKeyError
from replication.settings import FINGERPRINT_DIGITS, KEYS_BEFORE_MAX, Settings

KEY_CHARACTERS_MIN = 16
NEW_KEY_BYTES = 32


def new_cluster_key() -> str:
    """Return a key that nobody can guess: 43 characters that need no quoting anywhere."""
    return secrets.token_urlsafe(NEW_KEY_BYTES)


def refuse_weak_key(key: str) -> None:
    """Raise ConfigError if a line is too short to be a secret, or if there are too many lines."""
    lines = _lines(key)
    if len(lines) > 1 + KEYS_BEFORE_MAX:
        raise ConfigError(
            f"the cluster key has {len(lines)} lines, more than {1 + KEYS_BEFORE_MAX}",
            remedy="keep the key that signs, in the first line, and those that signed last",
        )
    for line in lines:
        if len(line) < KEY_CHARACTERS_MIN:
            raise ConfigError(
                f"the cluster key has {len(line)} characters, fewer than {KEY_CHARACTERS_MIN}",
                remedy="take the one that `delayd topics create` printed",
            )


def fingerprint(key: str, cluster: str) -> str:
    """Return what the cluster's settings store of the key that signs: 16 hexadecimal digits."""
    return fingerprints(key, cluster)[0]


def check_key(key: str, settings: Settings) -> None:
    """Raise WrongClusterKeyError unless the key that signs in this cluster is among these."""
    if settings.key_fingerprint not in fingerprints(key, settings.cluster):
        raise WrongClusterKeyError(
            f"this is not the key of the cluster {settings.cluster!r}, whose fingerprint is "
            f"{settings.key_fingerprint}",
            remedy="set cluster_key (DELAYD_CLUSTER_KEY) to what `delayd topics create` printed, "
            "or to what has replaced it; all nodes have the same",
        )


def signing_key(key: str, settings: Settings) -> bytes:
    """Return the one of these keys that signs in this cluster now, wherever its line stands: every
    node accepts it. Raises WrongClusterKeyError as `check_key`."""
    check_key(key, settings)
    at = fingerprints(key, settings.cluster).index(settings.key_fingerprint)
    return _lines(key)[at].encode()


def proof_key(key: str) -> bytes:
    """Return the key as HMAC takes it; several are lines, the one that signs first."""
    return "\n".join(_lines(key)).encode()


def fingerprints(key: str, cluster: str) -> list[str]:
    """Return the fingerprints of all keys, of the one that signs first."""
    whose = f"delayd cluster key of {cluster}".encode()
    digests = (hmac.digest(line.encode(), whose, "sha256") for line in _lines(key))
    return [digest.hex()[:FINGERPRINT_DIGITS] for digest in digests]


def _lines(key: str) -> list[str]:
    """Return the keys, the one that signs first."""
    return [line.removesuffix("\r") for line in key.removesuffix("\n").split("\n")]
