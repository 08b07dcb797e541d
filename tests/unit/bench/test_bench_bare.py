"""The bare driver is set as a node's producer is, or it would be no measure of it."""

from delayd.bench import bare
from delayd.bus.confluent import settings


def test_its_transactions_have_the_settings_of_a_node() -> None:
    assert bare.LINGER_MS == settings.TRANSACTION_LINGER_MS
    assert bare.RETRY_BACKOFF_MS == settings.RETRY_BACKOFF_MS
