"""What the elections of a node share, as one value: one node, one member key, one pulse."""

from dataclasses import dataclass

from delayd.coordination import Coordination
from delayd.node.election.etcd_calls import Identity
from delayd.node.election.etcd_health import EtcdHealth
from delayd.node.election.heartbeat import Heartbeat
from delayd.node.election.kafka_contact import KafkaContact
from delayd.node.election.leader_reads import LeaderReads
from delayd.node.election.membership import Membership
from delayd.node.election.pulse_line import Exchange
from delayd.node.replica.replica import Replica
from delayd.runtime.clock import Clock


@dataclass(frozen=True, slots=True)
class ElectionContext:
    """Of one life of a node."""

    coordination: Coordination
    replica: Replica
    clock: Clock
    identity: Identity
    health: EtcdHealth
    membership: Membership
    heartbeat: Heartbeat
    exchange: Exchange | None = None
    """The way to other nodes' pulses; None: this node listens to none."""
    contact: KafkaContact | None = None
    """With Kafka; there is one where there is an exchange."""
    suspicion_ms: int = 0
    """See `replication.pulse`."""
    leaders: LeaderReads | None = None
    """What reads the leader keys of several shards; None: each election reads its own."""
