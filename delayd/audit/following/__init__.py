"""The delivery audit, kept running: batch after batch of what has come to the topics.

    said.py       what a batch is, and does it follow the journal?
    moment.py     what a batch has to know besides its tables: frontier, time, how far was read
    watched.py    the table of requests that are watched, and how it is kept in files
    rules.py      which of them a batch is about, and what becomes of them (pure)
    alarms.py     which deliveries are wrong (pure)
    journal.py    one file for each batch that was judged, so that each is judged once
    telling.py    every alarm once
    whole.py      files that are there whole, whenever power is lost
    metrics.py    the file of metrics
    batch.py      one batch, from records to its place in the journal
    pulse.py      whether batches still come (pure)
    failures.py   why a follower ends by itself

`../follow.py` runs it. Its rules are narrower than an audit's, so that a batch costs little and
what is remembered is bounded: it finds what is lost, there twice, early, altered, a ghost or
unknown.

Invariants: no false alarm in whatever order topics are read; the same batch gives the same alarms.
"""
