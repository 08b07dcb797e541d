"""The client's one import of kafka-python: making its objects, and what their failures mean."""

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from delayd.bus.refusals import remedy_of
from delayd.client.driver import cannot_be_made
from delayd.errors import KafkaUnreachableError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the library's own code; not ours to mend
    from kafka import KafkaConsumer, KafkaProducer
    from kafka import errors as faults

T = TypeVar("T")


def made(kind: Callable[[dict[str, Any]], T], properties: dict[str, Any]) -> T:
    """Return an object of the library; KafkaUnreachableError if making it connects in vain."""
    try:
        return kind(properties)
    except faults.KafkaTimeoutError as error:
        why = str(error)
        raise KafkaUnreachableError(f"no broker answered: {why}", remedy=remedy_of(why)) from error
    except (faults.KafkaError, ValueError, TypeError, AssertionError, RuntimeError) as error:
        raise cannot_be_made("the client of kafka-python", error) from error
