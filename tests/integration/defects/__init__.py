"""Defects planted in what a real cluster left behind, for an audit that must find each of them.

| file | what it holds |
|---|---|
| `load.py` | a cluster with a past of everything, at rest |
| `past.py` | what it left, and the victims in it |
| `catalogue.py`, `catalogue_claims.py` | every defect, and the findings that must come of it |
| `operation.py` | how one is planted: in topics and in exports |
| `surgery.py` | a stopped broker's partitions, changed in place |
| `batches.py` | Kafka's record batches as bytes. Pure |
| `judging.py` | what an audit finds, against what was planted |

Not here: anything that a user could do. A broker would refuse all of it.
"""
