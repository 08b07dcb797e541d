"""`delayd move`: the pending messages of an old cluster go into a new one, each once.

| file | what it holds |
|---|---|
| `source.py` | what is pending in the wheel of a stopped node, by rank |
| `requests.py` | a pending message as a request to the new cluster |
| `planning.py` | what a move would do: counts, doubts, what would be refused |
| `old_cluster.py` | the old cluster's frontier: fenced, read, and ended |
| `progress.py` | how far a move has come: `<prefix>moved`, in the new cluster |
| `moving.py` | the run, from begin to end |
| `accepting.py` | what the new cluster made of it |
| `showing.py`, `commands.py` | the result as text and JSON; the command |

Invariants:
- a message and the progress behind it are committed in one transaction of the new cluster, whose
  transactional id belongs to this move alone;
- the order is that of the ranks, and what is pending is fixed by the first record of progress: any
  wheel of the old cluster that holds the same goes on where another one stopped;
- nothing is written to the new cluster before the old one's frontier topic says that it was moved,
  where that topic can still be written.

Source: docs/design/moving.md.
"""
