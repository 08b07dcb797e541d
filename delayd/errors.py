"""Errors of the environment: disk, Kafka, etcd, configuration.

Not here: bugs (they are assertions) and someone else's bad input (it becomes a verdict or a dead
letter, never an exception that travels).

Invariant: every error says what happened, carries a stable code, and says what to do about it.
"""

import errno
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import ClassVar, Final, TypeAlias


class ExitCode(IntEnum):
    """How a process ends. The numbers are part of the command-line contract."""

    FINE = 0
    PROBLEM = 1
    USAGE = 2
    UNREACHABLE = 3


Remedies: TypeAlias = Sequence[tuple[Sequence[str], str]]
"""Words that the text of an error may contain, in lower case, and what to do then."""


def remedy_in(remedies: Remedies, why: str, otherwise: str) -> str:
    """Return what to do by the text of someone else's error: the first remedy that fits."""
    text = why.lower()
    return next((do for words, do in remedies if any(each in text for each in words)), otherwise)


class DelaydError(Exception):
    """An environment failure that a person must read. Abstract: each kind has a class and a code.

    `code` is a stable slug for logs and tests, `remedy` a sentence that says what to do, and
    `exit_code` is how a process that cannot go on ends.
    """

    code: ClassVar[str]
    exit_code: ClassVar[ExitCode] = ExitCode.PROBLEM

    def __init__(self, message: str, *, remedy: str = "") -> None:
        assert type(self) is not DelaydError, "raise a subclass: it has a code of its own"
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} ({self.remedy})" if self.remedy else self.message


class KafkaUnreachableError(DelaydError):
    """No broker answered within the bound."""

    code = "kafka-unreachable"
    exit_code = ExitCode.UNREACHABLE


class EtcdUnreachableError(DelaydError):
    """No etcd endpoint answered within the bound."""

    code = "etcd-unreachable"
    exit_code = ExitCode.UNREACHABLE


class NodeUnreachableError(DelaydError):
    """No node answered on its admin port within the bound."""

    code = "node-unreachable"
    exit_code = ExitCode.UNREACHABLE


class SourceUnreachableError(DelaydError):
    """The system that is imported from did not answer, or refused; a later run goes on."""

    code = "source-unreachable"
    exit_code = ExitCode.UNREACHABLE


class TopicMismatchError(DelaydError):
    """A delayd topic or a broker setting is not what the contract needs; nothing was started."""

    code = "topic-mismatch"


class NotInitialisedError(DelaydError):
    """There is no frontier record: the cluster was never initialised, or its topic was lost."""

    code = "not-initialised"


class OtherClusterError(DelaydError):
    """The topics, or the keys in etcd, belong to another cluster; nothing was started."""

    code = "other-cluster"


class VirtualClusterError(DelaydError):
    """The cluster's time is virtual and this program's is real, or the other way round; nothing was
    started."""

    code = "virtual-cluster"


class WrongClusterKeyError(DelaydError):
    """The cluster key is not the one that the cluster was made with; nothing was started."""

    code = "wrong-cluster-key"


class UpgradeError(DelaydError):
    """The cluster cannot be switched to something newer yet."""

    code = "upgrade"


class PauseError(DelaydError):
    """An order to pause or resume a target cannot be obeyed, or nobody has obeyed it yet."""

    code = "pause"


class QuotaError(DelaydError):
    """An order to limit a target cannot be obeyed, or nobody has obeyed it yet."""

    code = "quota"


class ReshardError(DelaydError):
    """The number of shards could not be changed."""

    code = "reshard"


class ShardsChangedError(DelaydError):
    """The cluster has, or is getting, another number of shards than this program began with."""

    code = "shards-changed"


class MoveError(DelaydError):
    """Messages cannot be moved to another cluster as things are; what was moved stays moved."""

    code = "move"


class FrontierError(DelaydError):
    """The frontier topic contradicts the protocol; delivering would risk loss or doubles."""

    code = "frontier"


class BufferPositionError(DelaydError):
    """The buffer's log does not hold what this node's checkpoint says it must."""

    code = "buffer-position"


class BufferTrimmedError(BufferPositionError):
    """The buffer was trimmed beyond what this node has ingested."""


class LogNotEnoughError(BufferTrimmedError):
    """A record that was trimmed may decide about a kept one: another start does not know more."""


class ProducerError(DelaydError):
    """The transactional producer failed; it must be discarded and takeover begun again."""

    code = "producer"

    def __init__(
        self,
        message: str,
        *,
        remedy: str = "",
        refusals: Mapping[str, str] | None = None,
        silent: Iterable[tuple[str, int]] = (),
        is_broker_gone: bool = False,
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.is_broker_gone = is_broker_gone
        """True if it was given up because a broker was replaced: a new producer finds by what."""
        self.refusals: Mapping[str, str] = dict(refusals or {})
        """Topics that did not take their records, each with Kafka's name of the error."""
        self.silent: frozenset[tuple[str, int]] = frozenset(silent)
        """Topics and partitions that had acknowledged not all of their records when the time was
        over; empty if the failure is another one, or that is not known."""

    @property
    def topics(self) -> frozenset[str]:
        """The topics whose records were refused; empty if that is not known."""
        return frozenset(self.refusals)


class FencedError(ProducerError):
    """A successor holds the transactional id: this node is no longer the master."""

    code = "fenced"


class ConsumerError(DelaydError):
    """Reading a topic failed for good."""

    code = "consumer"


class CoordinationError(DelaydError):
    """etcd did not answer, or refused; the outcome of the call is unknown."""

    code = "coordination"


class DiskError(DelaydError):
    """A write, sync or read of the wheel failed; the node must stop and must not go on with it."""

    code = "disk"


class DiskFullError(DiskError):
    """A write found no room on the disk, and was taken back."""


NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
"""What the operating system says of a full disk."""


def is_disk_full(error: Exception) -> bool:
    """Return whether only room is missing on a disk."""
    if isinstance(error, OSError):
        return error.errno in NO_ROOM
    return isinstance(error, DiskFullError)


class CorruptionError(DiskError):
    """Stored bytes are not what was written: slot, byte range and count are in the message."""

    code = "corruption"


class WheelDiffersError(DelaydError):
    """The node's wheel is not like the others: its next start builds another one from the log."""

    code = "wheel-differs"


class SnapshotError(DelaydError):
    """No other node gave its wheel, or what it gave cannot be used; nothing was replaced."""

    code = "snapshot"


class BackupError(DelaydError):
    """A backup cannot be made, read or used; what was there before is as it was."""

    code = "backup"


class RecoverError(DelaydError):
    """A cluster cannot be recovered as things are; what was written before stays true."""

    code = "recover"


class ConfigError(DelaydError):
    """A setting is missing or makes no sense."""

    code = "config"
    exit_code = ExitCode.USAGE
