"""delayd: replicated delayed messages for Kafka.

The package holds the node, its storage, its adapters and the command line; the protocol itself is
the sibling package `replication`, which is pure.
"""

__version__ = "0.1.0"
