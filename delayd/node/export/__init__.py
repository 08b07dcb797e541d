"""A node's export: what it holds as pending at exactly one cut, as a Parquet file.

    exporter.py   one export at a time: pins the cut, waits, freezes, starts the writer, cleans up
    freezing.py   the cut on disk: which bytes of which slots, and who was killed
    manifest.py   that folder's grammar, for both sides
    child.py      the writer's process: started, waited for, ended
    writer.py     the process itself: slots and kills in, rows out
    segments.py   which frames of a slot or an hour are pending
    payload.py    the payload CRC
    rows.py       rows to Parquet

Pending at the cut (K, O) is every message with an offset below O that is not in Done(K, O) and that
no mark below O has killed. Everything that decides it was fixed when the node had ingested up to O;
files only grow, so the writer needs no lock, and the node goes on.

Invariants: a file that is handed out is complete; nothing of an export outlives it, whatever ends
first: the client, the node or the writer.
Source: docs/design/storage.md, "Exports".
"""
