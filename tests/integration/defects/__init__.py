"""Defects planted in what a real cluster left behind, for an audit that must find each of them.

| file | what it holds |
|---|---|
| `batches.py` | Kafka's record batches as bytes. Pure |
| `surgery.py` | a stopped broker's partitions, changed in place |

Not here: anything that a user could do. A broker would refuse all of it.
"""
