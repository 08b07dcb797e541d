"""The wheel of a node that is stopped: `delayd wheel inspect`, `verify` and `repair`.

| file | what it holds |
|---|---|
| `inspecting.py` | what is in a wheel, by its catalogue alone |
| `verifying.py` | every byte of a wheel against its checkpoint |
| `findings.py` | what a verification found |
| `repairing.py` | damaged files, written once more from the buffer |
| `replaying.py` | the buffer's log once more, through the ingest rules |
| `showing.py` | both as text and JSON. Pure |
| `commands.py` | the commands |

Not here: how a wheel is opened without changing it, and how one slot's file is judged
(`delayd.wheel`).

Invariants: nothing in the data directory is changed, but by a repair; memory does not grow with
what is pending, but by some hundred bytes an hour of due times.
"""
