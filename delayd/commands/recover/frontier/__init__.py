"""`delayd recover frontier`: a lost frontier, worked out from what steps have left behind.

| file | what it holds |
|---|---|
| `clues.py` | what steps have left behind in targets, dead letters, receipts and buffer |
| `working_out.py` | what became of each message, and where to go on. Pure |
| `recovering.py` | the run: whose cluster it is, the fence, the record |
| `showing.py` | the result as text and JSON. Pure |

The rules are in `replication/recovered.py`. Source: docs/design/recovering.md.
"""
