"""The wheel of a stopped node: `delayd wheel inspect`, `verify`, `repair`, `diff`, `export`.

| file | what it holds |
|---|---|
| `inspecting.py` | what is in a wheel, by its catalogue alone |
| `verifying.py` | every byte of a wheel against its checkpoint |
| `findings.py` | what a verification found |
| `repairing.py` | damaged files, written once more from the buffer |
| `replaying.py` | the buffer's log once more, through the ingest rules |
| `diffing.py` | do two wheels hold the same? |
| `common_cut.py` | what both must hold, whenever they were stopped. Pure |
| `digest_tree.py` | which slots differ, from the top of a tree of digests downwards. Pure |
| `held.py` | the digests and frames of one of the two |
| `exporting.py` | what is pending, as Parquet |
| `showing.py`, `showing_diff.py`, `showing_export.py` | all of these as text and JSON. Pure |
| `commands.py` | the commands |

Not here: how a wheel is opened without changing it, and how one slot's file is judged
(`delayd.wheel`).

Invariants: nothing in the data directory is changed, but by a repair; memory does not grow with
what is pending, but by some hundred bytes an hour of due times.
"""
