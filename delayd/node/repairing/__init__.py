"""Repairing a wheel that differs from the others: the node builds another one from the log.

| file | what it holds |
|---|---|
| `deciding.py` | whether a node repairs its wheel, and whether the repair has succeeded. Pure |
| `repairer.py` | what a running node does about it |
| `starting.py` | what its next start does |
| `log_proof.py` | whether the log is enough |
| `turn.py` | whose turn it is, in etcd |

Invariants: what takes the place of a wheel is a function of the log alone; the wheel that differs
is kept while there is room, and nothing begins without it; a node repairs once, and again only when
it was found to be like the others, a day later.
Source: docs/design/repairing.md.
"""
