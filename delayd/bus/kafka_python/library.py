"""The only file that imports kafka-python: every part of it that the driver is made of.

Not here: `KafkaConsumer`, `KafkaProducer` and `KafkaAdminClient`. They connect in their
constructors, commit offsets, refuse null header values, and close by `atexit` and `__del__`; the
parts below them do none of that (docs/adr/0014-kafka-python-for-nodes.md).

Invariant: what is imported here is not public, so the version is pinned to 3.0.x, and the
conformance suite says whether another version still has it all.
"""

import warnings

with warnings.catch_warnings():
    # It reads its schemas with a call that Python deprecates; we cannot mend that.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import errors
    from kafka.codec import has_gzip, has_lz4, has_snappy, has_zstd
    from kafka.consumer.fetcher import Fetcher
    from kafka.consumer.subscription_state import SubscriptionState
    from kafka.future import Future
    from kafka.net.compat import KafkaNetClient
    from kafka.net.inet import KafkaNetSocket, create_connection
    from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
    from kafka.producer.record_accumulator import RecordAccumulator
    from kafka.producer.sender import Sender
    from kafka.producer.transaction_manager import AddPartitionsToTxnHandler, TransactionManager
    from kafka.protocol.admin import (
        ACLOperation,
        CreatePartitionsRequest,
        CreateTopicsRequest,
        DescribeConfigsRequest,
        DescribeProducersRequest,
        DescribeTransactionsRequest,
        ListTransactionsRequest,
    )
    from kafka.protocol.consumer import (
        FetchRequest,
        IsolationLevel,
        ListOffsetsRequest,
        OffsetFetchRequest,
    )
    from kafka.protocol.metadata import (
        ApiVersionsRequest,
        CoordinatorType,
        FindCoordinatorRequest,
        MetadataRequest,
    )
    from kafka.protocol.producer import WriteTxnMarkersRequest
    from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
    from kafka.record.memory_records import MemoryRecords
    from kafka.record.util import decode_varint
    from kafka.structs import OffsetAndMetadata, TopicPartition
