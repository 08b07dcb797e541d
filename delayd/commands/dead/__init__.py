"""Dead letters for people: `delayd dead list`, `show` and `redrive`.

| file | what it holds |
|---|---|
| `reading.py` | the selection of letters, and reading them from their topic |
| `redriving.py` | letters sent again, and the outcome of each |
| `showing.py` | letters and outcomes as text and JSON. Pure |
| `commands.py` | the commands |

Not here: the form of a letter and of its redrive (`delayd.request`). Ingest makes sure that a
letter is redriven once, whoever sends the redrive.

Invariant: memory does not grow with the number of letters.
"""
