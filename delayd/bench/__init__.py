"""`delayd bench`: how fast delayd is on this machine, compared with a bare driver in the same
minutes.

Machines differ, so figures come with a ratio: mostly against bare confluent-kafka doing the
necessary part of the same work on the same brokers. Each benchmark counts which of its own messages
were lost, doubled, early or altered.

    rates.py hot_second.py lateness.py failovers.py pair.py    in `all`
    window.py neighbours.py audits.py shards.py wheels/    not in `all`
    load.py sending.py reading.py receipts.py    messages, from the first to the verdict
    bare.py             the bare driver
    job.py brokers.py nodes.py process_costs.py    where it happens, and what it costs
    figures.py goals.py result.py report.py plot.py    what comes of it

Not here: tests. A benchmark never passes or fails by how large a figure is.
"""
