"""Dead letters for people: `delayd dead list`, `show` and `redrive`.

| file | what it holds |
|---|---|
| `showing.py` | letters and outcomes as text. Pure |
| `commands.py` | the commands |

Not here: reading letters from their topic (`delayd.cluster.dead_letters`), sending them again
(`delayd.client.redrive_outcomes`), the form of a letter and of its redrive (`delayd.request`).
Ingest makes sure that a letter is redriven once, whoever sends the redrive.

Invariant: memory does not grow with the number of letters.
"""
