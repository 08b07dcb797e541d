"""Why brokers refuse a client, in the drivers' words, and what to do about it.

Not here: how a driver comes to know it.

Invariant: whatever else a library says, it has a remedy; none of them holds a secret.
"""

from typing import Final

from delayd.errors import Remedies, remedy_in

_AWAY: Final = (
    "check that Kafka runs, the bootstrap address, and that kafka_security_protocol is the brokers'"
)

_REMEDIES: Final[Remedies] = (
    (
        ("certificate verify failed", "certificate_verify_failed"),
        "check that an authority in kafka_ca_file signed the brokers' certificate, that it is "
        "still valid, and that it names the address in bootstrap",
    ),
    (
        # Not "sasl" alone: the addresses of such listeners begin with it.
        ("authentication", "sasl mechanism", "saslmechanism", "sasl_mechanism"),
        "correct kafka_user, kafka_password and kafka_sasl_mechanism, or give the user that "
        "password in Kafka",
    ),
    (
        ("alert", "certificate required"),
        "the brokers refuse this client's certificate: check that kafka_cert_file and "
        "kafka_key_file are set, still valid, and signed by an authority that the brokers trust",
    ),
    (
        ("plaintext broker", "unexpected_eof", "wrong_version_number", "record_layer_failure"),
        "this listener speaks no TLS: correct kafka_security_protocol, or the port in bootstrap",
    ),
    (
        ("apiversion_query", "socket disconnected"),
        "the broker closed the connection at once: this listener may need TLS or SASL, see "
        "kafka_security_protocol",
    ),
)


def remedy_of(why: str) -> str:
    """Return what to do, by the text of a connection's error."""
    return remedy_in(_REMEDIES, why, _AWAY)
