"""delayd: replicated delayed messages for Kafka.

The package holds the node, its storage, its adapters and the command line; the protocol itself is
the sibling package `replication`, which is pure. `delayd.Client` schedules messages from Python; it
is loaded when first used, so that `import delayd` stays light.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from delayd.client import Client as Client

__version__ = "0.1.0"

__all__ = ["Client", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "Client":
        from delayd.client import Client

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
