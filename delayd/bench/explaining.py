"""What each benchmark measures, and against what, for the page that is made of a run."""

from typing import Final

EXPLAINED: Final[dict[str, str]] = {
    "raw": (
        "The limit on these brokers: confluent-kafka alone, in one process. `raw-transactions` "
        "writes 10,000 records in a transaction, with the five headers that delivered messages "
        "have; `raw-consume` reads them, `read_committed`, and looks at none."
    ),
    "ingest": (
        "One node starts before a full buffer and takes it in; nothing becomes due meanwhile. "
        "Against a bare read of the same buffer, by a consumer that looks at no record."
    ),
    "deliver": (
        "One node takes a backlog in, ends, and starts again when all of it is due. The rate is "
        "that of its exactly-once delivery, frontier records and all, while nobody reads the "
        "target. Against bare transactions of 10,000 records with the same headers."
    ),
    "hot-second": (
        "Three nodes, and very many messages due within one second, taken in before. A reader in "
        "a process of its own receives them; `hot-second-last` is the latest of all. "
        "`hot-second-other-lane-last` is the latest of 100 messages a second to a target of "
        "another lane, over ten seconds around. `hot-second-memory` is the peak of the master's "
        "own memory."
    ),
    "lateness": (
        "Three nodes, many messages pending over 30 days, and an even rate of messages that are "
        "sent about five seconds before they are due. Against a bare transactional producer that "
        "writes messages of the same rate as soon as each is due, to the same reader."
    ),
    "failover": (
        "Three nodes under an even load; `kill -9` of the master, again and again. "
        "`failover-gap` is from the signal to the first record of the successor at a "
        "`read_committed` reader, most of it the lease of 3 seconds; `failover-caught-up`, until "
        "a message is at most 100 ms late. Against what the bare driver needs to take over the "
        "transactional id of a producer that is in the midst of a transaction."
    ),
    "handover": (
        "The same with SIGTERM: the longest time without any record at the reader, around each."
    ),
    "scale": (
        "Two clusters of one node each beside each other, one with very many messages pending "
        "over 30 days, the other with a hundredth. Processor time of the node for each message "
        "that is taken in (due over the same 30 days), and for each that is delivered (at an even "
        "rate, from when all are taken in until all are received)."
    ),
    "memory": (
        "Of the same two nodes, summed over their processes: RssAnon, which is their own, and "
        "RssFile, pages of mapped files that the kernel takes back when it wants."
    ),
    "startup": (
        "The same two nodes, each killed with `kill -9` while it takes messages in: from starting "
        "it again until it says that it could take over."
    ),
}
