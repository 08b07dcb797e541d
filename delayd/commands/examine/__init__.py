"""The wheel of a stopped node: `delayd wheel inspect`, `verify`, `repair`, `fetch`, `diff`,
`export`.

| file | what it holds |
|---|---|
| `inspecting.py` | the overview of a wheel, from its catalogue alone |
| `verifying.py` | every byte of a wheel compared with its checkpoint |
| `repairing.py`, `patching.py` | damaged files, written again from the buffer |
| `fetching.py` | another node's wheel, in place of this one |
| `diffing.py` | the differences of two wheels |
| `exporting.py` | the pending messages, as Parquet |
| `frontiers.py` | the frontiers of a checkpoint |
| `showing.py` | results as text and JSON. Pure |
| `commands.py` | the commands |

Not here: opening a wheel without changing it, checking the file of one slot (`delayd.wheel`), and
what two wheels must both hold (`delayd.wheel.comparing`).

Invariants: only a repair and a fetch change the data directory; memory does not grow with the
number of pending messages, except by some hundred bytes per hour of due times.
"""
