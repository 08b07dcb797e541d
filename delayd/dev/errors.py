"""What can go wrong with the local cluster. All end the command with exit code 1."""

from delayd.errors import DelaydError


class JarsError(DelaydError):
    """Kafka's jars could not be fetched; the cache holds nothing half-done."""

    code = "kafka-jars"


class LocalClusterError(DelaydError):
    """The local cluster is not in the state that the command needs, or a part did not start."""

    code = "local-cluster"
