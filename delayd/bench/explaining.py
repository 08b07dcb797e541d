"""What each benchmark measures, and against what, for the page that is made of a run."""

from typing import Final

EXPLAINED: Final[dict[str, str]] = {
    "raw": (
        "The limit on these brokers: confluent-kafka alone, in one process. `raw-transactions` "
        "writes 10,000 records in a transaction, with the five headers that delivered messages "
        "have. `raw-consume` reads them, `read_committed`, and looks at none."
    ),
    "ingest": (
        "One node starts before a full buffer and ingests it; nothing becomes due meanwhile. "
        "Compared with a bare read of the same buffer, by a consumer that looks at no record."
    ),
    "deliver": (
        "One node ingests a backlog, ends, and starts again when all of it is due. The rate is "
        "that of its exactly-once delivery, with frontier records, while nobody reads the "
        "target. Compared with bare transactions of 10,000 records with the same headers."
    ),
    "hot-second": (
        "Three nodes, and very many messages that are due within one second and were ingested "
        "before. A reader in a process of its own receives them; `hot-second-last` is the latest "
        "of all. `hot-second-other-lane-last` is the latest of 100 messages a second to a target "
        "of another lane, over the ten seconds around it. `hot-second-memory` is the peak of the "
        "master's own memory."
    ),
    "lateness": (
        "Three nodes, many messages pending over 30 days, and an even rate of messages that are "
        "sent about five seconds before they are due. Compared with a bare transactional producer "
        "that writes messages at the same rate as soon as each is due, to the same reader."
    ),
    "failover": (
        "Three nodes under an even load; the master gets `kill -9`, again and again. "
        "`failover-gap` is the time from the signal to the successor's first record at a "
        "`read_committed` reader, most of it the lease of 3 seconds. `failover-caught-up` is the "
        "time until a message is at most 100 ms late. Compared with the time that the bare driver "
        "needs to take over the transactional id of a producer in the middle of a transaction."
    ),
    "handover": (
        "The same with SIGTERM. The figure is the longest time without a record at the reader "
        "around each signal."
    ),
    "scale": (
        "Two clusters of one node each, side by side: one with very many messages pending over 30 "
        "days, the other with a hundredth of them. Processor time of the node for each message "
        "that it ingests (due over the same 30 days), and for each that it delivers (at an even "
        "rate, from when all are ingested until all are received)."
    ),
    "memory": (
        "Memory of the same two nodes, summed over their processes: RssAnon, which is their own, "
        "and RssFile, pages of mapped files that the kernel takes back when it needs them."
    ),
    "startup": (
        "The same two nodes, each killed with `kill -9` during ingest: the time from its restart "
        "until it reports that it could take over."
    ),
}
