"""delayd: replicated delayed messages for Kafka.

The package holds the node, its storage, its adapters and the command line; the protocol itself is
the sibling package `replication`, which is pure. `delayd.Client` and `delayd.AsyncClient` schedule
messages from Python; they are loaded when first used, so that `import delayd` stays light.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from delayd.client import AsyncClient as AsyncClient
    from delayd.client import Client as Client
    from delayd.client import RetryPolicy as RetryPolicy
    from delayd.client import retry as retry

__version__ = "0.2.0"

__all__ = ["AsyncClient", "Client", "RetryPolicy", "__version__", "retry"]


def __getattr__(name: str) -> Any:
    if name in ("AsyncClient", "Client", "RetryPolicy", "retry"):
        import delayd.client

        return getattr(delayd.client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
