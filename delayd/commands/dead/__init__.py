"""Dead letters for people: `delayd dead list`, `show` and `redrive`.

| file | what it holds |
|---|---|
| `wanted.py` | which letters are meant. Pure |
| `reading.py` | letters from their topic |
| `redriving.py` | letters sent again, and what became of each |
| `showing.py` | letters and outcomes as text and JSON. Pure |
| `commands.py` | the commands |

Not here: what a letter is and how it is sent again (`delayd.request`), and that it goes out once:
ingest sees to that, whoever sends the redrive.

Invariant: memory does not grow with the number of letters.
"""
