"""Why etcd refuses a client, in its own words, and what to do about it.

Invariant: whatever else is said, there is something to do; no text holds a secret.
"""

from typing import Final

from delayd.errors import Remedies, remedy_in

_AWAY: Final = "start etcd, or correct the endpoints"

_REMEDIES: Final[Remedies] = (
    (
        ("commonname of client",),
        "an etcd with users accepts no named client over HTTP: give delayd a certificate without "
        "a common name",
    ),
    (
        ("authentication failed", "invalid auth token"),
        "correct etcd_user and etcd_password",
    ),
    (
        ("user name is empty", "permission denied"),
        "give delayd an etcd_user with the right to read and write below /delayd/",
    ),
    (
        ("authentication is not enabled",),
        "remove etcd_user and etcd_password, or enable authentication in etcd",
    ),
    (
        ("certificate verify failed",),
        "check that an authority in etcd_ca_file signed etcd's certificate, that it is still "
        "valid, and that it names the host in etcd",
    ),
    (
        ("alert", "certificate required"),
        "etcd refuses this client's certificate: check that etcd_cert_file and etcd_key_file are "
        "set, still valid, and signed by an authority that etcd trusts",
    ),
    (
        ("wrong_version_number", "unexpected_eof", "record_layer_failure"),
        "this endpoint speaks no TLS: write it with http://",
    ),
    (
        ("http request to an https server", "connection reset", "remote end closed"),
        "this endpoint may need TLS: write it with https://",
    ),
)


def remedy_of(why: str) -> str:
    """Return what to do, by the text of an error."""
    return remedy_in(_REMEDIES, why, _AWAY)
