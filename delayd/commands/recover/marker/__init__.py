"""`delayd recover marker`: transactions of steps that Kafka has ended in part only.

| file | what it holds |
|---|---|
| `pieces.py` | the log of one partition, cut into what single steps wrote there |
| `wholeness.py` | whether all that a step wrote is there: pure |
| `deciding.py` | what becomes of each piece: pure |
| `changes.py` | a change of all shards that hangs: its outcome, and the markers |
| `looking.py` | the facts: which partitions, from where on, and what lies there |
| `mending.py` | writing the markers, and again what was aborted |
| `showing.py`, `commands.py` | the result as text and JSON; the command |

Invariants:
- only transactions of this cluster's masters are touched: what a step wrote, by one producer;
- of a step, all becomes visible or nothing: all, if anything of it was visible;
- the frontier becomes visible last, and a node that starts before that refuses to lead;
- nothing is written while a node may be running.

Source: docs/design/lost-markers.md.
"""
