"""What knows one shard only, and says so."""

from delayd.errors import ConfigError
from replication.settings import Settings


def refuse_shards(settings: Settings, what: str) -> None:
    """Raise ConfigError if the cluster has several shards."""
    if settings.shards > 1:
        raise ConfigError(
            f"{settings.cluster} has {settings.shards} shards, and {what} knows one only",
            remedy="nothing was changed; see docs/design/shards.md, 'What is left'",
        )
