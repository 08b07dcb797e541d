"""The HTTP API, `/v1` on the admin port of every node: look-ups, requests, redrives.

| file | what it holds |
|---|---|
| `app.py` | the API as a whole: its parts on one application, errors, the OpenAPI document |
| `services.py` | what the routes ask: this node's view, Kafka, etcd, a client of its own |
| `access.py` | tokens, scopes and rates |
| `intake.py` | how many requests at a time, how large, how slow |
| `desk.py` | the bounded threads in which all work is done |
| `problems.py` | errors as problem+json |
| `models.py`, `audit_models.py` | what goes in and out |
| `reads.py`, `pending.py`, `writes.py`, `dead.py`, `pauses.py`, `limits.py` | the routes |
| `audits.py` | the routes of audits |
| `kept_audits.py`, `tickets.py` | the reports of audits, on the disk; links to them |
| `page.py` | `/docs`: the document as a page, without any script or network |

Not here: what a look-up or a redrive is (`delayd.cluster`, `delayd.client`): the command line does
the same by the same code.

Invariants:
- no node is special: a change goes through Kafka, as any producer's;
- the data path is never waited for, nor made to wait: the replica's lock is held for microseconds,
  all else is read from a checkpoint, from Kafka or from etcd, in THREADS threads;
- every wait is bounded, and so is what a request takes of memory.

Source: docs/reference/http-api.md.
"""
