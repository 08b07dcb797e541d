"""The delivery audit, kept running: batch after batch of what has come to the topics.

    batch_header.py       where a batch begins and ends, and whether it continues the journal
    batch_context.py      what judging needs besides the tables: frontier, times, how far was read
    watched_requests.py   the table of watched requests, and the files that keep it
    rules.py              which of them a batch changes, and what becomes of them (pure)
    alarms.py             which deliveries are wrong (pure)
    journal.py            one file for each judged batch, so that each is judged once
    alarm_log.py          reports every alarm once
    metrics.py            the file of metrics
    batch.py              one batch, from records to its place in the journal
    stall_watch.py        whether batches still come (pure)

`../follow.py` runs it. Its rules are narrower than an audit's, so that a batch costs little and
what is remembered is bounded: it finds what is lost, there twice, early, altered, a ghost or
unknown.

Invariants: no false alarm in whatever order topics are read; the same batch gives the same alarms.
"""
