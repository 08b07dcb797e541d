"""The cluster key: the secret by which nodes know the records that a master wrote for them.

`delayd topics create` makes it, every node is given it, and clients never see it. The cluster's
settings hold its fingerprint only, so that a node with another key stops before it would reject
its own master's records and disagree with every other node.

Not here: the proof itself, which is a matter of the request.
Source: docs/operations.md, "The cluster key".
"""

import hmac
import secrets

from delayd.errors import ConfigError, WrongClusterKeyError
from replication.settings import FINGERPRINT_DIGITS, Settings

KEY_CHARACTERS_MIN = 16
NEW_KEY_BYTES = 32


def new_cluster_key() -> str:
    """Return a key that nobody can guess: 43 characters that need no quoting anywhere."""
    return secrets.token_urlsafe(NEW_KEY_BYTES)


def refuse_weak_key(key: str) -> None:
    """Raise ConfigError if the key is too short to be a secret."""
    if len(key) < KEY_CHARACTERS_MIN:
        raise ConfigError(
            f"the cluster key has {len(key)} characters, fewer than {KEY_CHARACTERS_MIN}",
            remedy="take the one that `delayd topics create` printed",
        )


def fingerprint(key: str, cluster: str) -> str:
    """Return what the cluster's settings store of the key: 16 hexadecimal digits."""
    whose = f"delayd cluster key of {cluster}"
    return hmac.digest(proof_key(key), whose.encode(), "sha256").hex()[:FINGERPRINT_DIGITS]


def check_key(key: str, settings: Settings) -> None:
    """Raise WrongClusterKeyError if the cluster was not made with this key."""
    if not hmac.compare_digest(fingerprint(key, settings.cluster), settings.key_fingerprint):
        raise WrongClusterKeyError(
            f"this is not the key of the cluster {settings.cluster!r}, whose fingerprint is "
            f"{settings.key_fingerprint}",
            remedy="set cluster_key (DELAYD_CLUSTER_KEY) to what `delayd topics create` printed; "
            "all nodes have the same",
        )


def proof_key(key: str) -> bytes:
    """Return the key as HMAC takes it."""
    return key.encode()
