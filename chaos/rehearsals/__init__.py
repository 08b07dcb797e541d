"""Disasters rehearsed as an operator would meet them: `python -m chaos rehearse`.

| file | what |
|---|---|
| `course.py` | the cluster of a rehearsal, what is asked of it, and the count of what came |
| `disasters.py` | the four disasters, each with the commands of docs/disaster-recovery.md |
| `lost_markers.py` | taking commit markers out of a stopped broker's log |
| `rehearsing.py` | one after the other, with other seeds; the report |

Invariant: a rehearsal ends with a count by kafka-python, which knows nothing of delayd, and with
`delayd audit`. One that did not come to both has failed.
"""
