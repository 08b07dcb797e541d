"""What replicas must all hold, and where they do not: digests, and frames by name.

| file | what it holds |
|---|---|
| `common_cut.py` | the content that all must hold, at whatever checkpoint each is. Pure |
| `digest_tree.py` | the slots that differ, from the top of a tree of digests down. Pure |
| `held.py` | the digests and frames of one checkpoint |

Two stopped wheels are compared by `delayd wheel diff`, running ones by `delayd.node.comparing`.
Source: docs/design/storage.md, "Comparing two wheels" and "Comparing running nodes".
"""
