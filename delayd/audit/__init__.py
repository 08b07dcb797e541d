"""The audit: the requests, compared with what is in the targets and on every replica's disk.

It believes nothing that delayd says about itself. Requests are read from the buffer and judged
again; receipts, dead letters and frontiers are claims, to be checked like everything else.

    cut.py        which moment is judged, the offsets to read, the nodes' exports
    reading/      Kafka topics into Spark, Parquet in between
    tables.py     what each table holds
    judging/      pure functions from tables to tables: what is wrong, and the figures
    report.py     the outcome as a value; `showing/` makes text, JSON and a page of it
    follow.py     the delivery audit, kept running

Not here: anything that runs in a node. A node's export is `delayd/node/export/`.

Invariants: no row passes through Python after it was read; nothing is collected but what is
bounded; the same cut gives the same findings.
"""
