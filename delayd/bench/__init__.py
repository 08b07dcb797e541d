"""`delayd bench`: how fast this machine is with delayd, beside something else in the same minutes.

Machines differ, so figures come with a ratio: mostly against bare confluent-kafka doing the part of
the work that cannot be left out, on the same brokers. Each benchmark counts what was lost, doubled,
early or altered of its own messages.

    raw.py ingest.py deliver.py hot_second.py lateness.py failovers.py
    scale.py memory.py startup.py   (on the two clusters of pending.py)
    neighbours.py audits.py wheels/    not in `all`
    load.py sending.py reading.py receipts.py    messages, from the first to the verdict
    bare.py             the bare driver
    brokers.py nodes.py     where it happens
    figures.py goals.py result.py report.py plot.py    what comes of it

Not here: tests; a benchmark never passes or fails by how large a figure is.
"""
