"""Brokers: their settings, the features that they run, and the log of transactions."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Final

from delayd.bus import TopicState
from delayd.commands.doctor.case import Means
from delayd.commands.doctor.finding import Finding, Severity
from delayd.node.startup_checks import BROKER_SESSION, BROKER_SESSION_MS_MAX

TRANSACTION_LOG: Final = "__transaction_state"
COPIES: Final = 3
TRANSACTION_TIMEOUT_MS: Final = 10_000
"""What masters ask for, with either driver."""
FEATURES: Final = ("transaction.version", "metadata.version")
"""Features that matter here: with the second level of the first, brokers do not leave transactions
hanging any more (KIP-890)."""

WRONG_VALUES: Final[Mapping[str, tuple[str, str, str]]] = {
    "unclean.leader.election.enable": (
        "true",
        "false",
        "a broker that lacks records may lead, and records are lost",
    ),
    "transaction.partition.verification.enable": (
        "false",
        "true",
        "a late record of a dead producer may leave a transaction open for ever",
    ),
}
"""By setting: the value that is wrong, the one that is right, and what the wrong one does."""


def look_at_brokers(means: Means, count: int) -> Iterator[Finding]:
    """Yield what is wrong with the brokers."""
    with closing(means.bus.cluster()) as kafka:
        told = kafka.broker_settings(means.timeout_ms)
        states = kafka.describe([TRANSACTION_LOG], means.timeout_ms)
    if count == 1:
        what = (
            "there is one broker: with its disk the messages are lost, and without it nothing goes"
        )
        yield Finding("one-broker", Severity.ADVICE, what, "have three brokers")
    for broker, settings in sorted(told.items()):
        yield from _settings_of(broker, settings, means.bootstrap, count)
    for state in states.values():
        yield from transaction_log(state, means.bootstrap, count)
    for name, (level, highest) in means.raw.features(means.timeout_ms).items():
        if name in FEATURES and level < highest:
            yield Finding(
                "kafka-features",
                Severity.WARNING if name == FEATURES[0] else Severity.ADVICE,
                f"the cluster runs {name} {level}, and its brokers know {highest}",
                f"kafka-features.sh --bootstrap-server {means.bootstrap} upgrade "
                f"--feature {name}={highest}",
            )


def _settings_of(
    broker: int, settings: Mapping[str, str], bootstrap: str, count: int
) -> Iterator[Finding]:
    alter = f"kafka-configs.sh --bootstrap-server {bootstrap} --alter --entity-type brokers"
    for name, (wrong, right, does) in WRONG_VALUES.items():
        if settings.get(name) == wrong:
            yield Finding(
                "broker-setting",
                Severity.WARNING,
                f"broker {broker} has {name} = {wrong}: {does}",
                f"{alter} --entity-default --add-config {name}={right}",
            )
    session_ms = int(settings.get(BROKER_SESSION) or 0)
    if count > 1 and session_ms > BROKER_SESSION_MS_MAX:
        yield Finding(
            "broker-session",
            Severity.WARNING,
            f"broker {broker} has {BROKER_SESSION} = {session_ms}: one that hangs holds up all "
            "deliveries for so long",
            f"set {BROKER_SESSION}={BROKER_SESSION_MS_MAX} in server.properties of the "
            "controllers, and restart them one by one",
        )
    longest_ms = int(settings.get("transaction.max.timeout.ms") or TRANSACTION_TIMEOUT_MS)
    if longest_ms < TRANSACTION_TIMEOUT_MS:
        yield Finding(
            "transactions-refused",
            Severity.CRITICAL,
            f"broker {broker} has transaction.max.timeout.ms = {longest_ms}, and refuses masters, "
            f"which ask for {TRANSACTION_TIMEOUT_MS}",
            f"{alter} --entity-default --add-config transaction.max.timeout.ms=900000",
        )


def transaction_log(state: TopicState, bootstrap: str, count: int) -> Iterator[Finding]:
    """Yield what is wrong with the log of transactions: with it all deliveries stand or fall."""
    copies = min((each.replicas for each in state.partitions), default=COPIES)
    least = int(state.config.get("min.insync.replicas", "1"))
    if any(each.leader is None or each.in_sync < least for each in state.partitions):
        yield Finding(
            "transaction-log-down",
            Severity.CRITICAL,
            f"{state.name} lacks leaders or replicas: masters may be unable to deliver",
            f"kafka-topics.sh --bootstrap-server {bootstrap} --describe --topic {state.name}, then "
            "start the brokers that hold it",
        )
    if copies < min(COPIES, count):
        yield Finding(
            "transaction-log",
            Severity.WARNING,
            f"{state.name} has {copies} replicas on {count} brokers: one broker that dies may "
            "take commit markers with it",
            f"kafka-reassign-partitions.sh --bootstrap-server {bootstrap} --execute "
            f"--reassignment-json-file FILE, with {min(COPIES, count)} replicas of each partition",
        )
    elif copies >= COPIES and least < 2:
        yield Finding(
            "transaction-log",
            Severity.WARNING,
            f"{state.name} has min.insync.replicas = {least}: a commit may be on one broker alone",
            f"kafka-configs.sh --bootstrap-server {bootstrap} --alter --entity-type topics "
            f"--entity-name {state.name} --add-config min.insync.replicas=2",
        )
