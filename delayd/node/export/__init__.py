"""A node's export: the messages that are pending on it at exactly one cut, as a Parquet file.

    exporter.py   one export at a time: pins the cut, waits, freezes, starts the writer, cleans up
    freezing.py   the cut on disk: which bytes of which slots, and what is killed
    manifest.py   that folder's grammar, for both sides
    child.py      the writer's process: started, waited for, ended
    writer.py     the process itself: slots and kills in, rows out
    segments.py   which frames of a slot or an hour are pending; their payload CRC
    rows.py       rows to Parquet

Pending at the cut (K, O) is every message with an offset below O that is not in Done(K, O) and that
no cancel marker below O has killed. All that decides it is fixed once the node has ingested that;
files only grow, so that the writer needs no lock and the node goes on.

Invariants: a file that is handed out is complete; nothing of an export outlives it, whichever ends
first: the client, the node or the writer.
Source: docs/design/storage.md, "Exports".
"""
